//! Roles and bindings, indexed by subject and kept up to date from the store's log. A decision looks only at the
//! bindings of the user's own names, so its cost does not grow with the number of bindings in the cluster.
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use kelson_meta::{LabelSelector, LabelSelectorSpec};
use parking_lot::RwLock;
use serde::Deserialize;

use super::PolicyRule;
use crate::Attributes;
use crate::authorize::{Authorizer, Decision};
use crate::objects::{Change, decode};
use crate::user::{UserInfo, service_account_username};

/// The resources of `rbac.authorization.k8s.io` that are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RbacResource {
    /// `roles`, each for its own namespace
    Roles,
    /// `clusterroles`
    ClusterRoles,
    /// `rolebindings`
    RoleBindings,
    /// `clusterrolebindings`
    ClusterRoleBindings,
}

impl RbacResource {
    /// From the plural name.
    pub fn parse(resource: &str) -> Option<Self> {
        match resource {
            "roles" => Some(Self::Roles),
            "clusterroles" => Some(Self::ClusterRoles),
            "rolebindings" => Some(Self::RoleBindings),
            "clusterrolebindings" => Some(Self::ClusterRoleBindings),
            _ => None,
        }
    }
    fn is_role(self) -> bool {
        matches!(self, Self::Roles | Self::ClusterRoles)
    }
}

/// The rules that apply to a user, for `SelfSubjectRulesReview`.
#[derive(Clone, Debug, Default)]
pub struct RulesFor {
    /// In the order found: cluster-wide first.
    pub rules: Vec<PolicyRule>,
    /// Roles that bindings name but that do not exist.
    pub errors: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RoleView {
    #[serde(default)]
    metadata: MetaView,
    #[serde(default)]
    rules: Option<Vec<PolicyRule>>,
    #[serde(default)]
    aggregation_rule: Option<AggregationRule>,
}

#[derive(Deserialize, Default)]
struct MetaView {
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct AggregationRule {
    #[serde(default)]
    cluster_role_selectors: Option<Vec<LabelSelectorSpec>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BindingView {
    role_ref: RoleRef,
    #[serde(default)]
    subjects: Option<Vec<Subject>>,
}

/// `roleRef` of a binding.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct RoleRef {
    #[serde(default, rename = "apiGroup")]
    pub api_group: String,
    pub kind: String,
    pub name: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Subject {
    kind: String,
    name: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Default)]
struct Role {
    own: Vec<PolicyRule>,
    labels: BTreeMap<String, String>,
    /// Present on roles whose rules are gathered from others.
    selectors: Option<Vec<LabelSelector>>,
    effective: Arc<[PolicyRule]>,
}

struct Binding {
    /// Empty for ClusterRoleBindings.
    namespace: String,
    name: String,
    role: RoleRef,
    subjects: Vec<Subject>,
}

/// Who a binding speaks of: a user name, or a group.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Who {
    User(String),
    Group(String),
}

/// Bindings by subject's name, each with the subject's place in it.
type BySubject = HashMap<String, Vec<(Arc<Binding>, usize)>>;

#[derive(Default)]
struct IndexState {
    /// Namespace (empty: cluster roles) to name to role.
    roles: HashMap<String, HashMap<String, Role>>,
    bindings: HashMap<(String, String), Arc<Binding>>,
    users: BySubject,
    groups: BySubject,
}

/// The RBAC authorizer. Feed it with [`Rbac::apply`]; share it by `Arc`.
#[derive(Default)]
pub struct Rbac {
    state: RwLock<IndexState>,
}

impl Rbac {
    /// Without any role.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in one stored change. `namespace` is empty for cluster-scoped kinds.
    pub fn apply(&self, resource: RbacResource, namespace: &str, name: &str, change: Change<'_>) {
        let mut state = self.state.write();
        if resource.is_role() {
            let view = match change {
                Change::Put(bytes) => decode::<RoleView>(bytes, "role"),
                Change::Delete => None,
            };
            state.put_role(namespace, name, view);
        } else {
            let view = match change {
                Change::Put(bytes) => decode::<BindingView>(bytes, "role binding"),
                Change::Delete => None,
            };
            state.put_binding(namespace, name, view);
        }
    }

    /// Namespace and name of every object of a resource that was taken in and not deleted.
    pub fn names(&self, resource: RbacResource) -> Vec<(String, String)> {
        let cluster_wide = matches!(resource, RbacResource::ClusterRoles | RbacResource::ClusterRoleBindings);
        let state = self.state.read();
        if !resource.is_role() {
            let bindings = state.bindings.keys().filter(|(namespace, _)| namespace.is_empty() == cluster_wide);
            return bindings.cloned().collect();
        }
        let namespaces = state.roles.iter().filter(|(namespace, _)| namespace.is_empty() == cluster_wide);
        namespaces.flat_map(|(ns, roles)| roles.keys().map(|name| (ns.clone(), name.clone()))).collect()
    }

