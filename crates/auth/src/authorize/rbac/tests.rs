//! RBAC decisions as tables, escalation, and the index compared with a simple model.
use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::*;
use crate::user::MASTERS;

fn put(rbac: &Rbac, object: &Value) {
    let kind = object["kind"].as_str().unwrap();
    let resource = RbacResource::parse(&format!("{}s", kind.to_lowercase())).unwrap();
    let meta = |k: &str| object["metadata"][k].as_str().unwrap_or("").to_owned();
    let bytes = serde_json::to_vec(object).unwrap();
    rbac.apply(resource, &meta("namespace"), &meta("name"), Change::Put(&bytes));
}

fn role(namespace: &str, name: &str, rules: Value) -> Value {
    let kind = if namespace.is_empty() { "ClusterRole" } else { "Role" };
    json!({"kind": kind, "metadata": {"namespace": namespace, "name": name}, "rules": rules})
}

fn bind(namespace: &str, name: &str, role: (&str, &str), subjects: Value) -> Value {
    let kind = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
    json!({"kind": kind, "metadata": {"namespace": namespace, "name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1}, "subjects": subjects})
}

fn cluster() -> Rbac {
    let rbac = Rbac::new();
    let pods = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]);
    for o in [
        role("", "pod-reader", pods.clone()),
        role("a", "local", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}])),
        role("", "probe", json!([{"nonResourceURLs": ["/healthz"], "verbs": ["get"]}])),
        bind("", "readers", ("ClusterRole", "pod-reader"), json!([{"kind": "Group", "name": "dev"}])),
        bind("a", "jane", ("Role", "local"), json!([{"kind": "User", "name": "jane"}])),
        bind("a", "sa", ("ClusterRole", "pod-reader"), json!([{"kind": "ServiceAccount", "name": "bot"}])),
        bind(
            "",
            "sa-far",
            ("ClusterRole", "probe"),
            json!([{"kind": "ServiceAccount", "name": "bot", "namespace": "b"}, {"kind": "ServiceAccount", "name": "x"}]),
        ),
        bind("a", "broken", ("Role", "gone"), json!([{"kind": "User", "name": "ghost"}])),
    ] {
        put(&rbac, &o);
    }
    rbac
}

#[test]
fn decisions() {
    let rbac = cluster();
    let dev = UserInfo::new("x", ["dev"]);
    let jane = UserInfo::new("jane", [""; 0]);
    let bot_a = UserInfo::service_account("a", "bot", "");
    let bot_b = UserInfo::service_account("b", "bot", "");
    let ghost = UserInfo::new("ghost", [""; 0]);
    let get = |u, resource, ns| rbac.authorize(&Attributes::resource(u, "get", "", resource, ns, "n"));
    assert_eq!(
        get(&dev, "pods", "a"),
        Decision::Allow(
            "RBAC: allowed by ClusterRoleBinding \"readers\" of ClusterRole \"pod-reader\" to Group \"dev\"".into()
        )
    );
    assert!(get(&dev, "pods", "").is_allow());
    assert!(!get(&dev, "secrets", "a").is_allow());
    assert!(!get(&jane, "pods", "a").is_allow());
    assert_eq!(
        get(&jane, "configmaps", "a").reason(),
        "RBAC: allowed by RoleBinding \"jane/a\" of Role \"local\" to User \"jane\""
    );
    assert!(!get(&jane, "configmaps", "b").is_allow());
    assert!(!get(&jane, "configmaps", "").is_allow());
    assert!(get(&bot_a, "pods", "a").is_allow());
    assert!(!get(&bot_a, "pods", "b").is_allow());
    assert!(!get(&bot_b, "pods", "a").is_allow());
    assert!(rbac.authorize(&Attributes::path(&bot_b, "get", "/healthz")).is_allow());
    assert_eq!(get(&ghost, "pods", "a").reason(), "RBAC: role.rbac.authorization.k8s.io \"gone\" not found");
    assert_eq!(rbac.rules_for(&dev, "a").rules.len(), 1);
    assert_eq!(rbac.rules_for(&ghost, "a").errors.len(), 1);

    rbac.apply(RbacResource::ClusterRoleBindings, "", "readers", Change::Delete);
    assert!(!get(&dev, "pods", "a").is_allow());
    rbac.apply(RbacResource::Roles, "a", "local", Change::Delete);
    assert!(!get(&jane, "configmaps", "a").is_allow());
    put(&rbac, &bind("a", "sa", ("ClusterRole", "pod-reader"), json!([{"kind": "User", "name": "jane"}])));
    assert!(get(&jane, "pods", "a").is_allow() && !get(&bot_a, "pods", "a").is_allow());
}

