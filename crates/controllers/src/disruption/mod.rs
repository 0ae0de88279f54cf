//! The disruption controller. It counts the pods of each disruption budget, which limits evictions, and removes stale
//! `DisruptionTarget` conditions from pods. `budget` computes the status.
mod budget;

use std::collections::HashMap;
use std::sync::Arc;

use kelson_client::{Change, Client, EventRecorder, EventType, Object, ObjectRef, PatchKind, WorkQueue, WriteOptions};
use kelson_meta::{ObjectKey, OwnerReference, format_seconds};
use serde_json::{Value, json};

use crate::shared::context::{Context, SyncError, WORKERS, enqueue_self, update_value};
use crate::shared::informers::SharedInformer;
use crate::shared::ownership::controller_key;
use crate::shared::scale::{Scales, Target};
use crate::views::{
    BudgetStatus, BudgetView, DeploymentView, PodView, ReplicaSetView, ReplicationControllerView, go_form,
};

/// The source of this controller's events.
const COMPONENT: &str = "controllermanager";

struct DisruptionController {
    ctx: Arc<Context>,
    client: Client,
    recorder: EventRecorder,
    scales: Scales,
    budgets: SharedInformer<BudgetView>,
    pods: SharedInformer<PodView>,
    sets: SharedInformer<ReplicaSetView>,
    deployments: SharedInformer<DeploymentView>,
    replication: SharedInformer<ReplicationControllerView>,
    queue: WorkQueue<ObjectKey>,
    /// Pods with a `DisruptionTarget` condition.
    targets: WorkQueue<ObjectKey>,
}

/// Starts the disruption controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let me = Arc::new(DisruptionController {
        ctx: Arc::clone(ctx),
        recorder: ctx.recorder(&client, COMPONENT),
        scales: Scales::new(client.clone()),
        client,
        budgets: ctx.informers.budgets.reader(),
        pods: ctx.informers.pods.reader(),
        sets: ctx.informers.replica_sets.reader(),
        deployments: ctx.informers.deployments.reader(),
        replication: ctx.informers.replication_controllers.reader(),
        queue: WorkQueue::default(),
        targets: WorkQueue::default(),
    });
    me.budgets.on_change(enqueue_self(&me.queue));
    let m = Arc::clone(&me);
    me.pods.on_change(move |change| m.on_pod(change));
    let m = Arc::clone(&me);
    ctx.run_queue_of(me.budgets.clone(), &me.queue, WORKERS, move |key| {
        let me = Arc::clone(&m);
        async move { me.sync(&key).await }
    });
    let m = Arc::clone(&me);
    ctx.run_queue(&me.targets, 1, move |key| {
        let me = Arc::clone(&m);
        async move { me.sync_target(&key).await }
    });
}

