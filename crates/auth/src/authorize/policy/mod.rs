//! The default roles and bindings of Kubernetes 1.36, and their reconciliation at each start.
//!
//! `defaults.txt` has one role, rule or binding per line (upstream `bootstrappolicy`, with default feature gates):
//! `GROUPS RESOURCES [NAMES] : VERBS`, with `-` for the legacy group, and `url PATHS : VERBS`. A role or binding with
//! `gate=NAME` exists while that feature is enabled.
mod reconcile;

pub use reconcile::{Reconciled, reconcile};

use serde_json::{Map, Value, json};

use super::rbac::PolicyRule;

const DEFAULTS: &str = include_str!("defaults.txt");
const RBAC: &str = "rbac.authorization.k8s.io";
/// The annotation of objects that are reconciled, unless it is `false`.
pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// Returns all default objects for these features, roles before bindings.
pub fn bootstrap_objects(is_on: impl Fn(&str) -> bool) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    let mut is_there = true;
    for line in DEFAULTS.lines() {
        if !line.starts_with("  ") {
            is_there = line.split(' ').filter_map(|word| word.strip_prefix("gate=")).all(&is_on);
        }
        if !is_there {
            continue;
        }
        if let Some(rule) = line.strip_prefix("  ") {
            let rules = out.last_mut().and_then(|r| r.get_mut("rules")).and_then(Value::as_array_mut);
            rules.expect("a rule follows its role").push(json!(parse_rule(rule)));
            continue;
        }
        let mut words = line.split(' ');
        let (kind, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        out.push(match kind {
            "role" | "clusterrole" => parse_role(kind, name, words),
            _ => parse_binding(kind, name, words),
        });
    }
    out
}

/// The role by which viewers, editors and administrators of namespaces read resource metrics, as metrics-server's manifest has it. It is
/// for servers that serve `metrics.k8s.io` themselves.
pub fn metrics_reader() -> Value {
    let mut role = parse_role("clusterrole", "system:aggregated-metrics-reader", "to=view to=edit to=admin".split(' '));
    role["rules"] = json!([parse_rule("metrics.k8s.io nodes,pods : get,list,watch")]);
    role
}

/// The rules of one default ClusterRole.
pub fn default_rules(cluster_role: &str) -> Vec<PolicyRule> {
    let header = format!("clusterrole {cluster_role}");
    DEFAULTS
        .lines()
        .skip_while(|l| *l != header && !l.starts_with(&format!("{header} ")))
        .skip(1)
        .map_while(|l| l.strip_prefix("  "))
        .map(parse_rule)
        .collect()
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(|w| if w == "-" { String::new() } else { w.to_owned() }).collect()
}

fn parse_rule(line: &str) -> PolicyRule {
    let (what, verbs) = line.rsplit_once(" : ").expect("a rule has verbs");
    let verbs = list(verbs);
    let mut words = what.split(' ');
    let first = words.next().unwrap_or_default();
    if first == "url" {
        return PolicyRule { verbs, non_resource_urls: words.map(str::to_owned).collect(), ..PolicyRule::default() };
    }
    let resources = list(words.next().unwrap_or_default());
    let names = words.next().map(|n| list(n.trim_matches(['[', ']']))).unwrap_or_default();
    PolicyRule { verbs, api_groups: list(first), resources, resource_names: names, non_resource_urls: vec![] }
}

fn metadata(name: &str) -> Map<String, Value> {
    let mut meta = Map::new();
    match name.split_once('/') {
        Some((namespace, name)) => {
            meta.insert("name".into(), name.into());
            meta.insert("namespace".into(), namespace.into());
        }
        None => {
            meta.insert("name".into(), name.into());
        }
    }
    meta.insert("annotations".into(), json!({AUTOUPDATE: "true"}));
    meta.insert("labels".into(), json!({"kubernetes.io/bootstrapping": "rbac-defaults"}));
    meta
}

fn parse_role<'a>(kind: &str, name: &str, words: impl Iterator<Item = &'a str>) -> Value {
    let mut meta = metadata(name);
    let mut from = Vec::new();
    for word in words {
        if let Some(to) = word.strip_prefix("to=") {
            meta["labels"][format!("{AGGREGATE}{to}")] = "true".into();
        } else if let Some(label) = word.strip_prefix("from=") {
            from.push(json!({"matchLabels": {format!("{AGGREGATE}{label}"): "true"}}));
        }
    }
    let kind = if kind == "role" { "Role" } else { "ClusterRole" };
    let mut role = json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": meta, "rules": []});
    if !from.is_empty() {
        role["aggregationRule"] = json!({"clusterRoleSelectors": from});
    }
    role
}

