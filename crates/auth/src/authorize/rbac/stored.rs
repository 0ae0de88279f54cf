//! The fields of stored roles and bindings that RBAC reads.
use std::collections::BTreeMap;

use kelson_meta::{LabelSelector, LabelSelectorSpec};
use serde::Deserialize;

use super::PolicyRule;
use super::aggregation::ClusterRole;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RoleView {
    #[serde(default)]
    metadata: MetaView,
    #[serde(default)]
    pub rules: Option<Vec<PolicyRule>>,
    #[serde(default)]
    aggregation_rule: Option<AggregationRule>,
}

impl RoleView {
    /// Converts the record for aggregation.
    pub fn cluster_role(self) -> ClusterRole {
        let selectors = self
            .aggregation_rule
            .and_then(|a| a.cluster_role_selectors)
            .map(|list| list.iter().map(|s| s.selector().unwrap_or_else(|_| LabelSelector::nothing())).collect());
        ClusterRole {
            labels: self.metadata.labels.unwrap_or_default(),
            rules: self.rules.unwrap_or_default().into(),
            selectors,
        }
    }
}

#[derive(Deserialize, Default)]
struct MetaView {
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct AggregationRule {
    #[serde(default)]
    cluster_role_selectors: Option<Vec<LabelSelectorSpec>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BindingView {
    pub role_ref: RoleRef,
    #[serde(default)]
    pub subjects: Option<Vec<Subject>>,
}

/// The field `roleRef` of a binding.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct RoleRef {
    #[serde(default, rename = "apiGroup")]
    pub api_group: String,
    pub kind: String,
    pub name: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Subject {
    pub kind: String,
    pub name: String,
    #[serde(default)]
    pub namespace: String,
}
