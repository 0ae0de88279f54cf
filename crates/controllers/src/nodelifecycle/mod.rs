//! The state of nodes as the cluster sees it: silent ones become `Unknown`, taints follow conditions, and the pods of a
//! node that is not ready are no longer ready. Upstream `pkg/controller/nodelifecycle`; evicting is `eviction`'s.
//! Nothing polls: each node has one timer that fires when it would be overdue.
pub mod eviction;
pub mod taints;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Change, Client, EventRecorder, EventType, ObjectRef, PatchKind, WorkQueue, WriteOptions};
use kelson_meta::{Clock, ObjectKey, format_seconds};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::shared::context::{Context, SyncError, WORKERS, update_value};
use crate::shared::informers::SharedInformer;
use crate::views::IndexKey;
use crate::views::condition::{self, Condition};
use crate::views::{LeaseView, NodeView, PodView};

/// The source that this controller's events name.
const COMPONENT: &str = "node-controller";
/// How long a new node may take to say its first word (upstream `--node-startup-grace-period`).
const STARTUP_GRACE: Duration = Duration::from_secs(60);
/// The conditions a silent node is no longer believed.
const KUBELET_CONDITIONS: &[&str] = &["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

struct Controller {
    client: Client,
    recorder: EventRecorder,
    clock: Arc<dyn Clock>,
    nodes: SharedInformer<NodeView>,
    pods: SharedInformer<PodView>,
    /// When each node was last heard of, by our own clock: the nodes' clocks may be wrong.
    heard: Arc<Mutex<HashMap<String, Instant>>>,
    grace: Duration,
    queue: WorkQueue<ObjectKey>,
}

/// Starts the node lifecycle controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let me = Arc::new(Controller {
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        clock: Arc::clone(&ctx.clock),
        nodes: ctx.informers.nodes.reader(),
        pods: ctx.informers.pods.reader(),
        heard: Arc::default(),
        grace: ctx.config.node_monitor_grace,
        queue: queue.clone(),
    });
    let (q, heard) = (queue.clone(), Arc::clone(&me.heard));
    me.nodes.on_change(move |change| {
        let node = change.object();
        let name = &node.metadata.name;
        match change {
            Change::Deleted(_) => {
                heard.lock().remove(name);
                return;
            }
            Change::Added(_) => {
                heard.lock().insert(name.clone(), Instant::now());
            }
            Change::Updated { old, new } => {
                if heartbeat(old) != heartbeat(new) {
                    heard.lock().insert(name.clone(), Instant::now());
                }
            }
        }
        q.add(ObjectKey::new("", name));
    });
    let (q, heard, nodes) = (queue.clone(), Arc::clone(&me.heard), me.nodes.clone());
    ctx.informers.leases.on_change(move |change| on_lease(&nodes, &heard, &q, change));
    ctx.run_queue(&queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

fn heartbeat(node: &NodeView) -> Option<&str> {
    condition::find(&node.status.conditions, "Ready")?.last_heartbeat_time.as_deref()
}

/// A renewed lease is a sign of life. It wakes nobody: the node's own timer asks when it fires. Only a node that counts
/// as unknown is looked at again.
fn on_lease(
    nodes: &SharedInformer<NodeView>,
    heard: &Mutex<HashMap<String, Instant>>,
    queue: &WorkQueue<ObjectKey>,
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
    let key = ObjectKey::new("", name);
    if nodes.get(&key).is_some_and(|n| ready(&n) == "Unknown") {
        queue.add(key);
    }
}

fn ready(node: &NodeView) -> &str {
    condition::find(&node.status.conditions, "Ready").map_or("", |c| c.status.as_str())
}

impl Controller {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(node) = self.nodes.get(key) else { return Ok(()) };
        let silent = self.heard.lock().get(&key.name).map_or(Duration::ZERO, Instant::elapsed);
        let posted = condition::find(&node.status.conditions, "Ready").is_some();
        let grace = if posted { self.grace } else { STARTUP_GRACE.max(self.grace) };
        if silent < grace {
            self.queue.add_after(key.clone(), grace - silent);
        } else if ready(&node) != "Unknown" {
            return self.mark_unknown(&node, key).await;
        }
        self.mark_pods(&node).await?;
        self.taint(&node).await
    }

    /// What follows is done on the event this write causes.
    async fn mark_unknown(&self, node: &NodeView, key: &ObjectKey) -> Result<(), SyncError> {
        let now = format_seconds(self.clock.now());
        let write = |v: &mut Value| {
            let created = v["metadata"]["creationTimestamp"].clone();
            let status = crate::shared::tree::map_at(v, "status");
            let taken = status.remove("conditions").unwrap_or_default();
            let mut all: Vec<Condition> = serde_json::from_value(taken).unwrap_or_default();
            make_unknown(&mut all, created.as_str().unwrap_or(&now), &now);
            status.insert("conditions".into(), json!(all));
        };
        let seen = &node.metadata.resource_version;
        update_value::<NodeView>(&self.client, "", &key.name, "status", seen, write).await?;
        let message = format!("Node {} status is now: NodeNotReady", key.name);
        self.recorder.event(&ObjectRef::of(node), EventType::Normal, "NodeNotReady", message);
        Ok(())
    }

    /// The pods of a node that is not ready are not ready either, whatever they last said.
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

    async fn taint(&self, node: &NodeView) -> Result<(), SyncError> {
        let now = format_seconds(self.clock.now());
        let Some(taints) = taints::desired(node, &now) else { return Ok(()) };
        let m = &node.metadata;
        let patch = json!({"metadata": {"resourceVersion": m.resource_version}, "spec": {"taints": taints}});
        let o = WriteOptions::default();
        match self.client.patch::<NodeView>("", &m.name, "", PatchKind::Merge, &patch, &o).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }
}

/// Makes what the kubelet said unknown, or says that it never said anything.
fn make_unknown(all: &mut Vec<Condition>, created: &str, now: &str) {
    for kind in KUBELET_CONDITIONS {
        match all.iter_mut().find(|c| c.r#type == *kind) {
            Some(c) if c.status != "Unknown" => {
                c.status = "Unknown".into();
                c.reason = "NodeStatusUnknown".into();
                c.message = "Kubelet stopped posting node status.".into();
                c.last_transition_time = Some(now.to_owned());
            }
            Some(_) => {}
            None => {
                let message = "Kubelet never posted node status.";
                let mut c = Condition::new(kind, "Unknown", "NodeStatusNeverUpdated", message, now);
                c.last_heartbeat_time = Some(created.to_owned());
                all.push(c);
            }
        }
    }
}

#[cfg(test)]
mod tests;
