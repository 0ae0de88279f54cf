//! The one writer of pod statuses: newest state per pod, only what changed, one request per pod at a time, retried.
//! (upstream: `pkg/kubelet/status/status_manager.go`)
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kelson_client::{Client, ClientError, PatchKind, ResourceType, WriteOptions, slim_object};
use kelson_meta::{Backoff, ObjectMeta};
use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::conditions::OWNED;
use crate::metrics::Metrics;
use crate::pod;

/// Pauses after failed writes.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// Between looks that nothing asked for.
const LOOK: Duration = Duration::from_secs(60);
/// Writes under way at once.
const PARALLEL_MAX: usize = 8;

/// What is read of the answer to a write.
#[derive(Deserialize)]
struct Written {
    metadata: ObjectMeta,
}
slim_object!(Written, ResourceType::namespaced("", "v1", "pods", "Pod"));

/// Takes statuses and writes them; cheap to clone.
#[derive(Clone)]
pub struct StatusWriter {
    shared: Arc<SharedStatus>,
}

struct SharedStatus {
    client: Client,
    pods: Mutex<HashMap<String, StatusEntry>>,
    /// UIDs of mirror pods, by those of the static pods they show.
    mirrors: Mutex<HashMap<String, String>>,
    wake: Notify,
    slots: tokio::sync::Semaphore,
    metrics: Arc<Metrics>,
}

struct StatusEntry {
    namespace: String,
    name: String,
    /// What the API is known to have.
    sent: StatusText,
    /// The revision at which it had that.
    revision: u64,
    wanted: Option<StatusText>,
    /// Since when something is wanted that the API has not.
    since: Option<Instant>,
    /// What was last set.
    last: StatusText,
    /// Written to its mirror pod, and not before there is one.
    is_static: bool,
    busy: bool,
    done: Arc<Notify>,
}

/// A status as its JSON, empty before there is one. It is kept for every pod, and a tree of it takes ten times the room.
#[derive(Clone, Default, PartialEq)]
struct StatusText(Arc<str>);

impl StatusText {
    fn of(status: &PodStatus) -> Self {
        Self(serde_json::to_string(status).unwrap_or_default().into())
    }

    fn tree(&self) -> Map<String, Value> {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// See [`difference`].
    fn difference(&self, to: &Self) -> Option<BTreeMap<String, Value>> {
        if self == to { None } else { difference(&self.tree(), &to.tree()) }
    }
}

impl StatusEntry {
    fn free(&mut self) {
        self.busy = false;
        self.done.notify_waiters();
    }
}

impl StatusWriter {
    /// Starts the writer in a group of tasks.
    pub fn start(client: Client, tasks: &Tasks, metrics: Arc<Metrics>) -> Self {
        let shared = Arc::new(SharedStatus {
            client,
            pods: Mutex::default(),
            mirrors: Mutex::default(),
            wake: Notify::new(),
            slots: tokio::sync::Semaphore::new(PARALLEL_MAX),
            metrics,
        });
        let (own, group) = (Arc::clone(&shared), tasks.clone());
        tasks.supervise("pod-statuses", move || start_writes(Arc::clone(&own), group.clone()));
        Self { shared }
    }

    /// Sets what the pod's status is to be. Nothing happens if the API has it already.
    pub fn set(&self, pod: &Pod, status: &PodStatus) {
        let wanted = StatusText::of(status);
        let is_static = pod::is_static(pod);
        let mut pods = self.shared.pods.lock();
        let entry = pods.entry(pod::uid(pod).to_owned()).or_insert_with(|| StatusEntry {
            namespace: pod::namespace(pod).to_owned(),
            name: pod::name(pod).to_owned(),
            // The status in a static pod is this kubelet's own; the API has not confirmed it.
            sent: pod.status.as_ref().filter(|_| !is_static).map(StatusText::of).unwrap_or_default(),
            revision: if is_static { 0 } else { revision(pod) },
            wanted: None,
            since: None,
            last: StatusText::default(),
            is_static,
            busy: false,
            done: Arc::default(),
        });
        entry.last.clone_from(&wanted);
        entry.wanted = entry.sent.difference(&wanted).is_some().then_some(wanted);
        if entry.wanted.is_some() {
            entry.since.get_or_insert_with(Instant::now);
            self.shared.wake.notify_one();
        }
    }