#[test]
fn aggregation() {
    let rbac = Rbac::new();
    let labelled = |name: &str, label: &str, rules: Value, from: Value| {
        let mut r = role("", name, rules);
        r["metadata"]["labels"] = json!({label: "true"});
        if !from.is_null() {
            r["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {from.as_str().unwrap(): "true"}}]});
        }
        r
    };
    let rule = |r: &str| json!([{"apiGroups": [""], "resources": [r], "verbs": ["get"]}]);
    put(&rbac, &labelled("admin", "none", rule("stale"), json!("to-admin")));
    put(&rbac, &labelled("edit", "to-admin", json!(null), json!("to-edit")));
    put(&rbac, &labelled("e1", "to-edit", rule("pods"), Value::Null));
    put(&rbac, &labelled("a1", "to-admin", rule("roles"), Value::Null));
    let names = |role: &str| -> Vec<String> {
        rbac.aggregated_rules(role).unwrap().iter().flat_map(|r| r.resources.clone()).collect()
    };
    assert_eq!(names("edit"), ["pods"]);
    assert_eq!(names("admin"), ["roles", "pods"]);
    // A cycle ends.
    put(&rbac, &labelled("admin", "to-edit", json!([]), json!("to-admin")));
    assert_eq!(names("edit"), ["roles", "pods"]);
    rbac.apply(RbacResource::ClusterRoles, "", "e1", Change::Delete);
    assert_eq!(names("admin"), ["roles"]);
    assert_eq!(rbac.aggregated_rules("a1"), None);
}

#[test]
fn roles_that_all_gather_each_other_are_looked_at_once() {
    let rbac = Rbac::new();
    for n in 0..60 {
        let mut all = role("", &format!("r{n}"), json!([]));
        all["metadata"]["labels"] = json!({"gathered": "true"});
        all["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"gathered": "true"}}]});
        put(&rbac, &all);
    }
    let mut leaf = role("", "leaf", json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]));
    leaf["metadata"]["labels"] = json!({"gathered": "true"});
    put(&rbac, &leaf);
    // The number of paths through sixty roles is astronomical: this only ends if each is visited once.
    assert_eq!(rbac.aggregated_rules("r7").unwrap().len(), 1);
}