fn parse_binding<'a>(kind: &str, name: &str, mut words: impl Iterator<Item = &'a str>) -> Value {
    let target = words.nth(1).unwrap_or_default();
    let (role_kind, role) = target.split_once('/').unwrap_or_default();
    let role_kind = if role_kind == "role" { "Role" } else { "ClusterRole" };
    let subjects: Vec<Value> = words
        .filter_map(|w| w.split_once('=').filter(|(kind, _)| *kind != "gate"))
        .map(|(kind, who)| match kind {
            "sa" => {
                let (namespace, name) = who.split_once('/').unwrap_or_default();
                json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
            }
            "group" => json!({"apiGroup": RBAC, "kind": "Group", "name": who}),
            _ => json!({"apiGroup": RBAC, "kind": "User", "name": who}),
        })
        .collect();
    let mut binding = json!({"apiVersion": format!("{RBAC}/v1"),
        "kind": if kind == "binding" { "RoleBinding" } else { "ClusterRoleBinding" },
        "metadata": metadata(name), "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role}});
    if !subjects.is_empty() {
        binding["subjects"] = Value::Array(subjects);
    }
    binding
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorize::rbac::{Rbac, RbacResource};
    use crate::authorize::{Authorizer, Decision};
    use crate::{Attributes, Change, UserInfo, user};

    fn loaded() -> Rbac {
        let rbac = Rbac::new();
        for o in bootstrap_objects(|_| true) {
            let resource = RbacResource::parse(&format!("{}s", o["kind"].as_str().unwrap().to_lowercase())).unwrap();
            let meta = |k: &str| o["metadata"][k].as_str().unwrap_or("").to_owned();
            rbac.apply(resource, &meta("namespace"), &meta("name"), Change::Put(&serde_json::to_vec(&o).unwrap()));
        }
        rbac
    }

    #[test]
    fn every_line_is_used_and_every_role_exists() {
        let all = bootstrap_objects(|_| true);
        let count = |kind: &str| all.iter().filter(|o| o["kind"] == kind).count();
        assert!(count("ClusterRole") > 60 && count("ClusterRoleBinding") > 40, "{}", all.len());
        assert_eq!((count("Role"), count("RoleBinding")), (7, 7));
        let rules: usize = all.iter().filter_map(|o| o["rules"].as_array()).map(Vec::len).sum();
        assert_eq!(all.len() + rules, DEFAULTS.lines().count());
        let of_features = ["ClusterRole", "ClusterRole", "ClusterRoleBinding", "ClusterRoleBinding"];
        let usual = bootstrap_objects(|_| false);
        let gated: Vec<_> = all.iter().filter(|o| !usual.contains(o)).map(|o| &o["kind"]).collect();
        assert_eq!(gated, of_features, "two controllers of features that are off have a role and a binding each");
        for binding in all.iter().filter(|o| o["roleRef"].is_object()) {
            let (kind, name) = (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]);
            let exists = all.iter().any(|r| {
                &r["kind"] == kind
                    && &r["metadata"]["name"] == name
                    && (kind != "Role" || r["metadata"]["namespace"] == binding["metadata"]["namespace"])
            });
            assert!(exists, "{binding}");
        }
        assert!(!default_rules("system:node").is_empty() && default_rules("no-such").is_empty());
    }

    #[test]
    fn well_known_decisions() {
        let rbac = loaded();
        let authenticated = UserInfo::new("jane", [user::AUTHENTICATED]);
        let anonymous = UserInfo::anonymous();
        let scheduler = UserInfo::new(user::KUBE_SCHEDULER, [user::AUTHENTICATED]);
        let deployer = UserInfo::service_account("kube-system", "deployment-controller", "");
        let path = |u, p| rbac.authorize(&Attributes::path(u, "get", p)).is_allow();
        let may = |u, verb, group, resource: &str, ns| {
            let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
            rbac.authorize(&Attributes::resource(u, verb, group, resource, ns, "x").with_subresource(sub)).is_allow()
        };
        assert!(path(&authenticated, "/api") && path(&authenticated, "/apis/apps/v1") && path(&anonymous, "/version"));
        assert!(!path(&anonymous, "/api") && !path(&authenticated, "/metrics"));
        assert!(may(&authenticated, "create", "authorization.k8s.io", "selfsubjectaccessreviews", ""));
        assert!(may(&scheduler, "create", "", "pods/binding", "default"));
        assert!(!may(&scheduler, "delete", "apps", "deployments", "default"));
        assert!(may(&deployer, "update", "apps", "replicasets", "default"));
        let root = UserInfo::new("root", [user::MASTERS]);
        assert!(matches!(rbac.authorize(&Attributes::path(&root, "delete", "/x")), Decision::Allow(_)));
        let admin = rbac.aggregated_rules("admin").unwrap();
        assert!(admin.iter().any(|r| r.resources.contains(&"pods/exec".into())), "edit is gathered into admin");
        assert!(rbac.aggregated_rules("view").unwrap().iter().all(|r| !r.resources.contains(&"secrets".into())));
    }
}
