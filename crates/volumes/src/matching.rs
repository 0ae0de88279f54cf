//! The choice of a volume for a claim (upstream `component-helpers/storage/volume/pv_helpers.go`, `pv_controller.go`).
use std::borrow::Borrow;

use kelson_meta::{LabelSelector, Quantity};

use crate::claim::ClaimView;
use crate::volume::VolumeView;

/// Returns whether the volume is bound to this claim, or reserved for a claim with its name.
pub fn is_bound_to(volume: &VolumeView, claim: &ClaimView) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|r| {
        r.namespace == claim.metadata.namespace
            && r.name == claim.metadata.name
            && (r.uid.is_empty() || r.uid == claim.metadata.uid)
    })
}

fn mode(given: Option<&String>) -> &str {
    given.map_or("Filesystem", String::as_str)
}

/// Returns whether one is a file system and the other a block device.
pub fn modes_differ(claim: &ClaimView, volume: &VolumeView) -> bool {
    mode(claim.spec.volume_mode.as_ref()) != mode(volume.spec.volume_mode.as_ref())
}

fn has_access_modes(claim: &ClaimView, volume: &VolumeView) -> bool {
    claim.spec.access_modes.iter().all(|m| volume.spec.access_modes.contains(m))
}

fn attributes_differ(claim: &ClaimView, volume: &VolumeView) -> bool {
    claim.spec.volume_attributes_class_name != volume.spec.volume_attributes_class_name
}

/// Returns why a claim cannot use the free volume that it names. Users read the message, which is upstream's, in
/// events.
pub fn mismatch(volume: &VolumeView, claim: &ClaimView) -> Option<String> {
    if volume.metadata.is_deleting() {
        return Some(format!("the volume is marked for deletion {:?}", volume.metadata.name));
    }
    let why = if volume.size() < claim.requested() {
        "requested PV is too small"
    } else if volume.class() != claim.class() {
        "storageClassName does not match"
    } else if attributes_differ(claim, volume) {
        "volumeAttributesClassName does not match"
    } else if modes_differ(claim, volume) {
        "incompatible volumeMode"
    } else if !has_access_modes(claim, volume) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// The requirements of a claim, computed once for many volumes.
#[derive(Debug)]
pub struct ClaimRequirements<'a> {
    claim: &'a ClaimView,
    size: Quantity,
    /// The label selector. `None` accepts any labels, and an invalid selector selects nothing.
    selector: Option<LabelSelector>,
}

impl<'a> ClaimRequirements<'a> {
    /// Computes the requirements of a claim.
    pub fn by(claim: &'a ClaimView) -> Self {
        let selector = claim.spec.selector.as_ref();
        let selector = selector.map(|s| s.selector().unwrap_or_else(|_| LabelSelector::nothing()));
        Self { claim, size: claim.requested(), selector }
    }

    /// Returns whether the volume is suitable: available or reserved for the claim, large enough, and with matching
    /// properties.
    fn could_be(&self, volume: &VolumeView) -> bool {
        (volume.spec.claim_ref.is_none() || is_bound_to(volume, self.claim))
            && volume.size() >= self.size
            && !modes_differ(self.claim, volume)
            && !attributes_differ(self.claim, volume)
            && !volume.metadata.is_deleting()
    }

    /// Returns whether the volume is reserved for the claim, so that no other one may be used.
    pub fn is_kept(&self, volume: &VolumeView) -> bool {
        is_bound_to(volume, self.claim) && self.could_be(volume)
    }

    /// Returns whether the volume is free and suitable. Node affinity is not checked.
    pub fn is_suited(&self, volume: &VolumeView) -> bool {
        self.could_be(volume)
            && volume.status.phase == "Available"
            && volume.class() == self.claim.class()
            && has_access_modes(self.claim, volume)
            && self.selector.as_ref().is_none_or(|s| s.matches(&volume.metadata.labels))
    }
}

/// Returns the sort key of suitable volumes: those with few access modes first, then the smallest, then by name, so
/// that all components choose the same.
pub fn rank(volume: &VolumeView) -> (usize, Quantity, &str) {
    (volume.spec.access_modes.len(), volume.size(), &volume.metadata.name)
}

