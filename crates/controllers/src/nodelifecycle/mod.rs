//! The node lifecycle controller. Nodes without a heartbeat become `Unknown`, taints follow conditions, and the pods of
//! a node that is not ready become unready. Upstream `pkg/controller/nodelifecycle`. `eviction` deletes pods, and
//! `zones` limits the rate at which nodes lose their pods. Nothing polls: each node has one timer that fires when its
//! heartbeat is overdue.
pub mod eviction;
mod labels;
mod metrics;
pub mod taints;
mod turns;
mod unknown;
pub mod zones;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kelson_client::{Change, Client, EventRecorder, EventType, ObjectRef, PatchKind, WorkQueue, WriteOptions};
use kelson_meta::{Clock, ObjectKey, format_seconds};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use self::zones::Zones;
use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::informers::SharedInformer;
use crate::views::IndexKey;
use crate::views::condition;
use crate::views::{LeaseView, NodeView, PodView};

/// The source of this controller's events.
const COMPONENT: &str = "node-controller";
/// The delay between a change of a node's readiness and the computation of zone states, as such changes come together.
const ZONES_DELAY: Duration = Duration::from_millis(100);

/// A key of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum NodeWork {
    Node(String),
    /// Computes the states of all zones.
    Zones,
    /// Taints the next node of a zone.
    Zone(String),
    /// Whether still no node is ready.
    AllLost,
}

impl fmt::Display for NodeWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => f.write_str(name),
            Self::Zones => f.write_str("all zones"),
            Self::Zone(name) => write!(f, "zone {name:?}"),
            Self::AllLost => f.write_str("nodes that are not ready"),
        }
    }
}

struct NodeLifecycleController {
    client: Client,
    recorder: EventRecorder,
    clock: Arc<dyn Clock>,
    nodes: SharedInformer<NodeView>,
    pods: SharedInformer<PodView>,
    /// The time of each node's last heartbeat by this process's clock, since the nodes' clocks may be wrong.
    heard: Arc<Mutex<HashMap<String, Instant>>>,
    zones: Mutex<Zones>,
    /// Whether any node has been ready.
    any_was_ready: AtomicBool,
    /// Whether the log says that no node is ready.
    loss_is_logged: AtomicBool,
    /// The node of the control plane's machine; empty: none.
    control_plane_node: String,
    metrics: metrics::ZoneMetrics,
    grace: Duration,
    startup_grace: Duration,
    queue: WorkQueue<NodeWork>,
}

/// Starts the node lifecycle controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue: WorkQueue<NodeWork> = WorkQueue::default();
    let me = Arc::new(NodeLifecycleController {
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        clock: Arc::clone(&ctx.clock),
        nodes: ctx.informers.nodes.reader(),
        pods: ctx.informers.pods.reader(),
        heard: Arc::default(),
        zones: Mutex::new(Zones::new(ctx.config.eviction_rates)),
        any_was_ready: AtomicBool::new(false),
        loss_is_logged: AtomicBool::new(false),
        control_plane_node: ctx.config.control_plane_node.clone(),
        metrics: metrics::ZoneMetrics::new(&ctx.config.metrics),
        grace: ctx.config.node_monitor_grace,
        startup_grace: ctx.config.node_startup_grace,
        queue: queue.clone(),
    });
    let (q, heard, recorder) = (queue.clone(), Arc::clone(&me.heard), me.recorder.clone());
    me.nodes.on_change(move |change| on_node(&q, &heard, &recorder, change));
    let (q, heard, nodes) = (queue.clone(), Arc::clone(&me.heard), me.nodes.clone());
    ctx.informers.leases.on_change(move |change| on_lease(&nodes, &heard, &q, change));
    let nodes = me.nodes.clone();
    let about = move |work: &NodeWork| match work {
        NodeWork::Node(name) => nodes.get(&ObjectKey::new("", name)).map(|node| ObjectRef::of(&*node)),
        NodeWork::Zones | NodeWork::Zone(_) | NodeWork::AllLost => None,
    };
    let sync = move |work| {
        let me = Arc::clone(&me);
        async move {
            match work {
                NodeWork::Node(name) => me.sync(&name).await,
                NodeWork::Zones => {
                    me.look_at_zones();
                    Ok(())
                }
                NodeWork::Zone(zone) => me.turn(&zone).await,
                NodeWork::AllLost => {
                    me.log_loss();
                    Ok(())
                }
            }
        }
    };
    ctx.run_queue_about(&queue, WORKERS, sync, about);
}

