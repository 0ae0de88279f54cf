//! Decisions about subjects with many bindings.
use super::*;
use crate::authorize::rbac::lookup::LOOKED_AT;

/// Roles of one namespace, of which each allows one kind, bound to one user and one group each.
fn many(count: usize) -> Rbac {
    let rbac = Rbac::new();
    let rule =
        |n: usize| json!([{"apiGroups": [""], "resources": [format!("kind-{n}"), "pods/log"], "verbs": ["get"]}]);
    for n in 0..count {
        put(&rbac, &role("a", &format!("r{n:05}"), if n % 7 == 3 { json!([]) } else { rule(n) }));
        let subjects = json!([{"kind": "User", "name": "busy"}, {"kind": "Group", "name": "team"}]);
        put(&rbac, &bind("a", &format!("b{n:05}"), ("Role", &format!("r{n:05}")), subjects));
    }
    rbac
}

#[test]
fn a_decision_looks_at_few_of_many_bindings() {
    let mut looked_at = Vec::new();
    for count in [100, 1000, 5000] {
        let rbac = many(count);
        let busy = UserInfo::new("busy", [""; 0]);
        let last = format!("kind-{}", count - 1);
        let requests = [
            Attributes::resource(&busy, "get", "", &last, "a", "n"),
            Attributes::resource(&busy, "get", "", "secrets", "a", "n"),
            Attributes { subresource: "status", ..Attributes::resource(&busy, "get", "", &last, "a", "n") },
            Attributes::path(&busy, "get", "/healthz"),
        ];
        for request in requests.iter().cycle().take(20) {
            rbac.authorize(request);
        }
        LOOKED_AT.set(0);
        let allowed: Vec<bool> = requests.iter().map(|request| rbac.authorize(request).is_allow()).collect();
        assert_eq!(allowed, [true, false, false, false]);
        looked_at.push(LOOKED_AT.get());
    }
    assert_eq!(looked_at, [1, 1, 1], "whatever the number of bindings");
}

#[test]
fn an_index_of_bindings_follows_roles_and_bindings() {
    let rbac = many(200);
    let users = [UserInfo::new("busy", [""; 0]), UserInfo::new("x", ["team"])];
    let get = |resource: &str, subresource: &str| {
        let each = users.iter().map(|user| {
            let whole = Attributes::resource(user, "get", "", resource, "a", "n");
            let mut last = Decision::NoOpinion(String::new());
            // The first decisions may make no index.
            for _ in 0..10 {
                last = rbac.authorize(&Attributes { subresource, ..whole });
            }
            last
        });
        each.collect::<Vec<_>>()
    };
    let allowed = |resource: &str| get(resource, "").iter().all(Decision::is_allow);
    let denied = |resource: &str| !get(resource, "").iter().any(Decision::is_allow);
    assert!(allowed("kind-152") && denied("kind-3") && denied("secrets"));
    let reason = "RBAC: allowed by RoleBinding \"b00000/a\" of Role \"r00000\" to User \"busy\"";
    assert_eq!(get("pods", "log")[0].reason(), reason, "the first one that allows it, as without an index");

    let rule = |resource: &str| json!([{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]);
    put(&rbac, &role("a", "r00152", rule("secrets")));
    assert!(denied("kind-152") && allowed("secrets"));
    rbac.apply(RbacResource::Roles, "a", "r00152", Change::Delete);
    assert!(denied("secrets"));
    assert_eq!(get("secrets", "")[1].reason(), "RBAC: role.rbac.authorization.k8s.io \"r00152\" not found");
    put(&rbac, &role("a", "r00152", rule("*/log")));
    assert!(get("anything", "log").iter().all(Decision::is_allow) && denied("anything"));
    put(&rbac, &bind("a", "b00152", ("ClusterRole", "wide"), json!([{"kind": "User", "name": "busy"}])));
    put(&rbac, &role("", "wide", rule("*")));
    let of_user: Vec<bool> = get("anything", "").iter().map(Decision::is_allow).collect();
    assert_eq!(of_user, [true, false], "the group has that binding no more");
    // A role of another namespace with the same name changes nothing.
    put(&rbac, &role("b", "r00151", rule("secrets")));
    assert!(allowed("kind-151"));
    rbac.apply(RbacResource::RoleBindings, "a", "b00151", Change::Delete);
    assert_eq!(get("kind-151", "").iter().map(Decision::is_allow).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn an_index_of_bindings_follows_what_roles_gather() {
    let rbac = Rbac::new();
    let labelled = |name: &str, resource: &str| {
        let mut member = role("", name, json!([{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]));
        member["metadata"]["labels"] = json!({"to": "view"});
        member
    };
    let mut view = role("", "view", json!([]));
    view["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"to": "view"}}]});
    put(&rbac, &view);
    put(&rbac, &labelled("m", "pods"));
    for n in 0..100 {
        put(&rbac, &bind("a", &format!("b{n}"), ("ClusterRole", "view"), json!([{"kind": "User", "name": "busy"}])));
    }
    let busy = UserInfo::new("busy", [""; 0]);
    let allowed = |resource: &str| {
        (0..10).all(|_| rbac.authorize(&Attributes::resource(&busy, "get", "", resource, "a", "n")).is_allow())
    };
    assert!(allowed("pods") && !allowed("secrets"));
    put(&rbac, &labelled("m", "secrets"));
    assert!(!allowed("pods") && allowed("secrets"));
    put(&rbac, &labelled("n", "pods"));
    assert!(allowed("pods") && allowed("secrets"));
}
