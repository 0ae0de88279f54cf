//! `autoscaling/v2` HorizontalPodAutoscaler.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{LabelSelector, LabelSelectorSpec, ObjectMeta, Quantity, null_default};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::condition::Condition;
use super::index::{IndexKey, Indexed};

/// `autoscaling/v2` HorizontalPodAutoscaler.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodAutoscalerView {
    pub metadata: ObjectMeta,
    pub spec: PodAutoscalerSpec,
    pub status: PodAutoscalerStatus,
}

/// An autoscaler's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAutoscalerSpec {
    /// What is scaled.
    pub scale_target_ref: ObjectOf,
    /// Fewest pods; the API defaults it to 1.
    pub min_replicas: Option<i32>,
    pub max_replicas: i32,
    /// What the number of pods follows; the highest counts.
    #[serde(deserialize_with = "null_default")]
    pub metrics: Vec<MetricSpec>,
    /// How fast it changes.
    pub behavior: Option<Behavior>,
}

/// `autoscaling/v2` CrossVersionObjectReference.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectOf {
    pub kind: String,
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
}

/// `autoscaling/v2` MetricSpec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricSpec {
    /// Which of the others is set.
    pub r#type: String,
    /// Of the pods' containers together.
    pub resource: Option<ResourceSource>,
    /// Of one container of each pod.
    pub container_resource: Option<ResourceSource>,
    /// Of each pod, by the custom metrics API.
    pub pods: Option<CustomSource>,
    /// Of one object, by the custom metrics API.
    pub object: Option<CustomSource>,
    /// Of anything, by the external metrics API.
    pub external: Option<CustomSource>,
}

/// `autoscaling/v2` ResourceMetricSource and ContainerResourceMetricSource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceSource {
    /// `cpu`, `memory`, …
    pub name: String,
    /// Which container; empty: all of them.
    pub container: String,
    /// What to come to.
    pub target: MetricTarget,
}

/// `autoscaling/v2` PodsMetricSource, ObjectMetricSource and ExternalMetricSource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CustomSource {
    /// The object the metric is of.
    pub described_object: Option<ObjectOf>,
    pub metric: MetricName,
    /// What to come to.
    pub target: MetricTarget,
}

/// `autoscaling/v2` MetricIdentifier.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct MetricName {
    pub name: String,
    /// Which of its series.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelectorSpec>,
}

impl MetricName {
    /// Which of its series, as messages have it.
    pub fn series(&self) -> String {
        self.selector.as_ref().map_or_else(|| "nil".to_owned(), super::selector::go_form)
    }

    /// Which of its series, query form; empty: all.
    ///
    /// # Errors
    /// When the selector has an unknown operator.
    pub fn query(&self) -> Result<String, String> {
        let selector =
            self.selector.as_ref().map_or_else(|| Ok(LabelSelector::everything()), LabelSelectorSpec::selector);
        selector.map(|s| s.to_string()).map_err(|e| e.to_string())
    }
}

/// `autoscaling/v2` MetricTarget.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricTarget {
    /// A total over all pods.
    pub value: Option<String>,
    /// For each pod.
    pub average_value: Option<String>,
    /// Percent of what pods request.
    pub average_utilization: Option<i32>,
}

/// Thousandths of a quantity; one that cannot be read is none.
pub fn milli(text: Option<&String>) -> Option<i64> {
    text?.parse::<Quantity>().ok().map(Quantity::milli_value)
}

/// `autoscaling/v2` HorizontalPodAutoscalerBehavior.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Behavior {
    pub scale_up: ScalingRules,
    pub scale_down: ScalingRules,
}

/// `autoscaling/v2` HPAScalingRules.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingRules {
    /// Seconds that recommendations are looked back upon.
    pub stabilization_window_seconds: Option<i64>,
    /// `Max`, `Min` or `Disabled`.
    pub select_policy: String,
    /// How much in how long.
    #[serde(deserialize_with = "null_default")]
    pub policies: Vec<ScalingPolicy>,
    /// Deviation from the target that changes nothing.
    pub tolerance: Option<String>,
}

/// `autoscaling/v2` HPAScalingPolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingPolicy {
    /// `Pods` or `Percent`.
    pub r#type: String,
    /// How many, or how much.
    pub value: i32,
    /// In how many seconds.
    pub period_seconds: i64,
}

/// An autoscaler's status, whole: it is written back as it is here.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAutoscalerStatus {
    /// Generation this status is of, where somebody wrote one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the number of pods was last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<String>,
    /// Pods that were asked for when it was looked at.
    #[serde(skip_serializing_if = "is_zero")]
    pub current_replicas: i32,
    /// Pods that were decided upon.
    pub desired_replicas: i32,
    /// What the metrics were.
    #[serde(deserialize_with = "null_default")]
    pub current_metrics: Option<Vec<Value>>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

// Serde asks with a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(n: &i32) -> bool {
    *n == 0
}

impl Indexed for PodAutoscalerView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
    }
}
slim_object!(
    PodAutoscalerView,
    ResourceType::namespaced("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
);
