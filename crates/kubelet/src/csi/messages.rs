//! Messages of `csi.v1.Node` and `pluginregistration` with the fields that the kubelet uses. Names and numbers are those of CSI 1.11 and of
//! `k8s.io/kubelet`'s plugin registration.
use std::collections::HashMap;

use prost::Message;

/// An empty message.
#[derive(Clone, PartialEq, Message)]
pub struct NoFields {}

/// Response of `GetInfo`.
#[derive(Clone, PartialEq, Message)]
pub struct PluginInfo {
    #[prost(string, tag = "1")]
    pub r#type: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// Result of a plugin's registration.
#[derive(Clone, PartialEq, Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

/// Response of `NodeGetInfo`.
#[derive(Clone, PartialEq, Message)]
pub struct NodeInfo {
    #[prost(string, tag = "1")]
    pub node_id: String,
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<CsiTopology>,
}

/// Topology segments from which a volume or node is accessible.
#[derive(Clone, PartialEq, Message)]
pub struct CsiTopology {
    #[prost(map = "string, string", tag = "1")]
    pub segments: HashMap<String, String>,
}

/// Response of `NodeGetCapabilities`.
#[derive(Clone, PartialEq, Message)]
pub struct Capabilities {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<Capability>,
}

/// One capability of the driver.
#[derive(Clone, PartialEq, Message)]
pub struct Capability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<Rpc>,
}

/// An RPC capability, by its number.
#[derive(Clone, PartialEq, Message)]
pub struct Rpc {
    #[prost(int32, tag = "1")]
    pub r#type: i32,
}

/// The driver requires `NodeStageVolume` before `NodePublishVolume`.
pub const STAGE_UNSTAGE_VOLUME: i32 = 1;
/// The driver requires `NodeExpandVolume` after the controller expanded a volume.
pub const EXPAND_VOLUME: i32 = 3;
/// The driver supports the access modes for one node with several writers.
pub const SINGLE_NODE_MULTI_WRITER: i32 = 5;
/// The driver sets the group of files itself (`volume_mount_group`).
pub const VOLUME_MOUNT_GROUP: i32 = 6;

/// The use of a volume.
#[derive(Clone, PartialEq, Message)]
pub struct VolumeCapability {
    #[prost(message, optional, tag = "1")]
    pub block: Option<BlockVolume>,
    #[prost(message, optional, tag = "2")]
    pub mount: Option<MountVolume>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

/// Use as a block device.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct BlockVolume {}

/// Use as a mounted file system.
#[derive(Clone, PartialEq, Message)]
pub struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

/// Access mode: which readers and writers are allowed at once.
#[derive(Clone, PartialEq, Message)]
pub struct AccessMode {
    #[prost(int32, tag = "1")]
    pub mode: i32,
}

/// Request of `NodeStageVolume`: prepares the volume for all pods of the node at the staging path.
#[derive(Clone, PartialEq, Message)]
pub struct Stage {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(map = "string, string", tag = "2")]
    pub publish_context: HashMap<String, String>,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(map = "string, string", tag = "5")]
    pub secrets: HashMap<String, String>,
    #[prost(map = "string, string", tag = "6")]
    pub volume_context: HashMap<String, String>,
}

/// Request of `NodeUnstageVolume`, sent after the last pod released the volume.
#[derive(Clone, PartialEq, Message)]
pub struct Unstage {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub staging_target_path: String,
}

/// Request of `NodePublishVolume`: mounts the volume at a path of one pod.
#[derive(Clone, PartialEq, Message)]
pub struct Publish {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(map = "string, string", tag = "2")]
    pub publish_context: HashMap<String, String>,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(string, tag = "4")]
    pub target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    #[prost(map = "string, string", tag = "7")]
    pub secrets: HashMap<String, String>,
    #[prost(map = "string, string", tag = "8")]
    pub volume_context: HashMap<String, String>,
}

/// Request of `NodeExpandVolume`: expands the file system to the size of the volume.
#[derive(Clone, PartialEq, Message)]
pub struct Expand {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(message, optional, tag = "3")]
    pub capacity_range: Option<SizeRange>,
    #[prost(string, tag = "4")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(map = "string, string", tag = "6")]
    pub secrets: HashMap<String, String>,
}

/// Requested size in bytes; 0 means no bound.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SizeRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

/// Request of `NodeUnpublishVolume`: one pod releases the volume.
#[derive(Clone, PartialEq, Message)]
pub struct Unpublish {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub target_path: String,
}