fn on_node(
    queue: &WorkQueue<NodeWork>,
    heard: &Mutex<HashMap<String, Instant>>,
    recorder: &EventRecorder,
    change: &Change<NodeView>,
) {
    let node = change.object();
    let name = &node.metadata.name;
    let announce = |reason: &str, what: &str| {
        let message = format!(
            "Node {name} event: {what} Node {name} {} Controller",
            if what == "Removing" { "from" } else { "in" }
        );
        recorder.event(&ObjectRef::of(&**node), EventType::Normal, reason, message);
    };
    let counts_anew = match change {
        Change::Deleted(_) => {
            heard.lock().remove(name);
            announce("RemovingNode", "Removing");
            true
        }
        Change::Added(_) => {
            heard.lock().insert(name.clone(), Instant::now());
            announce("RegisteredNode", "Registered");
            true
        }
        Change::Updated { old, new } => {
            if heartbeat(old) != heartbeat(new) {
                heard.lock().insert(name.clone(), Instant::now());
            }
            ready(old) != ready(new) || old.metadata.labels != new.metadata.labels
        }
    };
    if counts_anew {
        queue.add_after(NodeWork::Zones, ZONES_DELAY);
    }
    queue.add(NodeWork::Node(name.clone()));
}

fn heartbeat(node: &NodeView) -> Option<&str> {
    condition::find(&node.status.conditions, "Ready")?.last_heartbeat_time.as_deref()
}

/// Records a renewed lease as a heartbeat. It queues only nodes whose state is unknown; for others the node's timer
/// reads the heartbeat when it fires.
fn on_lease(
    nodes: &SharedInformer<NodeView>,
    heard: &Mutex<HashMap<String, Instant>>,
    queue: &WorkQueue<NodeWork>,
    change: &Change<LeaseView>,
) {
    let renewed = match change {
        Change::Updated { old, new } => old.spec.renew_time != new.spec.renew_time,
        Change::Added(_) => true,
        Change::Deleted(_) => false,
    };
    if !renewed {
        return;
    }
    let name = &change.object().metadata.name;
    heard.lock().insert(name.clone(), Instant::now());
    if nodes.get(&ObjectKey::new("", name)).is_some_and(|n| ready(&n) == "Unknown") {
        queue.add(NodeWork::Node(name.clone()));
    }
}

fn ready(node: &NodeView) -> &str {
    condition::find(&node.status.conditions, "Ready").map_or("", |c| c.status.as_str())
}

impl NodeLifecycleController {
    async fn sync(&self, name: &str) -> Result<(), SyncError> {
        let Some(node) = self.nodes.get(&ObjectKey::new("", name)) else {
            self.zones.lock().leave(name);
            return Ok(());
        };
        let silent = self.heard.lock().get(name).map_or(Duration::ZERO, Instant::elapsed);
        let posted = condition::find(&node.status.conditions, "Ready").is_some();
        let grace = if posted { self.grace } else { self.startup_grace.max(self.grace) };
        if silent < grace {
            self.queue.add_after(NodeWork::Node(name.to_owned()), grace - silent);
        } else if ready(&node) != "Unknown" {
            return self.mark_unknown(&node).await;
        }
        self.mark_pods(&node).await?;
        self.follow_conditions(&node).await?;
        self.mend_labels(&node).await
    }

    /// Sets the pods of a node that is not ready to unready.
    async fn mark_pods(&self, node: &NodeView) -> Result<(), SyncError> {
        if ready(node) != "Unknown" {
            return Ok(());
        }
        for pod in self.pods.bucket(&IndexKey::Node(node.metadata.name.clone())) {
            if !pod.is_ready() {
                continue;
            }
            let now = format_seconds(self.clock.now());
            let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": now}]}});
            let (ns, name) = (&pod.metadata.namespace, &pod.metadata.name);
            let o = WriteOptions::default();
            match self.client.patch::<PodView>(ns, name, "status", PatchKind::Strategic, &patch, &o).await {
                Err(e) if !e.is_not_found() => return Err(e.into()),
                Err(_) => {}
                Ok(_) => {
                    self.recorder.event(&ObjectRef::of(&*pod), EventType::Warning, "NodeNotReady", "Node is not ready");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
