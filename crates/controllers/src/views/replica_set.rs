//! `apps/v1` ReplicaSet, and the status it shares with replication controllers.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{LabelSelectorSpec, ObjectMeta, null_default};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::condition::Condition;
use super::index::{IndexKey, Indexed, index_owned};

/// `apps/v1` ReplicaSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReplicaSetView {
    pub metadata: ObjectMeta,
    pub spec: ReplicaSetSpecView,
    pub status: ReplicaStatus,
}

/// The spec of a replica set. The template is raw JSON, so that no field is lost.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetSpecView {
    /// Desired pods; the API defaults it to 1.
    pub replicas: Option<i32>,
    /// Seconds a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    pub selector: Option<LabelSelectorSpec>,
    /// Pod template, JSON.
    pub template: Option<Box<RawValue>>,
}

/// Status of replica sets and replication controllers.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaStatus {
    /// The current number of pods.
    pub replicas: i32,
    /// The number of pods with all labels of the template.
    pub fully_labeled_replicas: i32,
    pub ready_replicas: i32,
    /// The number of available pods.
    pub available_replicas: i32,
    /// The number of pods that are being deleted. Absent if unknown.
    pub terminating_replicas: Option<i32>,
    /// The generation for which the status was computed.
    pub observed_generation: i64,
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<Condition>,
}

impl Indexed for ReplicaSetView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        index_owned(&self.metadata, into);
    }
}
slim_object!(ReplicaSetView, ResourceType::namespaced("apps", "v1", "replicasets", "ReplicaSet"));
