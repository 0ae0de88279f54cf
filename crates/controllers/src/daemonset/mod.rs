//! Daemon sets: one pod on every eligible node. This file has the informer handlers and collects the input of a sync.
//! `placement`, `manage`, `rolling`, `status` and `backoff` decide, and `sync` carries out. Pods are created with an
//! affinity to their node and bound by the scheduler. Upstream `pkg/controller/daemon`.
mod backoff;
mod manage;
mod placement;
mod revisions;
mod rolling;
mod status;
mod sync;

use std::collections::BTreeMap;
use std::sync::Arc;

use kelson_client::{Change, Client, EventRecorder, Object, WorkQueue};
use kelson_meta::{LabelSelector, ObjectKey};

use self::placement::{Fit, fit};
use self::rolling::NodePods;
use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::expectations::Expectations;
use crate::shared::informers::SharedInformer;
use crate::shared::ownership::{claim_all, controller_key, enqueue_owners};
use crate::shared::pods::PodControl;
use crate::views::{ControllerRevisionView, DaemonSetView, IndexKey, NodeView, PodView};

/// The source of this controller's events.
const COMPONENT: &str = "daemonset-controller";

struct DaemonSetController {
    ctx: Arc<Context>,
    client: Client,
    recorder: EventRecorder,
    control: PodControl,
    sets: SharedInformer<DaemonSetView>,
    revisions: SharedInformer<ControllerRevisionView>,
    pods: SharedInformer<PodView>,
    nodes: SharedInformer<NodeView>,
    expectations: Arc<Expectations>,
    failed: backoff::FailedPods,
    queue: WorkQueue<ObjectKey>,
}

/// Starts the daemon set controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let recorder = ctx.recorder(&client, COMPONENT);
    let queue = WorkQueue::default();
    let me = Arc::new(DaemonSetController {
        ctx: Arc::clone(ctx),
        control: PodControl { client: client.clone(), recorder: recorder.clone() },
        client,
        recorder,
        sets: ctx.informers.daemon_sets.reader(),
        revisions: ctx.informers.controller_revisions.reader(),
        pods: ctx.informers.pods.reader(),
        nodes: ctx.informers.nodes.reader(),
        expectations: Arc::default(),
        failed: backoff::FailedPods::default(),
        queue: queue.clone(),
    });
    let (q, e) = (queue.clone(), Arc::clone(&me.expectations));
    me.sets.on_change(move |change| {
        let key = change.object().key();
        match change {
            Change::Deleted(_) => e.forget(&key),
            // The set was deleted and created again with the same name, so expectations of the old one are void.
            Change::Updated { old, new } if old.uid() != new.uid() => e.forget(&key),
            _ => {}
        }
        q.add(key);
    });
    let (q, e, sets) = (queue.clone(), Arc::clone(&me.expectations), me.sets.clone());
    me.pods.on_change(move |change| {
        e.pod_observed::<DaemonSetView>(change);
        enqueue_owners(&sets, &q, change, |p| &p.metadata, |set, pod| selector(set).matches(&pod.labels));
    });
    let (q, sets) = (queue.clone(), me.sets.clone());
    me.revisions.on_change(move |change| {
        // A new revision with an owner was created by this controller or by a user on purpose.
        if !matches!(change, Change::Added(r) if r.metadata.controller().is_some()) {
            enqueue_owners(&sets, &q, change, |r| &r.metadata, |set, r| selector(set).matches(&r.labels));
        }
    });
    let (q, sets, pods) = (queue.clone(), me.sets.clone(), me.pods.clone());
    me.nodes.on_change(move |change| on_node(&sets, &pods, &q, change));
    ctx.run_queue_of(me.sets.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

fn selector(set: &DaemonSetView) -> LabelSelector {
    let parsed = set.spec.selector.as_ref().and_then(|s| s.selector().ok());
    parsed.filter(|s| !s.is_everything()).unwrap_or_else(LabelSelector::nothing)
}

/// Queues the daemon sets that are affected by a change of a node.
fn on_node(
    sets: &SharedInformer<DaemonSetView>,
    pods: &SharedInformer<PodView>,
    queue: &WorkQueue<ObjectKey>,
    change: &Change<NodeView>,
) {
    if let Change::Updated { old, new } = change
        && old.metadata.labels == new.metadata.labels
        && old.spec.taints == new.spec.taints
    {
        return;
    }
    let node = change.object();
    let is_gone = matches!(change, Change::Deleted(_));
    let here = pods.bucket(&IndexKey::Node(node.metadata.name.clone()));
    for set in sets.list() {
        let key = set.key();
        let has_pod = here.iter().any(|p| controller_key::<DaemonSetView>(&p.metadata).as_ref() == Some(&key));
        let now = if is_gone { Fit { run: false, stay: false } } else { fit(&set.spec.template.nodes, node) };
        let before = match change {
            Change::Added(_) => false,
            Change::Updated { old, .. } => fit(&set.spec.template.nodes, old).run,
            Change::Deleted(node) => fit(&set.spec.template.nodes, node).run,
        };
        // A pod on a node that is no longer eligible is misscheduled until the node is eligible again.
        if now.run != before || (now.run && !has_pod) || (!now.stay && has_pod) {
            queue.add(key);
        }
    }
}

impl DaemonSetController {
    /// Returns the set's pods after adoption and release.
    async fn pods_of(&self, set: &Arc<DaemonSetView>) -> Result<Vec<Arc<PodView>>, SyncError> {
        let candidates = self.pods.owned_or_orphaned(set.uid(), set.namespace());
        claim_all(&self.client, &**set, &set.metadata, &selector(set), candidates, |p| &p.metadata).await
    }

    /// Returns every node that is eligible or has a pod of the set, with its pods. Terminated pods that are being
    /// deleted are ignored.
    fn nodes_of(&self, set: &DaemonSetView, pods: &[Arc<PodView>]) -> BTreeMap<String, NodePods> {
        let mut nodes: BTreeMap<String, NodePods> = BTreeMap::new();
        for node in self.nodes.list() {
            let of_it = NodePods { exists: true, fit: fit(&set.spec.template.nodes, &node), pods: Vec::new() };
            nodes.insert(node.metadata.name.clone(), of_it);
        }
        for pod in pods.iter().filter(|p| !(p.is_terminal() && p.metadata.is_deleting())) {
            if let Some(node) = pod.target_node() {
                let gone = || NodePods { exists: false, fit: Fit { run: false, stay: false }, pods: Vec::new() };
                nodes.entry(node.to_owned()).or_insert_with(gone).pods.push(Arc::clone(pod));
            }
        }
        nodes.retain(|_, n| n.fit.run || !n.pods.is_empty());
        nodes
    }
}

#[cfg(test)]
mod tests;
