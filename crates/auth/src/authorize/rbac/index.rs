//! Roles and bindings, indexed by subject and updated from the store's log. A decision only reads the bindings of the
//! user's own names, so its cost does not grow with the number of bindings in the cluster.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::PolicyRule;
use super::aggregation::{Aggregation, ClusterRole, Parts, Update};
use super::binding::{Binding, SubjectBindings, Who, of_scope, place_of};
use super::lookup::{BindingIndex, RoleName, note_look};
use super::stored::{BindingView, RoleRef, RoleView};
use crate::Attributes;
use crate::authorize::{Authorizer, Decision};
use crate::objects::{Change, decode};
use crate::user::UserInfo;

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
    /// Finds the resource by its plural name.
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
    /// The rules, those of cluster role bindings first.
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

/// The bindings of subjects by their names.
type BySubject = HashMap<String, SubjectBindings>;

#[derive(Default)]
struct IndexState {
    /// Roles by namespace (empty: cluster roles) and name.
    roles: HashMap<String, HashMap<String, Role>>,
    bindings: HashMap<(String, String), Arc<Binding>>,
    users: BySubject,
    groups: BySubject,
    /// The subjects that have indexes.
    indexed: Mutex<HashSet<Who>>,
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
    /// Creates an empty index.
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
    /// until it returns false. Returns the roles that could not be resolved. Rules that cannot allow `request` may be left out.
    fn visit(
        &self,
        (user, namespace): (&UserInfo, &str),
        request: Option<&Attributes<'_>>,
        mut visit: impl FnMut(&Binding, usize, &PolicyRule) -> bool,
    ) -> Vec<String> {
        let state = self.state.read();
        let mut errors = Vec::new();
        let mut each = |binding: &Binding, subject: usize| {
            note_look();
            match state.resolve(&binding.role, &binding.namespace) {
                Ok(role) => role.rules().all(|rule| visit(binding, subject, rule)),
                Err(e) => {
                    errors.push(e);
                    true
                }
            }
        };
        let by_user = state.users.get(&user.name).into_iter();
        let by_group = user.groups.iter().filter_map(|g| state.groups.get(g));
        // Two passes: upstream resolves cluster-wide bindings first, which is visible in reasons and in rule lists.
        let scopes = if namespace.is_empty() { &[""][..] } else { &["", namespace][..] };
        for scope in scopes {
            for subject in by_user.clone().chain(by_group.clone()) {
                let bindings = of_scope(&subject.list, scope);
                let index = || subject.index(scope, bindings.len(), || state.index_bindings(bindings));
                let found = request.and_then(|r| Some((index()?, r)));
                let done = match found {
                    None => bindings.iter().all(|(binding, at)| each(binding, *at)),
                    Some((index, request)) => {
                        // Missing roles allow nothing, and are errors only if nothing else allows the request.
                        let candidates = index.candidates(request).chain(index.missing.iter().copied());
                        candidates.filter_map(|i| bindings.get(i as usize)).all(|(binding, at)| each(binding, *at))
                    }
                };
                if !done {
                    return errors;
                }
            }
        }
        errors
    }

    /// Returns all rules that apply to `user` in `namespace`.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> RulesFor {
        let (mut rules, mut last) = (Vec::new(), std::ptr::null::<Binding>());
        let mut seen = HashSet::new();
        let errors = self.visit((user, namespace), None, |binding, _, rule| {
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
        let of = (attributes.user, attributes.namespace);
        let errors = self.visit(of, Some(attributes), |binding, subject, rule| {
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
    /// Ends the indexes of bindings that name a role.
    fn role_changed(&mut self, namespace: &str, name: &str) {
        let Self { users, groups, indexed, .. } = self;
        let indexed = indexed.get_mut();
        if indexed.is_empty() {
            return;
        }
        let role: RoleName = (namespace.is_empty(), name.to_owned());
        indexed.retain(|who| {
            let subject = match who {
                Who::User(user) => users.get_mut(user),
                Who::Group(group) => groups.get_mut(group),
            };
            subject.is_some_and(|subject| subject.role_changed(namespace, &role))
        });
    }

    /// Indexes a subject's bindings in one scope.
    fn index_bindings(&self, bindings: &[(Arc<Binding>, usize)]) -> BindingIndex {
        let mut index = BindingIndex::default();
        for (at, (binding, _)) in bindings.iter().enumerate() {
            let role = self.resolve(&binding.role, &binding.namespace).ok();
            index.push(at as u32, binding.role_name(), role.map(Role::rules));
        }
        self.indexed.lock().extend(bindings.first().and_then(|(binding, subject)| binding.who(*subject)));
        index
    }

    fn put_role(&mut self, namespace: &str, name: &str, role: Option<Role>) {
        self.role_changed(namespace, name);
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
                self.role_changed("", &gatherer);
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
            for who in old.role_subjects() {
                let (map, subject) = self.index(&who);
                if let Some(bindings) = map.get_mut(subject) {
                    bindings.changed();
                    if let Ok(at) = place_of(&bindings.list, &old) {
                        bindings.list.remove(at);
                    }
                    if bindings.list.is_empty() {
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
        for (i, who) in binding.indexed_subjects() {
            let (map, subject) = self.index(&who);
            let bindings = map.entry(subject.clone()).or_default();
            bindings.changed();
            // A subject named twice binds once.
            if let Err(at) = place_of(&bindings.list, &binding) {
                bindings.list.insert(at, (binding.clone(), i));
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

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
