//! Replica sets and replication controllers: maintain the desired number of pods. Both kinds share one loop, since they
//! differ only in the form of their selector and status. The decisions are in `core`.
pub mod core;

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::join_all;
use kelson_client::{Change, Client, ClientError, WorkQueue};
use kelson_meta::{LabelSelector, ObjectKey, ObjectMeta};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use self::core::{Observed, Step};
use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::expectations::Expectations;
use crate::shared::informers::SharedInformer;
use crate::shared::ownership::enqueue_owners;
use crate::shared::pods::{PodControl, Template, slow_start};
use crate::shared::refusals::Refusals;
use crate::views::{IndexKey, Indexed, uid_number};
use crate::views::{NamespaceView, PodView, ReplicaSetView, ReplicaStatus, ReplicationControllerView};

/// A kind that maintains a number of pods.
pub trait Replicated: Indexed {
    /// The controller's name.
    const COMPONENT: &'static str;
    /// Whether its status has terminatingReplicas.
    const REPORTS_TERMINATING: bool;
    fn meta(&self) -> &ObjectMeta;
    fn replicas(&self) -> i32;
    /// Seconds until a ready pod is available.
    fn min_ready(&self) -> i32;
    fn selector(&self) -> LabelSelector;
    /// Pod template, JSON.
    fn template(&self) -> Option<&RawValue>;
    fn status(&self) -> &ReplicaStatus;
}

impl Replicated for ReplicaSetView {
    const COMPONENT: &'static str = "replicaset-controller";
    const REPORTS_TERMINATING: bool = true;
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }
    fn min_ready(&self) -> i32 {
        self.spec.min_ready_seconds
    }
    fn selector(&self) -> LabelSelector {
        let parsed = self.spec.selector.as_ref().and_then(|s| s.selector().ok());
        // The API requires a selector. One that selects everything in the namespace would be an error, so it selects
        // nothing.
        parsed.filter(|s| !s.is_everything()).unwrap_or_else(LabelSelector::nothing)
    }
    fn template(&self) -> Option<&RawValue> {
        self.spec.template.as_deref()
    }
    fn status(&self) -> &ReplicaStatus {
        &self.status
    }
}

impl Replicated for ReplicationControllerView {
    const COMPONENT: &'static str = "replication-controller";
    const REPORTS_TERMINATING: bool = false;
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }
    fn min_ready(&self) -> i32 {
        self.spec.min_ready_seconds
    }
    fn selector(&self) -> LabelSelector {
        if self.spec.selector.is_empty() {
            return LabelSelector::nothing();
        }
        LabelSelector::from_map(&self.spec.selector)
    }
    fn template(&self) -> Option<&RawValue> {
        self.spec.template.as_deref()
    }
    fn status(&self) -> &ReplicaStatus {
        &self.status
    }
}

/// The controller of one kind.
pub struct ReplicaSetController<T: Replicated> {
    ctx: Arc<Context>,
    client: Client,
    control: PodControl,
    sets: SharedInformer<T>,
    pods: SharedInformer<PodView>,
    namespaces: SharedInformer<NamespaceView>,
    expectations: Arc<Expectations>,
    refusals: Arc<Refusals>,
    queue: WorkQueue<ObjectKey>,
}

/// Starts the replica set controller.
pub fn start(ctx: &Arc<Context>) {
    launch(ctx, ctx.informers.replica_sets.reader());
}

/// Starts the replication controller.
pub fn start_replication(ctx: &Arc<Context>) {
    launch(ctx, ctx.informers.replication_controllers.reader());
}

