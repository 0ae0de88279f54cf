//! What is decided about pods and their claims for devices, as data (upstream `pkg/controller/resourceclaim`).
use jiff::{SignedDuration, Timestamp};
use kelson_devices::{Consumer, DeviceTaint, DeviceView, Granted, ResourceClaimView};

use crate::views::{PodDeviceClaim, PodView};

/// Longest name before the random part that the API adds.
const PREFIX_MAX: usize = 57;

/// Which claim a pod's entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedClaim<'p> {
    /// This one; `own`: it must be the pod's.
    As { name: &'p str, own: bool },
    /// None is needed.
    Nothing,
    /// It is to be made.
    Missing,
}

/// Which claim an entry of a pod's spec is about; what was made from a template is named in the status.
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

/// Whether it is certain that no container of the pod runs or ever will.
pub fn is_done(pod: &PodView) -> bool {
    pod.is_terminal() || (pod.metadata.is_deleting() && pod.spec.node_name.is_empty())
}

/// Whether a claim was made for a pod.
pub fn is_for(claim: &ResourceClaimView, pod: &PodView) -> bool {
    claim.metadata.controller().is_some_and(|o| o.uid == pod.metadata.uid)
}

/// Whether there is anything to do for a pod: a claim to be made, or to be reserved for it where no scheduler did.
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

/// What the API makes the name of a claim from. Both parts are cut in proportion where they are too long together.
pub fn name_prefix(pod: &str, entry: &str) -> String {
    let whole = pod.len() + entry.len() + 2;
    if whole <= PREFIX_MAX {
        return format!("{pod}-{entry}-");
    }
    // Names of the API are ASCII.
    let cut = |part: &str| part.get(..part.len() * PREFIX_MAX / whole).unwrap_or_default().to_owned();
    format!("{}-{}", cut(pod), cut(entry))
}

/// What is known of a pod that a claim is reserved for.
#[derive(Clone, Copy, Debug)]
pub enum SeenPod<'p> {
    /// It was seen to go.
    Gone,
    /// The pod of that name.
    As(&'p PodView),
    /// Nobody told of it yet: the API must be asked.
    Unknown,
}

/// Whether a pod still holds its reservation; `None`: the API must be asked.
pub fn keeps(consumer: &Consumer, seen: SeenPod<'_>) -> Option<bool> {
    match seen {
        SeenPod::Gone => Some(false),
        SeenPod::As(pod) => Some(pod.metadata.uid == consumer.uid && !is_done(pod)),
        SeenPod::Unknown => None,
    }
}

/// When a pod that uses these devices of a claim must go, by the taints of each; `None`: it may stay.
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

/// When one taint makes users of a device go. `made`: since when there is the taint, where it does not say.
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
