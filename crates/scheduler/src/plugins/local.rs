//! The plugins that need only the pod and one node: NodeUnschedulable, NodeName (by affinity), TaintToleration,
//! NodeAffinity, NodePorts, NodeResourcesFit, the volume filters; and their scores. Filters run in upstream's order and
//! the first refusal stands.
use std::borrow::Cow;

use super::SCORE_MAX;
use crate::cluster::{Cluster, ImageSummary, NodeState};
use crate::reason::{Plugin, Reason, Refusal};
use crate::storage::Storage;
use crate::view::{PodSpec, Taint, TaintEffect};

/// Images smaller than this in sum make no difference, bytes.
const IMAGE_MIN: i64 = 23 << 20;
/// Images larger than this per container make no more, bytes.
const IMAGE_MAX: i64 = 1000 << 20;

/// A node's scores before they are normalised over the nodes that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scores {
    /// Room left (0 to 100).
    pub least: i64,
    /// Even use of resources (0 to 100).
    pub balanced: i64,
    /// Sum of weights of matching preferences.
    pub affinity: i64,
    /// Number of taints that one would rather not meet.
    pub taints: i64,
    /// Images that are there already (0 to 100).
    pub images: i64,
}

/// The volumes of a pod whose claims are bound.
pub type Volumes<'a> = (&'a Storage, &'a [String]);

/// Why this node will not do, if it will not.
pub fn refusal(spec: &PodSpec, state: &NodeState, volumes: Option<Volumes<'_>>) -> Option<Refusal> {
    if let Some(r) = standing_refusal(spec, state) {
        return Some(r);
    }
    if !ports_free(spec, state) {
        return Some(Refusal::one(Plugin::NodePorts, true, Reason::PORTS));
    }
    if let Some(r) = resources(spec, state) {
        return Some(r);
    }
    let (storage, names) = volumes?;
    storage.reachable(names, &state.node).map(|r| Refusal::one(Plugin::VolumeBinding, false, r))
}

/// The part of [`refusal`] that pods on the node have no say in.
pub fn standing_refusal(spec: &PodSpec, state: &NodeState) -> Option<Refusal> {
    let node = &state.node;
    if node.unschedulable && !tolerates_unschedulable(spec) {
        return Some(Refusal::one(Plugin::NodeUnschedulable, false, Reason::UNSCHEDULABLE));
    }
    if untolerated(spec, &node.taints) {
        return Some(Refusal::one(Plugin::TaintToleration, false, Reason::TAINT));
    }
    if !spec.node_matches(&node.name, &node.labels) {
        return Some(Refusal::one(Plugin::NodeAffinity, false, Reason::AFFINITY));
    }
    None
}

/// Whether a taint keeps the pod away.
pub fn untolerated(spec: &PodSpec, taints: &[Taint]) -> bool {
    taints.iter().any(|t| {
        t.effect != TaintEffect::PreferNoSchedule && !spec.tolerations.iter().any(|toleration| toleration.tolerates(t))
    })
}

fn tolerates_unschedulable(spec: &PodSpec) -> bool {
    let taint =
        Taint { key: "node.kubernetes.io/unschedulable".into(), value: "".into(), effect: TaintEffect::NoSchedule };
    spec.tolerations.iter().any(|t| t.tolerates(&taint))
}

fn ports_free(spec: &PodSpec, state: &NodeState) -> bool {
    spec.ports.is_empty()
        || !state.pods.iter().flat_map(|p| &p.spec.ports).any(|used| spec.ports.iter().any(|p| p.conflicts(used)))
}

fn resources(spec: &PodSpec, state: &NodeState) -> Option<Refusal> {
    let (want, node, used) = (&spec.requests.asked, &state.node, &state.requested);
    let mut reasons = Vec::new();
    let mut preemptible = true;
    if state.pods.len() as i64 + 1 > node.pods_max {
        reasons.push(Reason::TOO_MANY_PODS);
    }
    let mut check = |want: i64, all: i64, used: i64, reason: &dyn Fn() -> Reason| {
        if want > 0 && want > all - used {
            preemptible &= want <= all;
            reasons.push(reason());
        }
    };
    check(want.cpu, node.allocatable.cpu, used.cpu, &|| Reason::CPU);
    check(want.memory, node.allocatable.memory, used.memory, &|| Reason::MEMORY);
    check(want.ephemeral, node.allocatable.ephemeral, used.ephemeral, &|| Reason::EPHEMERAL);
    for (name, n) in &want.scalars {
        let reason = || Reason(Cow::Owned(format!("Insufficient {name}")));
        check(*n, node.allocatable.scalar(name), used.scalar(name), &reason);
    }
    (!reasons.is_empty()).then_some(Refusal { plugin: Plugin::NodeResourcesFit, preemptible, reasons })
}

