//! Nodes register, renew their leases and report their status, each at a kubelet's rate.
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kelson_client::{Client, ClientError, PatchKind, ResourceType, WorkQueue, WriteOptions, slim_object};
use kelson_meta::{Clock, ObjectMeta, format_seconds};
use kelson_tasks::Tasks;
use parking_lot::Mutex;
use rand::Rng as _;
use serde::Deserialize;
use serde_json::json;

use crate::config::Config;
use crate::lease::{self, Lease, NAMESPACE};
use crate::status;

/// Writes for nodes under way at once.
const WORKERS: usize = 16;
/// A lease is renewed this often (a quarter of its 40 s).
const LEASE: Duration = Duration::from_secs(10);
/// The duration of a node's lease, in seconds.
const LEASE_SECONDS: u32 = 40;
/// A status that did not change is reported this often (`nodeStatusReportFrequency`).
const REPORT: Duration = Duration::from_secs(300);
/// Periods are longer by up to this part, so that nodes do not all come at once.
const JITTER: f64 = 0.04;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Node {
    metadata: ObjectMeta,
}

slim_object!(Node, ResourceType::cluster("", "v1", "nodes", "Node"));

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Work {
    Register(usize),
    Renew(usize),
    Report(usize),
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The number of registered nodes.
#[derive(Default)]
pub struct Registered(AtomicUsize);

impl Registered {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The state that is kept of a node.
#[derive(Clone, Default)]
struct NodeRecord {
    uid: Box<str>,
    /// The time since which it is ready.
    since: Box<str>,
    /// The resource version of the lease after its last write; empty while it is unknown whether the lease exists.
    lease: Box<str>,
}

struct Nodes {
    config: Arc<Config>,
    client: Client,
    clock: Arc<dyn Clock>,
    known: Mutex<Vec<NodeRecord>>,
    registered: Arc<Registered>,
    queue: WorkQueue<Work>,
}

/// Starts all of them.
pub fn start(config: &Arc<Config>, client: &Client, clock: &Arc<dyn Clock>, tasks: &Tasks) -> Arc<Registered> {
    let queue = WorkQueue::default();
    let me = Arc::new(Nodes {
        config: Arc::clone(config),
        client: client.clone(),
        clock: Arc::clone(clock),
        known: Mutex::new(vec![NodeRecord::default(); config.nodes]),
        registered: Arc::default(),
        queue: queue.clone(),
    });
    (0..config.nodes).for_each(|n| queue.add(Work::Register(n)));
    for _ in 0..WORKERS {
        let (me, queue) = (Arc::clone(&me), queue.clone());
        tasks.supervise("hollow-nodes", move || {
            let (me, queue) = (Arc::clone(&me), queue.clone());
            async move {
                let work = move |work: Work| {
                    let me = Arc::clone(&me);
                    async move { me.work(work).await }
                };
                queue
                    .work(
                        "hollow-nodes",
                        work,
                        |work, error| tracing::warn!(%work, %error, "updating the node failed; retrying"),
                    )
                    .await;
            }
        });
    }
    Arc::clone(&me.registered)
}

fn jittered(period: Duration) -> Duration {
    period.mul_f64(1.0 + rand::rng().random_range(0.0..JITTER))
}

impl Nodes {
    async fn work(&self, work: Work) -> Result<(), ClientError> {
        match work {
            Work::Register(n) => self.register(n).await?,
            Work::Renew(n) => {
                self.renew(n).await?;
                self.queue.add_after(work, jittered(LEASE));
            }
            Work::Report(n) => {
                self.report(n).await?;
                self.queue.add_after(work, jittered(REPORT));
            }
        }
        Ok(())
    }

    async fn register(&self, n: usize) -> Result<(), ClientError> {
        let now = format_seconds(self.clock.now());
        let body = status::node(&self.config, n, &now);
        let name = self.config.name(n);
        let node = match self.client.create::<Node>("", &body).await {
            Err(e) if e.is_already_exists() => {
                // It has been here before: what it is like may have changed.
                let patch = json!({"metadata": {"labels": body["metadata"]["labels"]}, "status": body["status"]});
                let o = WriteOptions::default();
                self.client.patch::<Node>("", &name, "status", PatchKind::Strategic, &patch, &o).await?;
                self.client.get::<Node>("", &name).await?
            }
            other => other?,
        };
        let first = {
            let mut known = self.known.lock();
            let first = known[n].uid.is_empty();
            known[n] = NodeRecord { uid: node.metadata.uid.into(), since: now.into(), lease: "".into() };
            first
        };
        self.queue.add(Work::Renew(n));
        if first {
            self.registered.0.fetch_add(1, Ordering::Relaxed);
            self.queue.add_after(Work::Report(n), jittered(REPORT));
        }
        Ok(())
    }

    async fn renew(&self, n: usize) -> Result<(), ClientError> {
        let (name, known) = (self.config.name(n), self.known.lock()[n].clone());
        let now = self.clock.now();
        let body = |version: &str| lease::renewed(&name, &known.uid, &name, LEASE_SECONDS, now, version);
        let sent = if known.lease.is_empty() {
            match self.client.create::<Lease>(NAMESPACE, &body("")).await {
                Err(e) if e.is_already_exists() => {
                    let there = self.client.get::<Lease>(NAMESPACE, &name).await?;
                    let body = body(&there.metadata.resource_version);
                    self.client.update::<Lease>(NAMESPACE, &name, "", &body).await
                }
                other => other,
            }
        } else {
            self.client.update::<Lease>(NAMESPACE, &name, "", &body(&known.lease)).await
        };
        match sent {
            Ok(lease) => self.known.lock()[n].lease = lease.metadata.resource_version.into(),
            // The lease is gone or was written by another client: the next attempt starts again from a read.
            Err(e) if e.is_not_found() || e.is_conflict() => {
                self.known.lock()[n].lease = "".into();
                return Err(e);
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    async fn report(&self, n: usize) -> Result<(), ClientError> {
        let since = self.known.lock()[n].since.clone();
        let now = format_seconds(self.clock.now());
        let patch = json!({"status": {"conditions": status::node_conditions(&since, &now)}});
        let (name, o) = (self.config.name(n), WriteOptions::default());
        match self.client.patch::<Node>("", &name, "status", PatchKind::Strategic, &patch, &o).await {
            // The node was deleted. A running kubelet registers again when it restarts; this one does so at once.
            Err(e) if e.is_not_found() => {
                self.queue.add(Work::Register(n));
                Ok(())
            }
            other => other,
        }
    }
}
