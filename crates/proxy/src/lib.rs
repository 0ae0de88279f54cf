//! Kelson proxy: makes the cluster's service addresses and node ports work on a node with nftables, as kube-proxy's
//! nftables mode does (KEP-3866). Its tables are named `kelson-ID-proxy`, one per address family.
//!
//! `model` reads objects, [`service`] decides which endpoints this node uses, [`render`] says it in rules; all three are
//! pure. What changed is found by [`kelson_net::table`]. `sync` watches and applies. The pod network and host ports are
//! `kelson-net`'s; names are `kelson-dns`'s.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `model`, `container`, `service`, `render` | pure: objects, endpoints of this node, rules |
//! | `tracking` | time-outs of tracked connections |
//! | `config`, `metrics` | configuration and metrics |
//! | `flows`, `health` | connections that must end; the health port |
//! | `sync` | the loop |
//!
//! `lib.rs` starts and ends it.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod config;
mod container;
mod flows;
mod health;
mod metrics;
pub mod model;
pub mod render;
pub mod service;
mod sync;
mod tracking;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{API_HOST, Client, Metered};
use kelson_meta::Clock;
use kelson_net::nft;
use kelson_tasks::Tasks;
use tokio::sync::watch;

pub use config::Config;
use config::table;
pub use container::Container;
use metrics::Metrics;
use model::Family;
use sync::Effects;
pub use tracking::TcpTimeouts;

/// The time limit for stopping the proxy's tasks.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// The service proxy of a node. [`Proxy::start`] watches Services, EndpointSlices and the node, renders nftables rules
/// for them, and applies the differences to the kernel in one transaction. It also serves health check node ports and
/// ends UDP flows to endpoints that are gone. It is the counterpart of kube-proxy in mode `nftables`; the rules stay
/// when it stops.
pub struct Proxy;

impl Proxy {
    /// Starts watching and applying in the background. Errors of `nft` are logged and retried. After a panic it
    /// restarts and replaces the tables.
    pub fn start(config: Config, client: Client, clock: Arc<dyn Clock>, tasks: &Tasks) -> Running {
        let (ready, seen) = watch::channel(false);
        let tasks = tasks.child("proxy");
        let group = tasks.clone();
        let metrics = Arc::new(Metrics::default());
        config.more_metrics.iter().for_each(|more| metrics.registry().include(more.clone()));
        let client = client.counted(&Metered::new(metrics.registry(), API_HOST));
        tasks.supervise("proxy-sync", move || {
            let effects = Effects { client: client.clone(), clock: Arc::clone(&clock), metrics: Arc::clone(&metrics) };
            sync::run(config.clone(), effects, ready.clone(), group.clone())
        });
        Running { ready: seen, tasks }
    }
}

/// A running proxy. Dropping it stops it; the rules stay.
pub struct Running {
    ready: watch::Receiver<bool>,
    tasks: Tasks,
}

impl Running {
    /// Waits until the rules were applied for the first time.
    pub async fn ready(&self) {
        // An error means that the task ended; then there is nothing to wait for.
        let _ = self.ready.clone().wait_for(|r| *r).await;
    }

    /// Reports whether the rules were ever applied.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Stops the proxy; services continue to work with the current rules.
    pub async fn shutdown(self) {
        self.tasks.shutdown(SHUTDOWN_MAX).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

/// Removes what the proxy of this data directory created on the host. Continues after errors; returns all of them.
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
