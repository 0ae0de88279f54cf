//! Reasons for rejecting a node, and the message that sums them up. Tools and people parse these messages, so they are
//! upstream's, word by word.
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One reason against a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason(pub Cow<'static, str>);

impl Reason {
    /// Creates a reason from a constant string.
    pub const fn fixed(text: &'static str) -> Self {
        Self(Cow::Borrowed(text))
    }
    /// The node is cordoned (`spec.unschedulable`).
    pub const UNSCHEDULABLE: Self = Self::fixed("node(s) were unschedulable");
    /// The node does not declare a feature that the pod needs.
    pub const FEATURES: Self = Self::fixed("node(s) didn't match Pod's required features");
    pub const TAINT: Self = Self::fixed("node(s) had untolerated taint(s)");
    /// Node selector or node affinity does not match.
    pub const AFFINITY: Self = Self::fixed("node(s) didn't match Pod's node affinity/selector");
    /// The affinity added by the configuration does not match.
    pub const ENFORCED_AFFINITY: Self = Self::fixed("node(s) didn't match scheduler-enforced node affinity");
    /// A host port of the pod is used on the node.
    pub const PORTS: Self = Self::fixed("node(s) didn't have free ports for the requested pod ports");
    /// The maximum number of pods of the node is reached.
    pub const TOO_MANY_PODS: Self = Self::fixed("Too many pods");
    pub const CPU: Self = Self::fixed("Insufficient cpu");
    pub const MEMORY: Self = Self::fixed("Insufficient memory");
    pub const EPHEMERAL: Self = Self::fixed("Insufficient ephemeral-storage");
    /// The volume of a claim does not exist.
    pub const VOLUME_MISSING: Self =
        Self::fixed("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)");
    /// A volume cannot be reached from the node.
    pub const VOLUME_NODE_CONFLICT: Self = Self::fixed("node(s) didn't match PersistentVolume's node affinity");
    /// A claim has no volume for the node and none can be provisioned.
    pub const VOLUME_NOT_FOUND: Self = Self::fixed("node(s) didn't find available persistent volumes to bind");
    /// The driver that should provision a claim's volume publishes too little capacity for the node.
    pub const VOLUME_NO_ROOM: Self = Self::fixed("node(s) did not have enough free storage");
    /// The maximum number of volumes of a driver is reached.
    pub const TOO_MANY_VOLUMES: Self = Self::fixed("node(s) exceed max volume count");
    /// A claim with the mode `ReadWriteOncePod` is used by another pod.
    pub const CLAIM_IN_USE: Self = Self::fixed(
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
    );
    /// The devices allocated to a claim cannot be used on the node.
    pub const DEVICES_ELSEWHERE: Self = Self::fixed("resourceclaim not available on the node");
    /// An earlier attempt left a claim for the pod's extended resources.
    pub const EXTENDED_LEFT: Self = Self::fixed("cannot schedule extended resource claim");
    /// The node does not have the devices that claims request.
    pub const DEVICES: Self = Self::fixed("cannot allocate all claims");
    /// A volume is in another zone.
    pub const VOLUME_ZONE: Self = Self::fixed("node(s) had no available volume zone");
    pub const SPREAD: Self = Self::fixed("node(s) didn't match pod topology spread constraints");
    /// The node lacks the topology label of a spread constraint.
    pub const SPREAD_LABEL: Self =
        Self::fixed("node(s) didn't match pod topology spread constraints (missing required label)");
    pub const POD_AFFINITY: Self = Self::fixed("node(s) didn't match pod affinity rules");
    pub const POD_ANTI_AFFINITY: Self = Self::fixed("node(s) didn't match pod anti-affinity rules");
    /// Anti-affinity of existing pods rejects the pod.
    pub const EXISTING_ANTI_AFFINITY: Self = Self::fixed("node(s) didn't satisfy existing pods anti-affinity rules");
}

/// The rejection of a node by a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whether preemption could help.
    pub preemptible: bool,
    /// The reasons for the rejection.
    pub reasons: Vec<Reason>,
    /// Whether the pod or something it needs is invalid, so that no other node is evaluated.
    pub faulty: bool,
}

impl Refusal {
    /// Creates a rejection with one reason.
    pub fn one(preemptible: bool, reason: Reason) -> Self {
        Self::all(preemptible, vec![reason])
    }
    /// Creates a rejection with several reasons.
    pub fn all(preemptible: bool, reasons: Vec<Reason>) -> Self {
        Self { preemptible, reasons, faulty: false }
    }
    /// Creates a rejection for an error that does not depend on the node.
    pub fn fault(text: String) -> Self {
        Self { faulty: true, ..Self::one(false, Reason(text.into())) }
    }
}

/// The number of nodes for each reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<Cow<'static, str>, usize>);

impl Tally {
    /// Counts a reason for `nodes` nodes.
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

/// The message when the cluster has no nodes.
pub const NO_NODES: &str = "no nodes available to schedule pods";

/// Builds the message for a pod, such as `0/3 nodes are available: 1 Insufficient cpu, 2 Too many pods.`, followed by
/// the message of preemption if there is one. `before` is the message of a plugin that rejected the pod before looking
/// at nodes.
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
        // Sorted as strings, as upstream does: ten comes before two.
        let mut t = Tally::default();
        t.count(&Reason::CPU, 2);
        t.count(&Reason::TOO_MANY_PODS, 10);
        assert_eq!(summary(12, None, &t, ""), "0/12 nodes are available: 10 Too many pods, 2 Insufficient cpu.");
    }
}
