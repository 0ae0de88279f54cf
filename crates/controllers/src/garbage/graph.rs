//! The ownership graph over all kinds. Pure and compact, since it has every object of the cluster. Upstream
//! `pkg/controller/garbagecollector/graph_builder.go`.
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};

use kelson_meta::OwnerReference;

use crate::views::uid_number;

/// The finalizer of an object that is deleted after its dependents.
pub const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents are orphaned.
pub const ORPHAN: &str = "orphan";

/// The maximum number of remembered deleted objects. Dependents of these need no request to find that their owner is
/// deleted.
const GONE_MAX: usize = 10_000;

/// Returns a hash of an object's group, kind and name.
pub fn coordinates(group: &str, kind: &str, name: &str) -> u64 {
    // With fixed keys, so that two runs of a simulation agree.
    let mut hasher = DefaultHasher::new();
    (group, kind, name).hash(&mut hasher);
    hasher.finish()
}

/// One owner reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub uid: u128,
    /// Whether it blocks the owner's foreground deletion.
    pub blocks: bool,
    /// The owner's [`coordinates`] according to the reference.
    pub coordinates: u64,
}

impl Owner {
    fn new(reference: &OwnerReference) -> Self {
        let group = reference.api_version.split_once('/').map_or("", |(group, _)| group);
        Self {
            uid: uid_number(&reference.uid),
            blocks: reference.block_owner_deletion == Some(true),
            coordinates: coordinates(group, &reference.kind, &reference.name),
        }
    }

    /// Whether the reference of a dependent in `namespace` is valid for this object. The UID alone does not make a
    /// reference valid.
    fn means(&self, namespace: &str, object: &Node) -> bool {
        let in_reach = object.namespace.is_empty() || *object.namespace == *namespace;
        in_reach && self.coordinates == object.coordinates
    }
}

/// An object of the graph: its location, its owners, and the state of its deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The number of its resource.
    pub resource: u16,
    /// Its hash, see [`coordinates`].
    pub coordinates: u64,
    /// The namespace, or empty for cluster-scoped objects.
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub owners: Box<[Owner]>,
    /// Whether the object has a deletion timestamp.
    pub deleting: bool,
    /// Whether its deletion waits for its dependents.
    pub foreground: bool,
    /// Whether its dependents must be orphaned.
    pub orphaning: bool,
}

impl Node {
    /// Returns the node for an object's metadata. `resource` is the number of its resource, `kind` its group and kind.
    pub fn new(
        resource: u16,
        kind: (&str, &str),
        namespace: &str,
        name: &str,
        owners: &[OwnerReference],
        deleting: bool,
        finalizers: &[String],
    ) -> Self {
        let has = |f: &str| finalizers.iter().any(|x| x == f);
        Self {
            resource,
            coordinates: coordinates(kind.0, kind.1, name),
            namespace: namespace.into(),
            name: name.into(),
            owners: owners.iter().map(Owner::new).collect(),
            deleting,
            foreground: deleting && has(FOREGROUND),
            orphaning: deleting && has(ORPHAN),
        }
    }
    fn blocks(&self, owner: u128) -> bool {
        self.owners.iter().any(|o| o.uid == owner && o.blocks)
    }
    /// Whether every reference of this object to `uid` is valid for `object`.
    fn means(&self, uid: u128, object: &Node) -> bool {
        self.owners.iter().filter(|o| o.uid == uid).all(|o| o.means(&self.namespace, object))
    }
}

/// The objects to process after a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Objects that may have to be deleted.
    pub delete: Vec<u128>,
    /// Owners whose dependents must be orphaned.
    pub orphan: Vec<u128>,
}

/// All objects and their owners.
///
/// Monitors feed it with [`observe`](Self::observe), [`remove`](Self::remove) and [`forget`](Self::forget), and each
/// call returns the objects that must be processed because of the change. The graph may be older than the API server,
/// so a processor checks an object's live state before it acts.
#[derive(Default)]
pub struct Graph {
    nodes: HashMap<u128, Node>,
    dependents: HashMap<u128, HashSet<u128>>,
    /// Objects whose deletion was observed, the newest last. UIDs are never reused.
    gone: HashSet<u128>,
    gone_in_order: VecDeque<u128>,
}

