//! The state of a data directory and of its processes.
use std::path::PathBuf;

use jiff::Timestamp;
use kelson_members::MemberRow;
use serde::Serialize;

/// The whole state; what does not exist or did not answer is `None`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// When the state was read.
    pub time: Timestamp,
    /// The version of this program.
    pub version: String,
    /// The absolute path of the data directory.
    pub data_dir: PathBuf,
    /// Whether it is that of a server: it has CAs.
    pub is_server: bool,
    /// The process that uses it.
    pub process: Option<ProcessFacts>,
    /// Its container runtime, and the shims of containers.
    pub runtime: Vec<ProcessFacts>,
    /// The addresses on which the process listens.
    pub listens: Vec<String>,
    /// The API, as seen by its administrator.
    pub api: Option<ApiFacts>,
    /// The etcd members of the cluster, if this server has one.
    pub members: Option<MembersFacts>,
    /// Certificates and kubeconfigs.
    pub certificates: Vec<CertificateFacts>,
    /// The file system of the data directory.
    pub disk: DiskRoom,
    /// Images and pods of this node.
    pub containers: Option<ContainerFacts>,
}

/// A process that uses the data directory.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessFacts {
    /// The process ID.
    pub pid: u32,
    /// The command line.
    pub command: String,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
}

/// The answers of the API server.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiFacts {
    /// Why it is not ready; `None` when it is ready.
    pub not_ready: Option<String>,
    /// The nodes by name.
    pub nodes: Vec<NodeFacts>,
}

/// A node of the cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFacts {
    /// Value of `metadata.name`.
    pub name: String,
    /// Why it is not ready; `None` when it is ready.
    pub not_ready: Option<String>,
    /// Value of `status.nodeInfo.kubeletVersion`.
    pub version: String,
    /// Value of `spec.unschedulable`.
    pub unschedulable: bool,
}

/// The etcd members, as seen by that of this server.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MembersFacts {
    /// Why they cannot be listed; `None` when they can.
    pub unavailable: Option<String>,
    /// The members of the etcd cluster.
    pub members: Vec<MemberRow>,
}

/// A certificate of the data directory.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateFacts {
    /// Its name in `kelson certificate list`.
    pub name: String,
    /// When it expires.
    pub expires: Timestamp,
    /// The component that renews it.
    pub renewed: &'static str,
}

/// The size of the file system in bytes.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskRoom {
    /// The total size.
    pub total_bytes: u64,
    /// The space available to this user.
    pub free_bytes: u64,
}

/// The images and pods of the runtime.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerFacts {
    /// The runtime's socket.
    pub endpoint: String,
    /// Its name and version.
    pub runtime: String,
    /// Why it does not answer; `None` when it does.
    pub unavailable: Option<String>,
    /// The number of images.
    pub images: usize,
    /// The sum of their sizes in bytes; layers that several images share count for each.
    pub image_bytes: u64,
    /// Pods whose sandbox is ready.
    pub pods: usize,
}
