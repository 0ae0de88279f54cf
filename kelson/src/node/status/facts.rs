//! What is known of a data directory and of what runs with it.
use std::path::PathBuf;

use jiff::Timestamp;
use serde::Serialize;

/// Everything; what is not there, or was not answered, is `None`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// When this was gathered.
    pub time: Timestamp,
    /// This program's version.
    pub version: String,
    /// The data directory, absolute.
    pub data_dir: PathBuf,
    /// Whether it is a server's: it has CAs.
    pub is_server: bool,
    /// The process that works with it.
    pub process: Option<ProcessFacts>,
    /// Its container runtime, and the shims of containers.
    pub runtime: Vec<ProcessFacts>,
    /// Where the process listens.
    pub listens: Vec<String>,
    /// The API, as its server's administrator sees it.
    pub api: Option<ApiFacts>,
    /// Certificates and kubeconfigs.
    pub certificates: Vec<CertificateFacts>,
    /// The file system of the data directory.
    pub disk: DiskRoom,
    /// Images and pods of this node.
    pub containers: Option<ContainerFacts>,
}

/// A process that works for the data directory.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessFacts {
    /// The process ID.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
}

/// What the API's server answers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiFacts {
    /// Why it is not ready; `None`: it is.
    pub not_ready: Option<String>,
    /// Nodes by name.
    pub nodes: Vec<NodeFacts>,
}

/// A node of the cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFacts {
    /// `metadata.name`.
    pub name: String,
    /// Why it is not ready; `None`: it is.
    pub not_ready: Option<String>,
    /// `status.nodeInfo.kubeletVersion`.
    pub version: String,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
}

/// A certificate of the data directory.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateFacts {
    /// What it is called in `kelson certificate list`.
    pub name: String,
    /// When it expires.
    pub expires: Timestamp,
    /// Which component renews it.
    pub renewed: &'static str,
}

/// Room of the file system, bytes.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskRoom {
    /// All of the file system.
    pub total_bytes: u64,
    /// What is free for this user.
    pub free_bytes: u64,
}

/// What the runtime holds.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerFacts {
    /// The runtime's socket.
    pub endpoint: String,
    /// Its name and version.
    pub runtime: String,
    /// Why it does not answer; `None`: it does.
    pub unavailable: Option<String>,
    /// How many images there are.
    pub images: usize,
    /// Their sizes together, bytes; layers that several share are counted for each.
    pub image_bytes: u64,
    /// Pods whose sandbox is ready.
    pub pods: usize,
}
