//! Roles and bindings, indexed by subject and updated from the store's log. A decision only reads the bindings of the
//! user's own names, so its cost does not grow with the number of bindings in the cluster.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::PolicyRule;
use super::aggregation::{Aggregation, ClusterRole, Parts, Update};

use super::stored::{BindingView, RoleRef, RoleView, Subject};
use crate::Attributes;
use crate::authorize::{Authorizer, Decision};
use crate::objects::{Change, decode};
use crate::user::{UserInfo, service_account_username};

/// The resources of `rbac.authorization.k8s.io` that are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RbacResource {
    /// The resource `roles`.
    Roles,
    /// The resource `clusterroles`.
    ClusterRoles,
    /// The resource `rolebindings`.
    RoleBindings,
    /// The resource `clusterrolebindings`.
    ClusterRoleBindings,
}

impl RbacResource {
    /// Returns the resource of a plural name.
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
    /// The rules in the order in which they are evaluated: cluster-wide ones first.
    pub rules: Vec<PolicyRule>,
    /// Errors for bindings whose role does not exist.
    pub errors: Vec<String>,
}

/// The rules of a role.
enum Role {
    Own(Arc<[PolicyRule]>),
    /// Rules that are aggregated from other cluster roles.
    Gathered(Parts),
}

impl Role {
    /// Returns its rules; aggregated ones are ordered by the names of their roles, and may repeat.
    fn rules(&self) -> impl Iterator<Item = &PolicyRule> {
        let (own, parts) = match self {
            Self::Own(rules) => (&rules[..], None),
            Self::Gathered(parts) => (&[][..], Some(parts)),
        };
        own.iter().chain(parts.into_iter().flat_map(Parts::values).flat_map(|rules| rules.iter()))
    }

    /// Returns the rules, each once.
    fn distinct(&self) -> Vec<PolicyRule> {
        let mut seen = HashSet::new();
        self.rules().filter(|rule| seen.insert(*rule)).cloned().collect()
    }
}

struct Binding {
    /// The namespace; empty for ClusterRoleBindings.
    namespace: String,
    name: String,
    role: RoleRef,
    subjects: Vec<Subject>,
}

/// The subject of a binding: a user name or a group.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Who {
    User(String),
    Group(String),
}

/// Bindings by subject's name, each with the index of the subject; sorted by namespace and name.
type BySubject = HashMap<String, Vec<(Arc<Binding>, usize)>>;

#[derive(Default)]
struct IndexState {
    /// Roles by namespace (empty: cluster roles) and name.
    roles: HashMap<String, HashMap<String, Role>>,
    bindings: HashMap<(String, String), Arc<Binding>>,
    users: BySubject,
    groups: BySubject,
}

/// The RBAC authorizer.
///
/// Call [`Rbac::apply`] for each change of a role or binding, and share it by `Arc`. A decision takes a read lock,
/// looks up the bindings of the user's name and groups, and evaluates the rules of their roles; it does no I/O and its
/// cost does not depend on the number of bindings of other subjects.
#[derive(Default)]
pub struct Rbac {
    /// The state that decisions read. A writer holds its lock only to store results computed before.
    state: RwLock<IndexState>,
    /// The state of aggregation. Locked before `state`, and only by writers of ClusterRoles.
    aggregation: Mutex<Aggregation>,
}

impl Rbac {
    /// Creates an authorizer without roles.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies a change of a stored object. `namespace` is empty for cluster-scoped kinds.
    pub fn apply(&self, resource: RbacResource, namespace: &str, name: &str, change: Change<'_>) {
        if resource.is_role() {
            let view = match change {
                Change::Put(bytes) => decode::<RoleView>(bytes, "role"),
                Change::Delete => None,
            };
            if namespace.is_empty() {
                self.put_cluster_role(name, view.map(RoleView::cluster_role));
            } else {
                let role = view.map(|view| Role::Own(view.rules.unwrap_or_default().into()));
                self.state.write().put_role(namespace, name, role);
            }
        } else {
            let view = match change {
                Change::Put(bytes) => decode::<BindingView>(bytes, "role binding"),
                Change::Delete => None,
            };
            self.state.write().put_binding(namespace, name, view);
        }
    }

    /// Aggregation is computed before the lock of decisions is taken.
    fn put_cluster_role(&self, name: &str, role: Option<ClusterRole>) {
        let mut aggregation = self.aggregation.lock();
        let gathers = role.as_ref().is_some_and(|role| role.selectors.is_some());
        let own = role.as_ref().filter(|_| !gathers).map(|role| Role::Own(Arc::clone(&role.rules)));
        let is_there = role.is_some();
        let updates = aggregation.put(name, role);
        let mut state = self.state.write();
        match own {
            Some(own) => state.put_role("", name, Some(own)),
            None if !is_there => state.put_role("", name, None),
            // Its aggregated rules follow.
            None => {}
        }
        for update in updates {
            state.gather(update);
        }
    }

    /// Returns the number of roles visited to compute aggregation.
    #[cfg(test)]
    pub(super) fn aggregation_cost(&self) -> u64 {
        self.aggregation.lock().looked_at
    }

    /// Returns namespace and name of every known object of a resource.
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

