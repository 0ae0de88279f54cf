//! Garbage collection by owner references: background, foreground and orphan. Upstream
//! `pkg/controller/garbagecollector`. `graph` knows who owns whom, `monitors` feeds it; this file decides about one
//! object at a time, always on its live state.
mod graph;
mod monitors;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use kelson_client::{
    Client, ClientError, DeleteOptions, EventRecorder, EventType, METADATA_ONLY, ObjectRef, PropagationPolicy,
    WorkQueue,
};
use kelson_meta::{ObjectMeta, OwnerReference};
use serde::Deserialize;
use serde_json::{Value, json};

use self::graph::{FOREGROUND, ORPHAN, Work};
use self::monitors::Monitors;
use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::discovery::{ApiResource, discover};
use crate::views::uid_number;

/// Changes of definitions come in bursts; discovery is read once after this.
const REFRESH_DELAY: Duration = Duration::from_secs(1);
/// Discovery is tried again after this when it failed.
const DISCOVERY_RETRY: Duration = Duration::from_secs(10);

/// One thing to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    /// An object that may have to go.
    Delete(u128),
    /// An owner whose dependents are to stay.
    Orphan(u128),
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, uid) = match self {
            Self::Delete(u) => ("delete", u),
            Self::Orphan(u) => ("orphan", u),
        };
        write!(f, "{what}/{uid:032x}")
    }
}

struct GarbageCollector {
    client: Client,
    recorder: EventRecorder,
    monitors: Monitors,
    queue: WorkQueue<Task>,
    /// Workers have been started: once, after all kinds were read.
    working: AtomicBool,
}

/// A live object's metadata.
#[derive(Clone, Debug, Deserialize)]
struct Live {
    metadata: ObjectMeta,
}

/// Starts the garbage collector.
pub fn start(ctx: &Arc<Context>) {
    if !ctx.config.collects_garbage {
        return;
    }
    let client = ctx.client();
    let queue: WorkQueue<Task> = WorkQueue::default();
    let q = queue.clone();
    let on_work = Arc::new(move |work: Work| {
        work.delete.into_iter().for_each(|u| q.add(Task::Delete(u)));
        work.orphan.into_iter().for_each(|u| q.add(Task::Orphan(u)));
    });
    let me = Arc::new(GarbageCollector {
        recorder: ctx.recorder(&client, "garbage-collector-controller"),
        monitors: Monitors::new(client.clone(), ctx.tasks.clone(), on_work),
        client,
        queue,
        working: AtomicBool::new(false),
    });
    let c = Arc::clone(ctx);
    ctx.tasks.supervise("garbage monitors", move || Arc::clone(&me).follow_discovery(Arc::clone(&c)));
}

impl GarbageCollector {
    async fn follow_discovery(self: Arc<Self>, ctx: Arc<Context>) {
        loop {
            let partial = match discover(&self.client).await {
                Ok(found) => {
                    for (gv, why) in &found.failed {
                        tracing::warn!(group_version = %gv, error = %why, "kind not collected: discovery failed");
                    }
                    // Kinds of a group that cannot be read now are not gone: only a full answer ends watches.
                    if found.failed.is_empty() || !self.working.load(Ordering::Relaxed) {
                        self.monitors.follow(&found.resources);
                    }
                    !found.failed.is_empty()
                }
                Err(e) => {
                    tracing::warn!(error = %e, "discovery failed, will try again");
                    tokio::time::sleep(DISCOVERY_RETRY).await;
                    continue;
                }
            };
            if !self.working.load(Ordering::Relaxed) {
                // Before all owners and dependents are known nothing may be judged.
                self.monitors.synced().await;
                self.working.store(true, Ordering::Relaxed);
                let me = Arc::clone(&self);
                ctx.run_queue(&self.queue, WORKERS, move |task| {
                    let me = Arc::clone(&me);
                    async move {
                        match task {
                            Task::Delete(uid) => me.consider(uid).await,
                            Task::Orphan(uid) => me.orphan(uid).await,
                        }
                    }
                });
            }
            if partial {
                // What could not be read is not watched yet, and nothing else would say that it can be read again.
                tokio::time::sleep(DISCOVERY_RETRY).await;
            } else {
                self.monitors.refresh.notified().await;
                tokio::time::sleep(REFRESH_DELAY).await;
            }
        }
    }

