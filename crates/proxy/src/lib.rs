//! Kelson proxy: services to nftables. Makes the cluster's service addresses and node ports work on one node, as
//! kube-proxy's nftables mode does (KEP-3866), in tables of its own: `kelson-ID-proxy`, one per address family.
//!
//! `model` reads objects, [`service`] decides which endpoints this node uses, [`render`] says it in rules, [`ruleset`]
//! finds what changed; all four are pure. `sync` watches and applies. The pod network and host ports are
//! `kelson-net`'s; names are `kelson-dns`'s.

mod conntrack;
mod health;
mod listing;
pub mod model;
pub mod render;
pub mod ruleset;
pub mod service;
mod sync;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use kelson_client::Client;
use kelson_meta::Clock;
use kelson_net::nft;
use kelson_tasks::Tasks;
use tokio::sync::watch;

use model::Family;

/// How long the end of the proxy's tasks is waited for.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

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
    /// Where to serve `/healthz`, `/livez` and `/metrics` (kube-proxy: 10256 and 10249); none: nowhere.
    pub health_bind: Vec<SocketAddr>,
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
        }
    }

    /// The families with rules; IPv4 when nothing tells.
    fn families(&self) -> Vec<Family> {
        let has = |family: &Family| {
            self.node_ips.iter().any(|ip| Family::of(ip) == *family)
                || self.cluster_cidrs.iter().any(|n| Family::of(&n.addr()) == *family)
        };
        let found: Vec<Family> = Family::ALL.into_iter().filter(has).collect();
        if found.is_empty() { vec![Family::V4] } else { found }
    }

    fn options(&self) -> render::Options {
        render::Options {
            cluster_cidrs: self.cluster_cidrs.clone(),
            node_ips: self.node_ips.clone(),
            nodeport_addresses: self.nodeport_addresses.clone(),
        }
    }
}

/// Family and name of a table, as nft wants them.
fn table(family: Family, data_dir: &Path) -> String {
    format!("{} kelson-{}-proxy", family.as_str(), kelson_net::network_id(data_dir))
}

/// The proxy.
pub struct Proxy;

impl Proxy {
    /// Starts watching and applying on tasks of its own. Faults of `nft` are logged and retried, never fatal.
    /// After a panic it starts anew, with tables made afresh.
    pub fn start(config: Config, client: Client, clock: Arc<dyn Clock>, tasks: &Tasks) -> Running {
        let (ready, seen) = watch::channel(false);
        let tasks = tasks.child("proxy");
        let group = tasks.clone();
        tasks.supervise("proxy-sync", move || {
            sync::run(config.clone(), client.clone(), Arc::clone(&clock), ready.clone(), group.clone())
        });
        Running { ready: seen, tasks }
    }
}

/// A started proxy. Dropping it stops it; the rules stay.
pub struct Running {
    ready: watch::Receiver<bool>,
    tasks: Tasks,
}

impl Running {
    /// Waits until the rules were applied for the first time.
    pub async fn ready(&self) {
        // An error means that the task ended; nobody waits for readiness then.
        let _ = self.ready.clone().wait_for(|r| *r).await;
    }

    /// Whether the rules were ever applied.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Stops; services go on working as of now.
    pub async fn shutdown(self) {
        self.tasks.shutdown(SHUTDOWN_MAX).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

/// Removes what the proxy of this data directory made on the host. Goes on after a fault; returns all of them.
pub async fn cleanup(data_dir: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for family in Family::ALL {
        let table = table(family, data_dir);
        match nft::delete_table(&table).await {
            Ok(()) | Err(nft::NftError::Missing) => {}
            Err(e) => faults.push(format!("remove nftables table {table}: {e}")),
        }
    }
    faults
}
