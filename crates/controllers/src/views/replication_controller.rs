//! `core/v1` ReplicationController.
use std::collections::BTreeMap;

use kelson_client::{ResourceType, slim_object};
use kelson_meta::ObjectMeta;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::index::Indexed;
use super::replica_set::ReplicaStatus;

/// `core/v1` ReplicationController.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReplicationControllerView {
    pub metadata: ObjectMeta,
    pub spec: ReplicationControllerSpecView,
    pub status: ReplicaStatus,
}

/// A replication controller's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicationControllerSpecView {
    pub replicas: Option<i32>,
    /// Seconds a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    pub selector: BTreeMap<String, String>,
    /// Pod template, JSON.
    pub template: Option<Box<RawValue>>,
}

impl Indexed for ReplicationControllerView {}
slim_object!(
    ReplicationControllerView,
    ResourceType::namespaced("", "v1", "replicationcontrollers", "ReplicationController")
);
