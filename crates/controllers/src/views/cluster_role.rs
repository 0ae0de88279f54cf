//! `rbac.authorization.k8s.io/v1` ClusterRole with the fields of aggregation.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{LabelSelectorSpec, ObjectMeta};
use serde::{Deserialize, Serialize};

use super::index::Indexed;

/// `rbac.authorization.k8s.io/v1` ClusterRole.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterRoleView {
    pub metadata: ObjectMeta,
    /// The roles whose rules are aggregated.
    pub aggregation_rule: Option<AggregationRule>,
    /// The rules of the role.
    pub rules: Option<Vec<PolicyRule>>,
}

/// `rbac.authorization.k8s.io/v1` AggregationRule.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AggregationRule {
    /// Selectors of roles; one match is enough.
    pub cluster_role_selectors: Vec<LabelSelectorSpec>,
}

/// `rbac.authorization.k8s.io/v1` PolicyRule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    /// Groups of the resources.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    /// Paths that are not resources.
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_urls: Vec<String>,
    /// Names of the objects; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// Plural names of resources, or `RESOURCE/SUBRESOURCE`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// The allowed verbs.
    pub verbs: Vec<String>,
}

impl Indexed for ClusterRoleView {}
slim_object!(ClusterRoleView, ResourceType::cluster("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole"));