impl DisruptionController {
    fn on_pod(&self, change: &Change<PodView>) {
        let pod = change.object();
        let covers = |b: &BudgetView, p: &PodView| b.selector().matches(&p.metadata.labels);
        let mut names = Vec::new();
        for b in self.budgets.in_namespace(&pod.metadata.namespace) {
            let now = covers(&b, pod);
            // A pod whose labels changed may no longer match a budget.
            let before = matches!(change, Change::Updated { old, .. } if old.metadata.labels != pod.metadata.labels
                && covers(&b, old));
            if now || before {
                self.queue.add(b.key());
            }
            if now {
                names.push(b.metadata.name.clone());
            }
        }
        if names.len() > 1 && !matches!(change, Change::Deleted(_)) {
            names.sort();
            let (ns, name) = (&pod.metadata.namespace, &pod.metadata.name);
            let text = format!(
                "Pod {ns:?}/{name:?} matches multiple PodDisruptionBudgets.  Chose {:?} arbitrarily.",
                names[0]
            );
            self.recorder.event(&ObjectRef::of(&**pod), EventType::Warning, "MultiplePodDisruptionBudgets", text);
        }
        if !matches!(change, Change::Deleted(_)) && budget::until_stale(pod, self.ctx.clock.now()).is_some() {
            self.targets.add(pod.key());
        }
    }

    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(b) = self.budgets.get(key) else { return Ok(()) };
        let selector = b.selector();
        let mut pods = self.pods.in_namespace(&key.namespace);
        pods.retain(|p| selector.matches(&p.metadata.labels));
        let event = |kind, reason: &str, text: String| self.recorder.event(&ObjectRef::of(&*b), kind, reason, text);
        if pods.is_empty() {
            event(EventType::Normal, "NoPods", "No matching pods found".to_owned());
        }
        let (scale, unmanaged) = match self.scale(&b, &pods).await {
            Ok(counted) => counted,
            Err(why) => {
                let text = format!("Failed to calculate the number of expected pods: {why}");
                event(EventType::Warning, "CalculateExpectedPodCountFailed", text);
                return self.write(key, &b, budget::failed(&b, why, self.ctx.clock.now())).await;
            }
        };
        if unmanaged {
            let selector = b.spec.selector.as_ref().map_or_else(|| "nil".to_owned(), go_form);
            let text = format!(
                "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value."
            );
            event(EventType::Warning, "UnmanagedPods", text);
        }
        let now = self.ctx.clock.now();
        let disrupted = budget::disrupted(&b.status, &pods, now);
        for name in &disrupted.not_deleted {
            if let Some(pod) = pods.iter().find(|p| p.metadata.name == *name) {
                let text = format!("Pod was expected by PDB {key} to be deleted but it wasn't");
                self.recorder.event(&ObjectRef::of(&**pod), EventType::Warning, "NotDeleted", text);
            }
        }
        self.write(key, &b, budget::status(&b, &pods, &disrupted, scale, now)).await?;
        if let Some(wait) = disrupted.recheck {
            self.queue.add_after(key.clone(), wait);
        }
        Ok(())
    }

    /// Returns the total scale of the pods' controllers, and whether a pod has none. The error is for the budget's
    /// status.
    async fn scale(&self, b: &BudgetView, pods: &[Arc<PodView>]) -> Result<(i32, bool), String> {
        if !budget::needs_scale(&b.spec) {
            return Ok((0, false));
        }
        let mut scales: HashMap<String, i32> = HashMap::new();
        let mut seen: HashMap<&str, ()> = HashMap::new();
        let mut unmanaged = false;
        for pod in pods {
            let Some(owner) = pod.metadata.controller() else {
                unmanaged = true;
                continue;
            };
            if seen.insert(&owner.uid, ()).is_some() {
                continue;
            }
            let found = match self.known_scale(pod, owner) {
                Some(found) => Some(found),
                None => self.any_scale(&pod.metadata.namespace, owner).await?,
            };
            let (uid, n) = found.ok_or_else(|| format!("found no controllers for pod {:?}", pod.metadata.name))?;
            scales.insert(uid, n);
        }
        Ok((scales.values().fold(0, |sum, n| sum.saturating_add(*n)), unmanaged))
    }

    /// Returns the owner's UID and scale for kinds that are watched.
    fn known_scale(&self, pod: &PodView, owner: &OwnerReference) -> Option<(String, i32)> {
        if let Some(key) = controller_key::<ReplicationControllerView>(&pod.metadata) {
            let rc = self.replication.get(&key).filter(|rc| rc.metadata.uid == owner.uid)?;
            return Some((rc.metadata.uid.clone(), rc.spec.replicas.unwrap_or(1)));
        }
        let key = controller_key::<ReplicaSetView>(&pod.metadata)?;
        let set = self.sets.get(&key).filter(|s| s.metadata.uid == owner.uid)?;
        match controller_key::<DeploymentView>(&set.metadata) {
            // The replica sets of a deployment change, but its scale is one number.
            Some(key) => {
                let d = self.deployments.get(&key)?;
                let owns = set.metadata.controller().is_some_and(|o| o.uid == d.metadata.uid);
                owns.then(|| (d.metadata.uid.clone(), d.spec.replicas.unwrap_or(1)))
            }
            None => Some((set.metadata.uid.clone(), set.spec.replicas.unwrap_or(1))),
        }
    }

    /// Returns the scale of any other kind through its scale subresource.
    async fn any_scale(&self, namespace: &str, owner: &OwnerReference) -> Result<Option<(String, i32)>, String> {
        let (api_version, kind, name) = (owner.api_version.as_str(), owner.kind.as_str(), owner.name.as_str());
        if (api_version, kind) == ("apps/v1", "ReplicaSet") || (api_version, kind) == ("v1", "ReplicationController") {
            return Ok(None);
        }
        let scale = self.scales.get(Target { api_version, kind, namespace, name }).await.map_err(|e| e.to_string())?;
        let same = scale.filter(|s| s.metadata.uid == owner.uid);
        Ok(same.map(|s| (owner.uid.clone(), s.spec.replicas)))
    }

    async fn write(&self, key: &ObjectKey, b: &BudgetView, status: BudgetStatus) -> Result<(), SyncError> {
        if status == b.status {
            return Ok(());
        }
        let tree = serde_json::to_value(&status).map_err(|e| SyncError::Other(e.to_string()))?;
        let seen = b.resource_version();
        // On the version that was read, so that a concurrent eviction is not overwritten.
        update_value::<BudgetView>(&self.client, &key.namespace, &key.name, "status", seen, |v| v["status"] = tree)
            .await?;
        Ok(())
    }

    /// Removes a stale `DisruptionTarget` condition.
    async fn sync_target(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(pod) = self.pods.get(key) else { return Ok(()) };
        let now = self.ctx.clock.now();
        match budget::until_stale(&pod, now) {
            None => return Ok(()),
            Some(wait) if !wait.is_zero() => {
                self.targets.add_after(key.clone(), wait);
                return Ok(());
            }
            Some(_) => {}
        }
        let condition = json!({"type": "DisruptionTarget", "status": "False", "reason": Value::Null,
            "message": Value::Null, "lastTransitionTime": format_seconds(now),
            "observedGeneration": pod.metadata.generation});
        let m = &pod.metadata;
        let patch = json!({"metadata": {"uid": m.uid, "resourceVersion": m.resource_version},
            "status": {"conditions": [condition]}});
        let options = WriteOptions::default();
        match self
            .client
            .patch::<PodView>(&m.namespace, &m.name, "status", PatchKind::Strategic, &patch, &options)
            .await
        {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
