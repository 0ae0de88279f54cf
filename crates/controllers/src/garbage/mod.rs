//! Garbage collection by owner references: background, foreground and orphan. Upstream
//! `pkg/controller/garbagecollector`. `graph` has the ownership of all objects and `monitors` feeds it. This file
//! decides about one object at a time, always on its live state.
mod graph;
mod monitors;
mod objects;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use kelson_client::{Client, DeleteOptions, EventRecorder, EventType, ObjectRef, PropagationPolicy, WorkQueue};
use kelson_meta::{ObjectMeta, OwnerReference};
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::graph::{FOREGROUND, ORPHAN, Work, coordinates};
use self::monitors::Monitors;
use self::objects::{Lookup, Objects};
use crate::shared::context::{Context, SyncError};
use crate::shared::discovery::{ApiResource, discover};
use crate::views::uid_number;

/// The delay between a change of definitions and discovery, as changes come in bursts.
const REFRESH_DELAY: Duration = Duration::from_secs(1);
/// The delay before failed discovery is retried.
const DISCOVERY_RETRY: Duration = Duration::from_secs(10);

/// The maximum wait for the initial lists of all kinds. Kinds that cannot be listed by then are added later. As
/// upstream.
const INITIAL_SYNC_MAX: Duration = Duration::from_secs(30);
/// The number of concurrent workers (upstream's `--concurrent-gc-syncs`).
const GC_WORKERS: usize = 20;

/// The maximum number of unserved owner kinds that are logged.
const UNKNOWN_KINDS_MAX: usize = 1000;

/// A key of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    /// An object that may have to be deleted.
    Delete(u128),
    /// An owner whose dependents must be orphaned.
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
    objects: Objects,
    recorder: EventRecorder,
    monitors: Monitors,
    queue: WorkQueue<Task>,
    /// Versions and kinds of owners that are not served and have been logged.
    unknown_kinds: Mutex<HashSet<(String, String)>>,
    /// Whether the workers have been started, which happens once after the initial lists.
    working: AtomicBool,
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
        objects: Objects::new(client.clone()),
        client,
        queue,
        unknown_kinds: Mutex::default(),
        working: AtomicBool::new(false),
    });
    let c = Arc::clone(ctx);
    ctx.tasks.supervise("garbage monitors", move || Arc::clone(&me).follow_discovery(Arc::clone(&c)));
}

impl GarbageCollector {
    async fn follow_discovery(self: Arc<Self>, ctx: Arc<Context>) {
        loop {
            let complete = match discover(&self.client).await {
                Ok(found) => {
                    for (gv, why) in &found.failed {
                        tracing::warn!(group_version = %gv, error = %why, "discovery failed; not collecting garbage of this group version");
                    }
                    self.monitors.follow(&found);
                    found.failed.is_empty()
                }
                Err(e) => {
                    tracing::warn!(error = %e, "discovery failed; retrying");
                    tokio::time::sleep(DISCOVERY_RETRY).await;
                    continue;
                }
            };
            if !self.working.load(Ordering::Relaxed) {
                self.start_working(&ctx).await;
            }
            let refresh = self.monitors.refresh.notified();
            if complete {
                refresh.await;
            } else {
                // A group whose discovery failed is not watched, so nothing else reports that it is available again.
                let _ = tokio::time::timeout(DISCOVERY_RETRY, refresh).await;
            }
            tokio::time::sleep(REFRESH_DELAY).await;
        }
    }

    /// Starts the workers after the initial lists of all kinds that can be listed. The API server is asked about
    /// unknown owners, so kinds that are added later do not change decisions.
    async fn start_working(self: &Arc<Self>, ctx: &Arc<Context>) {
        if tokio::time::timeout(INITIAL_SYNC_MAX, self.monitors.synced()).await.is_err() {
            let kinds = self.monitors.unsynced();
            tracing::warn!(?kinds, "listing these kinds failed; collecting garbage of the others");
        }
        self.working.store(true, Ordering::Relaxed);
        let me = Arc::clone(self);
        ctx.run_queue(&self.queue, GC_WORKERS, move |task| {
            let me = Arc::clone(&me);
            async move {
                match task {
                    Task::Delete(uid) => me.consider(uid).await,
                    Task::Orphan(uid) => me.orphan(uid).await,
                }
            }
        });
    }

