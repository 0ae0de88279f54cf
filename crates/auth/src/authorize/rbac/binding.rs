//! Role bindings, and those of one subject.
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;

use super::lookup::{BINDINGS_MIN, BindingIndex, RoleName, decisions_min};
use super::stored::{RoleRef, Subject};
use crate::user::service_account_username;

/// A role binding.
pub(super) struct Binding {
    /// Empty for ClusterRoleBindings.
    pub namespace: String,
    pub name: String,
    pub role: RoleRef,
    pub subjects: Vec<Subject>,
}

/// The subject of a binding: a user name or a group.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Who {
    User(String),
    Group(String),
}

/// The bindings of one subject.
#[derive(Default)]
pub(super) struct SubjectBindings {
    /// Each with the subject's position in it; sorted by namespace and name.
    pub list: Vec<(Arc<Binding>, usize)>,
    /// Indexes of scopes with many bindings, by namespace. They are made when decisions need them, and end with the next change of the
    /// list or of one of its roles.
    indexes: RwLock<HashMap<String, Arc<BindingIndex>>>,
    /// Decisions since the last change that found no index.
    unindexed: AtomicU32,
}

impl SubjectBindings {
    /// Ends all indexes.
    pub fn changed(&mut self) {
        self.indexes.get_mut().clear();
        *self.unindexed.get_mut() = 0;
    }

    /// The index of the bindings in a scope, if there are many of them. `make` makes it.
    pub fn index(&self, scope: &str, count: usize, make: impl FnOnce() -> BindingIndex) -> Option<Arc<BindingIndex>> {
        if count < BINDINGS_MIN {
            return None;
        }
        if let Some(found) = self.indexes.read().get(scope) {
            return Some(Arc::clone(found));
        }
        if self.unindexed.fetch_add(1, Ordering::Relaxed) + 1 < decisions_min() {
            return None;
        }
        // Other decisions about this subject wait for the index; the lock of all decisions is only read.
        let mut indexes = self.indexes.write();
        let index = indexes.entry(scope.to_owned()).or_insert_with(|| Arc::new(make()));
        Some(Arc::clone(index))
    }

    /// Ends the indexes of scopes with bindings that name a role, whose namespace is empty for a ClusterRole. Returns whether indexes
    /// are left.
    pub fn role_changed(&mut self, namespace: &str, role: &RoleName) -> bool {
        let indexes = self.indexes.get_mut();
        let before = indexes.len();
        indexes.retain(|scope, index| !(index.has_role(role) && (role.0 || scope == namespace)));
        if indexes.len() < before {
            *self.unindexed.get_mut() = 0;
        }
        !indexes.is_empty()
    }
}

/// The place of a binding in a subject's list, or where it would be.
pub(super) fn place_of(list: &[(Arc<Binding>, usize)], binding: &Binding) -> Result<usize, usize> {
    list.binary_search_by(|(b, _)| (&b.namespace, &b.name).cmp(&(&binding.namespace, &binding.name)))
}

/// Those of a subject's bindings that are in one namespace (empty: cluster-wide).
pub(super) fn of_scope<'l>(list: &'l [(Arc<Binding>, usize)], scope: &str) -> &'l [(Arc<Binding>, usize)] {
    let begin = list.partition_point(|(b, _)| *b.namespace < *scope);
    let end = begin + list[begin..].partition_point(|(b, _)| *b.namespace == *scope);
    &list[begin..end]
}

impl Binding {
    pub fn role_subjects(&self) -> Vec<Who> {
        self.indexed_subjects().into_iter().map(|(_, w)| w).collect()
    }

    pub fn indexed_subjects(&self) -> Vec<(usize, Who)> {
        (0..self.subjects.len()).filter_map(|i| Some((i, self.who(i)?))).collect()
    }

    /// The user or group of one of the subjects.
    pub fn who(&self, subject: usize) -> Option<Who> {
        let s = self.subjects.get(subject)?;
        match s.kind.as_str() {
            "User" => Some(Who::User(s.name.clone())),
            "Group" => Some(Who::Group(s.name.clone())),
            "ServiceAccount" => {
                let namespace = if s.namespace.is_empty() { &self.namespace } else { &s.namespace };
                (!namespace.is_empty()).then(|| Who::User(service_account_username(namespace, &s.name)))
            }
            _ => None,
        }
    }

    pub fn role_name(&self) -> RoleName {
        (self.role.kind == "ClusterRole", self.role.name.clone())
    }

    /// Describes the binding in the reason of a decision: `ClusterRoleBinding "x" of ClusterRole "y" to User "z"`.
    pub fn describe(&self, subject: usize) -> String {
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
