//! Stateful sets: numbered pods that keep their names and claims and are created and deleted in order. This file has
//! the informer handlers. `plan`, `identity`, `claims` and `status` decide, and `sync` carries out. Upstream
//! `pkg/controller/statefulset`.
mod claims;
mod identity;
mod plan;
mod revisions;
mod status;
mod sync;

use std::sync::Arc;

use kelson_client::{Client, EventRecorder, WorkQueue};
use kelson_meta::{LabelSelector, ObjectKey};

use crate::shared::context::{Context, WORKERS, enqueue_self};
use crate::shared::informers::SharedInformer;
use crate::shared::ownership::enqueue_owners;
use crate::shared::refusals::Refusals;
use crate::views::{ClaimView, ControllerRevisionView, PodView, StatefulSetView};

/// The source of this controller's events.
const COMPONENT: &str = "statefulset-controller";

struct StatefulSetController {
    ctx: Arc<Context>,
    client: Client,
    recorder: EventRecorder,
    sets: SharedInformer<StatefulSetView>,
    revisions: SharedInformer<ControllerRevisionView>,
    pods: SharedInformer<PodView>,
    claims: SharedInformer<ClaimView>,
    refusals: Refusals,
    queue: WorkQueue<ObjectKey>,
}

/// Starts the stateful set controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue = WorkQueue::default();
    let me = Arc::new(StatefulSetController {
        ctx: Arc::clone(ctx),
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        sets: ctx.informers.stateful_sets.reader(),
        revisions: ctx.informers.controller_revisions.reader(),
        pods: ctx.informers.pods.reader(),
        claims: ctx.informers.claims.reader(),
        refusals: Refusals::default(),
        queue: queue.clone(),
    });
    me.sets.on_change(enqueue_self(&queue));
    let (q, sets, to) = (queue.clone(), me.sets.clone(), Arc::downgrade(&me));
    me.pods.on_change(move |change| {
        if let Some(me) = to.upgrade() {
            me.refusals.pod_observed::<StatefulSetView>(change);
        }
        enqueue_owners(
            &sets,
            &q,
            change,
            |p| &p.metadata,
            |set, pod| set.ordinal_of(&pod.name).is_some() && selector(set).matches(&pod.labels),
        );
    });
    ctx.run_queue_of(me.sets.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

fn selector(set: &StatefulSetView) -> LabelSelector {
    let parsed = set.spec.selector.as_ref().and_then(|s| s.selector().ok());
    parsed.filter(|s| !s.is_everything()).unwrap_or_else(LabelSelector::nothing)
}

#[cfg(test)]
mod tests;
