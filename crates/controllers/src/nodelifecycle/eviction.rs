//! Deletes pods that do not tolerate the `NoExecute` taints of their node, when their time is over. Upstream
//! `pkg/controller/tainteviction`.
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_client::{
    Change, Client, DeleteOptions, EventRecorder, EventType, ObjectRef, PatchKind, WorkQueue, WriteOptions,
};
use kelson_meta::{Clock, ObjectKey, format_seconds};
use parking_lot::Mutex;
use serde_json::json;

use super::taints::{Eviction, eviction};
use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::informers::SharedInformer;
use crate::views::IndexKey;
use crate::views::{NodeView, PodView, Taint};

/// The source that this controller's events name.
const COMPONENT: &str = "taint-eviction-controller";

/// Of all its events.
const REASON: &str = "TaintManagerEviction";

struct TaintEvictionController {
    client: Client,
    recorder: EventRecorder,
    clock: Arc<dyn Clock>,
    nodes: SharedInformer<NodeView>,
    pods: SharedInformer<PodView>,
    queue: WorkQueue<ObjectKey>,
    /// Pods that are to go when their time is over.
    pending: Mutex<HashSet<ObjectKey>>,
}

fn executing(taints: &[Taint]) -> Vec<&Taint> {
    taints.iter().filter(|t| t.effect == "NoExecute").collect()
}

/// Starts taint eviction.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let me = Arc::new(TaintEvictionController {
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        clock: Arc::clone(&ctx.clock),
        nodes: ctx.informers.nodes.reader(),
        pods: ctx.informers.pods.reader(),
        queue: queue.clone(),
        pending: Mutex::default(),
    });
    let (q, pods) = (queue.clone(), me.pods.clone());
    me.nodes.on_change(move |change| {
        let node = change.object();
        let changed = match change {
            Change::Added(n) => !executing(&n.spec.taints).is_empty(),
            Change::Updated { old, new } => executing(&old.spec.taints) != executing(&new.spec.taints),
            Change::Deleted(_) => false,
        };
        if changed {
            for p in pods.bucket(&IndexKey::Node(node.metadata.name.clone())) {
                q.add(p.metadata.key());
            }
        }
    });
    let (q, nodes, of) = (queue.clone(), me.nodes.clone(), Arc::downgrade(&me));
    me.pods.on_change(move |change| {
        if let Change::Deleted(pod) = change
            && of.upgrade().is_some_and(|me| me.pending.lock().contains(&pod.metadata.key()))
        {
            q.add(pod.metadata.key());
        }
        let (Change::Added(pod) | Change::Updated { new: pod, .. }) = change else { return };
        if let Change::Updated { old, new } = change
            && old.spec.node_name == new.spec.node_name
            && old.spec.tolerations == new.spec.tolerations
        {
            return;
        }
        let node = nodes.get(&ObjectKey::new("", &pod.spec.node_name));
        if node.is_some_and(|n| !executing(&n.spec.taints).is_empty()) {
            q.add(pod.metadata.key());
        }
    });
    ctx.run_queue(&queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

impl TaintEvictionController {
    /// When a pod is to go.
    fn due(&self, pod: &PodView, now: Timestamp) -> Option<Timestamp> {
        let node = self.nodes.get(&ObjectKey::new("", &pod.spec.node_name))?;
        match eviction(&node.spec.taints, &pod.spec.tolerations, now) {
            Eviction::Never => None,
            Eviction::At(t) => Some(t),
        }
    }

    /// Says that a pod will not go, if it was to.
    fn cancel(&self, key: &ObjectKey) {
        if !self.pending.lock().remove(key) {
            return;
        }
        let (namespace, name) = (key.namespace.clone(), key.name.clone());
        let (api_version, kind) = ("v1".to_owned(), "Pod".to_owned());
        let about = ObjectRef { api_version, kind, namespace, name, ..ObjectRef::default() };
        let message = format!("Cancelling deletion of Pod {key}");
        self.recorder.event(&about, EventType::Normal, REASON, message);
    }

    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let now = self.clock.now();
        let pod = self.pods.get(key).filter(|p| p.is_active());
        let Some((pod, at)) = pod.and_then(|pod| self.due(&pod, now).map(|at| (pod, at))) else {
            self.cancel(key);
            return Ok(());
        };
        let left = now.duration_until(at);
        if left.is_positive() {
            self.pending.lock().insert(key.clone());
            // Should the taint go before, the timer finds nothing to do.
            self.queue.add_after(key.clone(), left.unsigned_abs() + Duration::from_millis(1));
            return Ok(());
        }
        self.pending.lock().remove(key);
        let about = ObjectRef::of(&*pod);
        let message = format!("Marking for deletion Pod {key}");
        self.recorder.event(&about, EventType::Normal, REASON, message);
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint", "lastTransitionTime": format_seconds(now)});
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}});
        let o = WriteOptions::default();
        let patched =
            self.client.patch::<PodView>(&key.namespace, &key.name, "status", PatchKind::Strategic, &patch, &o);
        match patched.await {
            // Where it is another of its name, the next look finds that one.
            Err(e) if e.is_not_found() => return Ok(()),
            Err(e) => return Err(e.into()),
            Ok(_) => {}
        }
        let options = DeleteOptions::default().with_uid(&pod.metadata.uid);
        match self.client.delete::<PodView>(&key.namespace, &key.name, &options).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }
}
