//! Taint-based eviction: deletes pods that do not tolerate the `NoExecute` taints of their node, after the seconds that
//! they tolerate them. Upstream `pkg/controller/tainteviction`.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_client::{
    Change, Client, DeleteOptions, EventRecorder, EventType, ObjectRef, PatchKind, WorkQueue, WriteOptions,
};
use kelson_meta::{Clock, ObjectKey};
use kelson_metrics::{Histogram, IntCounter};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::taints::{Eviction, eviction};
use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::evictions::Evictions;
use crate::shared::informers::SharedInformer;
use crate::shared::pods::disruption_target;
use crate::views::IndexKey;
use crate::views::{NodeView, PodView, Taint};

/// The source of this controller's events.
const COMPONENT: &str = "taint-eviction-controller";

/// The reason of all events.
const REASON: &str = "TaintManagerEviction";

/// The message of an evicted pod's condition.
const EVICTION_MESSAGE: &str = "Taint manager: deleting due to NoExecute taint";

/// Buckets in seconds from a taint's effect to the deletion of the pod.
const LATENCIES: [f64; 12] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];

struct TaintEvictionController {
    client: Client,
    recorder: EventRecorder,
    clock: Arc<dyn Clock>,
    nodes: SharedInformer<NodeView>,
    pods: SharedInformer<PodView>,
    queue: WorkQueue<ObjectKey>,
    evictions: Evictions,
    seen: Mutex<SeenTaints>,
    deletions: IntCounter,
    latency: Histogram,
}

/// When `NoExecute` taints were first observed, by node and key. API servers do not set `timeAdded`, so most taints do
/// not have the time of their addition.
#[derive(Default)]
struct SeenTaints(HashMap<String, HashMap<String, Instant>>);

impl SeenTaints {
    fn note(&mut self, change: &Change<NodeView>) {
        let node = match change {
            Change::Deleted(node) => {
                self.0.remove(&node.metadata.name);
                return;
            }
            Change::Added(node) | Change::Updated { new: node, .. } => node,
        };
        if matches!(change, Change::Updated { old, new } if old.metadata.uid != new.metadata.uid) {
            self.0.remove(&node.metadata.name);
        }
        let taints = executing(&node.spec.taints);
        if taints.is_empty() {
            self.0.remove(&node.metadata.name);
            return;
        }
        let seen = self.0.entry(node.metadata.name.clone()).or_default();
        seen.retain(|key, _| taints.iter().any(|t| t.key == *key));
        for taint in taints {
            seen.entry(taint.key.clone()).or_insert_with(Instant::now);
        }
    }

    /// Returns since when a node has a taint.
    fn since(&self, node: &str, taint: &Taint, now: Timestamp) -> Timestamp {
        let said = taint.time_added.as_ref().and_then(|t| t.parse().ok());
        let seen = || self.0.get(node)?.get(&taint.key).map(Instant::elapsed);
        said.unwrap_or_else(|| now.checked_sub(seen().unwrap_or_default()).unwrap_or(now))
    }
}

fn executing(taints: &[Taint]) -> Vec<&Taint> {
    taints.iter().filter(|t| t.effect == "NoExecute").collect()
}

/// Returns when a pod was bound to its node.
fn bound_at(pod: &PodView) -> Option<Timestamp> {
    let scheduled = pod.condition("PodScheduled").filter(|c| c.status == "True");
    scheduled.and_then(|c| c.last_transition_time).or_else(|| pod.created())
}

