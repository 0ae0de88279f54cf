//! The selection of managed nodes, and their settings.
use std::collections::BTreeMap;

use ipnet::IpNet;
use kelson_meta::LabelSelector;
use kelson_stages::Document;

use crate::pods::RANGE;

/// The selection of managed nodes.
#[derive(Clone, Debug, Default)]
pub enum Manage {
    /// All nodes of the cluster.
    #[default]
    All,
    /// The one of this name.
    One(String),
    /// Nodes whose labels and annotations match are managed.
    Selected {
        /// The selector of `metadata.labels`.
        labels: String,
        /// The selector of `metadata.annotations`.
        annotations: LabelSelector,
    },
}

/// The settings of the process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The nodes that this process manages.
    pub manage: Manage,
    /// The stages that files gave, in their order.
    pub stages: Vec<Document>,
    /// Whether stages are followed in the API instead.
    pub follow_stages: bool,
    /// The duration of a node's lease in seconds; with 0 nodes have no leases.
    pub lease_seconds: u32,
    /// The holder of the leases.
    pub holder: String,
    /// The addresses of pods on nodes without a pod range.
    pub cidr: IpNet,
    /// Address of nodes that have none; may be empty.
    pub node_ip: String,
    /// Name that nodes are reached by; may be empty.
    pub node_name: String,
    /// Port of the nodes' kubelets; 0: none.
    pub node_port: u16,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            manage: Manage::All,
            stages: Vec::new(),
            follow_stages: false,
            lease_seconds: 40,
            holder: "hollow".to_owned(),
            cidr: RANGE.into(),
            node_ip: String::new(),
            node_name: String::new(),
            node_port: 0,
        }
    }
}

impl Settings {
    /// Whether a node with these annotations is driven; its name and labels were looked at by the server.
    pub(super) fn takes(&self, annotations: &BTreeMap<String, String>) -> bool {
        match &self.manage {
            Manage::Selected { annotations: wanted, .. } => wanted.matches(annotations),
            Manage::All | Manage::One(_) => true,
        }
    }
}
