//! Hollow nodes: kubelets without containers, thousands of them in one process, to see what a control plane bears.
//!
//! Each node registers, renews its lease and reports its status at a kubelet's rates; each pod that is bound to it becomes
//! running and ready, one that shall end ends, and one that is deleted goes. Towards the API server everything is as real as a
//! kubelet's writes are, but for one thing: all nodes read pods through one watch, so a server has one watcher here where
//! real nodes would be many.
//!
//! Rooms: `view` (what is read of a pod) ← `status` (what is said of nodes and pods; pure) ← `nodes`, `pods` (who says it when)
//! ← this face.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod nodes;
mod pods;
mod status;
#[cfg(test)]
mod tests;
mod view;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use kelson_client::Client;
use kelson_meta::Clock;
use kelson_tasks::Tasks;

/// Nodes that one process may have: their addresses come from one range.
pub const NODES_MAX: usize = 8192;
/// How long what is under way is waited for at the end.
const END_MAX: Duration = Duration::from_secs(10);

/// What the nodes are like.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many, up to [`NODES_MAX`].
    pub nodes: usize,
    /// Their names are this and a number from 0 on.
    pub prefix: String,
    /// CPU of each, a quantity.
    pub cpu: String,
    /// Memory of each, a quantity.
    pub memory: String,
    /// Pods that each takes.
    pub pods: u32,
    /// Labels of all, besides those of every node.
    pub labels: Vec<(String, String)>,
    /// How long the containers run of pods that do not restart always; then they have succeeded.
    pub run_for: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nodes: 1,
            prefix: "hollow-".to_owned(),
            cpu: "8".to_owned(),
            memory: "32Gi".to_owned(),
            pods: 110,
            labels: Vec::new(),
            run_for: Duration::from_secs(1),
        }
    }
}

impl Config {
    fn name(&self, node: usize) -> String {
        format!("{}{node}", self.prefix)
    }

    /// The node of this name, if it is one of these.
    fn number(&self, name: &str) -> Option<usize> {
        let digits = name.strip_prefix(&self.prefix)?;
        let number = digits.parse().ok().filter(|n| *n < self.nodes)?;
        // `007` is nobody.
        (self.name(number) == name).then_some(number)
    }
}

/// The address of a node, in the range for benchmarks of networks (RFC 2544): nobody routes there.
fn address(node: usize) -> IpAddr {
    let offset = u32::try_from(node % NODES_MAX).unwrap_or(0) + 1;
    IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() + offset))
}

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
    /// How many nodes have registered so far.
    pub fn registered(&self) -> usize {
        self.registered.count()
    }

    /// Ends them; their objects stay, as those of machines that are switched off.
    pub async fn shutdown(self) {
        self.tasks.shutdown(END_MAX).await;
    }
}
