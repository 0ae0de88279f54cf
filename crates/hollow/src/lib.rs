//! Hollow nodes: kubelets without containers, thousands of them in one process, to measure the load that a control
//! plane can handle.
//!
//! Each node registers, renews its lease and reports its status at a kubelet's rates; each pod that is bound to it
//! becomes running and ready, pods that should complete do so, and deleted pods are removed. The API server sees the
//! same writes as from real kubelets. The reads differ in one respect: all nodes read pods through one watch, so a
//! server has one watcher here where real nodes would be many.
//!
//! Where `Stage` objects define the lifecycle of nodes and pods ([`staged`]), these rules apply instead, and also to
//! other kinds of objects.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `config`, `addresses`, `lease`, `view` | what the nodes are like; what is read of a pod |
//! | `status` | the status of nodes and pods; pure |
//! | `nodes`, `pods`, `staged/` | when it is written; objects that follow stages |
//!
//! In `staged/`: `settings`, `whole`, then `kinds`, then `nodes`, `leases` and `write`, then `player`, which moves objects of
//! one kind from stage to stage.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod addresses;
mod config;
mod lease;
mod nodes;
mod pods;
pub mod staged;
mod status;
#[cfg(test)]
mod tests;
mod view;

use std::sync::Arc;
use std::time::Duration;

use kelson_client::Client;
use kelson_meta::Clock;
use kelson_tasks::Tasks;

pub use config::{Config, NODES_MAX};

/// The longest time that a shutdown waits for requests in progress.
const END_MAX: Duration = Duration::from_secs(10);

/// Running hollow nodes.
pub struct Running {
    tasks: Tasks,
    registered: Arc<nodes::Registered>,
}

/// Starts them. They register one after the other, some at once.
pub fn start(config: Config, client: &Client, clock: Arc<dyn Clock>, tasks: &Tasks) -> Running {
    let tasks = tasks.child("hollow");
    let config = Arc::new(Config { nodes: config.nodes.min(NODES_MAX), ..config });
    pods::start(&config, client, &clock, &tasks);
    let registered = nodes::start(&config, client, &clock, &tasks);
    Running { tasks, registered }
}

impl Running {
    /// Returns how many nodes have registered so far.
    pub fn registered(&self) -> usize {
        self.registered.count()
    }

    /// Ends them; their objects stay, as those of machines that are switched off.
    pub async fn shutdown(self) {
        self.tasks.shutdown(END_MAX).await;
    }
}
