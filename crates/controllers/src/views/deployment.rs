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
    /// The strategy for replacing pods.
    pub strategy: DeploymentStrategy,
    /// Seconds a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Old replica sets to keep.
    pub revision_history_limit: Option<i32>,
    /// Whether rollouts are paused.
    pub paused: bool,
    /// The seconds without progress after which the rollout counts as failed.
    pub progress_deadline_seconds: Option<i32>,
}

/// `apps/v1` DeploymentStrategy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStrategy {
    /// `RollingUpdate` or `Recreate`.
    pub r#type: String,
    /// The parameters of rolling updates.
    pub rolling_update: Option<RollingUpdate>,
}

/// `apps/v1` RollingUpdateDeployment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// The number or percentage of pods above the desired number.
    pub max_surge: Option<IntOrString>,
    /// The number or percentage of pods that may be unavailable.
    pub max_unavailable: Option<IntOrString>,
}

/// `apps/v1` DeploymentStatus.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// The generation for which the status was computed.
    pub observed_generation: i64,
    /// The current number of pods.
    pub replicas: i32,
    /// The number of pods with the current template.
    pub updated_replicas: i32,
    pub ready_replicas: i32,
    /// The number of available pods.
    pub available_replicas: i32,
    /// The number of pods missing to the desired number.
    pub unavailable_replicas: i32,
    /// The number of pods that are being deleted. Absent if unknown.
    pub terminating_replicas: Option<i32>,
    /// The number of hash collisions of templates.
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
