//! Leases of nodes: several of these processes may run, and one speaks for each node.
use std::sync::{Arc, Weak};
use std::time::Duration;

use kelson_client::{Client, ClientError, WorkQueue};
use kelson_meta::Clock;
use kelson_tasks::Tasks;
use rand::Rng as _;

use super::settings::Settings;
use crate::lease::{Lease, NAMESPACE, renewed};

/// Leases that are written at once.
const WORKERS: usize = 4;
/// Periods are longer by up to this part, so that leases do not all come at once.
const JITTER: f64 = 0.04;

/// Manages nodes, and is notified which of them it may manage.
pub trait Holder: Send + Sync + 'static {
    /// Returns the duration and the holder of leases.
    fn settings(&self) -> &Settings;
    /// Whether a node is driven by this process.
    fn has(&self, node: &str) -> bool;
    /// Returns the node's UID, if the node exists and is managed by some process.
    fn uid(&self, node: &str) -> Option<String>;
    /// This process speaks for a node from now on.
    fn won(&self, node: &str);
    /// The lease was lost to another process, or has no holder.
    fn lost(&self, node: &str);
}

/// The leases of all nodes that are driven.
pub struct Leases {
    nodes: Weak<dyn Holder>,
    client: Client,
    clock: Arc<dyn Clock>,
    queue: WorkQueue<String>,
}

impl Leases {
    /// Renews what is wanted.
    pub fn start(nodes: &Arc<dyn Holder>, client: &Client, clock: &Arc<dyn Clock>, tasks: &Tasks) -> Arc<Self> {
        let queue = WorkQueue::default();
        let (nodes, client, clock) = (Arc::downgrade(nodes), client.clone(), Arc::clone(clock));
        let me = Arc::new(Self { nodes, client, clock, queue });
        for _ in 0..WORKERS {
            let me = Arc::clone(&me);
            tasks.supervise("stages-leases", move || {
                let (me, queue) = (Arc::clone(&me), me.queue.clone());
                async move {
                    let work = move |node: String| {
                        let me = Arc::clone(&me);
                        async move { me.hold(&node).await }
                    };
                    queue
                        .work(
                            "stages-leases",
                            work,
                            |node, error| tracing::warn!(node, %error, "renewing the node lease failed; retrying"),
                        )
                        .await;
                }
            });
        }
        me
    }

    /// Requests the lease of a node.
    pub fn want(&self, node: &str) {
        if self.nodes.upgrade().is_some_and(|nodes| !nodes.has(node)) {
            self.queue.add(node.to_owned());
        }
    }

    async fn hold(&self, node: &str) -> Result<(), ClientError> {
        let Some(nodes) = self.nodes.upgrade() else { return Ok(()) };
        // One that is gone is not renewed again.
        let Some(uid) = nodes.uid(node) else { return Ok(()) };
        let (seconds, holder, now) = (nodes.settings().lease_seconds, &nodes.settings().holder, self.clock.now());
        let there = self.client.get_opt::<Lease>(NAMESPACE, node).await?;
        if let Some(left) = there.as_ref().and_then(|lease| lease.kept_from(holder, now)) {
            nodes.lost(node);
            self.queue.add_after(node.to_owned(), left);
            return Ok(());
        }
        let body = |version: &str| renewed(node, &uid, holder, seconds, now, version);
        match there {
            Some(lease) => {
                let body = body(&lease.metadata.resource_version);
                self.client.update::<Lease>(NAMESPACE, node, "", &body).await?;
            }
            None => drop(self.client.create::<Lease>(NAMESPACE, &body("")).await?),
        }
        nodes.won(node);
        // As a kubelet: four times while it is believed.
        let period = Duration::from_secs(seconds.into()) / 4;
        self.queue.add_after(node.to_owned(), period.mul_f64(1.0 + rand::rng().random_range(0.0..JITTER)));
        Ok(())
    }
}
