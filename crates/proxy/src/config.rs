//! What one node's proxy is told, and what follows from it: the families with rules and the names of their tables.
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use kelson_metrics::Registry;

use crate::model::Family;
use crate::render::Options;
use crate::tracking::TcpTimeouts;

/// What one node's proxy needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server's data directory; the tables are named after it.
    pub data_dir: PathBuf,
    /// The node's name: which endpoints are local, and whose zone counts.
    pub node_name: String,
    /// The node's primary addresses, at most one per family. Rules are made for the families found here and in
    /// `cluster_cidrs`.
    pub node_ips: Vec<IpAddr>,
    /// The pods' ranges. Traffic to a cluster address from elsewhere is masqueraded; empty: none is.
    pub cluster_cidrs: Vec<IpNet>,
    /// The ranges of the node's addresses on which node ports answer; empty: `node_ips` only, as upstream's nftables
    /// mode. Loopback never does.
    pub nodeport_addresses: Vec<IpNet>,
    /// Least time between two transactions; after a quiet time a change is applied at once.
    pub min_sync_period: Duration,
    /// How often the kernel's tables are compared with what they should be.
    pub check_period: Duration,
    /// Where to serve `/healthz` and `/livez` (kube-proxy: port 10256); none: nowhere.
    pub health_bind: Vec<SocketAddr>,
    /// Where to serve `/metrics`, `/healthz` and `/proxyMode` (kube-proxy: port 10249); none: nowhere.
    pub metrics_bind: Vec<SocketAddr>,
    /// Time-outs of connection tracking.
    pub tcp_timeouts: TcpTimeouts,
    /// Metrics of other parts of the node, served with the proxy's own.
    pub more_metrics: Vec<Registry>,
}

impl Config {
    /// The defaults for a node.
    pub fn new(data_dir: &Path, node_name: &str, node_ips: Vec<IpAddr>, cluster_cidrs: Vec<IpNet>) -> Self {
        Self {
            data_dir: data_dir.to_path_buf(),
            node_name: node_name.to_owned(),
            node_ips,
            cluster_cidrs,
            nodeport_addresses: Vec::new(),
            min_sync_period: Duration::from_millis(100),
            check_period: Duration::from_secs(600),
            health_bind: Vec::new(),
            metrics_bind: Vec::new(),
            tcp_timeouts: TcpTimeouts::default(),
            more_metrics: Vec::new(),
        }
    }

    /// The families with rules; IPv4 when nothing tells.
    pub(crate) fn families(&self) -> Vec<Family> {
        let has = |family: &Family| {
            self.node_ips.iter().any(|ip| Family::of(ip) == *family)
                || self.cluster_cidrs.iter().any(|n| Family::of(&n.addr()) == *family)
        };
        let found: Vec<Family> = Family::ALL.into_iter().filter(has).collect();
        if found.is_empty() { vec![Family::V4] } else { found }
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            cluster_cidrs: self.cluster_cidrs.clone(),
            node_ips: self.node_ips.clone(),
            nodeport_addresses: self.nodeport_addresses.clone(),
        }
    }
}

/// Family and name of a table, as nft wants them.
pub(crate) fn table(family: Family, data_dir: &Path) -> String {
    format!("{} kelson-{}-proxy", family.as_str(), kelson_net::network_id(data_dir))
}
