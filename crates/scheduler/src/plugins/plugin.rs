//! The plugin interface. Where possible a plugin evaluates one node at a time, from the pod's spec and the node alone:
//! such results are cached until the node changes. A plugin that counts pods over many nodes updates its counts itself
//! ([`Counted`]).
use std::fmt::Debug;

use kelson_meta::ObjectKey;

use super::change::Change;
use crate::cluster::{Cluster, Namespaces, NodeState};
use crate::reason::Refusal;
use crate::view::PodSpec;

/// The maximum score of one plugin before its weight.
pub const SCORE_MAX: i64 = 100;

/// The normalization of one plug-in's raw scores to 0 to [`SCORE_MAX`] over the nodes that fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalize {
    /// They are in that range already.
    Nothing,
    /// Scores are proportional to the highest raw score.
    ToHighest,
    /// Scores are proportional to the highest raw score and inverted: a lower raw score is better.
    Reversed,
}

/// The data that a plug-in has computed for a spec before it checks nodes.
#[derive(Debug)]
pub enum Prepared {
    /// It needs only the spec.
    Nothing,
    /// No node fits, with the message.
    Refused(String),
    /// It evaluates single nodes with data of the cluster.
    PerNode(Box<dyn PerNode>),
    /// It counts pods over many nodes.
    Counted(Box<dyn Counted>),
}

/// A placed pod that was added, updated or removed.
#[derive(Clone, Copy, Debug)]
pub struct PodChange<'a> {
    /// The old spec, unless it was added.
    pub old: Option<&'a PodSpec>,
    /// The new spec, unless it was removed.
    pub new: Option<&'a PodSpec>,
    /// The labels of namespaces, for terms that select namespaces.
    pub namespaces: &'a Namespaces,
}

/// A scheduling plugin. Every method except `name` has a default that does nothing; a plugin implements the extension
/// points it supports.
///
/// Results for one node are cached with the node's generation, so they may depend only on the spec, the node with its
/// pods, and data whose changes [`Plugin::epoch`] or [`PerNode::refresh`] report.
pub trait Plugin: Debug + Sync {
    /// Returns the name in the configuration and in messages, which is upstream's.
    fn name(&self) -> &'static str;

    /// Returns the names of the only nodes that the pod may use, if that is known before looking at nodes (PreFilter).
    fn only_nodes<'a>(&self, _spec: &'a PodSpec) -> Option<&'a [Box<str>]> {
        None
    }

    /// Computes what the plugin needs to know of the cluster for this spec, once per spec and [`Plugin::epoch`]
    /// (PreFilter, PreScore).
    fn prepare(&self, _spec: &PodSpec, _cluster: &mut Cluster) -> Prepared {
        Prepared::Nothing
    }

    /// Returns a number that changes when what was prepared for this spec is outdated.
    fn epoch(&self, _spec: &PodSpec, _cluster: &Cluster) -> u64 {
        0
    }

    /// Returns why the pod must not be on this node (Filter).
    fn filter(&self, _spec: &PodSpec, _node: &NodeState) -> Option<Refusal> {
        None
    }

    /// Reports whether [`never_fits`](Self::never_fits) is implemented: the result depends on the node itself, so that
    /// an update of the node may change it.
    fn judges_nodes(&self) -> bool {
        false
    }

    /// Reports whether the result of [`filter`](Self::filter) depends on the pods of the node, so that it may change
    /// when pods leave the node or request less.
    fn counts_room(&self) -> bool {
        false
    }

    /// Reports whether the node cannot accept the pod even without other pods. Changes of such a node requeue nothing.
    fn never_fits(&self, _spec: &PodSpec, _node: &NodeState) -> bool {
        false
    }

    /// Returns the score of a node that fits, before [`Plugin::normalize`] (Score).
    fn score(&self, _spec: &PodSpec, _node: &NodeState) -> i64 {
        0
    }

    /// Returns how raw scores are normalized.
    fn normalize(&self) -> Normalize {
        Normalize::Nothing
    }

    /// Returns the weight of the score; zero for plugins that do not score.
    fn weight(&self) -> i64 {
        0
    }

    /// Reports whether pods rejected by the plugin may be retried after a change of this kind (EventsToRegister).
    fn requeues_on(&self, _change: Change) -> bool {
        false
    }

    /// Reports whether a change of this kind to the object `about` is useful for this spec (QueueingHint).
    fn hint(&self, _spec: &PodSpec, _change: Change, _about: &ObjectKey) -> bool {
        true
    }

    /// Reports whether a change of a node, which was `old` unless it was added, is useful for this spec (QueueingHint).
    /// A node that the pod now fits on and did not before is always useful, and by default only such a node is.
    fn node_hint(&self, _spec: &PodSpec, _old: Option<&NodeState>, _new: &NodeState) -> bool {
        false
    }

    /// Reports whether a change of a placed pod is useful for this spec (QueueingHint).
    fn pod_hint(&self, _spec: &PodSpec, _change: PodChange<'_>) -> bool {
        true
    }
}

/// Evaluates single nodes with data of the cluster. Results are cached like those of [`Plugin::filter`] and
/// [`Plugin::score`].
pub trait PerNode: Debug + Send {
    /// Reads the data again. Returns whether it changed, so that cached results are outdated.
    fn refresh(&mut self, _spec: &PodSpec, _cluster: &Cluster) -> bool {
        false
    }
    /// Returns why the pod must not be on this node.
    fn filter(&self, _cluster: &Cluster, _node: &NodeState) -> Option<Refusal> {
        None
    }
    /// Returns the score of the node, before [`Plugin::normalize`].
    fn score(&self, _spec: &PodSpec, _cluster: &Cluster, _node: &NodeState) -> i64 {
        0
    }
}

/// Counts pods over many nodes and is updated node by node.
pub trait Counted: Debug + Send {
    /// Counts the nodes that changed. Returns whether the plugin has a result for this spec now.
    fn sync(&mut self, spec: &PodSpec, cluster: &mut Cluster) -> bool;
    /// Counts node `i` with the pods of `state`; preemption uses this to evaluate a node without its victims.
    fn count_as(&mut self, spec: &PodSpec, cluster: &mut Cluster, i: usize, state: &NodeState);
    /// Returns why the pod must not be on node `i`.
    fn filter(&self, cluster: &Cluster, i: usize) -> Option<Refusal>;
    /// Writes the normalized scores (0 to [`SCORE_MAX`]) of these nodes to `out`; false when all are equal.
    fn scores(&self, cluster: &Cluster, nodes: &[u32], out: &mut Vec<i64>) -> bool;
}
