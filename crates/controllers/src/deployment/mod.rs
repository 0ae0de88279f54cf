//! The deployment controller: one replica set per pod template, and the rollout from one to the next. This file has the
//! informer handlers. `sizing`, `revision` and `status` decide, and `rollout` carries out.
mod controller;
pub mod revision;
mod rollout;
pub mod sizing;
pub mod status;

use std::sync::Arc;

use kelson_client::{Change, EventType, Object, ObjectRef, WorkQueue};
use kelson_meta::{LabelSelector, ObjectKey};

use self::controller::DeploymentController;
use self::rollout::Rollout;
use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::informers::SharedInformer;
use crate::shared::ownership::{controller_key, enqueue_owners};
use crate::views::{DeploymentView, PodView, ReplicaSetView};

/// The source of this controller's events.
const COMPONENT: &str = "deployment-controller";

/// Starts the deployment controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue = WorkQueue::default();
    let me = Arc::new(DeploymentController {
        ctx: Arc::clone(ctx),
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        deployments: ctx.informers.deployments.reader(),
        sets: ctx.informers.replica_sets.reader(),
        pods: ctx.informers.pods.reader(),
        queue: queue.clone(),
    });
    me.deployments.on_change(crate::shared::context::enqueue_self(&queue));
    let (deployments, q) = (me.deployments.clone(), queue.clone());
    me.sets.on_change(move |change| {
        enqueue_owners(&deployments, &q, change, |s| &s.metadata, |d, set| selector(d).matches(&set.labels));
    });
    let (deployments, sets, q) = (me.deployments.clone(), me.sets.clone(), queue.clone());
    me.pods.on_change(move |change| {
        // Only a deployment with the strategy Recreate waits for pods: until the last old one is deleted.
        if let Change::Deleted(pod) | Change::Updated { new: pod, .. } = change
            && (pod.is_terminal() || matches!(change, Change::Deleted(_)))
            && let Some(key) = deployment_of_pod(&sets, pod)
            && deployments.get(&key).is_some_and(|d| d.spec.strategy.r#type == "Recreate")
        {
            q.add(key);
        }
    });
    ctx.run_queue_of(me.deployments.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

fn deployment_of_pod(sets: &SharedInformer<ReplicaSetView>, pod: &PodView) -> Option<ObjectKey> {
    let set = sets.get(&controller_key::<ReplicaSetView>(&pod.metadata)?)?;
    controller_key::<DeploymentView>(&set.metadata)
}

fn selector(d: &DeploymentView) -> LabelSelector {
    let parsed = d.spec.selector.as_ref().and_then(|s| s.selector().ok());
    parsed.filter(|s| !s.is_everything()).unwrap_or_else(LabelSelector::nothing)
}

impl DeploymentController {
    async fn sync(self: &Arc<Self>, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(d) = self.deployments.get(key) else { return Ok(()) };
        let everything = d.spec.selector.as_ref().and_then(|s| s.selector().ok()).is_some_and(|s| s.is_everything());
        if everything {
            let text = "This deployment is selecting all pods. A non-empty selector is required.";
            self.recorder.event(&ObjectRef::of(&*d), EventType::Warning, "SelectingAll", text);
            return Ok(());
        }
        let candidates = self.sets.owned_or_orphaned(d.uid(), &key.namespace);
        let sets =
            crate::shared::ownership::claim_all(&self.client, &*d, &d.metadata, &selector(&d), candidates, |s| {
                &s.metadata
            })
            .await?;
        let mut rollout = Rollout::new(self, &d, sets.iter().map(|s| (**s).clone()).collect())?;
        if d.metadata.is_deleting() {
            return rollout.sync_status_only().await;
        }
        rollout.note_pause().await?;
        if d.spec.paused || rollout.is_scaling() {
            return rollout.scale_only().await;
        }
        if d.spec.strategy.r#type == "Recreate" {
            return rollout.recreate().await;
        }
        rollout.rolling_update().await
    }
}

#[cfg(test)]
mod tests;
