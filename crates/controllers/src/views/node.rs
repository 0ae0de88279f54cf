//! `core/v1` Node.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::{Deserialize, Serialize};

use super::condition::Condition;
use super::index::Indexed;

/// `core/v1` Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeView {
    pub metadata: ObjectMeta,
    pub spec: NodeSpecView,
    pub status: NodeStatusView,
}

/// A node's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpecView {
    /// The pod CIDRs of the node.
    #[serde(rename = "podCIDRs")]
    #[serde(deserialize_with = "null_default")]
    pub pod_cidrs: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    pub taints: Vec<Taint>,
    /// Cordoned: no new pod is bound to it.
    pub unschedulable: bool,
}

/// `v1.Taint`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    pub key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule`, `NoExecute`.
    pub effect: String,
    /// When the taint was added, for `NoExecute`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_added: Option<String>,
}

/// A node's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatusView {
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<Condition>,
    #[serde(deserialize_with = "null_default")]
    pub addresses: Vec<NodeAddress>,
    /// The resources for pods.
    #[serde(deserialize_with = "null_default")]
    pub allocatable: NodeAllocatable,
    /// The ports on which the node's daemons listen.
    #[serde(deserialize_with = "null_default")]
    pub daemon_endpoints: DaemonEndpoints,
    /// Names of the volumes that the node has mounted or may be about to mount.
    #[serde(deserialize_with = "null_default")]
    pub volumes_in_use: Vec<String>,
    /// Volumes that are attached to the node.
    #[serde(deserialize_with = "null_default")]
    pub volumes_attached: Vec<AttachedVolume>,
}

/// `v1.NodeDaemonEndpoints`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonEndpoints {
    pub kubelet_endpoint: DaemonEndpoint,
}

/// `v1.DaemonEndpoint`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DaemonEndpoint {
    /// The port; 0 if it is unknown.
    #[serde(rename = "Port")]
    pub port: i32,
}

/// The part of a node's allocatable resources that is read.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct NodeAllocatable {
    /// The CPU quantity, or empty.
    pub cpu: String,
}

/// `v1.AttachedVolume`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct AttachedVolume {
    /// The name of the volume on the node.
    pub name: String,
}

/// `v1.NodeAddress`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct NodeAddress {
    /// `Hostname`, `InternalIP`, `ExternalIP`, `InternalDNS`, `ExternalDNS`.
    pub r#type: String,
    pub address: String,
}

impl Indexed for NodeView {}
slim_object!(NodeView, ResourceType::cluster("", "v1", "nodes", "Node"));