    /// The API has this of the pod. Somebody else may have changed what this writer keeps, or a write may have been carried
    /// out whose answer was lost: what was last set is written again where it differs.
    pub fn seen(&self, pod: &Pod) {
        let mut pods = self.shared.pods.lock();
        let Some(entry) = pods.get_mut(pod::uid(pod)).filter(|e| !e.is_static) else { return };
        // An event from before the last write says nothing of what is there now.
        if revision(pod) < entry.revision {
            return;
        }
        entry.revision = revision(pod);
        entry.sent = pod.status.as_ref().map(StatusText::of).unwrap_or_default();
        entry.wanted = entry.sent.difference(&entry.last).is_some().then(|| entry.last.clone());
        if entry.wanted.is_some() {
            self.shared.wake.notify_one();
        }
    }

    /// Waits until everything set for the pod has been written, or `limit` has passed.
    pub async fn flushed(&self, uid: &str, limit: Duration) -> bool {
        let wait = async {
            loop {
                let done = {
                    let pods = self.shared.pods.lock();
                    match pods.get(uid) {
                        Some(e) if e.is_static => return,
                        Some(e) if e.wanted.is_some() || e.busy => Arc::clone(&e.done),
                        _ => return,
                    }
                };
                let notified = done.notified();
                if self.shared.pods.lock().get(uid).is_none_or(|e| e.wanted.is_none() && !e.busy) {
                    return;
                }
                // A short limit covers a wake-up between the check and the wait.
                let _ = tokio::time::timeout(Duration::from_millis(500), notified).await;
            }
        };
        tokio::time::timeout(limit, wait).await.is_ok()
    }

    /// Tells which mirror pod shows a static pod; a new one gets the status whole.
    pub fn mirrored(&self, uid: &str, mirror: Option<String>) {
        let before = match mirror.clone() {
            Some(m) => self.shared.mirrors.lock().insert(uid.to_owned(), m),
            None => self.shared.mirrors.lock().remove(uid),
        };
        if mirror.is_none() || before == mirror {
            return;
        }
        if let Some(e) = self.shared.pods.lock().get_mut(uid) {
            e.sent = StatusText::default();
            e.wanted = Some(e.last.clone()).filter(|last| !last.0.is_empty());
        }
        self.shared.wake.notify_one();
    }

    /// The UID of the mirror pod that shows a static pod in the API; none when there is none for the moment.
    pub fn mirror_of(&self, uid: &str) -> Option<String> {
        self.shared.mirrors.lock().get(uid).cloned()
    }