/// Starts the taint eviction controller.
pub fn start(ctx: &Arc<Context>) {
    let (client, metrics) = (ctx.client(), &ctx.config.metrics);
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let name = "taint_eviction_controller_pod_deletions_total";
    let deletions = metrics.counter(name, "Pods deleted because of taints of their nodes.");
    let name = "taint_eviction_controller_pod_deletion_duration_seconds";
    let latency = metrics.histogram(
        name,
        "Time in seconds from a taint's effect on a pod to the deletion of the pod.",
        &LATENCIES,
    );
    let me = Arc::new(TaintEvictionController {
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        clock: Arc::clone(&ctx.clock),
        nodes: ctx.informers.nodes.reader(),
        pods: ctx.informers.pods.reader(),
        queue: queue.clone(),
        evictions: Evictions::default(),
        seen: Mutex::default(),
        deletions,
        latency,
    });
    follow(&me);
    ctx.run_queue_of(me.pods.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

fn follow(me: &Arc<TaintEvictionController>) {
    let to = Arc::clone(me);
    me.nodes.on_change(move |change| {
        to.seen.lock().note(change);
        let node = change.object();
        let changed = match change {
            Change::Added(n) => !executing(&n.spec.taints).is_empty(),
            Change::Updated { old, new } => executing(&old.spec.taints) != executing(&new.spec.taints),
            Change::Deleted(_) => false,
        };
        if changed {
            for p in to.pods.bucket(&IndexKey::Node(node.metadata.name.clone())) {
                to.queue.add(p.metadata.key());
            }
        }
    });
    let to = Arc::clone(me);
    me.pods.on_change(move |change| {
        let (old, new) = match change {
            Change::Added(new) => (None, Some(new)),
            Change::Updated { old, new } => (Some(old), Some(new)),
            Change::Deleted(old) => (Some(old), None),
        };
        if let Some(old) = old
            && new.is_none_or(|new| new.metadata.uid != old.metadata.uid)
            && to.evictions.forget(&old.metadata.uid)
        {
            to.cancelled(&old.metadata.key());
        }
        let Some(new) = new else { return };
        let same = |old: &Arc<PodView>| {
            old.metadata.uid == new.metadata.uid
                && old.spec.node_name == new.spec.node_name
                && old.spec.tolerations == new.spec.tolerations
        };
        if old.is_some_and(same) {
            return;
        }
        let node = to.nodes.get(&ObjectKey::new("", &new.spec.node_name));
        if node.is_some_and(|n| !executing(&n.spec.taints).is_empty()) {
            to.queue.add(new.metadata.key());
        }
    });
}

impl TaintEvictionController {
    /// Returns when a pod must be deleted. Toleration seconds count from the time of the taint, so that neither another
    /// sync nor a restart of the controller extends them, or from the binding of a pod that was bound later.
    fn due(&self, pod: &PodView, now: Timestamp) -> Option<Timestamp> {
        let node = self.nodes.get(&ObjectKey::new("", &pod.spec.node_name))?;
        let seen = self.seen.lock();
        let bound = bound_at(pod);
        let since = |taint: &Taint| {
            let since = seen.since(&node.metadata.name, taint, now);
            bound.map_or(since, |bound| bound.max(since))
        };
        match eviction(&node.spec.taints, &pod.spec.tolerations, now, since) {
            Eviction::Never => None,
            Eviction::At(t) => Some(t),
        }
    }

    /// Records the event of a cancelled deletion.
    fn cancelled(&self, key: &ObjectKey) {
        let (namespace, name) = (key.namespace.clone(), key.name.clone());
        let (api_version, kind) = ("v1".to_owned(), "Pod".to_owned());
        let about = ObjectRef { api_version, kind, namespace, name, ..ObjectRef::default() };
        let message = format!("Cancelling deletion of Pod {key}");
        self.recorder.event(&about, EventType::Normal, REASON, message);
    }

    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let now = self.clock.now();
        let Some(pod) = self.pods.get(key) else { return Ok(()) };
        let Some(at) = Some(&pod).filter(|p| p.is_active()).and_then(|pod| self.due(pod, now)) else {
            if self.evictions.cancel(&pod.metadata.uid) {
                self.cancelled(key);
            }
            return Ok(());
        };
        let left = now.duration_until(at);
        if left.is_positive() {
            self.evictions.schedule(&pod.metadata.uid);
            // If the taint is removed before, the timer finds nothing to do.
            self.queue.add_after(key.clone(), left.unsigned_abs() + Duration::from_millis(1));
            return Ok(());
        }
        if !self.evictions.begin(&pod.metadata.uid) {
            return Ok(());
        }
        let evicted = self.evict(key, &pod, now).await;
        match &evicted {
            Ok(true) => {
                self.deletions.inc();
                self.latency.observe(self.clock.now().duration_since(at).as_secs_f64().max(0.0));
            }
            Ok(false) => {}
            Err(_) => self.evictions.failed(&pod.metadata.uid),
        }
        evicted.map(|_| ())
    }

    /// Deletes a pod and sets its condition. Returns whether it existed.
    async fn evict(&self, key: &ObjectKey, pod: &PodView, now: Timestamp) -> Result<bool, SyncError> {
        let message = format!("Marking for deletion Pod {key}");
        self.recorder.event(&ObjectRef::of(pod), EventType::Normal, REASON, message);
        let meta = &pod.metadata;
        let patch = disruption_target(meta, "DeletionByTaintManager", EVICTION_MESSAGE, now);
        let o = WriteOptions::default();
        let patched =
            self.client.patch::<PodView>(&key.namespace, &key.name, "status", PatchKind::Strategic, &patch, &o);
        match patched.await {
            // If another pod has the name now, the next sync handles that one.
            Err(e) if e.is_not_found() => return Ok(false),
            Err(e) => return Err(e.into()),
            Ok(_) => {}
        }
        let options = DeleteOptions::default().with_uid(&meta.uid);
        match self.client.delete::<PodView>(&key.namespace, &key.name, &options).await {
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(e.into()),
            Ok(_) => Ok(true),
        }
    }
}
