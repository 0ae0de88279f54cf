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

/// A replica set's spec; the template stays as it came.
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
    /// Pods that are there.
    pub replicas: i32,
    /// With all labels of the template.
    pub fully_labeled_replicas: i32,
    pub ready_replicas: i32,
    /// Ready for long enough.
    pub available_replicas: i32,
    /// Pods that are being deleted; absent while the count is not known.
    pub terminating_replicas: Option<i32>,
    /// Generation this status is of.
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
