//! Privilege escalation: a user cannot grant permissions by a role or a binding without having them, unless allowed to
//! `escalate` the role or to `bind` it (upstream `registry/rbac/*/policybased`).
use kelson_meta::{GroupResource, Status};
use serde::Deserialize;
use serde_json::Value;

use super::index::{Rbac, RbacResource};
use super::rule::{COMBINATIONS_MAX, PolicyRule, Uncovered, covers, describe_missing};
use super::stored::RoleRef;
use crate::authorize::Authorizer;
use crate::{Attributes, UserInfo, user};

const GROUP: &str = "rbac.authorization.k8s.io";

impl Rbac {
    /// Checks a write of a role or binding; `old` is the stored object on update. The 403 is upstream's.
    pub fn check_escalation(
        &self,
        authorizer: &dyn Authorizer,
        user: &UserInfo,
        resource: RbacResource,
        namespace: &str,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        // The groups of the API server's own connections have all permissions anyway.
        if user.in_group(user::MASTERS) || old.is_some_and(|old| only_gc_fields_differ(object, old)) {
            return Ok(());
        }
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        match resource {
            RbacResource::Roles => self.check_role(authorizer, user, "roles", namespace, name, object, old),
            RbacResource::ClusterRoles => self.check_role(authorizer, user, "clusterroles", "", name, object, old),
            RbacResource::RoleBindings => self.check_binding(authorizer, user, "rolebindings", namespace, name, object),
            RbacResource::ClusterRoleBindings => {
                self.check_binding(authorizer, user, "clusterrolebindings", "", name, object)
            }
        }
    }

    fn check_role(
        &self,
        authorizer: &dyn Authorizer,
        user: &UserInfo,
        resource: &'static str,
        namespace: &str,
        name: &str,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        // On create by POST the request's path has no name, and upstream checks without one.
        let asked_name = if old.is_some() { name } else { "" };
        let escalate = Attributes::resource(user, "escalate", GROUP, resource, namespace, asked_name);
        if authorizer.authorize(&escalate).is_allow() {
            return Ok(());
        }
        let gr = GroupResource::new(GROUP, resource);
        let rules: Vec<PolicyRule> = field(object, "rules")?.unwrap_or_default();
        self.confirm(user, namespace, &rules).map_err(|e| Status::forbidden(&gr, name, &e))?;
        if resource == "clusterroles" && (aggregates(object) || old.is_some_and(aggregates)) {
            let everything = [
                PolicyRule { verbs: star(), api_groups: star(), resources: star(), ..PolicyRule::default() },
                PolicyRule { verbs: star(), non_resource_urls: star(), ..PolicyRule::default() },
            ];
            let why = "must have cluster-admin privileges to use the aggregationRule";
            self.confirm(user, "", &everything).map_err(|_| Status::forbidden(&gr, name, why))?;
        }
        Ok(())
    }

    fn check_binding(
        &self,
        authorizer: &dyn Authorizer,
        user: &UserInfo,
        resource: &'static str,
        namespace: &str,
        name: &str,
        object: &Value,
    ) -> Result<(), Status> {
        // A binding without a valid role reference fails validation and grants nothing.
        let Some(role) = field::<RoleRef>(object, "roleRef")? else { return Ok(()) };
        let roles = match role.kind.as_str() {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            _ => return Ok(()),
        };
        let group = if role.api_group.is_empty() { GROUP } else { &role.api_group };
        let bind = Attributes::resource(user, "bind", group, roles, namespace, &role.name);
        if authorizer.authorize(&bind).is_allow() {
            return Ok(());
        }
        let rules = self
            .role_rules(&role, namespace)
            .map_err(|_| Status::not_found(&GroupResource::new(GROUP, roles.trim_end_matches('s')), &role.name))?;
        self.confirm(user, namespace, &rules)
            .map_err(|e| Status::forbidden(&GroupResource::new(GROUP, resource), name, &e))
    }

    fn confirm(&self, user: &UserInfo, namespace: &str, wanted: &[PolicyRule]) -> Result<(), String> {
        let owned = self.rules_for(user, namespace);
        let Err(uncovered) = covers(owned.rules.iter(), wanted) else { return Ok(()) };
        let groups: Vec<String> = user.groups.iter().map(|g| format!("{g:?}")).collect();
        let mut message = format!(
            "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            groups.join(" "),
            describe(&uncovered)
        );
        if !owned.errors.is_empty() {
            message.push_str(&format!("; resolution errors: [{}]", owned.errors.join(", ")));
        }
        Err(message)
    }
}

fn describe(uncovered: &Uncovered) -> String {
    match uncovered {
        Uncovered::Missing(missing, false) => describe_missing(missing),
        Uncovered::Missing(missing, true) => format!("{}\nand more", describe_missing(missing)),
        Uncovered::TooMany => format!(
            "the rules have more than {COMBINATIONS_MAX} combinations of verb, API group, resource and name to check; use smaller rules"
        ),
    }
}

fn star() -> Vec<String> {
    vec!["*".to_owned()]
}

fn field<T: for<'de> Deserialize<'de>>(object: &Value, name: &str) -> Result<Option<T>, Status> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(v) => T::deserialize(v).map(Some).map_err(|e| Status::bad_request(format!("{name}: {e}"))),
    }
}

fn aggregates(object: &Value) -> bool {
    object
        .pointer("/aggregationRule/clusterRoleSelectors")
        .and_then(Value::as_array)
        .is_some_and(|selectors| !selectors.is_empty())
}

/// Reports whether an update only changes fields for garbage collection (upstream `IsOnlyMutatingGCFields`).
fn only_gc_fields_differ(new: &Value, old: &Value) -> bool {
    const GC_FIELDS: [&str; 4] = ["ownerReferences", "finalizers", "selfLink", "managedFields"];
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return false };
    let meta_equal = |a: &Value, b: &Value| match (a.as_object(), b.as_object()) {
        (Some(a), Some(b)) => {
            let rest = |m: &serde_json::Map<String, Value>| {
                m.iter()
                    .filter(|(k, _)| !GC_FIELDS.contains(&k.as_str()))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect::<Vec<_>>()
            };
            rest(a) == rest(b)
        }
        _ => a == b,
    };
    new.len() == old.len()
        && new.iter().all(|(k, v)| old.get(k).is_some_and(|o| if k == "metadata" { meta_equal(v, o) } else { v == o }))
}