    /// Forgets a pod that is gone.
    pub fn forget(&self, uid: &str) {
        self.shared.pods.lock().remove(uid);
        self.shared.mirrors.lock().remove(uid);
    }
}

impl SharedStatus {
    fn due(&self) -> Vec<String> {
        let mut out = Vec::new();
        let mirrors = self.mirrors.lock().clone();
        for (uid, e) in self.pods.lock().iter_mut() {
            if e.wanted.is_some() && !e.busy && (!e.is_static || mirrors.contains_key(uid)) {
                e.busy = true;
                out.push(uid.clone());
            }
        }
        out
    }
}

/// Starts a task for each pod that has something to be written and none that writes it.
async fn start_writes(shared: Arc<SharedStatus>, tasks: Tasks) {
    loop {
        for uid in shared.due() {
            tasks.spawn("pod-status", OnPanic::Contain, write(Arc::clone(&shared), uid));
        }
        // The net for a wake-up that was lost with a panic.
        let _ = tokio::time::timeout(LOOK, shared.wake.notified()).await;
    }
}

/// The removal of conditions of the kubelet's own that hold no more.
fn ended<'a>(before: &'a [Value], now: &'a [Value]) -> impl Iterator<Item = Value> + 'a {
    let own = |c: &&Value| OWNED.contains(&c["type"].as_str().unwrap_or_default());
    let gone = before.iter().filter(own).filter(|c| now.iter().all(|n| n["type"] != c["type"]));
    gone.map(|c| json!({"$patch": "delete", "type": c["type"]}))
}

/// Lets go of a pod's turn however its task ends, so that the next change finds it free.
struct Turn {
    shared: Arc<SharedStatus>,
    uid: String,
    held: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.held
            && let Some(e) = self.shared.pods.lock().get_mut(&self.uid)
        {
            e.free();
        }
    }
}

async fn write(shared: Arc<SharedStatus>, uid: String) {
    let mut turn = Turn { shared: Arc::clone(&shared), uid: uid.clone(), held: true };
    let mut delay = RETRY.base;
    loop {
        let Ok(slot) = shared.slots.acquire().await else { return };
        let (namespace, name, sent, wanted) = {
            let mut pods = shared.pods.lock();
            let Some(e) = pods.get_mut(&uid) else { break };
            let Some(wanted) = e.wanted.clone() else {
                // Under the lock that `set` takes: what is set from now on starts a task of its own.
                e.free();
                turn.held = false;
                break;
            };
            (e.namespace.clone(), e.name.clone(), e.sent.clone(), wanted)
        };
        let Some(change) = sent.difference(&wanted) else {
            settle(&shared, &uid, wanted, 0);
            continue;
        };
        let object = shared.mirrors.lock().get(&uid).cloned().unwrap_or_else(|| uid.clone());
        let patch = json!({"metadata": {"uid": &object}, "status": change});
        let options = WriteOptions::default();
        let answer =
            shared.client.patch_and_read(&namespace, &name, "status", PatchKind::Strategic, &patch, &options).await;
        match answer {
            Ok(Written { metadata }) => {
                settle(&shared, &uid, wanted, metadata.resource_version.parse().unwrap_or(0));
                delay = RETRY.base;
            }
            Err(e) if is_gone(&shared.client, &namespace, &name, &object, &e).await => {
                // Deleted, or another pod has the name: the status has no reader any more.
                settle(&shared, &uid, wanted, 0);
            }
            Err(e) if is_invalid(&e) => {
                // The same status would be refused again; the next change of it is tried.
                tracing::error!(pod = %name, %namespace, error = %e, "the API server refuses the pod's status as invalid");
                give_up(&shared, &uid, &wanted);
            }
            Err(e) => {
                tracing::debug!(pod = %name, error = %e, "pod status not written");
                drop(slot);
                tokio::time::sleep(delay).await;
                delay = RETRY.after(Some(delay));
            }
        }
    }
}

/// Whether there is no such pod any more: none of the name, or one with another UID. A conflict alone does not say so,
/// and is looked into.
async fn is_gone(client: &Client, namespace: &str, name: &str, uid: &str, e: &ClientError) -> bool {
    match e.status().map(|s| s.code) {
        Some(404 | 410) => true,
        Some(409) => {
            let now = client.get_opt::<Pod>(namespace, name).await;
            now.is_ok_and(|pod| pod.is_none_or(|pod| pod::uid(&pod) != uid))
        }
        _ => false,
    }
}

fn is_invalid(e: &ClientError) -> bool {
    e.status().is_some_and(|s| s.code == 422)
}

/// Leaves a refused status unwritten; what the API has stays what it is compared with.
fn give_up(shared: &SharedStatus, uid: &str, refused: &StatusText) {
    if let Some(e) = shared.pods.lock().get_mut(uid)
        && e.wanted.as_ref() == Some(refused)
    {
        e.wanted = None;
    }
}