    /// Calls `visit` with every rule that applies to `user` in `namespace` (empty: cluster-wide ones alone), and why,
    /// until it returns false. Returns the roles that could not be resolved.
    fn visit(
        &self,
        user: &UserInfo,
        namespace: &str,
        mut visit: impl FnMut(&Binding, usize, &PolicyRule) -> bool,
    ) -> Vec<String> {
        let state = self.state.read();
        let mut errors = Vec::new();
        let by_user = state.users.get(&user.name).into_iter().flatten();
        let by_group = user.groups.iter().filter_map(|g| state.groups.get(g)).flatten();
        // Two passes: upstream resolves cluster-wide bindings first, which shows in reasons and in rule lists.
        for cluster_wide in [true, false] {
            if !cluster_wide && namespace.is_empty() {
                break;
            }
            for (binding, subject) in by_user.clone().chain(by_group.clone()) {
                if binding.namespace.is_empty() != cluster_wide || (!cluster_wide && binding.namespace != namespace) {
                    continue;
                }
                match state.resolve(&binding.role, &binding.namespace) {
                    Ok(rules) => {
                        for rule in rules {
                            if !visit(binding, *subject, rule) {
                                return errors;
                            }
                        }
                    }
                    Err(e) => errors.push(e),
                }
            }
        }
        errors
    }

    /// All rules that apply to `user` in `namespace`.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> RulesFor {
        let mut rules = Vec::new();
        let errors = self.visit(user, namespace, |_, _, rule| {
            rules.push(rule.clone());
            true
        });
        RulesFor { rules, errors }
    }

    /// The rules of the role a binding in `namespace` refers to.
    pub(crate) fn role_rules(&self, role: &RoleRef, namespace: &str) -> Result<Vec<PolicyRule>, String> {
        self.state.read().resolve(role, namespace).map(<[PolicyRule]>::to_vec)
    }

    /// The gathered rules of a ClusterRole with an aggregation rule; `None` for other roles.
    pub fn aggregated_rules(&self, cluster_role: &str) -> Option<Vec<PolicyRule>> {
        let state = self.state.read();
        let role = state.roles.get("")?.get(cluster_role)?;
        role.selectors.is_some().then(|| role.effective.to_vec())
    }
}

impl Authorizer for Rbac {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let mut reason = None;
        let errors = self.visit(attributes.user, attributes.namespace, |binding, subject, rule| {
            if rule.allows(attributes) {
                reason = Some(binding.describe(subject));
            }
            reason.is_none()
        });
        match reason {
            Some(source) => Decision::Allow(format!("RBAC: allowed by {source}")),
            None if errors.is_empty() => Decision::NoOpinion(String::new()),
            None if errors.len() == 1 => Decision::NoOpinion(format!("RBAC: {}", errors[0])),
            None => Decision::NoOpinion(format!("RBAC: [{}]", errors.join(", "))),
        }
    }
}

impl IndexState {
    fn put_role(&mut self, namespace: &str, name: &str, view: Option<RoleView>) {
        let roles = self.roles.entry(namespace.to_owned()).or_default();
        match view {
            None => {
                roles.remove(name);
                if roles.is_empty() {
                    self.roles.remove(namespace);
                }
            }
            Some(view) => {
                let selectors = view.aggregation_rule.and_then(|a| a.cluster_role_selectors).map(|list| {
                    list.iter().map(|s| s.selector().unwrap_or_else(|_| LabelSelector::nothing())).collect()
                });
                let own = view.rules.unwrap_or_default();
                let effective = own.clone().into();
                let labels = view.metadata.labels.unwrap_or_default();
                roles.insert(name.to_owned(), Role { own, labels, selectors, effective });
            }
        }
        if namespace.is_empty() {
            self.aggregate();
        }
    }

    /// Resolves aggregated cluster roles, also those that gather aggregated ones. A gathering role's own rules are what
    /// the aggregation controller last wrote, so they are not counted.
    fn aggregate(&mut self) {
        let Some(roles) = self.roles.get("") else { return };
        let gathering: Vec<String> =
            roles.iter().filter(|(_, r)| r.selectors.is_some()).map(|(n, _)| n.clone()).collect();
        let resolved: Vec<(String, Vec<PolicyRule>)> = gathering
            .into_iter()
            .map(|name| {
                let mut rules = Vec::new();
                gather(roles, &name, &mut HashSet::from([name.as_str()]), &mut rules);
                (name, rules)
            })
            .collect();
        if let Some(roles) = self.roles.get_mut("") {
            for (name, rules) in resolved {
                if let Some(role) = roles.get_mut(&name) {
                    role.effective = rules.into();
                }
            }
        }
    }

