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
    /// The workload to scale.
    pub scale_target_ref: ObjectOf,
    /// The minimum number of pods; the API defaults it to 1.
    pub min_replicas: Option<i32>,
    pub max_replicas: i32,
    /// The metrics; the one that requires the most pods counts.
    #[serde(deserialize_with = "null_default")]
    pub metrics: Vec<MetricSpec>,
    /// The limits of changes.
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
    /// The type, which determines the field that is set.
    pub r#type: String,
    /// A resource of all containers of each pod.
    pub resource: Option<ResourceSource>,
    /// A resource of one container of each pod.
    pub container_resource: Option<ResourceSource>,
    /// A metric of each pod from the custom metrics API.
    pub pods: Option<CustomSource>,
    /// A metric of one object from the custom metrics API.
    pub object: Option<CustomSource>,
    /// A metric from the external metrics API.
    pub external: Option<CustomSource>,
}

/// `autoscaling/v2` ResourceMetricSource and ContainerResourceMetricSource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceSource {
    /// `cpu`, `memory`, …
    pub name: String,
    /// The container; empty means all.
    pub container: String,
    /// The target value.
    pub target: MetricTarget,
}

/// `autoscaling/v2` PodsMetricSource, ObjectMetricSource and ExternalMetricSource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CustomSource {
    /// The object of the metric.
    pub described_object: Option<ObjectOf>,
    pub metric: MetricName,
    /// The target value.
    pub target: MetricTarget,
}

/// `autoscaling/v2` MetricIdentifier.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct MetricName {
    pub name: String,
    /// The selector of the metric's series.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelectorSpec>,
}

impl MetricName {
    /// Returns the selector of the series in the form of messages.
    pub fn series(&self) -> String {
        self.selector.as_ref().map_or_else(|| "nil".to_owned(), super::selector::go_form)
    }

    /// Returns the selector of the series in query form. Empty means all.
    ///
    /// # Errors
    /// The selector has an unknown operator.
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
    /// The total over all pods.
    pub value: Option<String>,
    /// The average per pod.
    pub average_value: Option<String>,
    /// The average percentage of requests.
    pub average_utilization: Option<i32>,
}

/// Returns a quantity in thousandths, or `None` if it is invalid.
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
    /// The stabilization window in seconds.
    pub stabilization_window_seconds: Option<i64>,
    /// `Max`, `Min` or `Disabled`.
    pub select_policy: String,
    /// The policies that limit the rate of scaling.
    #[serde(deserialize_with = "null_default")]
    pub policies: Vec<ScalingPolicy>,
    /// The relative deviation from the target that causes no change.
    pub tolerance: Option<String>,
}

/// `autoscaling/v2` HPAScalingPolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingPolicy {
    /// `Pods` or `Percent`.
    pub r#type: String,
    /// The number of pods or the percentage.
    pub value: i32,
    /// The period in seconds.
    pub period_seconds: i64,
}

/// The complete status of an autoscaler, which is written as it is here.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAutoscalerStatus {
    /// The generation for which the status was computed, if set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the number of pods was last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<String>,
    /// The desired number of pods of the workload at the last sync.
    #[serde(skip_serializing_if = "is_zero")]
    pub current_replicas: i32,
    /// The number of pods that the autoscaler decided.
    pub desired_replicas: i32,
    /// The last values of the metrics.
    #[serde(deserialize_with = "null_default")]
    pub current_metrics: Option<Vec<Value>>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

// Serde passes a reference.
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
