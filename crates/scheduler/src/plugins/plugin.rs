//! What a plugin is. A plugin answers for one node at a time, from the pod's spec and the node alone where it can: such
//! answers are kept until the node changes. What counts pods over many nodes keeps its counts up to date itself
//! ([`Counted`]).
use std::fmt::Debug;

use kelson_meta::ObjectKey;

use super::change::Change;
use crate::cluster::{Cluster, Namespaces, NodeState};
use crate::reason::Refusal;
use crate::view::PodSpec;

/// The best score of one plugin before its weight.
pub const SCORE_MAX: i64 = 100;

/// How the raw scores of one plugin become 0 to [`SCORE_MAX`] over the nodes that fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalize {
    /// They are that already.
    Nothing,
    /// In proportion to the highest.
    ToHighest,
    /// In proportion to the highest, turned round: the lower, the better.
    Reversed,
}

/// What a plugin has worked out for a spec before any node is looked at.
#[derive(Debug)]
pub enum Prepared {
    /// It needs nothing beyond the spec.
    Nothing,
    /// No node will do; the sentence for people.
    Refused(String),
    /// It asks about single nodes, with facts of the cluster at hand.
    PerNode(Box<dyn PerNode>),
    /// It counts pods over many nodes.
    Counted(Box<dyn Counted>),
}

/// A placed pod that came, changed or went.
#[derive(Clone, Copy, Debug)]
pub struct PodChange<'a> {
    /// As it was, where it was there.
    pub old: Option<&'a PodSpec>,
    /// As it is, where it is there.
    pub new: Option<&'a PodSpec>,
    /// Namespaces are meant by their labels.
    pub namespaces: &'a Namespaces,
}

/// One plugin. All but its name has a default that says nothing; a plugin implements the extension points it has.
///
/// Verdicts and scores on one node are remembered with the node's generation, so they may depend on nothing but the
/// spec, the node with its pods, and what [`Plugin::epoch`] or [`PerNode::refresh`] tells of.
pub trait Plugin: Debug + Sync {
    /// Its name, as in the reference's configuration and messages.
    fn name(&self) -> &'static str;

    /// The only nodes it lets the pod go to, by name, when it can say so before looking at any (PreFilter).
    fn only_nodes<'a>(&self, _spec: &'a PodSpec) -> Option<&'a [Box<str>]> {
        None
    }

    /// What it needs to know of the cluster to judge this spec, worked out once per spec and [`Plugin::epoch`]
    /// (PreFilter, PreScore).
    fn prepare(&self, _spec: &PodSpec, _cluster: &mut Cluster) -> Prepared {
        Prepared::Nothing
    }

    /// Changes when everything it prepared for this spec is void.
    fn epoch(&self, _spec: &PodSpec, _cluster: &Cluster) -> u64 {
        0
    }

    /// Why the pod must not go to this node as it is, if it must not (Filter).
    fn filter(&self, _spec: &PodSpec, _node: &NodeState) -> Option<Refusal> {
        None
    }

    /// Whether what it says of a node depends on what the node is, so that a change of the node may make it say otherwise: whether it
    /// has [`never_fits`](Self::never_fits).
    fn judges_nodes(&self) -> bool {
        false
    }

    /// Whether what it says of a node by [`filter`](Self::filter) depends on the pods there, so that it may say otherwise when pods
    /// leave the node or ask for less.
    fn counts_room(&self) -> bool {
        false
    }

    /// Whether the node could never take the pod, whatever pods leave it: then its coming or changing requeues nothing.
    fn never_fits(&self, _spec: &PodSpec, _node: &NodeState) -> bool {
        false
    }

    /// How welcome the node is, before [`Plugin::normalize`] (Score). Asked of nodes that fit.
    fn score(&self, _spec: &PodSpec, _node: &NodeState) -> i64 {
        0
    }

    /// How its raw scores are made comparable with others'.
    fn normalize(&self) -> Normalize {
        Normalize::Nothing
    }

    /// How much its score counts; zero for plugins that do not score.
    fn weight(&self) -> i64 {
        0
    }

    /// Whether pods that the plugin refused may be tried again after a change of this kind, whichever node it is about
    /// (EventsToRegister).
    fn requeues_on(&self, _change: Change) -> bool {
        false
    }

    /// Whether a change of such a kind, of the object of that name, is of use to this spec (QueueingHint).
    fn hint(&self, _spec: &PodSpec, _change: Change, _about: &ObjectKey) -> bool {
        true
    }

    /// Whether what became of a node, which was `old` if it was there, is of use to this spec (QueueingHint). A node
    /// that the pod could go to now and could not before is of use whatever this says; by default that alone is.
    fn node_hint(&self, _spec: &PodSpec, _old: Option<&NodeState>, _new: &NodeState) -> bool {
        false
    }

    /// Whether what became of a placed pod is of use to this spec (QueueingHint).
    fn pod_hint(&self, _spec: &PodSpec, _change: PodChange<'_>) -> bool {
        true
    }
}

/// Questions about single nodes that need facts of the cluster. The answers are remembered as those of
/// [`Plugin::filter`] and [`Plugin::score`] are.
pub trait PerNode: Debug + Send {
    /// Reads the facts anew; whether they changed, so that what is remembered of the nodes is void.
    fn refresh(&mut self, _spec: &PodSpec, _cluster: &Cluster) -> bool {
        false
    }
    /// Why the pod must not go to this node, if it must not.
    fn filter(&self, _cluster: &Cluster, _node: &NodeState) -> Option<Refusal> {
        None
    }
    /// How welcome the node is, before [`Plugin::normalize`].
    fn score(&self, _spec: &PodSpec, _cluster: &Cluster, _node: &NodeState) -> i64 {
        0
    }
}

/// Counts of pods over many nodes, kept up to date node by node.
pub trait Counted: Debug + Send {
    /// Counts the nodes that changed; whether there is anything to say on this spec now.
    fn sync(&mut self, spec: &PodSpec, cluster: &mut Cluster) -> bool;
    /// Counts node `i` as if it were `state`; the preemption's "what if these pods went".
    fn count_as(&mut self, spec: &PodSpec, cluster: &mut Cluster, i: usize, state: &NodeState);
    /// Why the pod must not go to node `i`, if it must not.
    fn filter(&self, cluster: &Cluster, i: usize) -> Option<Refusal>;
    /// Writes the normalised scores (0 to [`SCORE_MAX`]) of these nodes to `out`; false when all are equally welcome.
    fn scores(&self, cluster: &Cluster, nodes: &[u32], out: &mut Vec<i64>) -> bool;
}