    /// Returns the live metadata of a known object, or `None` if it does not exist.
    async fn live(&self, place: &Location, uid: u128) -> Result<Option<ObjectMeta>, SyncError> {
        Ok(match self.objects.get(&place.resource, &place.namespace, &place.name).await? {
            Lookup::Object(meta) if uid_number(&meta.uid) == uid => Some(*meta),
            Lookup::Object(_) | Lookup::Absent | Lookup::Unserved => None,
        })
    }

    /// Returns the location of a known object.
    fn place(&self, uid: u128) -> Option<Location> {
        let (number, namespace, name) = {
            let g = self.monitors.graph.lock();
            let n = g.get(uid)?;
            (n.resource, n.namespace.clone(), n.name.clone())
        };
        let resource = self.monitors.resources.lock().get(number)?;
        Some(Location { path: resource.object_path(&namespace, &name), resource, namespace, name })
    }

    /// Deletes an object if none of its owners exists, or if its owner's deletion waits for it.
    async fn consider(&self, uid: u128) -> Result<(), SyncError> {
        let Some(place) = self.place(uid) else { return Ok(()) };
        let Some(meta) = self.live(&place, uid).await? else { return Ok(()) };
        let (meta, path) = (&meta, &place.path);
        let waits = meta.finalizers.iter().any(|f| f == FOREGROUND);
        if meta.is_deleting() {
            return if waits { self.wait_for_dependents(uid, path, meta).await } else { Ok(()) };
        }
        if meta.owner_references.is_empty() {
            return Ok(());
        }
        let (mut solid, mut dangling, mut waiting) = (0, Vec::new(), Vec::new());
        for owner in &meta.owner_references {
            match self.judge(owner, meta, &place).await? {
                Verdict::Solid => solid += 1,
                Verdict::Absent => dangling.push(owner.uid.as_str()),
                Verdict::Waiting => waiting.push(owner.uid.as_str()),
            }
        }
        if solid > 0 {
            dangling.extend(waiting);
            return self.drop_owners(path, meta, &dangling).await;
        }
        let dependents = self.monitors.graph.lock().dependents_of(uid);
        let policy = if !waiting.is_empty() && !dependents.is_empty() {
            self.break_circle(path, meta, &dependents).await?;
            PropagationPolicy::Foreground
        } else if meta.finalizers.iter().any(|f| f == ORPHAN) {
            PropagationPolicy::Orphan
        } else if waits {
            PropagationPolicy::Foreground
        } else {
            PropagationPolicy::Background
        };
        self.delete(path, meta, policy).await
    }

    /// Stops an object from blocking its owners if its dependents are also in foreground deletion, since a cycle would
    /// otherwise never end.
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

