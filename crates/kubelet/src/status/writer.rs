//! Writes pod statuses to the API: only the newest state of each pod, only changed fields, one request per pod at a time, with retries
//! (upstream: `pkg/kubelet/status/status_manager.go`).
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

use super::conditions::{OWNED, SCHEDULED};
use crate::metrics::Metrics;
use crate::pod;

/// Delays after failed writes.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// Interval of checks without a wake-up.
const LOOK: Duration = Duration::from_secs(60);
/// Maximum number of concurrent writes.
const PARALLEL_MAX: usize = 8;

/// The fields that are read from the response.
#[derive(Deserialize)]
struct Written {
    metadata: ObjectMeta,
}
slim_object!(Written, ResourceType::namespaced("", "v1", "pods", "Pod"));

/// Receives statuses and writes them. Clones share the state.
#[derive(Clone)]
pub struct StatusWriter {
    shared: Arc<SharedStatus>,
}

struct SharedStatus {
    client: Client,
    pods: Mutex<HashMap<String, StatusEntry>>,
    /// UIDs of mirror pods, by UID of the static pod.
    mirrors: Mutex<HashMap<String, String>>,
    wake: Notify,
    slots: tokio::sync::Semaphore,
    metrics: Arc<Metrics>,
}

struct StatusEntry {
    namespace: String,
    name: String,
    /// Status that the API is known to have.
    sent: StatusText,
    /// The resourceVersion at which the API had it.
    revision: u64,
    wanted: Option<StatusText>,
    /// The time since which the API lacks the wanted status.
    since: Option<Instant>,
    /// Status that was set last.
    last: StatusText,
    /// Whether it is a static pod, whose status is written to its mirror pod as soon as that exists.
    is_static: bool,
    busy: bool,
    done: Arc<Notify>,
}

/// A status as JSON; empty if there is none. It is kept for every pod, and a tree would take ten times the memory.
#[derive(Clone, Default, PartialEq)]
struct StatusText(Arc<str>);

impl StatusText {
    fn of(status: &PodStatus) -> Self {
        Self(serde_json::to_string(status).unwrap_or_default().into())
    }