/// Returns the volume for a claim: the reserved one, or the best match of those available. With `only_kept` only a
/// reserved one is returned, since the scheduler chooses for claims that wait for their first consumer.
pub fn best<V: Borrow<VolumeView>>(
    claim: &ClaimView,
    volumes: impl IntoIterator<Item = V>,
    only_kept: bool,
) -> Option<V> {
    let wanted = ClaimRequirements::by(claim);
    let mut best: Option<V> = None;
    for volume in volumes {
        if wanted.is_kept(volume.borrow()) {
            return Some(volume);
        }
        let better = |than: &V| rank(volume.borrow()) < rank(than.borrow());
        if !only_kept && wanted.is_suited(volume.borrow()) && best.as_ref().is_none_or(better) {
            best = Some(volume);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(spec: Value) -> ClaimView {
        let mut all = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}},
            "storageClassName": "slow"});
        all.as_object_mut().expect("map").extend(spec.as_object().expect("map").clone());
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": all}))
            .expect("claim")
    }

    fn volume(name: &str, spec: Value) -> VolumeView {
        let mut all =
            json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}, "storageClassName": "slow"});
        all.as_object_mut().expect("map").extend(spec.as_object().expect("map").clone());
        let labels = json!({"name": name});
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": all,
            "status": {"phase": "Available"}}))
        .expect("volume")
    }

    fn check(claim_spec: Value, volumes: &[(&str, Value)], want: Option<&str>) {
        let all: Vec<VolumeView> = volumes.iter().map(|(n, s)| volume(n, s.clone())).collect();
        let found = best(&claim(claim_spec.clone()), &all, false).map(|v| v.metadata.name.as_str());
        assert_eq!(found, want, "{claim_spec} {volumes:?}");
    }

    #[test]
    fn the_smallest_that_suits() {
        let size = |s: &str| json!({"capacity": {"storage": s}});
        check(json!({}), &[("a", size("1Gi"))], None);
        check(json!({}), &[("a", size("9Gi")), ("b", size("3Gi")), ("c", size("1Gi"))], Some("b"));
        check(json!({}), &[("b", size("3Gi")), ("a", size("3Gi"))], Some("a"));
        check(json!({}), &[("a", json!({"storageClassName": "fast"}))], None);
        check(json!({"storageClassName": ""}), &[("a", json!({"storageClassName": ""}))], Some("a"));
        check(json!({}), &[("a", json!({"volumeMode": "Block"})), ("b", size("9Gi"))], Some("b"));
        check(json!({"volumeMode": "Block"}), &[("a", json!({"volumeMode": "Block"}))], Some("a"));
        check(json!({"volumeAttributesClassName": "gold"}), &[("a", json!({}))], None);
        let many = json!({"accessModes": ["ReadWriteOnce", "ReadWriteMany"]});
        check(json!({"accessModes": ["ReadWriteMany"]}), &[("a", json!({})), ("b", many.clone())], Some("b"));
        check(json!({}), &[("a", many), ("b", size("9Gi"))], Some("b"));
        check(json!({"selector": {"matchLabels": {"name": "b"}}}), &[("a", json!({})), ("b", size("9Gi"))], Some("b"));
        check(
            json!({"selector": {"matchExpressions": [{"key": "name", "operator": "Like", "values": []}]}}),
            &[("a", json!({}))],
            None,
        );
    }

    #[test]
    fn one_that_is_kept_goes_before_all_others() {
        let kept = |name: &str, uid: &str| {
            json!({"capacity": {"storage": "9Gi"}, "storageClassName": "other",
            "claimRef": {"namespace": "n", "name": name, "uid": uid}})
        };
        check(json!({}), &[("a", json!({})), ("b", kept("c", ""))], Some("b"));
        check(json!({}), &[("a", json!({})), ("b", kept("c", "u"))], Some("b"));
        check(json!({}), &[("a", json!({})), ("b", kept("c", "earlier"))], Some("a"));
        check(json!({}), &[("b", kept("other", ""))], None);
        let all = [volume("a", json!({})), volume("b", kept("c", ""))];
        assert_eq!(best(&claim(json!({})), &all[..1], true).map(|v| &v.metadata.name), None, "the scheduler chooses");
        assert_eq!(best(&claim(json!({})), &all, true).map(|v| v.metadata.name.as_str()), Some("b"));
    }

    #[test]
    fn what_is_not_available_is_not_taken() {
        for phase in ["", "Pending", "Bound", "Released", "Failed"] {
            let mut v = volume("a", json!({}));
            v.status.phase = phase.into();
            assert!(best(&claim(json!({})), [&v], false).is_none(), "{phase}");
        }
        let mut going = volume("a", json!({}));
        going.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".into());
        assert!(best(&claim(json!({})), [&going], false).is_none());
    }

    #[test]
    fn why_a_named_volume_cannot_be_had() {
        let rows = [
            (json!({}), None),
            (json!({"capacity": {"storage": "1Gi"}}), Some("requested PV is too small")),
            (json!({"storageClassName": "fast"}), Some("storageClassName does not match")),
            (json!({"volumeAttributesClassName": "x"}), Some("volumeAttributesClassName does not match")),
            (json!({"volumeMode": "Block"}), Some("incompatible volumeMode")),
            (json!({"accessModes": ["ReadOnlyMany"]}), Some("incompatible accessMode")),
        ];
        for (spec, want) in rows {
            assert_eq!(mismatch(&volume("a", spec.clone()), &claim(json!({}))).as_deref(), want, "{spec}");
        }
    }
}