    /// Calls `visit` with every rule that applies to `user` in `namespace` (empty: only cluster-wide ones), and its
    /// reason, until it returns false. Returns the roles that could not be resolved.
    fn visit(
        &self,
        user: &UserInfo,
        namespace: &str,
        mut visit: impl FnMut(&Binding, usize, &PolicyRule) -> bool,
    ) -> Vec<String> {
        let state = self.state.read();
        let mut errors = Vec::new();
        let by_user = state.users.get(&user.name).into_iter();
        let by_group = user.groups.iter().filter_map(|g| state.groups.get(g));
        // Two passes: upstream resolves cluster-wide bindings first, which is visible in reasons and in rule lists.
        let scopes = if namespace.is_empty() { &[""][..] } else { &["", namespace][..] };
        for scope in scopes {
            for (binding, subject) in by_user.clone().chain(by_group.clone()).flat_map(|list| of_scope(list, scope)) {
                match state.resolve(&binding.role, &binding.namespace) {
                    Ok(role) => {
                        for rule in role.rules() {
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

    /// Returns all rules that apply to `user` in `namespace`.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> RulesFor {
        let (mut rules, mut last) = (Vec::new(), std::ptr::null::<Binding>());
        let mut seen = HashSet::new();
        let errors = self.visit(user, namespace, |binding, _, rule| {
            if !std::ptr::eq(binding, last) {
                last = std::ptr::from_ref(binding);
                seen.clear();
            }
            // A rule that several members have is listed once.
            if seen.insert(rule.clone()) {
                rules.push(rule.clone());
            }
            true
        });
        RulesFor { rules, errors }
    }

    /// Returns the rules of the role a binding in `namespace` refers to.
    pub(crate) fn role_rules(&self, role: &RoleRef, namespace: &str) -> Result<Vec<PolicyRule>, String> {
        self.state.read().resolve(role, namespace).map(Role::distinct)
    }

    /// Returns the aggregated rules of a ClusterRole with an aggregation rule; `None` for other roles.
    pub fn aggregated_rules(&self, cluster_role: &str) -> Option<Vec<PolicyRule>> {
        let state = self.state.read();
        let role = state.roles.get("")?.get(cluster_role)?;
        matches!(role, Role::Gathered(_)).then(|| role.distinct())
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
    fn put_role(&mut self, namespace: &str, name: &str, role: Option<Role>) {
        match role {
            None => {
                if let Some(roles) = self.roles.get_mut(namespace) {
                    roles.remove(name);
                    if roles.is_empty() {
                        self.roles.remove(namespace);
                    }
                }
            }
            Some(role) => {
                self.roles.entry(namespace.to_owned()).or_default().insert(name.to_owned(), role);
            }
        }
    }

    fn gather(&mut self, update: Update) {
        match update {
            Update::Whole { gatherer, parts } => self.put_role("", &gatherer, Some(Role::Gathered(parts))),
            Update::Part { gatherer, member, rules } => {
                let role = self.roles.get_mut("").and_then(|roles| roles.get_mut(&*gatherer));
                let Some(Role::Gathered(parts)) = role else { return };
                match rules {
                    Some(rules) => parts.insert(member, rules),
                    None => parts.remove(&member),
                };
            }
        }
    }

    fn put_binding(&mut self, namespace: &str, name: &str, view: Option<BindingView>) {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(old) = self.bindings.remove(&key) {
            for who in old.whom() {
                let (map, subject) = self.index(&who);
                if let Some(list) = map.get_mut(subject) {
                    if let Ok(at) = place_of(list, &old) {
                        list.remove(at);
                    }
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
            // A subject that is listed twice is bound once.
            if let Err(at) = place_of(list, &binding) {
                list.insert(at, (binding.clone(), i));
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

    fn resolve(&self, role: &RoleRef, namespace: &str) -> Result<&Role, String> {
        let (scope, resource) = match role.kind.as_str() {
            "ClusterRole" => ("", "clusterrole"),
            "Role" => (namespace, "role"),
            other => return Err(format!("unsupported role reference kind: {other:?}")),
        };
        match self.roles.get(scope).and_then(|r| r.get(&role.name)) {
            Some(found) if !(scope.is_empty() && role.kind == "Role") => Ok(found),
            _ => Err(format!("{resource}.rbac.authorization.k8s.io {:?} not found", role.name)),
        }
    }
}

/// Returns the index of a binding in a subject's list, or the index at which to insert it.
fn place_of(list: &[(Arc<Binding>, usize)], binding: &Binding) -> Result<usize, usize> {
    list.binary_search_by(|(b, _)| (&b.namespace, &b.name).cmp(&(&binding.namespace, &binding.name)))
}

/// Returns those of a subject's bindings that are in one namespace (empty: cluster-wide).
fn of_scope<'l>(list: &'l [(Arc<Binding>, usize)], scope: &str) -> &'l [(Arc<Binding>, usize)] {
    let begin = list.partition_point(|(b, _)| *b.namespace < *scope);
    let end = begin + list[begin..].partition_point(|(b, _)| *b.namespace == *scope);
    &list[begin..end]
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

    /// Formats a binding for reasons: `ClusterRoleBinding "x" of ClusterRole "y" to User "z"`.
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