/// The API has this now, at a revision (0: unknown). What was set meanwhile may be another, even one that it had before.
fn settle(shared: &SharedStatus, uid: &str, written: StatusText, revision: u64) {
    let mut pods = shared.pods.lock();
    let Some(e) = pods.get_mut(uid) else { return };
    e.revision = e.revision.max(revision);
    e.wanted = written.difference(&e.last).is_some().then(|| e.last.clone());
    e.sent = written;
    if e.wanted.is_none()
        && let Some(since) = e.since.take()
        && revision > 0
    {
        shared.metrics.lives().status_written(since.elapsed());
    }
    e.done.notify_waiters();
}

/// The revision of an object, 0 where it has none. Revisions of one resource can be compared (`k8s.io/apimachinery/pkg/util/resourceversion`).
fn revision(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// A condition to merge over the one there is: what that has and this has not must go, or the merge would keep it.
fn without_leftovers(before: &[Value], condition: &Value) -> Value {
    let mut out = condition.clone();
    let old = before.iter().find(|o| o["type"] == condition["type"]).and_then(Value::as_object);
    if let (Some(old), Some(new)) = (old, out.as_object_mut()) {
        for key in old.keys().filter(|k| *k != "lastProbeTime") {
            new.entry(key.clone()).or_insert(Value::Null);
        }
    }
    out
}

/// What makes one tree into another where it is merged into it: members that are to go are named too.
fn changed(from: Option<&Value>, to: &Value) -> Value {
    let (Some(Value::Object(from)), Value::Object(to)) = (from, to) else { return to.clone() };
    let mut out: Map<String, Value> =
        from.keys().filter(|k| !to.contains_key(*k)).map(|k| (k.clone(), Value::Null)).collect();
    let differ = to.iter().filter(|(k, v)| from.get(*k) != Some(*v));
    out.extend(differ.map(|(k, v)| (k.clone(), changed(from.get(k), v))));
    Value::Object(out)
}

/// The strategic merge patch from one status to another; `None` when equal. Fields that only others write are left out;
/// conditions are merged by type, so that those of others stay.
pub fn difference(from: &Map<String, Value>, to: &Map<String, Value>) -> Option<BTreeMap<String, Value>> {
    let mut out = BTreeMap::new();
    for (k, v) in to {
        if from.get(k) == Some(v) {
            continue;
        }
        if k == "conditions" {
            let before = from.get(k).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let changed = v.as_array().into_iter().flatten();
            let changed =
                changed.filter(|c| OWNED.contains(&c["type"].as_str().unwrap_or_default()) && !before.contains(c));
            let mut ours: Vec<Value> = changed.map(|c| without_leftovers(before, c)).collect();
            ours.extend(ended(before, v.as_array().map(Vec::as_slice).unwrap_or_default()));
            if !ours.is_empty() {
                out.insert(k.clone(), json!(ours));
            }
        } else if k == "podIPs" && from.contains_key(k) {
            // Merged by address: without the directive the old one would stay beside the new.
            let mut list = vec![json!({"$patch": "replace"})];
            list.extend(v.as_array().into_iter().flatten().cloned());
            out.insert(k.clone(), Value::Array(list));
        } else if matches!(k.as_str(), "resources" | "allocatedResources") {
            out.insert(k.clone(), changed(from.get(k), v));
        } else {
            out.insert(k.clone(), v.clone());
        }
    }
    for k in [
        "initContainerStatuses",
        "containerStatuses",
        "ephemeralContainerStatuses",
        "podIP",
        "podIPs",
        "allocatedResources",
        "reason",
        "message",
    ] {
        if from.contains_key(k) && !to.contains_key(k) {
            out.insert(k.to_owned(), Value::Null);
        }
    }
    (!out.is_empty()).then_some(out)
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