/// Whether the node could ever hold the pod, were it empty.
pub fn could_hold(spec: &PodSpec, state: &NodeState) -> bool {
    let (want, all) = (&spec.requests.asked, &state.node.allocatable);
    want.cpu <= all.cpu
        && want.memory <= all.memory
        && want.ephemeral <= all.ephemeral
        && want.scalars.iter().all(|(name, n)| *n <= all.scalar(name))
}

/// The scores of a node that fits.
pub fn scores(spec: &PodSpec, state: &NodeState, images: &[Option<ImageSummary>], nodes: usize) -> Scores {
    let affinity = &spec.node_preferences;
    let node = &state.node;
    Scores {
        least: least_allocated(spec, state),
        balanced: if spec.is_best_effort() { 0 } else { balanced(spec, state) },
        affinity: affinity.iter().filter(|(_, t)| t.matches(&node.name, &node.labels)).map(|(w, _)| w).sum(),
        taints: unwelcome_taints(spec, &node.taints),
        images: image_locality(spec, state, images, nodes),
    }
}

fn unwelcome_taints(spec: &PodSpec, taints: &[Taint]) -> i64 {
    let unwelcome = |t: &&Taint| {
        t.effect == TaintEffect::PreferNoSchedule && !spec.tolerations.iter().any(|toleration| toleration.tolerates(t))
    };
    taints.iter().filter(unwelcome).count() as i64
}

fn least_allocated(spec: &PodSpec, state: &NodeState) -> i64 {
    let all = &state.node.allocatable;
    let pairs = [
        (state.assumed_cpu + spec.requests.assumed_cpu, all.cpu),
        (state.assumed_memory + spec.requests.assumed_memory, all.memory),
    ];
    let (mut sum, mut count) = (0, 0);
    for (used, all) in pairs.into_iter().filter(|(_, all)| *all > 0) {
        count += 1;
        if used <= all {
            // Memory in bytes times a hundred still fits: an i64 holds 80 PiB of it.
            sum += (all - used).saturating_mul(SCORE_MAX) / all;
        }
    }
    if count == 0 { 0 } else { sum / count }
}

/// How even CPU and memory are used with the pod, compared to without it: 50 to 100, 75 when it changes nothing.
fn balanced(spec: &PodSpec, state: &NodeState) -> i64 {
    let (all, used, want) = (&state.node.allocatable, &state.requested, &spec.requests.asked);
    let evenness = |cpu: i64, memory: i64| {
        if all.cpu == 0 || all.memory == 0 {
            return SCORE_MAX;
        }
        let part = |n: i64, all: i64| (n as f64 / all as f64).min(1.0);
        let deviation = ((part(cpu, all.cpu) - part(memory, all.memory)) / 2.0).abs();
        ((1.0 - deviation) * SCORE_MAX as f64) as i64
    };
    let with = evenness(used.cpu + want.cpu, used.memory + want.memory);
    let without = evenness(used.cpu, used.memory);
    SCORE_MAX / 2 + (SCORE_MAX / 2 + with - without) / 2
}

/// The spread of each of a pod's images.
pub fn image_summaries(spec: &PodSpec, cluster: &Cluster) -> Vec<Option<ImageSummary>> {
    spec.images.iter().map(|i| cluster.image(i)).collect()
}

fn image_locality(spec: &PodSpec, state: &NodeState, images: &[Option<ImageSummary>], nodes: usize) -> i64 {
    if images.iter().all(Option::is_none) || nodes == 0 {
        return 0;
    }
    let known = spec.images.iter().zip(images).filter_map(|(name, s)| Some((name, (*s)?)));
    let sum: i64 = known
        .filter_map(|(name, s)| {
            let (_, size) = state.node.images.iter().find(|(n, _)| n == name)?;
            // A share of the nodes that have it: an image on few nodes shall not draw all of its pods there.
            Some((*size as f64 * (s.nodes as f64 / nodes as f64)) as i64)
        })
        .sum();
    let max = IMAGE_MAX * spec.containers;
    SCORE_MAX * (sum.clamp(IMAGE_MIN, max.max(IMAGE_MIN)) - IMAGE_MIN) / (max - IMAGE_MIN).max(1)
}
