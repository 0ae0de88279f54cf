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
    /// How to replace pods.
    pub update_strategy: DaemonSetStrategy,
    /// Seconds a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Old revisions to keep.
    pub revision_history_limit: Option<i32>,
}

/// A pod template as it came, and what of it decides on which nodes its pods run.
#[derive(Clone, Debug, Default)]
pub struct DaemonTemplate {
    /// The template as it came, for digests and for pods.
    pub raw: Option<Box<RawValue>>,
    /// Labels of its pods.
    pub labels: BTreeMap<String, String>,
    /// The part of the pods' spec that is about nodes.
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

/// What a pod's spec says about nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonNodesView {
    /// The one node.
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

/// `v1.Affinity`, as far as it keeps pods off nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AffinityView {
    /// Affinity to nodes.
    #[serde(deserialize_with = "null_default")]
    pub node_affinity: NodeAffinityView,
}

/// `v1.NodeAffinity`, what is required of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAffinityView {
    /// Nodes that match are fit.
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelector>,
}

/// `apps/v1` DaemonSetUpdateStrategy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetStrategy {
    /// `RollingUpdate` or `OnDelete`.
    pub r#type: String,
    /// For rolling updates.
    pub rolling_update: Option<RollingDaemons>,
}

/// `apps/v1` RollingUpdateDaemonSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingDaemons {
    /// Nodes that may be without an available pod.
    pub max_unavailable: Option<IntOrString>,
    /// Nodes that may have a new pod beside an old one.
    pub max_surge: Option<IntOrString>,
}

/// `apps/v1` DaemonSetStatus.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetStatus {
    /// Nodes that should run a pod and do.
    pub current_number_scheduled: i32,
    /// Nodes that should not and do.
    pub number_misscheduled: i32,
    /// Nodes that should.
    pub desired_number_scheduled: i32,
    /// Of those that should, nodes whose pod is ready.
    pub number_ready: i32,
    /// Generation this status is of.
    pub observed_generation: i64,
    /// Nodes whose pod is of the newest template.
    pub updated_number_scheduled: i32,
    /// Nodes whose pod is ready for long enough.
    pub number_available: i32,
    /// Nodes that should have an available pod and have none.
    pub number_unavailable: i32,
    /// Hash collisions met.
    pub collision_count: Option<i32>,
}

impl Indexed for DaemonSetView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
    }
}
slim_object!(DaemonSetView, ResourceType::namespaced("apps", "v1", "daemonsets", "DaemonSet"));
