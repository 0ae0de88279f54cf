//! Why a node was refused, and the sentence that sums it up for people. The texts are read by tools and by eyes trained
//! on upstream's, so they are upstream's, word by word.
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One reason against one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason(pub Cow<'static, str>);

impl Reason {
    /// A constant text.
    pub const fn fixed(text: &'static str) -> Self {
        Self(Cow::Borrowed(text))
    }
    /// The node is cordoned (`spec.unschedulable`).
    pub const UNSCHEDULABLE: Self = Self::fixed("node(s) were unschedulable");
    /// The node does not say that it can do what the pod needs.
    pub const FEATURES: Self = Self::fixed("node(s) didn't match Pod's required features");
    pub const TAINT: Self = Self::fixed("node(s) had untolerated taint(s)");
    /// Node selector or affinity.
    pub const AFFINITY: Self = Self::fixed("node(s) didn't match Pod's node affinity/selector");
    /// What the configuration asks of every node.
    pub const ENFORCED_AFFINITY: Self = Self::fixed("node(s) didn't match scheduler-enforced node affinity");
    /// A host port of the pod is taken on the node.
    pub const PORTS: Self = Self::fixed("node(s) didn't have free ports for the requested pod ports");
    /// Pods per node.
    pub const TOO_MANY_PODS: Self = Self::fixed("Too many pods");
    pub const CPU: Self = Self::fixed("Insufficient cpu");
    pub const MEMORY: Self = Self::fixed("Insufficient memory");
    pub const EPHEMERAL: Self = Self::fixed("Insufficient ephemeral-storage");
    /// A claim's volume is gone.
    pub const VOLUME_MISSING: Self =
        Self::fixed("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)");
    /// A volume cannot be reached.
    pub const VOLUME_NODE_CONFLICT: Self = Self::fixed("node(s) didn't match PersistentVolume's node affinity");
    /// A claim has no volume there and none can be made.
    pub const VOLUME_NOT_FOUND: Self = Self::fixed("node(s) didn't find available persistent volumes to bind");
    /// The driver that is to make a claim's volume says that it has no room for it there.
    pub const VOLUME_NO_ROOM: Self = Self::fixed("node(s) did not have enough free storage");
    /// A driver can give the node no more volumes.
    pub const TOO_MANY_VOLUMES: Self = Self::fixed("node(s) exceed max volume count");
    /// A claim for one pod alone has another.
    pub const CLAIM_IN_USE: Self = Self::fixed(
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
    );
    /// A claim's devices cannot be used there.
    pub const DEVICES_ELSEWHERE: Self = Self::fixed("resourceclaim not available on the node");
    /// An earlier try has left a claim for the pod's extended resources.
    pub const EXTENDED_LEFT: Self = Self::fixed("cannot schedule extended resource claim");
    /// There are not the devices that claims want.
    pub const DEVICES: Self = Self::fixed("cannot allocate all claims");
    /// A volume is in another zone.
    pub const VOLUME_ZONE: Self = Self::fixed("node(s) had no available volume zone");
    pub const SPREAD: Self = Self::fixed("node(s) didn't match pod topology spread constraints");
    /// Spread, no label.
    pub const SPREAD_LABEL: Self =
        Self::fixed("node(s) didn't match pod topology spread constraints (missing required label)");
    pub const POD_AFFINITY: Self = Self::fixed("node(s) didn't match pod affinity rules");
    pub const POD_ANTI_AFFINITY: Self = Self::fixed("node(s) didn't match pod anti-affinity rules");
    /// Anti-affinity of pods that are there.
    pub const EXISTING_ANTI_AFFINITY: Self = Self::fixed("node(s) didn't satisfy existing pods anti-affinity rules");
}

/// What a plugin has against a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whether removing pods could help.
    pub preemptible: bool,
    /// Why the node was refused.
    pub reasons: Vec<Reason>,
    /// Not the node is at fault but the pod, or what it needs: no other node is looked at.
    pub faulty: bool,
}

impl Refusal {
    /// By one reason.
    pub fn one(preemptible: bool, reason: Reason) -> Self {
        Self::all(preemptible, vec![reason])
    }
    /// By several reasons.
    pub fn all(preemptible: bool, reasons: Vec<Reason>) -> Self {
        Self { preemptible, reasons, faulty: false }
    }
    /// Something is wrong that has nothing to do with the node.
    pub fn fault(text: String) -> Self {
        Self { faulty: true, ..Self::one(false, Reason(text.into())) }
    }
}

/// Counts of reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<Cow<'static, str>, usize>);

impl Tally {
    /// Counts a reason on `nodes` nodes.
    pub fn count(&mut self, reason: &Reason, nodes: usize) {
        if nodes == 0 {
            return;
        }
        match self.0.get_mut(&*reason.0) {
            Some(n) => *n += nodes,
            None => {
                self.0.insert(reason.0.clone(), nodes);
            }
        }
    }
}

/// No node at all.
pub const NO_NODES: &str = "no nodes available to schedule pods";

/// `0/3 nodes are available: 1 Insufficient cpu, 2 Too many pods.` and what preemption had to say, where it spoke.
/// `before` is the word of a plugin that refused the pod before any node was looked at.
pub fn summary(nodes: usize, before: Option<&str>, tally: &Tally, after: &str) -> String {
    let mut text = format!("0/{nodes} nodes are available:");
    // Writing to a String cannot fail.
    if let Some(before) = before {
        let _ = write!(text, " {before}.");
    } else {
        let mut parts: Vec<String> = tally.0.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
        parts.sort_unstable();
        if !parts.is_empty() {
            let _ = write!(text, " {}.", parts.join(", "));
        }
    }
    if !after.is_empty() {
        let _ = write!(text, " {after}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences() {
        let mut t = Tally::default();
        t.count(&Reason::TAINT, 1);
        t.count(&Reason::CPU, 1);
        t.count(&Reason::CPU, 1);
        t.count(&Reason::MEMORY, 0);
        let after = "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.";
        assert_eq!(
            summary(3, None, &t, after),
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. preemption: 0/3 nodes \
             are available: 3 Preemption is not helpful for scheduling."
        );
        assert_eq!(
            summary(1, Some("pod has unbound immediate PersistentVolumeClaims"), &t, ""),
            "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
        );
        // Sorted as text, as upstream does: ten comes before two.
        let mut t = Tally::default();
        t.count(&Reason::CPU, 2);
        t.count(&Reason::TOO_MANY_PODS, 10);
        assert_eq!(summary(12, None, &t, ""), "0/12 nodes are available: 10 Too many pods, 2 Insufficient cpu.");
    }
}
