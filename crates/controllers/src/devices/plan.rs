//! Decisions about pods and their claims for devices. Pure (upstream `pkg/controller/resourceclaim`).
use jiff::{SignedDuration, Timestamp};
use kelson_devices::{Consumer, DeviceTaint, DeviceView, Granted, ResourceClaimView};

use crate::views::{PodDeviceClaim, PodView};

/// The maximum length of a name's prefix, to which the API adds a random part.
const PREFIX_MAX: usize = 57;

/// The claim of an entry in a pod's spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedClaim<'p> {
    /// This claim. `own`: it must be owned by the pod.
    As { name: &'p str, own: bool },
    /// No claim is needed.
    Nothing,
    /// The claim must be created.
    Missing,
}

/// Returns the claim of an entry in a pod's spec. The name of a claim from a template is in the pod's status.
pub fn named<'p>(pod: &'p PodView, entry: &'p PodDeviceClaim) -> NamedClaim<'p> {
    if let Some(name) = &entry.claim {
        return NamedClaim::As { name, own: false };
    }
    if entry.template.is_none() {
        return NamedClaim::Nothing;
    }
    match pod.status.device_claims.iter().find(|s| s.name == entry.name) {
        Some(made) => made.claim.as_deref().map_or(NamedClaim::Nothing, |name| NamedClaim::As { name, own: true }),
        None => NamedClaim::Missing,
    }
}

/// Whether no container of the pod runs or will run.
pub fn is_done(pod: &PodView) -> bool {
    pod.is_terminal() || (pod.metadata.is_deleting() && pod.spec.node_name.is_empty())
}

/// Whether a claim was created for the pod.
pub fn is_for(claim: &ResourceClaimView, pod: &PodView) -> bool {
    claim.metadata.controller().is_some_and(|o| o.uid == pod.metadata.uid)
}

/// Whether a claim must be created for the pod, or reserved because no scheduler did.
pub fn needs_work<'c>(pod: &PodView, claim: impl Fn(&str) -> Option<&'c ResourceClaimView>) -> bool {
    if pod.metadata.is_deleting() || is_done(pod) {
        return false;
    }
    pod.spec.device_claims.iter().any(|entry| match named(pod, entry) {
        NamedClaim::Missing => true,
        NamedClaim::Nothing => false,
        NamedClaim::As { name, own } => match claim(name) {
            None => own,
            Some(claim) if own && !is_for(claim, pod) => false,
            Some(claim) => {
                let placed = !pod.spec.node_name.is_empty();
                placed && claim.status.allocation.is_some() && !claim.is_reserved_for(&pod.metadata.uid)
            }
        },
    })
}

/// Returns the prefix from which the API generates a claim's name. If both parts are too long together, they are
/// truncated proportionally.
pub fn name_prefix(pod: &str, entry: &str) -> String {
    let whole = pod.len() + entry.len() + 2;
    if whole <= PREFIX_MAX {
        return format!("{pod}-{entry}-");
    }
    // Names of the API are ASCII.
    let cut = |part: &str| part.get(..part.len() * PREFIX_MAX / whole).unwrap_or_default().to_owned();
    format!("{}-{}", cut(pod), cut(entry))
}

/// The cached state of a pod for which a claim is reserved.
#[derive(Clone, Copy, Debug)]
pub enum SeenPod<'p> {
    /// The pod's deletion was observed.
    Gone,
    /// The cached pod with this name.
    As(&'p PodView),
    /// The pod is not in the cache, so the API server must be asked.
    Unknown,
}

/// Whether a pod still holds its reservation, or `None` if the API server must be asked.
pub fn keeps(consumer: &Consumer, seen: SeenPod<'_>) -> Option<bool> {
    match seen {
        SeenPod::Gone => Some(false),
        SeenPod::As(pod) => Some(pod.metadata.uid == consumer.uid && !is_done(pod)),
        SeenPod::Unknown => None,
    }
}

/// Returns when a pod with these devices must be evicted because of their taints, or `None` if it may stay.
pub fn evicted_at<'d>(
    granted: &[Granted],
    device: impl Fn(&Granted) -> Option<(&'d DeviceView, Timestamp)>,
) -> Option<Timestamp> {
    let of_one = |g: &Granted| {
        let (device, made) = device(g)?;
        let taints = device.taints.iter().filter(|t| t.evicts());
        taints.filter_map(|taint| at(g, taint, made)).min()
    };
    granted.iter().filter_map(of_one).min()
}

/// Returns when a taint evicts the users of a device. `made` is the time of the taint if it has none.
fn at(granted: &Granted, taint: &DeviceTaint, made: Timestamp) -> Option<Timestamp> {
    let added = taint.time_added.as_deref().and_then(|t| t.parse().ok()).unwrap_or(made);
    let tolerations = granted.tolerations.iter().filter(|t| t.effect == "NoExecute" && t.tolerates(taint));
    let mut shortest: Option<i64> = None;
    for toleration in tolerations {
        let seconds = toleration.toleration_seconds?.max(0);
        shortest = Some(shortest.map_or(seconds, |s| s.min(seconds)));
    }
    let Some(seconds) = shortest else { return Some(added) };
    Some(added.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX))
}
