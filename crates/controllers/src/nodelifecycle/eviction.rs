//! Deletes pods that do not tolerate the `NoExecute` taints of their node, when their time is over. Upstream
//! `pkg/controller/tainteviction`.
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{
    Change, Client, DeleteOptions, EventRecorder, EventType, ObjectRef, PatchKind, WorkQueue, WriteOptions,
};
use kelson_meta::{Clock, ObjectKey, format_seconds};
use serde_json::json;

use super::taints::{Eviction, eviction};
use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::informers::SharedInformer;
use crate::views::IndexKey;
use crate::views::{NodeView, PodView, Taint};

/// The source that this controller's events name.
const COMPONENT: &str = "taint-eviction-controller";

struct TaintEvictionController {
    client: Client,
    recorder: EventRecorder,
    clock: Arc<dyn Clock>,
    nodes: SharedInformer<NodeView>,
    pods: SharedInformer<PodView>,
    queue: WorkQueue<ObjectKey>,
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
    let (q, nodes) = (queue.clone(), me.nodes.clone());
    me.pods.on_change(move |change| {
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
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(pod) = self.pods.get(key).filter(|p| p.is_active()) else { return Ok(()) };
        let Some(node) = self.nodes.get(&ObjectKey::new("", &pod.spec.node_name)) else { return Ok(()) };
        let now = self.clock.now();
        let at = match eviction(&node.spec.taints, &pod.spec.tolerations, now) {
            Eviction::Never => return Ok(()),
            Eviction::At(t) => t,
        };
        let left = now.duration_until(at);
        if left.is_positive() {
            // Should the taint go before, the timer finds nothing to do.
            self.queue.add_after(key.clone(), left.unsigned_abs() + Duration::from_millis(1));
            return Ok(());
        }
        let about = ObjectRef::of(&*pod);
        let message = format!("Marking for deletion Pod {key}");
        self.recorder.event(&about, EventType::Normal, "TaintManagerEviction", message);
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