    fn put_binding(&mut self, namespace: &str, name: &str, view: Option<BindingView>) {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(old) = self.bindings.remove(&key) {
            for who in old.whom() {
                let (map, subject) = self.index(&who);
                if let Some(list) = map.get_mut(subject) {
                    list.retain(|(b, _)| !Arc::ptr_eq(b, &old));
                    if list.is_empty() {
                        map.remove(subject);
                    }
                }
            }
        }
        let Some(view) = view else { return };
        let binding = Arc::new(Binding {
            namespace: key.0.clone(),
            name: key.1.clone(),
            role: view.role_ref,
            subjects: view.subjects.unwrap_or_default(),
        });
        for (i, who) in binding.whom_indexed() {
            let (map, subject) = self.index(&who);
            let list = map.entry(subject.clone()).or_default();
            // A subject named twice binds once.
            if !list.iter().any(|(b, _)| Arc::ptr_eq(b, &binding)) {
                list.push((binding.clone(), i));
                list.sort_by(|(a, _), (b, _)| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
            }
        }
        self.bindings.insert(key, binding);
    }

    fn index<'w>(&mut self, who: &'w Who) -> (&mut BySubject, &'w String) {
        match who {
            Who::User(name) => (&mut self.users, name),
            Who::Group(name) => (&mut self.groups, name),
        }
    }

    fn resolve(&self, role: &RoleRef, namespace: &str) -> Result<&[PolicyRule], String> {
        let (scope, resource) = match role.kind.as_str() {
            "ClusterRole" => ("", "clusterrole"),
            "Role" => (namespace, "role"),
            other => return Err(format!("unsupported role reference kind: {other:?}")),
        };
        match self.roles.get(scope).and_then(|r| r.get(&role.name)) {
            Some(found) if !(scope.is_empty() && role.kind == "Role") => Ok(&found.effective),
            _ => Err(format!("{resource}.rbac.authorization.k8s.io {:?} not found", role.name)),
        }
    }
}

/// Collects the rules of all roles that `name` gathers, by name order. Each role is looked at once (`seen`): roles that gather
/// each other in many ways would otherwise cost a walk of every way.
fn gather<'r>(roles: &'r HashMap<String, Role>, name: &str, seen: &mut HashSet<&'r str>, out: &mut Vec<PolicyRule>) {
    let Some(selectors) = roles.get(name).and_then(|r| r.selectors.as_ref()) else { return };
    let mut members: Vec<&String> = roles
        .iter()
        .filter(|(n, r)| !seen.contains(n.as_str()) && selectors.iter().any(|s| s.matches(&r.labels)))
        .map(|(n, _)| n)
        .collect();
    members.sort();
    for member in members {
        let role = &roles[member];
        if !seen.insert(member) {
            continue;
        }
        if role.selectors.is_some() {
            gather(roles, member, seen, out);
        } else {
            for rule in &role.own {
                if !out.contains(rule) {
                    out.push(rule.clone());
                }
            }
        }
    }
}

impl Binding {
    fn whom(&self) -> Vec<Who> {
        self.whom_indexed().into_iter().map(|(_, w)| w).collect()
    }

    fn whom_indexed(&self) -> Vec<(usize, Who)> {
        let who = |s: &Subject| match s.kind.as_str() {
            "User" => Some(Who::User(s.name.clone())),
            "Group" => Some(Who::Group(s.name.clone())),
            "ServiceAccount" => {
                let namespace = if s.namespace.is_empty() { &self.namespace } else { &s.namespace };
                (!namespace.is_empty()).then(|| Who::User(service_account_username(namespace, &s.name)))
            }
            _ => None,
        };
        self.subjects.iter().enumerate().filter_map(|(i, s)| Some((i, who(s)?))).collect()
    }

    /// For reasons: `ClusterRoleBinding "x" of ClusterRole "y" to User "z"`.
    fn describe(&self, subject: usize) -> String {
        let to = match self.subjects.get(subject) {
            Some(s) if s.kind == "ServiceAccount" => {
                let namespace = if s.namespace.is_empty() { &self.namespace } else { &s.namespace };
                format!("{} {:?}", s.kind, format!("{}/{namespace}", s.name))
            }
            Some(s) => format!("{} {:?}", s.kind, s.name),
            None => String::new(),
        };
        let (kind, name) = if self.namespace.is_empty() {
            ("ClusterRoleBinding", self.name.clone())
        } else {
            ("RoleBinding", format!("{}/{}", self.name, self.namespace))
        };
        format!("{kind} {name:?} of {} {:?} to {to}", self.role.kind, self.role.name)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