fn gathering(name: &str, label: &str, from: &str) -> Value {
    let mut r = role("", name, json!([]));
    r["metadata"]["labels"] = json!({label: "true"});
    r["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {from: "true"}}]});
    r
}

fn labelled(name: &str, label: &str, resource: &str) -> Value {
    let mut r = role("", name, json!([{"apiGroups": ["example.com"], "resources": [resource], "verbs": ["get"]}]));
    r["metadata"]["labels"] = json!({label: "true"});
    r
}

#[test]
fn a_change_of_a_role_costs_what_it_concerns() {
    const ROLES: u64 = 1000;
    // Three selectors, and the three aggregating roles, visited once for each of them before and after.
    const CONCERNED: u64 = 3 + 2 * 3 * 3;
    let gatherers = [
        gathering("admin", "none", "to-admin"),
        gathering("edit", "to-admin", "to-edit"),
        gathering("view", "to-edit", "to-view"),
    ];
    let members: Vec<Value> =
        (0..ROLES).map(|n| labelled(&format!("m{n}"), "to-view", &format!("things{n}"))).collect();
    let all = |rbac: &Rbac| rbac.aggregated_rules("admin").unwrap().len() as u64;
    // At startup in either order: a few visits for each role, not one for each pair.
    for gatherers_first in [true, false] {
        let rbac = Rbac::new();
        let put_all = |roles: &[Value]| roles.iter().for_each(|r| put(&rbac, r));
        if gatherers_first {
            put_all(&gatherers);
        }
        put_all(&members);
        if !gatherers_first {
            put_all(&gatherers);
        }
        assert_eq!(all(&rbac), ROLES);
        assert!(rbac.aggregation_cost() < 20 * ROLES, "{}", rbac.aggregation_cost());
    }
    let rbac = Rbac::new();
    gatherers.iter().chain(&members).for_each(|r| put(&rbac, r));
    let cost = |role: &Value| {
        let before = rbac.aggregation_cost();
        put(&rbac, role);
        rbac.aggregation_cost() - before
    };
    let mut annotated = members[7].clone();
    annotated["metadata"]["annotations"] = json!({"a": "b"});
    assert_eq!(cost(&annotated), 0, "nothing that counts has changed");
    let mut written = gatherers[2].clone();
    written["rules"] = members[7]["rules"].clone();
    assert_eq!(cost(&written), 0, "what the controller writes into a role that gathers");
    assert!(cost(&role("", "unrelated", json!([]))) <= 3, "three selectors");
    assert!(cost(&labelled("m7", "to-view", "others")) <= CONCERNED);
    assert_eq!(all(&rbac), ROLES);
    assert!(cost(&labelled("m7", "no-more", "others")) <= CONCERNED);
    assert_eq!(all(&rbac), ROLES - 1);
    let before = rbac.aggregation_cost();
    rbac.apply(RbacResource::ClusterRoles, "", "m8", Change::Delete);
    assert!(rbac.aggregation_cost() - before <= CONCERNED);
    assert_eq!(all(&rbac), ROLES - 2);
}

#[test]
fn what_is_gathered_agrees_with_a_naive_model() {
    let mut rng = StdRng::seed_from_u64(11);
    let rbac = Rbac::new();
    let mut stored: BTreeMap<String, Value> = BTreeMap::new();
    for step in 0..3000 {
        let name = format!("r{}", rng.random_range(0..8));
        let label = format!("l{}", rng.random_range(0..3));
        let object = match rng.random_range(0..5) {
            0 | 1 => gathering(&name, &label, &format!("l{}", rng.random_range(0..3))),
            2 | 3 => labelled(&name, &label, &format!("things{}", rng.random_range(0..3))),
            _ => {
                stored.remove(&name);
                rbac.apply(RbacResource::ClusterRoles, "", &name, Change::Delete);
                continue;
            }
        };
        put(&rbac, &object);
        stored.insert(name, object);
        for (name, object) in &stored {
            let found = rbac.aggregated_rules(name);
            assert_eq!(found.is_some(), object["aggregationRule"].is_object(), "step {step}: {name}");
            if let Some(found) = found {
                let mut resources: Vec<String> = found.iter().map(|r| r.resources[0].clone()).collect();
                resources.sort();
                let expected: Vec<String> = gathered(&stored, name).into_iter().collect();
                assert_eq!(resources, expected, "step {step}: {name}\n{stored:#?}");
            }
        }
    }
}

/// Returns the resources in the rules of all roles that one aggregates, by visiting them all.
fn gathered(stored: &BTreeMap<String, Value>, name: &str) -> BTreeSet<String> {
    let (mut seen, mut next, mut out) = (vec![name.to_owned()], vec![name.to_owned()], BTreeSet::new());
    while let Some(name) = next.pop() {
        let wanted = &stored[&name]["aggregationRule"]["clusterRoleSelectors"][0]["matchLabels"];
        let label = wanted.as_object().unwrap().keys().next().unwrap();
        for (other, object) in stored.iter().filter(|(_, o)| o["metadata"]["labels"][label] == "true") {
            if object["aggregationRule"].is_null() {
                out.insert(object["rules"][0]["resources"][0].as_str().unwrap().to_owned());
            } else if !seen.contains(other) {
                seen.push(other.clone());
                next.push(other.clone());
            }
        }
    }
    out
}

#[test]
fn escalation() {
    let rbac = cluster();
    let dev = UserInfo::new("joe", ["dev", "qa"]);
    let check = |user: &UserInfo, resource, ns, object: &Value, old: Option<&Value>| {
        rbac.check_escalation(&rbac, user, resource, ns, object, old).map_err(|s| (s.code, s.message))
    };
    let fine = role("a", "r", json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]));
    assert_eq!(check(&dev, RbacResource::Roles, "a", &fine, None), Ok(()));
    let more = role("", "r", json!([{"apiGroups": ["", "apps"], "resources": ["pods"], "verbs": ["get", "delete"]}]));
    let message = "clusterroles.rbac.authorization.k8s.io \"r\" is forbidden: user \"joe\" (groups=[\"dev\" \"qa\"]) is \
        attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], \
        Verbs:[\"delete\"]}\n{APIGroups:[\"apps\"], Resources:[\"pods\"], Verbs:[\"get\" \"delete\"]}";
    assert_eq!(check(&dev, RbacResource::ClusterRoles, "", &more, None), Err((403, message.into())));
    assert_eq!(check(&UserInfo::new("root", [MASTERS]), RbacResource::ClusterRoles, "", &more, None), Ok(()));
    let mut collected = more.clone();
    collected["metadata"]["finalizers"] = json!(["x"]);
    assert_eq!(check(&dev, RbacResource::ClusterRoles, "", &collected, Some(&more)), Ok(()));
    let mut gathering = role("", "r", json!([]));
    gathering["aggregationRule"] = json!({"clusterRoleSelectors": [{}]});
    let e = check(&dev, RbacResource::ClusterRoles, "", &gathering, None).unwrap_err();
    assert!(e.1.ends_with("must have cluster-admin privileges to use the aggregationRule"), "{e:?}");

    let mine = bind("a", "b", ("ClusterRole", "pod-reader"), json!([]));
    assert_eq!(check(&dev, RbacResource::RoleBindings, "a", &mine, None), Ok(()));
    let probe = bind("", "b", ("ClusterRole", "probe"), json!([]));
    assert_eq!(check(&dev, RbacResource::ClusterRoleBindings, "", &probe, None).unwrap_err().0, 403);
    let none = bind("", "b", ("ClusterRole", "none"), json!([]));
    assert_eq!(check(&dev, RbacResource::ClusterRoleBindings, "", &none, None).unwrap_err().0, 404);
    let verbs = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"],
        "resourceNames": ["probe"], "verbs": ["bind", "escalate"]}]);
    put(&rbac, &role("", "binder", verbs));
    put(&rbac, &bind("", "binder", ("ClusterRole", "binder"), json!([{"kind": "Group", "name": "qa"}])));
    assert_eq!(check(&dev, RbacResource::ClusterRoleBindings, "", &probe, None), Ok(()));
    let wide = role("", "probe", json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]));
    assert_eq!(check(&dev, RbacResource::ClusterRoles, "", &wide, Some(&more)), Ok(()));
    assert!(check(&dev, RbacResource::ClusterRoles, "", &wide, None).is_err(), "a create is asked without a name");
}

