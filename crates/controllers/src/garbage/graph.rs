//! Who owns whom, over all kinds: pure bookkeeping, kept small since it knows every object of the cluster. Upstream
//! `pkg/controller/garbagecollector/graph_builder.go`.
use std::collections::{HashMap, HashSet};

use kelson_meta::OwnerReference;

use crate::views::uid_number;

/// Finalizer of an object that goes after its dependents.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of an object whose dependents stay.
pub const ORPHAN: &str = "orphan";

/// What is known of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Number of its resource.
    pub resource: u16,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: Box<str>,
    pub name: Box<str>,
    /// Owners: UID, and whether it blocks the owner's foreground deletion.
    pub owners: Box<[(u128, bool)]>,
    /// Deletion has begun.
    pub deleting: bool,
    /// Waits for its dependents.
    pub foreground: bool,
    /// Its dependents are to stay.
    pub orphaning: bool,
}

impl Node {
    /// From an object's metadata.
    pub fn new(
        resource: u16,
        namespace: &str,
        name: &str,
        owners: &[OwnerReference],
        deleting: bool,
        finalizers: &[String],
    ) -> Self {
        let has = |f: &str| finalizers.iter().any(|x| x == f);
        Self {
            resource,
            namespace: namespace.into(),
            name: name.into(),
            owners: owners.iter().map(|o| (uid_number(&o.uid), o.block_owner_deletion == Some(true))).collect(),
            deleting,
            foreground: deleting && has(FOREGROUND),
            orphaning: deleting && has(ORPHAN),
        }
    }
    fn blocks(&self, owner: u128) -> bool {
        self.owners.iter().any(|(u, b)| *u == owner && *b)
    }
}

/// What to look at after a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Objects that may have to go.
    pub delete: Vec<u128>,
    /// Owners whose dependents are to be let go of.
    pub orphan: Vec<u128>,
}

/// All objects and their owners.
#[derive(Default)]
pub struct Graph {
    nodes: HashMap<u128, Node>,
    dependents: HashMap<u128, HashSet<u128>>,
}

impl Graph {
    /// An object is there, as `node`.
    pub fn observe(&mut self, uid: u128, node: Node) -> Work {
        let mut work = Work::default();
        let old = self.nodes.get(&uid);
        if old == Some(&node) {
            return work;
        }
        let (was_foreground, was_orphaning) = old.map_or((false, false), |o| (o.foreground, o.orphaning));
        let old_owners = old.map(|o| o.owners.clone()).unwrap_or_default();
        let gone: Vec<u128> =
            old_owners.iter().filter(|(u, _)| !node.owners.iter().any(|(n, _)| n == u)).map(|o| o.0).collect();
        for owner in gone {
            self.unlink(owner, uid);
            self.recheck_foreground(owner, &mut work);
        }
        for (owner, blocks) in &node.owners {
            self.dependents.entry(*owner).or_default().insert(uid);
            let was_blocking = old_owners.iter().any(|(u, b)| u == owner && *b);
            if was_blocking && !blocks {
                self.recheck_foreground(*owner, &mut work);
            }
            match self.nodes.get(owner) {
                // Not seen (yet): whether it exists must be asked.
                None => work.delete.push(uid),
                // It goes after its dependents, of which this is one.
                Some(o) if o.foreground && *owner != uid => work.delete.push(uid),
                Some(_) => {}
            }
        }
        if node.foreground && !was_foreground {
            work.delete.push(uid);
            work.delete.extend(self.dependents_of(uid));
        }
        if node.orphaning && !was_orphaning {
            work.orphan.push(uid);
        }
        self.nodes.insert(uid, node);
        work.delete.sort_unstable();
        work.delete.dedup();
        work
    }

    /// An object is gone.
    pub fn remove(&mut self, uid: u128) -> Work {
        let mut work = Work::default();
        let Some(node) = self.nodes.remove(&uid) else { return work };
        for (owner, _) in &node.owners {
            self.unlink(*owner, uid);
            self.recheck_foreground(*owner, &mut work);
        }
        work.delete.extend(self.dependents_of(uid));
        work
    }

    fn recheck_foreground(&self, owner: u128, work: &mut Work) {
        if self.nodes.get(&owner).is_some_and(|o| o.foreground) {
            work.delete.push(owner);
        }
    }

    fn unlink(&mut self, owner: u128, dependent: u128) {
        if let Some(set) = self.dependents.get_mut(&owner) {
            set.remove(&dependent);
            if set.is_empty() {
                self.dependents.remove(&owner);
            }
        }
    }

    /// The node of an object that is known or only referred to.
    pub fn get(&self, uid: u128) -> Option<&Node> {
        self.nodes.get(&uid)
    }
    /// Whatever refers to `uid` as an owner.
    pub fn dependents_of(&self, uid: u128) -> Vec<u128> {
        self.dependents.get(&uid).map(|s| s.iter().copied().collect()).unwrap_or_default()
    }
    /// Dependents that an owner's foreground deletion waits for.
    pub fn blocking(&self, owner: u128) -> Vec<u128> {
        let all = self.dependents_of(owner);
        all.into_iter().filter(|d| self.nodes.get(d).is_some_and(|n| n.blocks(owner))).collect()
    }
    /// Every object of a resource.
    pub fn of_resource(&self, resource: u16) -> Vec<u128> {
        self.nodes.iter().filter(|(_, n)| n.resource == resource).map(|(u, _)| *u).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(by: &[(u128, bool)]) -> Node {
        Node { name: "x".into(), owners: by.into(), ..Node::default() }
    }
    fn delete(list: &[u128]) -> Work {
        Work { delete: list.to_vec(), orphan: vec![] }
    }

    #[test]
    fn what_a_change_calls_for() {
        let mut g = Graph::default();
        assert_eq!(g.observe(1, owned(&[])), Work::default());
        assert_eq!(g.observe(2, owned(&[(1, true)])), Work::default());
        assert_eq!(g.observe(3, owned(&[(1, false)])), Work::default());
        assert_eq!(g.observe(4, owned(&[(9, false)])), delete(&[4]), "an owner nobody has seen");
        let going = Node { deleting: true, foreground: true, ..owned(&[]) };
        assert_eq!(g.observe(1, going.clone()), delete(&[1, 2, 3]));
        assert_eq!(g.observe(1, going), Work::default(), "the same again is nothing new");
        assert_eq!(g.blocking(1), [2]);
        assert_eq!(g.observe(2, owned(&[(1, false)])).delete, [1, 2], "it no longer blocks");
        assert_eq!(g.remove(2), delete(&[1]));
        assert_eq!(g.remove(1), delete(&[3]));
        assert_eq!(g.remove(1), Work::default());
    }

    #[test]
    fn orphaning_is_told_once() {
        let mut g = Graph::default();
        let n = Node { deleting: true, orphaning: true, ..owned(&[]) };
        assert_eq!(g.observe(1, n.clone()).orphan, [1]);
        assert_eq!(g.observe(1, n), Work::default());
        assert!(g.of_resource(0).contains(&1));
    }

    #[test]
    fn finalizers_count_only_when_deleting() {
        let f = [FOREGROUND.to_owned(), ORPHAN.to_owned()];
        assert!(!Node::new(0, "", "a", &[], false, &f).foreground);
        let n = Node::new(0, "", "a", &[], true, &f);
        assert!(n.foreground && n.orphaning);
    }
}
