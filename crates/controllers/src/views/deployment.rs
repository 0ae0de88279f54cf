//! `apps/v1` Deployment.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{LabelSelectorSpec, ObjectMeta, null_default};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::condition::Condition;
use super::index::{IndexKey, Indexed};
use super::int_or_string::IntOrString;

/// `apps/v1` Deployment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeploymentView {
    pub metadata: ObjectMeta,
    pub spec: DeploymentSpecView,
    pub status: DeploymentStatus,
}

/// A deployment's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentSpecView {
    /// Desired pods; the API defaults it to 1.
    pub replicas: Option<i32>,
    pub selector: Option<LabelSelectorSpec>,
    /// Pod template, JSON.
    pub template: Option<Box<RawValue>>,
    /// How to replace pods.
    pub strategy: DeploymentStrategy,
    /// Seconds a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Old replica sets to keep.
    pub revision_history_limit: Option<i32>,
    /// No rollout while set.
    pub paused: bool,
    /// Seconds without progress until the rollout counts as failed.
    pub progress_deadline_seconds: Option<i32>,
}

/// `apps/v1` DeploymentStrategy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStrategy {
    /// `RollingUpdate` or `Recreate`.
    pub r#type: String,
    /// For rolling updates.
    pub rolling_update: Option<RollingUpdate>,
}

/// `apps/v1` RollingUpdateDeployment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// Pods over the desired number.
    pub max_surge: Option<IntOrString>,
    /// Pods that may be missing.
    pub max_unavailable: Option<IntOrString>,
}

/// `apps/v1` DeploymentStatus.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// Generation this status is of.
    pub observed_generation: i64,
    /// Pods that are there.
    pub replicas: i32,
    /// Of the newest template.
    pub updated_replicas: i32,
    pub ready_replicas: i32,
    /// Ready for long enough.
    pub available_replicas: i32,
    /// Missing to the desired number.
    pub unavailable_replicas: i32,
    /// Pods that are being deleted; absent while the count is not known.
    pub terminating_replicas: Option<i32>,
    /// Hash collisions met.
    pub collision_count: Option<i32>,
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<Condition>,
}

impl Indexed for DeploymentView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
    }
}
slim_object!(DeploymentView, ResourceType::namespaced("apps", "v1", "deployments", "Deployment"));
