//! `coordination.k8s.io/v1` Lease: the heartbeat of a node.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::ObjectMeta;
use serde::Deserialize;

use super::index::Indexed;

/// `coordination.k8s.io/v1` Lease.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LeaseView {
    pub metadata: ObjectMeta,
    pub spec: LeaseSpecView,
}

/// A lease's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpecView {
    /// Last heartbeat, RFC 3339.
    pub renew_time: String,
}

impl Indexed for LeaseView {}
slim_object!(LeaseView, ResourceType::namespaced("coordination.k8s.io", "v1", "leases", "Lease"));