/// The index and a model that visits all objects must agree, through random changes.
#[test]
fn agrees_with_a_naive_model() {
    let seed: u64 = std::env::var("KELSON_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
    println!("KELSON_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let pick = |rng: &mut StdRng, list: &[&str]| list[rng.random_range(0..list.len())].to_owned();
    let rbac = Rbac::new();
    let mut stored: BTreeMap<(String, String, String), Value> = BTreeMap::new();
    let spaces = ["", "a", "b"];
    for step in 0..4000 {
        let (ns, name) = (pick(&mut rng, &spaces), pick(&mut rng, &["r1", "r2", "r3"]));
        let is_role = rng.random_bool(0.5);
        let object = if is_role {
            let rules = json!([{"apiGroups": [pick(&mut rng, &["", "*", "apps"])],
                "resources": [pick(&mut rng, &["pods", "*", "pods/log", "*/log"])],
                "verbs": [pick(&mut rng, &["get", "*", "list"])]}]);
            role(&ns, &name, rules)
        } else {
            let kind = pick(&mut rng, &["Role", "ClusterRole"]);
            let subject = match rng.random_range(0..3) {
                0 => json!({"kind": "User", "name": pick(&mut rng, &["u1", "u2"])}),
                1 => json!({"kind": "Group", "name": pick(&mut rng, &["g1", "g2"])}),
                _ => json!({"kind": "ServiceAccount", "name": "s", "namespace": pick(&mut rng, &spaces)}),
            };
            bind(&ns, &name, (&kind, &pick(&mut rng, &["r1", "r2", "r3"])), json!([subject]))
        };
        let kind = object["kind"].as_str().unwrap().to_owned();
        if rng.random_bool(0.3) {
            stored.remove(&(kind.clone(), ns.clone(), name.clone()));
            rbac.apply(RbacResource::parse(&format!("{}s", kind.to_lowercase())).unwrap(), &ns, &name, Change::Delete);
        } else {
            put(&rbac, &object);
            stored.insert((kind, ns, name), object);
        }
        let user = match rng.random_range(0..2) {
            0 => UserInfo::new(pick(&mut rng, &["u1", "u2", "u3"]), [pick(&mut rng, &["g1", "g2", "g3"])]),
            _ => UserInfo::service_account(&pick(&mut rng, &["a", "b"]), "s", ""),
        };
        let (verb, ns, group) =
            (pick(&mut rng, &["get", "list"]), pick(&mut rng, &spaces), pick(&mut rng, &["", "apps"]));
        let (resource, sub) = (pick(&mut rng, &["pods", "nodes"]), pick(&mut rng, &["", "log"]));
        let a = Attributes::resource(&user, &verb, &group, &resource, &ns, "n").with_subresource(&sub);
        assert_eq!(rbac.authorize(&a).is_allow(), naive(&stored, &a), "step {step}: {a:?}\n{stored:#?}");
    }
}

fn naive(stored: &BTreeMap<(String, String, String), Value>, a: &Attributes<'_>) -> bool {
    stored.iter().any(|((kind, ns, _), binding)| {
        let in_scope = kind == "ClusterRoleBinding" || (kind == "RoleBinding" && ns == a.namespace);
        let subject = &binding["subjects"][0];
        let who = subject["name"].as_str().unwrap_or("");
        let applies = match subject["kind"].as_str() {
            Some("User") => a.user.name == who,
            Some("Group") => a.user.groups.iter().any(|g| g == who),
            Some("ServiceAccount") => {
                let own = subject["namespace"].as_str().unwrap_or("");
                let sa_ns = if own.is_empty() { ns.as_str() } else { own };
                !sa_ns.is_empty() && a.user.name == format!("system:serviceaccount:{sa_ns}:{who}")
            }
            _ => false,
        };
        let role_kind = binding["roleRef"]["kind"].as_str().unwrap_or("");
        let scope = if role_kind == "Role" { ns.clone() } else { String::new() };
        let key = (role_kind.to_owned(), scope, binding["roleRef"]["name"].as_str().unwrap_or("").to_owned());
        in_scope
            && applies
            && stored.get(&key).is_some_and(|role| {
                role["rules"].as_array().unwrap().iter().any(|r| {
                    let has = |f: &str, v: &str| r[f][0] == "*" || r[f][0] == v;
                    let whole = if a.subresource.is_empty() {
                        a.resource.to_owned()
                    } else {
                        format!("{}/{}", a.resource, a.subresource)
                    };
                    let star = r["resources"][0] == format!("*/{}", a.subresource) && !a.subresource.is_empty();
                    has("verbs", a.verb) && has("apiGroups", a.group) && (has("resources", &whole) || star)
                })
            })
    })
}

#[path = "lookup_tests.rs"]
mod lookup;
