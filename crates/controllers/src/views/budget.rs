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

/// A budget's spec, but for what only an eviction reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetSpecView {
    /// Pods that must stay, or a part of those expected.
    pub min_available: Option<IntOrString>,
    /// Pods that may go, or a part of those expected.
    pub max_unavailable: Option<IntOrString>,
    /// Which pods; absent: none, empty: all of the namespace.
    pub selector: Option<LabelSelectorSpec>,
}

/// A budget's status, whole: it is written back as it is here.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatus {
    /// Generation this status is of.
    pub observed_generation: i64,
    /// Pods whose eviction was allowed and that are not seen to go yet, and since when.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub disrupted_pods: BTreeMap<String, String>,
    /// Evictions allowed now.
    pub disruptions_allowed: i32,
    pub current_healthy: i32,
    /// Healthy pods that there must be.
    pub desired_healthy: i32,
    /// Pods that the budget counts, as far as their owners say.
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
    /// Generation it was set upon.
    pub observed_generation: i64,
    /// When the status changed.
    pub last_transition_time: String,
    pub reason: String,
    pub message: String,
}

/// Puts a condition in; its transition time moves only when its status does.
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
