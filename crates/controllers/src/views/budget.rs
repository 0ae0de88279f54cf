//! `policy/v1` PodDisruptionBudget.
use std::collections::BTreeMap;

use jiff::Timestamp;
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{LabelSelector, LabelSelectorSpec, ObjectMeta, format_seconds, null_default};
use serde::{Deserialize, Serialize};

use super::index::{IndexKey, Indexed};
use super::int_or_string::IntOrString;

/// `policy/v1` PodDisruptionBudget.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct BudgetView {
    pub metadata: ObjectMeta,
    pub spec: BudgetSpecView,
    pub status: BudgetStatus,
}

/// The spec of a budget without the fields that only evictions read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetSpecView {
    /// The number or percentage of expected pods that must stay healthy.
    pub min_available: Option<IntOrString>,
    /// The number or percentage of expected pods that may be unavailable.
    pub max_unavailable: Option<IntOrString>,
    /// The selector of the pods. Absent selects none, empty selects all pods of the namespace.
    pub selector: Option<LabelSelectorSpec>,
}

/// The complete status of a budget, which is written as it is here.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatus {
    /// The generation for which the status was computed.
    pub observed_generation: i64,
    /// Pods whose eviction was allowed and whose deletion is not yet observed, with the time of the eviction.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub disrupted_pods: BTreeMap<String, String>,
    /// The number of evictions that are allowed now.
    pub disruptions_allowed: i32,
    pub current_healthy: i32,
    /// The minimum number of healthy pods.
    pub desired_healthy: i32,
    /// The number of pods that the budget covers, from the scale of their owners.
    pub expected_pods: i32,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StandardCondition>,
}

/// `meta/v1` Condition.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct StandardCondition {
    pub r#type: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
    /// The generation for which the condition was set.
    pub observed_generation: i64,
    /// When the status changed.
    pub last_transition_time: String,
    pub reason: String,
    pub message: String,
}

/// Sets a condition. Its transition time changes only with its status.
pub fn put_condition(all: &mut Vec<StandardCondition>, mut new: StandardCondition, now: Timestamp) {
    new.last_transition_time = format_seconds(now);
    match all.iter_mut().find(|c| c.r#type == new.r#type) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time.clone_from(&old.last_transition_time);
            }
            *old = new;
        }
        None => all.push(new),
    }
}

impl BudgetView {
    pub fn selector(&self) -> LabelSelector {
        let parsed = self.spec.selector.as_ref().and_then(|s| s.selector().ok());
        parsed.unwrap_or_else(LabelSelector::nothing)
    }
}

impl Indexed for BudgetView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
    }
}
slim_object!(BudgetView, ResourceType::namespaced("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"));
