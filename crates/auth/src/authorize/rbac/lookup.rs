//! Lookup: which of a subject's many bindings in one scope can allow a request, by what the rules of their roles name. Without it a
//! decision would look at every one of them.
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use super::PolicyRule;
use crate::Attributes;

/// Bindings of one subject in one scope from which on they are indexed. Tests index all, so that the model looks at indexes.
pub(super) const BINDINGS_MIN: usize = if cfg!(test) { 1 } else { 32 };
/// The decision on an unchanged list that makes its index, so that changes one after the other do not make an index each.
pub(super) const fn decisions_min() -> u32 {
    if cfg!(test) { 1 } else { 5 }
}

thread_local! {
    /// Bindings that decisions in this thread looked at, which tests count.
    pub(super) static LOOKED_AT: Cell<u64> = const { Cell::new(0) };
}

/// Counts a binding that a decision looks at, in tests.
pub(super) fn note_look() {
    if cfg!(test) {
        LOOKED_AT.set(LOOKED_AT.get() + 1);
    }
}

/// Whether a role is a ClusterRole, and its name.
pub(super) type RoleName = (bool, String);

/// The positions of bindings in a subject's list, by what their roles' rules name. All lists are ascending.
#[derive(Debug, Default)]
pub(super) struct BindingIndex {
    /// By the resource of a rule, with its subresource.
    resources: HashMap<Box<str>, Vec<u32>>,
    /// Roles with a rule for any resource, or for a subresource of any.
    any_resource: Vec<u32>,
    /// Roles with a rule for paths.
    paths: Vec<u32>,
    /// Roles that are not there.
    pub missing: Vec<u32>,
    /// All roles that the bindings name. A change of one of them ends the index.
    roles: HashSet<RoleName>,
}

impl BindingIndex {
    /// Adds the next binding, whose role has these rules; `None`: there is no such role.
    pub fn push<'r>(&mut self, at: u32, role: RoleName, rules: Option<impl Iterator<Item = &'r PolicyRule>>) {
        self.roles.insert(role);
        let Some(rules) = rules else {
            self.missing.push(at);
            return;
        };
        for rule in rules {
            for resource in &rule.resources {
                if resource == "*" || resource.starts_with("*/") {
                    push_once(&mut self.any_resource, at);
                } else if let Some(list) = self.resources.get_mut(resource.as_str()) {
                    push_once(list, at);
                } else {
                    self.resources.insert(resource.as_str().into(), vec![at]);
                }
            }
            if !rule.non_resource_urls.is_empty() {
                push_once(&mut self.paths, at);
            }
        }
    }

    /// Whether a binding names this role.
    pub fn has_role(&self, role: &RoleName) -> bool {
        self.roles.contains(role)
    }

    /// The positions of the bindings that can allow a request, ascending.
    pub fn candidates(&self, request: &Attributes<'_>) -> impl Iterator<Item = u32> + '_ {
        let named = if request.is_resource {
            let resource = match request.subresource {
                "" => Cow::Borrowed(request.resource),
                subresource => Cow::Owned(format!("{}/{subresource}", request.resource)),
            };
            self.resources.get(&*resource).map_or(&[][..], Vec::as_slice)
        } else {
            &self.paths[..]
        };
        let any = if request.is_resource { &self.any_resource[..] } else { &[] };
        merge(named, any)
    }
}

fn push_once(list: &mut Vec<u32>, at: u32) {
    if list.last() != Some(&at) {
        list.push(at);
    }
}

/// The numbers of two ascending lists, each once.
fn merge<'l>(mut one: &'l [u32], mut other: &'l [u32]) -> impl Iterator<Item = u32> + 'l {
    std::iter::from_fn(move || {
        let next = match (one.first(), other.first()) {
            (Some(a), Some(b)) => *a.min(b),
            (a, b) => *a.or(b)?,
        };
        for list in [&mut one, &mut other] {
            if let Some((first, rest)) = list.split_first()
                && *first == next
            {
                *list = rest;
            }
        }
        Some(next)
    })
}
