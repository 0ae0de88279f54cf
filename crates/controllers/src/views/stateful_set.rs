//! `apps/v1` StatefulSet.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{LabelSelectorSpec, ObjectMeta, null_default};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::index::{IndexKey, Indexed};
use super::int_or_string::IntOrString;

/// `apps/v1` StatefulSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StatefulSetView {
    pub metadata: ObjectMeta,
    pub spec: StatefulSetSpecView,
    pub status: StatefulSetStatus,
}

/// A stateful set's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetSpecView {
    /// Desired pods; the API defaults it to 1.
    pub replicas: Option<i32>,
    pub selector: Option<LabelSelectorSpec>,
    /// Pod template, JSON.
    pub template: Option<Box<RawValue>>,
    /// The headless service for the DNS names of the pods.
    pub service_name: String,
    /// `OrderedReady` or `Parallel`.
    pub pod_management_policy: String,
    /// The strategy for replacing pods.
    pub update_strategy: StatefulSetStrategy,
    /// Templates of the claims of each pod.
    #[serde(deserialize_with = "null_default")]
    pub volume_claim_templates: Vec<Value>,
    /// Seconds a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Old revisions to keep.
    pub revision_history_limit: Option<i32>,
    /// The retention policy of claims.
    pub persistent_volume_claim_retention_policy: Option<ClaimRetention>,
    /// The numbering of pods.
    pub ordinals: Option<OrdinalsView>,
}

/// `apps/v1` StatefulSetUpdateStrategy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetStrategy {
    /// `RollingUpdate` or `OnDelete`.
    pub r#type: String,
    /// The parameters of rolling updates.
    pub rolling_update: Option<RollingStateful>,
}

/// `apps/v1` RollingUpdateStatefulSetStrategy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingStateful {
    /// Pods with a lower ordinal are not updated.
    pub partition: i32,
    /// The number or percentage of pods that may be unavailable during an update.
    pub max_unavailable: Option<IntOrString>,
}

/// `apps/v1` StatefulSetPersistentVolumeClaimRetentionPolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimRetention {
    /// `Retain` or `Delete` when the set is deleted.
    pub when_deleted: String,
    /// `Retain` or `Delete` when the set is scaled down.
    pub when_scaled: String,
}

/// `apps/v1` StatefulSetOrdinals.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct OrdinalsView {
    /// The ordinal of the first pod.
    pub start: i32,
}

/// `apps/v1` StatefulSetStatus, but for its conditions.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetStatus {
    /// The generation for which the status was computed.
    pub observed_generation: i64,
    /// The current number of pods.
    pub replicas: i32,
    /// The number of running and ready pods.
    pub ready_replicas: i32,
    /// The number of pods with the current revision.
    pub current_replicas: i32,
    /// The number of pods with the update revision.
    pub updated_replicas: i32,
    /// The number of available pods.
    pub available_replicas: i32,
    /// The name of the revision before the update.
    pub current_revision: String,
    /// The name of the update revision.
    pub update_revision: String,
    /// The number of hash collisions of templates.
    pub collision_count: Option<i32>,
}

impl StatefulSetView {
    pub fn replicas(&self) -> i64 {
        i64::from(self.spec.replicas.unwrap_or(1).max(0))
    }
    /// The ordinal of the first pod.
    pub fn start(&self) -> i64 {
        self.spec.ordinals.as_ref().map_or(0, |o| i64::from(o.start))
    }
    /// Whether an ordinal is within the set's current size.
    pub fn holds(&self, ordinal: i64) -> bool {
        (self.start()..self.start() + self.replicas()).contains(&ordinal)
    }
    /// Returns the ordinal in a pod's name, if the pod belongs to this set.
    pub fn ordinal_of(&self, pod: &str) -> Option<i64> {
        let number = pod.strip_prefix(&self.metadata.name)?.strip_prefix('-')?;
        let canonical = number == "0" || !number.starts_with('0');
        let digits = canonical && number.bytes().all(|b| b.is_ascii_digit());
        number.parse::<i32>().ok().filter(|_| digits).map(i64::from)
    }
}

impl Indexed for StatefulSetView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
    }
}
slim_object!(StatefulSetView, ResourceType::namespaced("apps", "v1", "statefulsets", "StatefulSet"));
