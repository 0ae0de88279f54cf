//! Roles: the rules of a role are a product of lists, which a hostile role makes large, and a user must never grant
//! more permissions than the user has.
use kelson_auth::authorize::Rbac;
use kelson_auth::authorize::rbac::{PolicyRule, RbacResource, Uncovered, covers, describe_missing};
use kelson_auth::objects::Change;
use kelson_auth::{Attributes, Authorizer as _, UserInfo};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::input::halves;

/// Words of each list of a rule that are combined into requests.
const WORDS: usize = 4;
/// The namespace of the roles.
const NAMESPACE: &str = "here";
/// The group of the kinds that grant rights.
const GROUP: &str = "rbac.authorization.k8s.io";

/// The role that a user holds, a zero byte, and the one that the user makes.
pub(crate) fn rules(data: &[u8]) {
    let (held, wanted) = halves(data);
    let (Ok(held), Ok(wanted)) = (serde_json::from_slice::<Value>(held), serde_json::from_slice::<Value>(wanted))
    else {
        return;
    };
    if let (Ok(held), Ok(wanted)) = (rules_of(&held), rules_of(&wanted)) {
        covered(&held, &wanted);
    }
    granted(&held, &wanted);
    aggregated(&held, &wanted);
}

fn rules_of(role: &Value) -> Result<Vec<PolicyRule>, serde_json::Error> {
    match role.get("rules") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(rules) => Vec::deserialize(rules),
    }
}

fn word(text: &str) -> Vec<String> {
    vec![text.to_owned()]
}

fn covered(held: &[PolicyRule], wanted: &[PolicyRule]) {
    let all = PolicyRule {
        verbs: word("*"),
        api_groups: word("*"),
        resources: word("*"),
        non_resource_urls: word("*"),
        ..PolicyRule::default()
    };
    let few = |found: Result<(), Uncovered>| matches!(found, Ok(()) | Err(Uncovered::TooMany));
    assert!(few(covers(wanted.iter(), wanted)), "rules cover themselves");
    assert!(few(covers([&all].into_iter(), wanted)), "what may do everything covers everything");
    match covers(held.iter(), wanted) {
        Ok(()) => {
            assert!(few(covers(held.iter().chain([&all]), wanted)), "a rule more takes nothing away");
            requests(wanted, |attributes| {
                assert!(held.iter().any(|rule| rule.allows(attributes)), "covered, but not allowed: {attributes:?}");
            });
        }
        Err(Uncovered::Missing(missing, _)) => {
            assert!(!missing.is_empty(), "missing, but nothing is told");
            assert!(!describe_missing(&missing).is_empty());
        }
        Err(Uncovered::TooMany) => {}
    }
}

/// Requests of the words that rules have, as far as the rules allow them.
fn requests(rules: &[PolicyRule], mut each: impl FnMut(&Attributes<'_>)) {
    let user = UserInfo::new("anybody", [""; 0]);
    let few = |list: &[String]| list.iter().take(WORDS).cloned().collect::<Vec<_>>();
    for rule in rules.iter().take(WORDS) {
        let names = if rule.resource_names.is_empty() { word("any") } else { few(&rule.resource_names) };
        for verb in &few(&rule.verbs) {
            for path in &few(&rule.non_resource_urls) {
                let attributes = Attributes::path(&user, verb, path);
                if rule.allows(&attributes) {
                    each(&attributes);
                }
            }
            for group in &few(&rule.api_groups) {
                for resource in &few(&rule.resources) {
                    let (resource, subresource) = resource.split_once('/').unwrap_or((resource.as_str(), ""));
                    for name in &names {
                        let attributes = Attributes::resource(&user, verb, group, resource, NAMESPACE, name)
                            .with_subresource(subresource);
                        if rule.allows(&attributes) {
                            each(&attributes);
                        }
                    }
                }
            }
        }
    }
}

/// A user who is bound to one role makes another one.
fn granted(held: &Value, wanted: &Value) {
    let rbac = Rbac::new();
    let binding = json!({"roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "held"}, "subjects": [{"kind": "User", "name": "jane"}]});
    put(&rbac, RbacResource::Roles, NAMESPACE, "held", held);
    put(&rbac, RbacResource::RoleBindings, NAMESPACE, "b", &binding);
    let jane = UserInfo::new("jane", [""; 0]);
    let made = rbac.check_escalation(&rbac, &jane, RbacResource::Roles, NAMESPACE, wanted, None);
    let escalate = Attributes::resource(&jane, "escalate", GROUP, "roles", NAMESPACE, "");
    if made.is_ok() && !rbac.authorize(&escalate).is_allow() {
        let owned = rbac.rules_for(&jane, NAMESPACE).rules;
        let wanted = rules_of(wanted).expect("a role that was looked at is readable");
        assert_eq!(covers(owned.iter(), &wanted), Ok(()), "granted, but not held");
    }
    // As a binding, which names the role that is held or any other.
    let _bound = rbac.check_escalation(&rbac, &jane, RbacResource::RoleBindings, NAMESPACE, wanted, None);
    let _bound = rbac.check_escalation(&rbac, &jane, RbacResource::ClusterRoleBindings, "", wanted, Some(held));
}

/// Both are cluster roles, which may gather each other's rules, or their own.
fn aggregated(held: &Value, wanted: &Value) {
    let rbac = Rbac::new();
    let roles = [("held", held), ("wanted", wanted)];
    for (name, role) in roles {
        put(&rbac, RbacResource::ClusterRoles, "", name, role);
    }
    let before = roles.map(|(name, _)| rbac.aggregated_rules(name));
    for (name, role) in roles {
        put(&rbac, RbacResource::ClusterRoles, "", name, role);
    }
    assert_eq!(before, roles.map(|(name, _)| rbac.aggregated_rules(name)), "what is put again changes nothing");
    for (name, _) in roles {
        rbac.apply(RbacResource::ClusterRoles, "", name, Change::Delete);
    }
    assert!(rbac.names(RbacResource::ClusterRoles).is_empty(), "what is deleted is forgotten");
}

fn put(rbac: &Rbac, resource: RbacResource, namespace: &str, name: &str, object: &Value) {
    let mut object = object.clone();
    if let Some(object) = object.as_object_mut() {
        let metadata = object.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("name".into(), name.into());
            metadata.insert("namespace".into(), namespace.into());
        }
    }
    rbac.apply(resource, namespace, name, Change::Put(object.to_string().as_bytes()));
}
