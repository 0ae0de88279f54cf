//! Leases of nodes: how nodes say that they live, and who speaks for them.
use std::time::Duration;

use jiff::Timestamp;
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, format_micro, null_default};
use serde::Deserialize;
use serde_json::{Value, json};

/// The namespace of the nodes' leases.
pub const NAMESPACE: &str = "kube-node-lease";

/// `coordination.k8s.io/v1` Lease.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Lease {
    pub metadata: ObjectMeta,
    pub spec: LeaseSpec,
}

/// The holder of the lease, its start and its duration (`spec`).
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    #[serde(deserialize_with = "null_default")]
    pub holder_identity: String,
    #[serde(deserialize_with = "null_default")]
    pub lease_duration_seconds: u32,
    pub renew_time: Option<Timestamp>,
}

slim_object!(Lease, ResourceType::namespaced("coordination.k8s.io", "v1", "leases", "Lease"));

impl Lease {
    /// Returns how long another holder still has it; `None` when `who` may take it.
    pub fn kept_from(&self, who: &str, now: Timestamp) -> Option<Duration> {
        if self.spec.holder_identity == who || self.spec.holder_identity.is_empty() {
            return None;
        }
        let until = self.spec.renew_time? + Duration::from_secs(self.spec.lease_duration_seconds.into());
        let left = Duration::try_from(until.duration_since(now)).unwrap_or_default();
        Some(left).filter(|left| !left.is_zero())
    }
}

/// A node's lease as `holder` renews it, over the version that it knows of.
pub fn renewed(node: &str, uid: &str, holder: &str, seconds: u32, now: Timestamp, version: &str) -> Value {
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]);
    let mut lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": node, "namespace": NAMESPACE, "ownerReferences": owner},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": format_micro(now)}});
    if !version.is_empty() {
        lease["metadata"]["resourceVersion"] = json!(version);
    }
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_take_a_lease() {
        let now: Timestamp = "2026-01-01T00:00:30Z".parse().unwrap();
        let check = |spec: Value, expected: Option<u64>| {
            let lease: Lease = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            assert_eq!(lease.kept_from("me", now), expected.map(Duration::from_secs), "{:?}", lease.spec);
        };
        let by = |who: &str, at: &str| json!({"holderIdentity": who, "leaseDurationSeconds": 40, "renewTime": at});
        check(by("me", "2026-01-01T00:00:29Z"), None);
        check(by("other", "2026-01-01T00:00:29Z"), Some(39));
        check(by("other", "2025-12-31T23:59:49Z"), None);
        check(json!({"holderIdentity": "other"}), None);
        check(json!({"holderIdentity": null}), None);
    }
}
