//! Which nodes are driven, and what is told of them.
use std::collections::BTreeMap;

use ipnet::IpNet;
use kelson_meta::LabelSelector;
use kelson_stages::Document;

use crate::pods::RANGE;

/// Which nodes are driven.
#[derive(Clone, Debug, Default)]
pub enum Manage {
    /// All nodes of the cluster.
    #[default]
    All,
    /// The one of this name.
    One(String),
    /// Those whose labels and annotations fit.
    Selected {
        /// As `metadata.labels` are to be.
        labels: String,
        /// As `metadata.annotations` are to be.
        annotations: LabelSelector,
    },
}

/// What is driven, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which nodes this process speaks for.
    pub manage: Manage,
    /// The stages that files gave, in their order.
    pub stages: Vec<Document>,
    /// Whether stages are followed in the API instead.
    pub follow_stages: bool,
    /// How long others believe a node's lease; 0: nodes have none.
    pub lease_seconds: u32,
    /// Who holds the leases.
    pub holder: String,
    /// Addresses of pods on nodes that have no range of their own.
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
