//! The usage of claims. A volume claim counts as one object and as storage, in total and for its class. A resource
//! claim counts its devices.
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kelson_meta::Quantity;
use kelson_meta::tree::{int, items, text};
use serde_json::Value;

use crate::amounts::Amounts;
use crate::extended::ExtendedResources;

const COUNT: &str = "count/persistentvolumeclaims";
const OBJECTS: &str = "persistentvolumeclaims";
const STORAGE: &str = "requests.storage";
const BY_CLASS: &str = ".storageclass.storage.k8s.io/";
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
/// The number of devices that a request for all devices counts as.
const ALL_DEVICES: i64 = 32;
const DEVICES_SUFFIX: &str = ".deviceclass.resource.k8s.io/devices";
const DEVICE_CLAIMS: &str = "count/resourceclaims.resource.k8s.io";

/// Returns whether a resource name of a quota counts volume claims.
pub fn counts(name: &str) -> bool {
    let own = |n: &str| n == OBJECTS || n == STORAGE;
    name == COUNT || own(name) || name.split_once(BY_CLASS).is_some_and(|(_, n)| own(n))
}

/// Rounds to whole bytes, because a quota's status has no fractions.
fn whole(q: Quantity) -> Quantity {
    if q.nanos() % 1_000_000_000 == 0 { q } else { Quantity::binary(q.value()) }
}

/// Returns the usage of a volume claim.
pub fn usage(claim: &Value) -> Amounts {
    let class = match text(&claim["metadata"]["annotations"][CLASS_ANNOTATION]) {
        "" => text(&claim["spec"]["storageClassName"]),
        annotated => annotated,
    };
    let mut names = vec![COUNT.to_owned(), OBJECTS.to_owned()];
    if !class.is_empty() {
        names.push(format!("{class}{BY_CLASS}{OBJECTS}"));
    }
    let mut out = Amounts::one_each(names);
    let asked = Amounts::read(&claim["spec"]["resources"]["requests"]).0.get("storage").copied();
    let allocated = Amounts::read(&claim["status"]["allocatedResources"]).0.get("storage").copied();
    if let Some(asked) = asked {
        let storage = whole(allocated.filter(|a| *a > asked).unwrap_or(asked));
        out.set(STORAGE, storage);
        if !class.is_empty() {
            out.set(format!("{class}{BY_CLASS}{STORAGE}"), storage);
        }
    }
    out
}

/// Returns the volume attributes classes that a claim has, requests, or is changing to.
pub fn attribute_classes(claim: &Value) -> BTreeSet<&str> {
    let status = &claim["status"];
    let all = [
        &claim["spec"]["volumeAttributesClassName"],
        &status["currentVolumeAttributesClassName"],
        &status["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
    ];
    all.into_iter().map(text).filter(|n| !n.is_empty()).collect()
}

/// Returns whether a change of the status changes the claim's usage or the quotas that count it.
pub fn status_matters(new: &Value, old: &Value) -> bool {
    new["status"]["allocatedResources"]["storage"] != old["status"]["allocatedResources"]["storage"]
        || attribute_classes(new) != attribute_classes(old)
}

/// Returns whether a resource name of a quota counts resource claims.
pub fn counts_devices(name: &str) -> bool {
    name == DEVICE_CLAIMS || name.ends_with(DEVICES_SUFFIX)
}

/// Returns the usage of a resource claim by class and by extended resource. For alternatives, it is the maximum that
/// one of them needs.
pub fn device_usage(claim: &Value, extended: &ExtendedResources, now: Timestamp) -> Amounts {
    fn one(request: &Value) -> (&str, i64) {
        let devices =
            if request["allocationMode"] == "All" { ALL_DEVICES } else { int(&request["count"]).unwrap_or(1) };
        (text(&request["deviceClassName"]), devices)
    }
    let mut devices: BTreeMap<&str, i64> = BTreeMap::new();
    for request in items(&claim["spec"]["devices"]["requests"]) {
        let mut most: BTreeMap<&str, i64> = BTreeMap::new();
        let exactly = Some(&request["exactly"]).filter(|e| !e.is_null());
        for (class, asked) in exactly.into_iter().chain(items(&request["firstAvailable"])).map(one) {
            let slot = most.entry(class).or_default();
            *slot = (*slot).max(asked);
        }
        for (class, asked) in most {
            let slot = devices.entry(class).or_default();
            *slot = slot.saturating_add(asked);
        }
    }
    let mut out = Amounts::one_each([DEVICE_CLAIMS.to_owned()]);
    for (class, amount) in &devices {
        out.set(format!("{class}{DEVICES_SUFFIX}"), Quantity::from_i64(*amount));
    }
    out.add(&extended.usage(claim, devices.into_iter(), now));
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pods::PodLevel;

    #[test]
    fn what_claims_use() {
        let rows = [
            (json!({"spec": {}}), "count/persistentvolumeclaims=1,persistentvolumeclaims=1"),
            (
                json!({"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}}}),
                "count/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,\
                 gold.storageclass.storage.k8s.io/requests.storage=1Gi,persistentvolumeclaims=1,requests.storage=1Gi",
            ),
            (
                json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}, "status": {"allocatedResources": {"storage": "2Gi"}}}),
                "count/persistentvolumeclaims=1,persistentvolumeclaims=1,requests.storage=2Gi",
            ),
        ];
        for (claim, want) in rows {
            assert_eq!(usage(&claim).words(), want, "{claim}");
        }
        let claim = json!({"spec": {"devices": {"requests": [{"exactly": {"deviceClassName": "gpu", "count": 2}},
            {"firstAvailable": [{"deviceClassName": "gpu", "count": 1}, {"deviceClassName": "gpu", "count": 3}]}]}}});
        let used = |extended: &ExtendedResources| {
            device_usage(&claim, extended, "2026-01-01T00:00:00Z".parse().unwrap()).words()
        };
        let plain = "count/resourceclaims.resource.k8s.io=1,gpu.deviceclass.resource.k8s.io/devices=5,\
            requests.deviceclass.resource.kubernetes.io/gpu=5";
        assert_eq!(used(&ExtendedResources::default()), plain);
        let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
        let named = ExtendedResources::of_classes([&class].into_iter(), PodLevel::Counted);
        assert_eq!(used(&named), format!("{plain},requests.example.com/gpu=5"));
        for (name, want) in [
            ("requests.storage", true),
            ("gold.storageclass.storage.k8s.io/requests.storage", true),
            ("gold.storageclass.storage.k8s.io/pods", false),
            ("pods", false),
        ] {
            assert_eq!(counts(name), want, "{name}");
        }
    }
}
