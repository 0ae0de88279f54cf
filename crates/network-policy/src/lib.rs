//! Network policies: enforces `networking.k8s.io/v1` NetworkPolicies for the pods of one node, in nftables tables named
//! `kelson-ID-policy`, one for each address family.
//!
//! Traffic is filtered where it is forwarded, by its real source and destination: after the addresses of services were
//! translated, before anything is masqueraded. Egress is filtered on the node of the sending pod, ingress on the node
//! of the receiving pod. Traffic between a pod and its own node is always allowed, as the API says; it is never
//! forwarded.
//!
//! [`policy`] decodes policies, [`Cluster`] reads the API plainly, [`enforcer`] keeps tables what
//! policies ask for, [`render`] is the text of rules, [`kelson_net::table`] finds what changed. All of these are pure. `sync`
//! watches and applies.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `view`, `digest` | what is read of objects; hashes |
//! | `pod`, `ranges` | pods, and sets of addresses |
//! | `policy` | one policy, decoded |
//! | `cluster` | pods, namespaces and policies |
//! | `judge`, `render` | a plain reading of the API; the text of rules |
//! | `enforcer` | one change after the other |
//! | `config`, `metrics`, `reports` | configuration, metrics, events |
//! | `sync` | the loop |
//!
//! Everything above `config` is pure. `lib.rs` starts and ends it, and has the gate that each pod passes before its first
//! container starts.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod cluster;
mod config;
mod digest;
pub mod enforcer;
mod judge;
mod metrics;
mod pod;
pub mod policy;
mod ranges;
pub mod render;
mod reports;
mod sync;
pub mod view;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Client, EventRecorder};
use kelson_meta::{Clock, ObjectKey};
use kelson_metrics::Registry;
use kelson_net::{Family, listing, nft};
use kelson_tasks::Tasks;
use tokio::sync::{oneshot, watch};

pub use cluster::Cluster;
pub use config::Config;
pub use judge::{Connection, Verdict};
pub use pod::{NamedPort, PodFacts};
pub use policy::{Direction, Policy};

use config::table;
use metrics::Metrics;
use reports::Reports;
use sync::{Arrival, Inbox, Shared};

/// The event source of this component.
const COMPONENT: &str = "network-policy";
/// The time limit for stopping the tasks.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);
/// The time for which a starting pod waits for its policies in one attempt; the kubelet retries.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts enforcement on this node; see [`NetworkPolicies::start`].
pub struct NetworkPolicies;

impl NetworkPolicies {
    /// Starts watching and applying. A transaction that the kernel rejects is logged and retried; pods keep their
    /// current rules. After a panic the tables are replaced. `clock` is used for events.
    pub fn start(config: Config, client: Client, clock: Arc<dyn Clock>, tasks: &Tasks) -> Running {
        let (ready, seen) = watch::channel(false);
        let tasks = tasks.child("network-policies");
        let recorder = EventRecorder::start_in(&tasks, client.clone(), clock, COMPONENT, &config.node_name);
        let reports = Arc::new(Reports::new(recorder, &config.node_name));
        let (inbox, metrics) = (Arc::<Inbox>::default(), Arc::<Metrics>::default());
        let (group, gate) = (tasks.clone(), Gate { inbox: Arc::clone(&inbox) });
        let registry = metrics.registry().clone();
        tasks.supervise("network-policy-sync", move || {
            let shared = Shared {
                inbox: Arc::clone(&inbox),
                metrics: Arc::clone(&metrics),
                reports: Arc::clone(&reports),
                ready: ready.clone(),
            };
            sync::run(config.clone(), client.clone(), shared, group.clone())
        });
        Running { ready: seen, gate, registry, tasks }
    }
}

/// Running enforcement. Dropping it stops it; the rules stay in force.
pub struct Running {
    ready: watch::Receiver<bool>,
    gate: Gate,
    registry: Registry,
    tasks: Tasks,
}

impl Running {
    /// Waits until the cluster's policies were applied for the first time.
    pub async fn ready(&self) {
        // An error means that the task ended; readiness has no reader then.
        let _ = self.ready.clone().wait_for(|ready| *ready).await;
    }

    /// Returns the gate for starting pods.
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Returns the metrics, to be served with those of another component.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Stops enforcement; the rules stay in force.
    pub async fn shutdown(self) {
        self.tasks.shutdown(SHUTDOWN_MAX).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

/// Why a pod cannot start yet.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The API server has not been reached since the start, or the kernel rejects the rules; the log says which.
    #[error("network policies are not in force yet for the pod's addresses; see the log of the node agent")]
    Late,
    /// Enforcement has ended: the process is shutting down.
    #[error("network policies are no longer enforced: the node agent is shutting down")]
    Ended,
}

/// Holds a starting pod until its policies are in force.
#[derive(Clone)]
pub struct Gate {
    inbox: Arc<Inbox>,
}

impl Gate {
    /// Returns when the policies that apply to a pod of this node are in force for its addresses.
    ///
    /// # Errors
    /// See [`GateError`]. The caller tries again.
    pub async fn pass(&self, pod: PodFacts, ips: Vec<IpAddr>) -> Result<(), GateError> {
        let (done, passed) = oneshot::channel();
        self.inbox.arrive(Arrival { pod, ips, done });
        match tokio::time::timeout(ARRIVAL_TIMEOUT, passed).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(GateError::Ended),
            Err(_) => Err(GateError::Late),
        }
    }
}

/// Returns the number of new connections that a policy has allowed and denied on this node since its rules were last
/// replaced; `None` if this node has no such counters, or they cannot be read.
pub async fn decisions(data_dir: &Path, policy: &ObjectKey, direction: Direction) -> Option<(u64, u64)> {
    let mut found = None;
    for family in Family::ALL {
        let Ok(counters) = listing::counters(&table(family, data_dir)).await else { continue };
        let count = |allowed| counters.get(&render::counter(policy, direction, allowed)).copied();
        if let Some((allowed, denied)) = count(true).zip(count(false)) {
            let (a, d) = found.unwrap_or((0, 0));
            found = Some((a + allowed, d + denied));
        }
    }
    found
}

/// Removes what enforcement for this data directory created on the host. Continues after errors; returns all of them.
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