fn launch<T: Replicated>(ctx: &Arc<Context>, sets: SharedInformer<T>) {
    let client = ctx.client();
    let control = PodControl { client: client.clone(), recorder: ctx.recorder(&client, T::COMPONENT) };
    let queue = WorkQueue::default();
    let (expectations, refusals) = (Arc::new(Expectations::default()), Arc::new(Refusals::default()));
    let me = Arc::new(ReplicaSetController {
        ctx: Arc::clone(ctx),
        client,
        control,
        sets: sets.clone(),
        pods: ctx.informers.pods.reader(),
        namespaces: ctx.informers.namespaces.reader(),
        expectations: Arc::clone(&expectations),
        refusals: Arc::clone(&refusals),
        queue: queue.clone(),
    });
    let (q, e, r) = (queue.clone(), Arc::clone(&expectations), Arc::clone(&refusals));
    sets.on_change(move |change| {
        let key = change.object().key();
        // The set was deleted and created again with the same name, so expectations of the old one are void.
        if matches!(change, Change::Deleted(_))
            || matches!(change, Change::Updated { old, new } if old.uid() != new.uid())
        {
            e.forget(&key);
            r.forget(&key);
        }
        q.add(key);
    });
    let (q, e) = (queue.clone(), expectations);
    ctx.informers.pods.on_change(move |change| {
        e.pod_observed::<T>(change);
        refusals.pod_observed::<T>(change);
        enqueue_owners(&sets, &q, change, |p| &p.metadata, |set, pod| set.selector().matches(&pod.labels));
    });
    ctx.run_queue_of(me.sets.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

impl<T: Replicated> ReplicaSetController<T> {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(set) = self.sets.get(key) else {
            self.expectations.forget(key);
            return Ok(());
        };
        let may_act = self.expectations.satisfied(key);
        let selector = set.selector();
        let candidates = self.pods.owned_or_orphaned(set.uid(), &key.namespace);
        let candidates: Vec<_> = candidates.into_iter().filter(|p| !p.is_terminal()).collect();
        let held = crate::shared::ownership::claim_all(&self.client, &*set, set.meta(), &selector, candidates, |p| {
            &p.metadata
        })
        .await?;
        let (active, going): (Vec<_>, Vec<_>) = held.into_iter().partition(|p| p.is_active());
        let template = match set.template().map(|t| serde_json::from_str::<Template>(t.get())) {
            Some(Ok(t)) => t,
            Some(Err(e)) => return Err(SyncError::Other(format!("invalid pod template: {e}"))),
            None => return Ok(()),
        };
        let mut failure = None;
        if may_act && !set.meta().is_deleting() {
            failure = self.manage(key, &set, &template, &active).await.err();
        }
        let seen = Observed {
            active: &active,
            terminating: going.len(),
            template_labels: &template.metadata.labels,
            desired: set.replicas(),
            min_ready: set.min_ready(),
            generation: set.meta().generation,
            failure: failure.as_ref().map(ToString::to_string),
            reports_terminating: T::REPORTS_TERMINATING,
        };
        let (status, again) = core::status(set.status(), &seen, self.ctx.clock.now());
        if &status != set.status() {
            self.write_status(key, &set, &status).await?;
        }
        if let Some(wait) = again {
            self.queue.add_after(key.clone(), wait);
        }
        failure.map_or(Ok(()), |e| Err(e.into()))
    }

    async fn manage(
        &self,
        key: &ObjectKey,
        set: &Arc<T>,
        template: &Template,
        active: &[Arc<PodView>],
    ) -> Result<(), ClientError> {
        match core::step(active.len(), set.replicas()) {
            Step::Hold => Ok(()),
            // A terminating namespace rejects new pods, so each deleted pod would cause another failed request.
            Step::Create(_) if self.is_terminating(&key.namespace) => Ok(()),
            Step::Create(n) => match self.refusals.held(key) {
                None => self.create(key, set, template, n).await,
                Some((held, wait)) => {
                    self.queue.add_after(key.clone(), wait);
                    // Pods that are missing for another reason are created at once.
                    self.create(key, set, template, n.saturating_sub(held)).await
                }
            },
            Step::Delete(n) => self.delete(key, set, active, n).await,
        }
    }

    fn is_terminating(&self, namespace: &str) -> bool {
        self.namespaces.get(&ObjectKey::new("", namespace)).is_some_and(|n| n.metadata.is_deleting())
    }

    async fn create(&self, key: &ObjectKey, set: &Arc<T>, template: &Template, n: usize) -> Result<(), ClientError> {
        if n == 0 {
            return Ok(());
        }
        self.expectations.expect_creations(key, n);
        let (made, error) = slow_start(n, |_| self.control.create(&**set, template)).await;
        self.expectations.lower_creations(key, n - made);
        match error {
            Some(e) if !e.is_namespace_terminating() => Err(e),
            _ => Ok(()),
        }
    }

    async fn delete(
        &self,
        key: &ObjectKey,
        set: &Arc<T>,
        active: &[Arc<PodView>],
        n: usize,
    ) -> Result<(), ClientError> {
        let related = self.related_pods(set);
        let victims = core::choose_victims(active.to_vec(), &related, n, self.ctx.clock.now());
        self.expectations.expect_deletions(key, victims.iter().map(|p| p.metadata.uid.clone()));
        let results = join_all(victims.iter().map(|p| self.control.delete(&**set, p))).await;
        let mut error = None;
        for (r, p) in results.into_iter().zip(&victims) {
            if let Err(e) = r {
                self.expectations.deletion_observed(key, &p.metadata.uid);
                if !e.is_not_found() {
                    error = error.or(Some(e));
                }
            }
        }
        error.map_or(Ok(()), Err)
    }

    /// The pods of all sets under the same controller (a Deployment's), or this set's alone.
    fn related_pods(&self, set: &Arc<T>) -> Vec<Arc<PodView>> {
        let mut uids = HashSet::from([uid_number(set.uid())]);
        if let Some(owner) = set.meta().controller() {
            let siblings = self.sets.bucket(&IndexKey::Controller(uid_number(&owner.uid)));
            uids.extend(siblings.iter().map(|s| uid_number(s.uid())));
        }
        uids.into_iter().flat_map(|u| self.pods.bucket(&IndexKey::Controller(u))).collect()
    }

    async fn write_status(&self, key: &ObjectKey, set: &T, status: &ReplicaStatus) -> Result<(), ClientError> {
        let meta = set.meta();
        let write = |v: &mut Value| put_status(&mut v["status"], status);
        crate::shared::context::update_value::<T>(
            &self.client,
            &key.namespace,
            &key.name,
            "status",
            &meta.resource_version,
            write,
        )
        .await
        .map(|_| ())
    }
}

/// Writes a status into a tree. Zero values of optional fields are omitted, as in the API.
fn put_status(tree: &mut Value, s: &ReplicaStatus) {
    if !tree.is_object() {
        *tree = json!({});
    }
    tree["replicas"] = json!(s.replicas);
    let optional = [
        ("fullyLabeledReplicas", i64::from(s.fully_labeled_replicas)),
        ("readyReplicas", i64::from(s.ready_replicas)),
        ("availableReplicas", i64::from(s.available_replicas)),
        ("observedGeneration", s.observed_generation),
    ];
    for (name, n) in optional {
        kelson_meta::tree::put_unless(tree, name, json!(n), n == 0);
    }
    kelson_meta::tree::put_unless(
        tree,
        "terminatingReplicas",
        json!(s.terminating_replicas),
        s.terminating_replicas.is_none(),
    );
    kelson_meta::tree::put_unless(tree, "conditions", json!(s.conditions), s.conditions.is_empty());
}

#[cfg(test)]
mod tests;
