//! The configuration of a node's proxy, and the families and table names that follow from it.
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use kelson_metrics::Registry;

use crate::model::Family;
use crate::render::Options;
use crate::tracking::TcpTimeouts;

/// The configuration of a node's proxy.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server's data directory; the names of the tables are derived from it.
    pub data_dir: PathBuf,
    /// The node's name, which determines local endpoints and the zone.
    pub node_name: String,
    /// The node's primary addresses, at most one per family. Rules are created for the families found here and in
    /// `cluster_cidrs`.
    pub node_ips: Vec<IpAddr>,
    /// The pods' ranges. Traffic to a cluster address from other sources is masqueraded; empty disables that.
    pub cluster_cidrs: Vec<IpNet>,
    /// The ranges of the node's addresses on which node ports are served; empty means only `node_ips`, as in upstream's
    /// nftables mode. Loopback is always excluded.
    pub nodeport_addresses: Vec<IpNet>,
    /// The minimum time between two transactions; after an idle period a change is applied immediately.
    pub min_sync_period: Duration,
    /// The interval at which the kernel's tables are checked.
    pub check_period: Duration,
    /// Addresses for `/healthz` and `/livez` (kube-proxy: port 10256); may be empty.
    pub health_bind: Vec<SocketAddr>,
    /// Addresses for `/metrics`, `/healthz` and `/proxyMode` (kube-proxy: port 10249); may be empty.
    pub metrics_bind: Vec<SocketAddr>,
    /// Time-outs of connection tracking.
    pub tcp_timeouts: TcpTimeouts,
    /// Metrics of other parts of the node, served with the proxy's own.
    pub more_metrics: Vec<Registry>,
}

impl Config {
    /// Creates the default configuration of a node.
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

    /// Returns the families with rules; IPv4 when no address is known.
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

/// Returns family and name of a table, in nft's form.
pub(crate) fn table(family: Family, data_dir: &Path) -> String {
    format!("{} kelson-{}-proxy", family.as_str(), kelson_net::network_id(data_dir))
}