    /// Returns whether an owner exists: the object with the reference's UID, group, kind and name, in the dependent's
    /// namespace or cluster-scoped. The graph decides if it has the owner or observed its deletion; otherwise the API
    /// server is asked.
    async fn judge(&self, owner: &OwnerReference, of: &ObjectMeta, place: &Location) -> Result<Verdict, SyncError> {
        let uid = uid_number(&owner.uid);
        if self.monitors.graph.lock().is_gone(uid) {
            return Ok(Verdict::Absent);
        }
        let Some(resource) = self.monitors.resources.lock().of_kind(&owner.api_version, &owner.kind) else {
            self.monitors.refresh.notify_one();
            return Err(self.unknown_kind(owner, &place.path));
        };
        if resource.namespaced && of.namespace.is_empty() {
            // A cluster-scoped object with a namespaced owner has an unknown owner namespace, so it is never collected
            // (kubernetes#92743).
            self.report_invalid(owner, of, &place.resource);
            return Ok(Verdict::Solid);
        }
        let namespace = if resource.namespaced { of.namespace.as_str() } else { "" };
        let known = self.monitors.graph.lock().get(uid).map(|n| {
            let named = coordinates(&resource.group, &resource.kind, &owner.name) == n.coordinates;
            (named && *n.namespace == *namespace, n.foreground, n.namespace.clone())
        });
        match known {
            Some((true, true, _)) => return Ok(Verdict::Waiting),
            Some((true, false, _)) => return Ok(Verdict::Solid),
            Some((false, _, elsewhere)) if !elsewhere.is_empty() && *elsewhere != *of.namespace => {
                self.report_invalid(owner, of, &place.resource);
            }
            Some((false, ..)) | None => {}
        }
        match self.objects.get(&resource, namespace, &owner.name).await? {
            Lookup::Object(live) if live.uid == owner.uid => {
                let waits = live.is_deleting() && live.finalizers.iter().any(|f| f == FOREGROUND);
                Ok(if waits { Verdict::Waiting } else { Verdict::Solid })
            }
            Lookup::Object(_) | Lookup::Absent => Ok(Verdict::Absent),
            // The version may have been removed while another one serves the objects.
            Lookup::Unserved if self.objects.is_served(&resource.group, &resource.kind).await? => {
                self.monitors.refresh.notify_one();
                Err(SyncError::Logged(format!("{} is no longer served, but its objects remain", resource.path(""))))
            }
            Lookup::Unserved => Ok(Verdict::Absent),
        }
    }

    /// Handles an owner of a kind that is not served. The dependent is retried, and the log has one line per kind.
    fn unknown_kind(&self, owner: &OwnerReference, path: &str) -> SyncError {
        let (kind, version) = (&owner.kind, &owner.api_version);
        let text = format!("no matches for kind {kind:?} in version {version:?}, which {path} names as an owner");
        let mut known = self.unknown_kinds.lock();
        if known.len() < UNKNOWN_KINDS_MAX && known.insert((version.clone(), kind.clone())) {
            return SyncError::Other(text);
        }
        SyncError::Logged(text)
    }

    fn report_invalid(&self, owner: &OwnerReference, of: &ObjectMeta, resource: &ApiResource) {
        let about = ObjectRef {
            api_version: resource.group_version(),
            kind: resource.kind.clone(),
            namespace: of.namespace.clone(),
            name: of.name.clone(),
            uid: of.uid.clone(),
            ..ObjectRef::default()
        };
        let OwnerReference { api_version, kind, name, uid, .. } = owner;
        let which = format!("[{api_version}/{kind}, namespace: {}, name: {name}, uid: {uid}]", of.namespace);
        let message = format!("ownerRef {which} does not exist in namespace {:?}", of.namespace);
        self.recorder.event(&about, EventType::Warning, "OwnerRefInvalidNamespace", message);
    }

    /// Removes the owner reference from all dependents, then the owner's finalizer.
    async fn orphan(&self, uid: u128) -> Result<(), SyncError> {
        let Some(place) = self.place(uid) else { return Ok(()) };
        let dependents = self.monitors.graph.lock().dependents_of(uid);
        for d in dependents {
            let Some(dependent) = self.place(d) else { continue };
            let Some(meta) = self.live(&dependent, d).await? else { continue };
            let owners = &meta.owner_references;
            let gone: Vec<&str> = owners.iter().map(|o| o.uid.as_str()).filter(|u| uid_number(u) == uid).collect();
            self.drop_owners(&dependent.path, &meta, &gone).await?;
        }
        let Some(meta) = self.live(&place, uid).await? else { return Ok(()) };
        self.remove_finalizer(&place.path, &meta, ORPHAN).await
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

    /// Patches metadata of the object as it was read. A conflict is an error and is retried with the live state.
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
        // The decision is valid only for the owners as they were read.
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

/// The location of an object.
struct Location {
    path: String,
    resource: Arc<ApiResource>,
    namespace: Box<str>,
    name: Box<str>,
}

/// The state of a referenced owner.
enum Verdict {
    /// The owner exists and is not waiting for its dependents.
    Solid,
    Absent,
    /// The owner's deletion waits for its dependents.
    Waiting,
}

#[cfg(test)]
mod tests;
