//! `apps/v1` DaemonSet.
use std::collections::BTreeMap;

use kelson_client::{ResourceType, slim_object};
use kelson_meta::NodeSelector;
use kelson_meta::{LabelSelectorSpec, ObjectMeta, null_default};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::index::{IndexKey, Indexed};
use super::int_or_string::IntOrString;
use super::pod::Toleration;

/// `apps/v1` DaemonSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DaemonSetView {
    pub metadata: ObjectMeta,
    pub spec: DaemonSetSpecView,
    pub status: DaemonSetStatus,
}

/// A daemon set's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetSpecView {
    pub selector: Option<LabelSelectorSpec>,
    pub template: DaemonTemplate,
    /// The strategy for replacing pods.
    pub update_strategy: DaemonSetStrategy,
    /// Seconds a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Old revisions to keep.
    pub revision_history_limit: Option<i32>,
}

/// A pod template as raw JSON, and its fields that decide on which nodes pods run.
#[derive(Clone, Debug, Default)]
pub struct DaemonTemplate {
    /// The template as raw JSON, for hashes and for new pods.
    pub raw: Option<Box<RawValue>>,
    /// Labels of its pods.
    pub labels: BTreeMap<String, String>,
    /// The fields of the pods' spec about nodes.
    pub nodes: DaemonNodesView,
}

impl<'de> Deserialize<'de> for DaemonTemplate {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Parts {
            metadata: PartMeta,
            spec: DaemonNodesView,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct PartMeta {
            #[serde(deserialize_with = "null_default")]
            labels: BTreeMap<String, String>,
        }
        let Some(raw) = Option::<Box<RawValue>>::deserialize(d)? else { return Ok(Self::default()) };
        let parts: Parts = serde_json::from_str(raw.get()).map_err(serde::de::Error::custom)?;
        Ok(Self { raw: Some(raw), labels: parts.metadata.labels, nodes: parts.spec })
    }
}

/// The fields of a pod's spec about nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonNodesView {
    /// The name of the node, if the template sets it.
    pub node_name: String,
    /// Whether pods use the node's network.
    pub host_network: bool,
    /// Labels of the nodes.
    #[serde(deserialize_with = "null_default")]
    pub node_selector: BTreeMap<String, String>,
    /// Affinity to nodes.
    #[serde(deserialize_with = "null_default")]
    pub affinity: AffinityView,
    #[serde(deserialize_with = "null_default")]
    pub tolerations: Vec<Toleration>,
}

/// `v1.Affinity` with the required node affinity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AffinityView {
    /// Affinity to nodes.
    #[serde(deserialize_with = "null_default")]
    pub node_affinity: NodeAffinityView,
}

/// `v1.NodeAffinity` with the required terms.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAffinityView {
    /// The selector that nodes must match.
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelector>,
}

/// `apps/v1` DaemonSetUpdateStrategy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetStrategy {
    /// `RollingUpdate` or `OnDelete`.
    pub r#type: String,
    /// The parameters of rolling updates.
    pub rolling_update: Option<RollingDaemons>,
}

/// `apps/v1` RollingUpdateDaemonSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingDaemons {
    /// The number or percentage of nodes that may be without an available pod.
    pub max_unavailable: Option<IntOrString>,
    /// The number or percentage of nodes that may run a new pod in addition to an old one.
    pub max_surge: Option<IntOrString>,
}

/// `apps/v1` DaemonSetStatus.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetStatus {
    /// The number of nodes that should run a pod and do.
    pub current_number_scheduled: i32,
    /// The number of nodes that run a pod but should not.
    pub number_misscheduled: i32,
    /// The number of nodes that should run a pod.
    pub desired_number_scheduled: i32,
    /// The number of nodes that should run a pod and have a ready one.
    pub number_ready: i32,
    /// The generation for which the status was computed.
    pub observed_generation: i64,
    /// The number of nodes whose pod has the current template.
    pub updated_number_scheduled: i32,
    /// The number of nodes with an available pod.
    pub number_available: i32,
    /// The number of nodes that should have an available pod and have none.
    pub number_unavailable: i32,
    /// The number of hash collisions of templates.
    pub collision_count: Option<i32>,
}

impl Indexed for DaemonSetView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
    }
}
slim_object!(DaemonSetView, ResourceType::namespaced("apps", "v1", "daemonsets", "DaemonSet"));
