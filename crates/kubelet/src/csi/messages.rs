//! The messages of `csi.v1.Node` and of `pluginregistration`, as far as the kubelet says or reads them: names and numbers of
//! the container storage interface 1.11 and of `k8s.io/kubelet`'s plugin registration.
use std::collections::HashMap;

use prost::Message;

/// Of calls that say or answer nothing.
#[derive(Clone, PartialEq, Message)]
pub struct NoFields {}

/// What a plugin says of itself.
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

/// What became of its registration.
#[derive(Clone, PartialEq, Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

/// What a driver knows of the node.
#[derive(Clone, PartialEq, Message)]
pub struct NodeInfo {
    #[prost(string, tag = "1")]
    pub node_id: String,
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<CsiTopology>,
}

/// Where something can be reached from.
#[derive(Clone, PartialEq, Message)]
pub struct CsiTopology {
    #[prost(map = "string, string", tag = "1")]
    pub segments: HashMap<String, String>,
}

/// What a driver can do on the node.
#[derive(Clone, PartialEq, Message)]
pub struct Capabilities {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<Capability>,
}

/// One thing it can do.
#[derive(Clone, PartialEq, Message)]
pub struct Capability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<Rpc>,
}

/// By its number.
#[derive(Clone, PartialEq, Message)]
pub struct Rpc {
    #[prost(int32, tag = "1")]
    pub r#type: i32,
}

/// Volumes are staged before they are published.
pub const STAGE_UNSTAGE_VOLUME: i32 = 1;
/// Volumes are grown on the node too.
pub const EXPAND_VOLUME: i32 = 3;
/// A volume may have several writers on one node.
pub const SINGLE_NODE_MULTI_WRITER: i32 = 5;
/// The driver gives files to a group itself.
pub const VOLUME_MOUNT_GROUP: i32 = 6;

/// How a volume is to be used.
#[derive(Clone, PartialEq, Message)]
pub struct VolumeCapability {
    #[prost(message, optional, tag = "1")]
    pub block: Option<BlockVolume>,
    #[prost(message, optional, tag = "2")]
    pub mount: Option<MountVolume>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

/// As a device, whose content is the container's alone to read.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct BlockVolume {}

/// As a file system.
#[derive(Clone, PartialEq, Message)]
pub struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

/// By whom at once.
#[derive(Clone, PartialEq, Message)]
pub struct AccessMode {
    #[prost(int32, tag = "1")]
    pub mode: i32,
}

/// `NodeStageVolume`: the volume is made ready for all pods of the node, below a path of its own.
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

/// `NodeUnstageVolume`: after the last pod has let go.
#[derive(Clone, PartialEq, Message)]
pub struct Unstage {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub staging_target_path: String,
}

/// `NodePublishVolume`: the volume is mounted at a path of one pod.
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

/// `NodeExpandVolume`: what is on the volume gets as large as the volume.
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

/// How large a volume is to be; 0 stands for no bound.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SizeRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

/// `NodeUnpublishVolume`: one pod has let go.
#[derive(Clone, PartialEq, Message)]
pub struct Unpublish {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub target_path: String,
}