    fn tree(&self) -> Map<String, Value> {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// Computes the patch; see [`difference`].
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
    /// Starts the writer in a task group.
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

    /// Sets the status of a pod. Does nothing if the API already has it.
    pub fn set(&self, pod: &Pod, status: &PodStatus) {
        let wanted = StatusText::of(status);
        let is_static = pod::is_static(pod);
        let mut pods = self.shared.pods.lock();
        let entry = pods.entry(pod::uid(pod).to_owned()).or_insert_with(|| StatusEntry {
            namespace: pod::namespace(pod).to_owned(),
            name: pod::name(pod).to_owned(),
            // The status of a static pod comes from this kubelet and was not confirmed by the API.
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

    /// Compares the pod in the API with what was written. If another client changed the kubelet's fields, or a write was executed whose
    /// response was lost, the last status is written again.
    pub fn seen(&self, pod: &Pod) {
        let mut pods = self.shared.pods.lock();
        let Some(entry) = pods.get_mut(pod::uid(pod)).filter(|e| !e.is_static) else { return };
        // An event older than the last write does not show the current state.
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

    /// Waits until everything for the pod was written, or `limit` has passed. Returns whether it was written.
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
                // The short timeout covers a notification between the check and the wait.
                let _ = tokio::time::timeout(Duration::from_millis(500), notified).await;
            }
        };
        tokio::time::timeout(limit, wait).await.is_ok()
    }

    /// Waits until the statuses of all pods were written, or `limit` has passed. Returns whether they were written.
    pub async fn flush(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let uids: Vec<String> = self.shared.pods.lock().keys().cloned().collect();
        for uid in uids {
            if !self.flushed(&uid, until.saturating_duration_since(Instant::now())).await {
                return false;
            }
        }
        true
    }

    /// Returns whether the API has a final phase of the pod, or the pod is gone. A static pod counts as ended: its mirror pod may be absent.
    pub fn has_ended(&self, uid: &str) -> bool {
        let is_final = |status: &StatusText| {
            matches!(status.tree().get("phase").and_then(Value::as_str), Some("Succeeded" | "Failed"))
        };
        let is_written = |e: &StatusEntry| e.wanted.is_none() && !e.busy;
        self.shared.pods.lock().get(uid).is_none_or(|e| e.is_static || is_written(e) && is_final(&e.last))
    }

    /// Sets the mirror pod of a static pod. A new mirror pod gets the complete status.
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

    /// Returns the UID of a static pod's mirror pod, if there is one.
    pub fn mirror_of(&self, uid: &str) -> Option<String> {
        self.shared.mirrors.lock().get(uid).cloned()
    }

    /// Removes a pod that is gone.
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

/// Starts a write task for each pod with something to write and no running task.
async fn start_writes(shared: Arc<SharedStatus>, tasks: Tasks) {
    loop {
        for uid in shared.due() {
            tasks.spawn("pod-status", OnPanic::Contain, write(Arc::clone(&shared), uid));
        }
        // In case a notification was lost with a panic.
        let _ = tokio::time::timeout(LOOK, shared.wake.notified()).await;
    }
}

/// Returns patches that delete the kubelet's conditions that no longer exist.
fn ended<'a>(before: &'a [Value], now: &'a [Value]) -> impl Iterator<Item = Value> + 'a {
    // The scheduler's condition stays, also where a pod is rejected with a status that has none.
    let own = |c: &&Value| c["type"] != SCHEDULED && OWNED.contains(&c["type"].as_str().unwrap_or_default());
    let gone = before.iter().filter(own).filter(|c| now.iter().all(|n| n["type"] != c["type"]));
    gone.map(|c| json!({"$patch": "delete", "type": c["type"]}))
}

/// Releases a pod's turn however its task ends, so that the next write can start.
struct WriteTurn {
    shared: Arc<SharedStatus>,
    uid: String,
    held: bool,
}

impl Drop for WriteTurn {
    fn drop(&mut self) {
        if self.held
            && let Some(e) = self.shared.pods.lock().get_mut(&self.uid)
        {
            e.free();
        }
    }
}

async fn write(shared: Arc<SharedStatus>, uid: String) {
    let mut turn = WriteTurn { shared: Arc::clone(&shared), uid: uid.clone(), held: true };
    let mut delay = RETRY.base;
    loop {
        let Ok(slot) = shared.slots.acquire().await else { return };
        let (namespace, name, sent, wanted) = {
            let mut pods = shared.pods.lock();
            let Some(e) = pods.get_mut(&uid) else { break };
            let Some(wanted) = e.wanted.clone() else {
                // Under the lock of `set`: a status that is set from now on starts another task.
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
                // The pod was deleted or replaced by another of the name, so the status is dropped.
                settle(&shared, &uid, wanted, 0);
            }
            Err(e) if is_invalid(&e) => {
                // The same status would be rejected again; the next change is tried.
                let message = "the API server rejected the pod's status as invalid; waiting for the next change";
                tracing::error!(pod = %name, %namespace, error = %e, "{message}");
                give_up(&shared, &uid, &wanted);
            }
            Err(e) => {
                tracing::debug!(pod = %name, error = %e, "writing the pod's status failed; retrying");
                drop(slot);
                tokio::time::sleep(delay).await;
                delay = RETRY.after(Some(delay));
            }
        }
    }
}

/// Whether the pod no longer exists: not found, or the name belongs to another UID. A conflict alone does not show this, so the pod is
/// read.
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

/// Drops a rejected status; the status in the API stays the base of the next patch.
fn give_up(shared: &SharedStatus, uid: &str, refused: &StatusText) {
    if let Some(e) = shared.pods.lock().get_mut(uid)
        && e.wanted.as_ref() == Some(refused)
    {
        e.wanted = None;
    }
}

/// Records that the API has this status at a resourceVersion (0: unknown). A different status may have been set meanwhile, even one that
/// the API had before.
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

/// Returns the object's resourceVersion, or 0. Versions of one resource can be compared (`k8s.io/apimachinery/pkg/util/resourceversion`).
fn revision(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// Returns a patch for a condition: fields that the new one lacks are deleted explicitly, because the merge would keep them.
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

/// Returns the merge patch from one tree to another, with `null` for deleted members.
fn changed(from: Option<&Value>, to: &Value) -> Value {
    let (Some(Value::Object(from)), Value::Object(to)) = (from, to) else { return to.clone() };
    let mut out: Map<String, Value> =
        from.keys().filter(|k| !to.contains_key(*k)).map(|k| (k.clone(), Value::Null)).collect();
    let differ = to.iter().filter(|(k, v)| from.get(*k) != Some(*v));
    out.extend(differ.map(|(k, v)| (k.clone(), changed(from.get(k), v))));
    Value::Object(out)
}

/// Returns the strategic merge patch from one status to another; `None` if they are equal. It omits fields that only other components
/// write. Conditions are merged by type, so that those of others stay.
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
        } else if matches!(k.as_str(), "podIPs" | "hostIPs") && from.contains_key(k) {
            // The list is merged by address; without the directive the old address would stay, and the API rejects two of one family.
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