    async fn live(&self, path: &str) -> Result<Option<Live>, ClientError> {
        let answer = self.client.raw_accepting(Method::GET, path, "", METADATA_ONLY, Bytes::new()).await?;
        match Client::read(answer).await {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map(Some).map_err(|e| ClientError::Decode(format!("{path}: {e}")))
            }
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The path of a known object, and its resource.
    fn place(&self, uid: u128) -> Option<(String, Arc<ApiResource>)> {
        let (number, namespace, name) = {
            let g = self.monitors.graph.lock();
            let n = g.get(uid)?;
            (n.resource, n.namespace.clone(), n.name.clone())
        };
        let r = self.monitors.resources.lock().get(number)?;
        Some((r.object_path(&namespace, &name), r))
    }

    /// Deletes an object none of whose owners is left, or that its owner waits for.
    async fn consider(&self, uid: u128) -> Result<(), SyncError> {
        let Some((path, resource)) = self.place(uid) else { return Ok(()) };
        let Some(live) = self.live(&path).await?.filter(|l| uid_number(&l.metadata.uid) == uid) else { return Ok(()) };
        let meta = &live.metadata;
        let waits = meta.finalizers.iter().any(|f| f == FOREGROUND);
        if meta.is_deleting() {
            return if waits { self.wait_for_dependents(uid, &path, meta).await } else { Ok(()) };
        }
        if meta.owner_references.is_empty() {
            return Ok(());
        }
        let (mut solid, mut dangling, mut waiting) = (0, Vec::new(), Vec::new());
        for owner in &meta.owner_references {
            match self.judge(owner, meta, &resource).await? {
                Owner::Solid => solid += 1,
                Owner::Absent => dangling.push(owner.uid.as_str()),
                Owner::Waiting => waiting.push(owner.uid.as_str()),
            }
        }
        if solid > 0 {
            dangling.extend(waiting);
            return self.drop_owners(&path, meta, &dangling).await;
        }
        let dependents = self.monitors.graph.lock().dependents_of(uid);
        let policy = if !waiting.is_empty() && !dependents.is_empty() {
            self.break_circle(&path, meta, &dependents).await?;
            PropagationPolicy::Foreground
        } else if meta.finalizers.iter().any(|f| f == ORPHAN) {
            PropagationPolicy::Orphan
        } else if waits {
            PropagationPolicy::Foreground
        } else {
            PropagationPolicy::Background
        };
        self.delete(&path, meta, policy).await
    }

    /// A foreground deletion of an object whose dependents are going the same way could wait for itself for ever: then
    /// it stops blocking its owners.
    async fn break_circle(&self, path: &str, meta: &ObjectMeta, dependents: &[u128]) -> Result<(), SyncError> {
        let circular = {
            let g = self.monitors.graph.lock();
            dependents.iter().any(|d| g.get(*d).is_some_and(|n| n.foreground))
        };
        let blocks = meta.owner_references.iter().any(|o| o.block_owner_deletion == Some(true));
        if !circular || !blocks {
            return Ok(());
        }
        let owners: Vec<OwnerReference> = meta
            .owner_references
            .iter()
            .map(|o| OwnerReference { block_owner_deletion: Some(false), ..o.clone() })
            .collect();
        self.patch_meta(path, meta, json!({"ownerReferences": owners})).await
    }

    async fn wait_for_dependents(&self, uid: u128, path: &str, meta: &ObjectMeta) -> Result<(), SyncError> {
        let blocking = self.monitors.graph.lock().blocking(uid);
        if blocking.is_empty() {
            return self.remove_finalizer(path, meta, FOREGROUND).await;
        }
        for d in blocking {
            let already = self.monitors.graph.lock().get(d).is_none_or(|n| n.deleting);
            if !already {
                self.queue.add(Task::Delete(d));
            }
        }
        Ok(())
    }

    /// Whether an owner is there. The graph's word is enough for yes; no is asked of the API.
    async fn judge(
        &self,
        owner: &OwnerReference,
        of: &ObjectMeta,
        of_resource: &ApiResource,
    ) -> Result<Owner, SyncError> {
        let Some(resource) = self.monitors.resources.lock().of_kind(&owner.api_version, &owner.kind) else {
            self.monitors.refresh.notify_one();
            let (kind, version) = (&owner.kind, &owner.api_version);
            return Err(SyncError::Other(format!("no matches for kind {kind:?} in version {version:?}")));
        };
        if resource.namespaced && of.namespace.is_empty() {
            // Which namespace is meant nobody can say: such an object is never collected (kubernetes#92743).
            self.tell_invalid(owner, of, of_resource);
            return Ok(Owner::Solid);
        }
        let uid = uid_number(&owner.uid);
        let namespace = if resource.namespaced { of.namespace.as_str() } else { "" };
        let known = {
            let g = self.monitors.graph.lock();
            g.get(uid).map(|n| {
                let same_place = *n.name == *owner.name && *n.namespace == *namespace;
                (same_place, n.foreground)
            })
        };
        match known {
            Some((true, true)) => return Ok(Owner::Waiting),
            Some((true, false)) => return Ok(Owner::Solid),
            // The UID is somewhere else than the reference says.
            Some((false, _)) => self.tell_invalid(owner, of, of_resource),
            None => {}
        }
        let path = resource.object_path(namespace, &owner.name);
        Ok(match self.live(&path).await? {
            Some(l) if l.metadata.uid == owner.uid => {
                let waits = l.metadata.is_deleting() && l.metadata.finalizers.iter().any(|f| f == FOREGROUND);
                if waits { Owner::Waiting } else { Owner::Solid }
            }
            _ => Owner::Absent,
        })
    }

    fn tell_invalid(&self, owner: &OwnerReference, of: &ObjectMeta, resource: &ApiResource) {
        let gv = if resource.group.is_empty() {
            resource.version.clone()
        } else {
            format!("{}/{}", resource.group, resource.version)
        };
        let about = ObjectRef {
            api_version: gv,
            kind: resource.kind.clone(),
            namespace: of.namespace.clone(),
            name: of.name.clone(),
            uid: of.uid.clone(),
            ..ObjectRef::default()
        };
        let which = format!("[{}/{}, name: {}, uid: {}]", owner.api_version, owner.kind, owner.name, owner.uid);
        let message = format!("ownerRef {which} does not exist in namespace {:?}", of.namespace);
        self.recorder.event(&about, EventType::Warning, "OwnerRefInvalidNamespace", message);
    }

    /// Lets go of all dependents, then of the owner.
    async fn orphan(&self, uid: u128) -> Result<(), SyncError> {
        let Some((path, _)) = self.place(uid) else { return Ok(()) };
        let dependents = self.monitors.graph.lock().dependents_of(uid);
        for d in dependents {
            let Some((path, _)) = self.place(d) else { continue };
            let Some(live) = self.live(&path).await?.filter(|l| uid_number(&l.metadata.uid) == d) else { continue };
            let owners = &live.metadata.owner_references;
            let gone: Vec<&str> = owners.iter().map(|o| o.uid.as_str()).filter(|u| uid_number(u) == uid).collect();
            self.drop_owners(&path, &live.metadata, &gone).await?;
        }
        let Some(live) = self.live(&path).await?.filter(|l| uid_number(&l.metadata.uid) == uid) else { return Ok(()) };
        self.remove_finalizer(&path, &live.metadata, ORPHAN).await
    }

    async fn drop_owners(&self, path: &str, meta: &ObjectMeta, gone: &[&str]) -> Result<(), SyncError> {
        if gone.is_empty() {
            return Ok(());
        }
        let rest: Vec<&OwnerReference> =
            meta.owner_references.iter().filter(|o| !gone.contains(&o.uid.as_str())).collect();
        self.patch_meta(path, meta, json!({"ownerReferences": rest})).await
    }

    async fn remove_finalizer(&self, path: &str, meta: &ObjectMeta, name: &str) -> Result<(), SyncError> {
        if !meta.finalizers.iter().any(|f| f == name) {
            return Ok(());
        }
        let rest: Vec<&String> = meta.finalizers.iter().filter(|f| *f != name).collect();
        self.patch_meta(path, meta, json!({"finalizers": rest})).await
    }

    /// Patches metadata, only as it was read: a conflict comes back as an error and is tried again on fresh state.
    async fn patch_meta(&self, path: &str, meta: &ObjectMeta, mut change: Value) -> Result<(), SyncError> {
        change["uid"] = json!(meta.uid);
        change["resourceVersion"] = json!(meta.resource_version);
        let body = Bytes::from(json!({"metadata": change}).to_string());
        match self.client.call(Method::PATCH, path, "application/merge-patch+json", body).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }

    async fn delete(&self, path: &str, meta: &ObjectMeta, policy: PropagationPolicy) -> Result<(), SyncError> {
        let mut options = DeleteOptions::default().with_uid(&meta.uid).with_propagation(policy);
        // The judgement holds for the owners as they were read.
        if let Some(p) = options.preconditions.as_mut() {
            p.resource_version = Some(meta.resource_version.clone());
        }
        let body = Bytes::from(serde_json::to_vec(&options).unwrap_or_default());
        match self.client.call(Method::DELETE, path, "application/json", body).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }
}

/// What an owner reference leads to.
enum Owner {
    /// An object that stays.
    Solid,
    Absent,
    /// An object that goes after its dependents.
    Waiting,
}

#[cfg(test)]
mod tests;