impl Graph {
    /// Adds or updates an object. An object with a possibly invalid reference is always processed, whether its owner is
    /// observed before it, after it or never.
    pub fn observe(&mut self, uid: u128, node: Node) -> Work {
        let mut work = Work::default();
        let old = self.nodes.get(&uid);
        if old == Some(&node) {
            return work;
        }
        let (was_foreground, was_orphaning) = old.map_or((false, false), |o| (o.foreground, o.orphaning));
        let is_new_here = old.is_none_or(|o| o.coordinates != node.coordinates);
        let old_owners = old.map(|o| o.owners.clone()).unwrap_or_default();
        let gone: Vec<u128> =
            old_owners.iter().filter(|o| !node.owners.iter().any(|n| n.uid == o.uid)).map(|o| o.uid).collect();
        for owner in gone {
            self.unlink(owner, uid);
            self.recheck_foreground(owner, &mut work);
        }
        for owner in &node.owners {
            self.dependents.entry(owner.uid).or_default().insert(uid);
            let was_blocking = old_owners.iter().any(|o| o.uid == owner.uid && o.blocks);
            if was_blocking && !owner.blocks {
                self.recheck_foreground(owner.uid, &mut work);
            }
            match self.nodes.get(&owner.uid) {
                // Not observed (yet), so the API server must be asked whether it exists.
                None => work.delete.push(uid),
                // The reference has another name, kind or namespace.
                Some(o) if !owner.means(&node.namespace, o) => work.delete.push(uid),
                // Its deletion waits for its dependents, of which this is one.
                Some(o) if o.foreground && owner.uid != uid => work.delete.push(uid),
                Some(_) => {}
            }
        }
        if is_new_here {
            self.gone.remove(&uid);
            let misled = |d: &u128| self.nodes.get(d).is_some_and(|d| !d.means(uid, &node));
            work.delete.extend(self.dependents_of(uid).into_iter().filter(misled));
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

    /// Removes a deleted object.
    pub fn remove(&mut self, uid: u128) -> Work {
        if self.gone.insert(uid) {
            self.gone_in_order.push_back(uid);
        }
        while self.gone_in_order.len() > GONE_MAX
            && let Some(oldest) = self.gone_in_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
        self.forget(uid)
    }

    /// Removes an object that is no longer watched and may still exist.
    pub fn forget(&mut self, uid: u128) -> Work {
        let mut work = Work::default();
        let Some(node) = self.nodes.remove(&uid) else { return work };
        for owner in &node.owners {
            self.unlink(owner.uid, uid);
            self.recheck_foreground(owner.uid, &mut work);
        }
        work.delete.extend(self.dependents_of(uid));
        work
    }

    /// Whether the object's deletion was observed.
    pub fn is_gone(&self, uid: u128) -> bool {
        self.gone.contains(&uid)
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

    /// Returns the node of an object.
    pub fn get(&self, uid: u128) -> Option<&Node> {
        self.nodes.get(&uid)
    }
    /// Returns the objects with an owner reference to `uid`.
    pub fn dependents_of(&self, uid: u128) -> Vec<u128> {
        self.dependents.get(&uid).map(|s| s.iter().copied().collect()).unwrap_or_default()
    }
    /// Returns the dependents for which an owner's foreground deletion waits.
    pub fn blocking(&self, owner: u128) -> Vec<u128> {
        let all = self.dependents_of(owner);
        all.into_iter().filter(|d| self.nodes.get(d).is_some_and(|n| n.blocks(owner))).collect()
    }
    /// Returns all objects of a resource.
    pub fn of_resource(&self, resource: u16) -> Vec<u128> {
        self.nodes.iter().filter(|(_, n)| n.resource == resource).map(|(u, _)| *u).collect()
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::SliceRandom as _;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    fn owned(by: &[(u128, bool)]) -> Node {
        let owners = by.iter().map(|(uid, blocks)| Owner { uid: *uid, blocks: *blocks, coordinates: 0 }).collect();
        Node { name: "x".into(), owners, ..Node::default() }
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
    fn orphaning_is_reported_once() {
        let mut g = Graph::default();
        let n = Node { deleting: true, orphaning: true, ..owned(&[]) };
        assert_eq!(g.observe(1, n.clone()).orphan, [1]);
        assert_eq!(g.observe(1, n), Work::default());
        assert!(g.of_resource(0).contains(&1));
    }

    #[test]
    fn finalizers_count_only_when_deleting() {
        let f = [FOREGROUND.to_owned(), ORPHAN.to_owned()];
        assert!(!Node::new(0, ("", "A"), "", "a", &[], false, &f).foreground);
        let n = Node::new(0, ("", "A"), "", "a", &[], true, &f);
        assert!(n.foreground && n.orphaning);
    }

    #[test]
    fn deleted_objects_are_remembered_but_not_without_end() {
        let mut g = Graph::default();
        g.observe(1, owned(&[]));
        g.forget(1);
        assert!(!g.is_gone(1), "its kind is no longer served");
        g.observe(1, owned(&[]));
        g.remove(1);
        assert!(g.is_gone(1));
        g.observe(1, owned(&[]));
        assert!(!g.is_gone(1), "restored from a copy");
        (0..2 * GONE_MAX as u128).for_each(|uid| drop(g.remove(uid)));
        assert_eq!((g.gone.len(), g.gone_in_order.len()), (GONE_MAX, GONE_MAX));
        assert!(g.is_gone(2 * GONE_MAX as u128 - 1) && !g.is_gone(0));
    }

    /// Objects of few kinds, namespaces and names, with references of which most are wrong in some respect.
    struct World {
        /// The objects by UID: group and kind, namespace, name.
        places: Vec<((&'static str, &'static str), &'static str, String)>,
        owners: Vec<Vec<OwnerReference>>,
        /// Whether the object is deleted in the end.
        deleted: Vec<bool>,
    }

    const KINDS: [(&str, &str); 4] = [("", "ConfigMap"), ("", "Secret"), ("apps", "Deployment"), ("", "Node")];

    fn uid_text(uid: usize) -> String {
        format!("00000000-0000-4000-8000-{uid:012x}")
    }

    impl World {
        fn random(random: &mut StdRng) -> Self {
            let count = random.random_range(2..12);
            let mut places: Vec<((&str, &str), &str, String)> = Vec::new();
            while places.len() < count {
                let kind = KINDS[random.random_range(0..KINDS.len())];
                let namespace = if kind.1 == "Node" { "" } else { ["a", "b"][random.random_range(0..2)] };
                let place = (kind, namespace, format!("n{}", random.random_range(0..3)));
                if !places.contains(&place) {
                    places.push(place);
                }
            }
            let owners = (0..count)
                .map(|_| {
                    let references = random.random_range(0..3);
                    (0..references)
                        .map(|_| {
                            // One UID beyond the last is that of an object that never existed.
                            let uid = random.random_range(0..=count);
                            let (mut kind, _, mut name) =
                                places.get(uid).cloned().unwrap_or((KINDS[0], "a", "n0".to_owned()));
                            if random.random_bool(0.3) {
                                kind = KINDS[random.random_range(0..KINDS.len())];
                            }
                            if random.random_bool(0.2) {
                                name = format!("n{}", random.random_range(0..3));
                            }
                            let version = if kind.0.is_empty() { "v1".to_owned() } else { format!("{}/v1", kind.0) };
                            OwnerReference {
                                api_version: version,
                                kind: kind.1.to_owned(),
                                name,
                                uid: uid_text(uid),
                                ..OwnerReference::default()
                            }
                        })
                        .collect()
                })
                .collect();
            let deleted = (0..count).map(|_| random.random_bool(0.2)).collect();
            Self { places, owners, deleted }
        }

        fn node(&self, uid: usize) -> Node {
            let (kind, namespace, name) = &self.places[uid];
            Node::new(0, *kind, namespace, name, &self.owners[uid], false, &[])
        }

        /// Whether the API has the object with the UID where the reference says it is.
        fn is_there(&self, of: usize, reference: &OwnerReference) -> bool {
            let group = reference.api_version.split_once('/').map_or("", |(group, _)| group);
            let namespace = if reference.kind == "Node" { "" } else { self.places[of].1 };
            let place = ((group, reference.kind.as_str()), namespace, &reference.name);
            let at = (0..self.places.len()).find(|uid| {
                let (kind, namespace, name) = &self.places[*uid];
                (*kind, *namespace, name) == place && !self.deleted[*uid]
            });
            at.is_some_and(|uid| uid_text(uid) == reference.uid)
        }

        /// The objects that must be deleted, as all their owners are absent.
        fn condemned(&self) -> Vec<usize> {
            let all = 0..self.places.len();
            let absent = |uid: usize| !self.owners[uid].iter().any(|o| self.is_there(uid, o));
            all.filter(|uid| !self.deleted[*uid] && !self.owners[*uid].is_empty() && absent(*uid)).collect()
        }
    }

    #[test]
    fn any_order_of_events_gives_the_same_verdict() {
        for seed in 0..3000 {
            let mut random = StdRng::seed_from_u64(seed);
            let world = World::random(&mut random);
            let mut events: Vec<(usize, bool)> = (0..world.places.len()).map(|uid| (uid, true)).collect();
            for _ in 0..4 {
                events.shuffle(&mut random);
                // Events of one object keep their order; events of different objects are interleaved.
                let mut order = events.clone();
                for uid in (0..world.places.len()).filter(|uid| world.deleted[*uid]) {
                    let seen = order.iter().position(|e| *e == (uid, true)).expect("each is seen");
                    let at = random.random_range(seen + 1..=order.len());
                    order.insert(at, (uid, false));
                }
                let mut graph = Graph::default();
                let mut looked_at = HashSet::new();
                for (uid, is_there) in &order {
                    let number = uid_number(&uid_text(*uid));
                    let work = if *is_there { graph.observe(number, world.node(*uid)) } else { graph.remove(number) };
                    looked_at.extend(work.delete);
                }
                // Processed objects are checked against the API's state, so the result is the same if no object is
                // missed.
                for uid in world.condemned() {
                    let number = uid_number(&uid_text(uid));
                    assert!(looked_at.contains(&number), "seed {seed}, order {order:?}: {uid} is overlooked");
                }
            }
        }
    }
}
