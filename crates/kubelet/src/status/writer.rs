//! The one writer of pod statuses: newest state per pod, only what changed, one request per pod at a time, retried.
//! (upstream: `pkg/kubelet/status/status_manager.go`)
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kelson_client::{Client, ClientError, PatchKind, WriteOptions};
use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::conditions::OWNED;
use crate::pod;

/// First delay after a failed write.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// Longest delay.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Between looks that nothing asked for.
const LOOK: Duration = Duration::from_secs(60);
/// Writes under way at once.
const PARALLEL_MAX: usize = 8;

/// Takes statuses and writes them; cheap to clone.
#[derive(Clone)]
pub struct StatusWriter {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    pods: Mutex<HashMap<String, Entry>>,
    /// UIDs of mirror pods, by those of the static pods they show.
    mirrors: Mutex<HashMap<String, String>>,
    wake: Notify,
    slots: tokio::sync::Semaphore,
}

struct Entry {
    namespace: String,
    name: String,
    /// What the API is known to have.
    sent: Map<String, Value>,
    wanted: Option<Map<String, Value>>,
    /// What was last set, for a mirror pod that is made anew.
    last: Map<String, Value>,
    /// Written to its mirror pod, and not before there is one.
    is_static: bool,
    busy: bool,
    done: Arc<Notify>,
}

impl Entry {
    fn free(&mut self) {
        self.busy = false;
        self.done.notify_waiters();
    }
}

impl StatusWriter {
    /// Starts the writer in a group of tasks.
    pub fn start(client: Client, tasks: &Tasks) -> Self {
        let shared = Arc::new(Shared {
            client,
            pods: Mutex::default(),
            mirrors: Mutex::default(),
            wake: Notify::new(),
            slots: tokio::sync::Semaphore::new(PARALLEL_MAX),
        });
        let (own, group) = (Arc::clone(&shared), tasks.clone());
        tasks.supervise("pod-statuses", move || start_writes(Arc::clone(&own), group.clone()));
        Self { shared }
    }

    /// Sets what the pod's status is to be. Nothing happens if the API has it already.
    pub fn set(&self, pod: &Pod, status: &PodStatus) {
        let wanted = tree(status);
        let is_static = pod::is_static(pod);
        let mut pods = self.shared.pods.lock();
        let entry = pods.entry(pod::uid(pod).to_owned()).or_insert_with(|| Entry {
            namespace: pod::namespace(pod).to_owned(),
            name: pod::name(pod).to_owned(),
            // The status in a static pod is this kubelet's own; the API has not confirmed it.
            sent: pod.status.as_ref().filter(|_| !is_static).map(tree).unwrap_or_default(),
            wanted: None,
            last: Map::new(),
            is_static,
            busy: false,
            done: Arc::default(),
        });
        if is_static {
            entry.last.clone_from(&wanted);
        }
        entry.wanted = (difference(&entry.sent, &wanted).is_some()).then_some(wanted);
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
            e.sent.clear();
            e.wanted = Some(e.last.clone()).filter(|l| !l.is_empty());
        }
        self.shared.wake.notify_one();
    }

    /// Forgets a pod that is gone.
    pub fn forget(&self, uid: &str) {
        self.shared.pods.lock().remove(uid);
        self.shared.mirrors.lock().remove(uid);
    }
}

impl Shared {
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
async fn start_writes(shared: Arc<Shared>, tasks: Tasks) {
    loop {
        for uid in shared.due() {
            tasks.spawn("pod-status", OnPanic::Contain, write(Arc::clone(&shared), uid));
        }
        // The net for a wake-up that was lost with a panic.
        let _ = tokio::time::timeout(LOOK, shared.wake.notified()).await;
    }
}

/// Lets go of a pod's turn however its task ends, so that the next change finds it free.
struct Turn {
    shared: Arc<Shared>,
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

async fn write(shared: Arc<Shared>, uid: String) {
    let mut turn = Turn { shared: Arc::clone(&shared), uid: uid.clone(), held: true };
    let mut delay = RETRY_MIN;
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
        let Some(change) = difference(&sent, &wanted) else {
            settle(&shared, &uid, wanted);
            continue;
        };
        let object = shared.mirrors.lock().get(&uid).cloned().unwrap_or_else(|| uid.clone());
        let patch = json!({"metadata": {"uid": &object}, "status": change});
        let options = WriteOptions::default();
        let answer =
            shared.client.patch::<Pod>(&namespace, &name, "status", PatchKind::Strategic, &patch, &options).await;
        match answer {
            Ok(_) => {
                settle(&shared, &uid, wanted);
                delay = RETRY_MIN;
            }
            Err(e) if is_gone(&shared.client, &namespace, &name, &object, &e).await => {
                // Deleted, or another pod has the name: the status has no reader any more.
                settle(&shared, &uid, wanted);
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
                delay = (delay * 2).min(RETRY_MAX);
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
fn give_up(shared: &Shared, uid: &str, refused: &Map<String, Value>) {
    if let Some(e) = shared.pods.lock().get_mut(uid)
        && e.wanted.as_ref() == Some(refused)
    {
        e.wanted = None;
    }
}

fn settle(shared: &Shared, uid: &str, written: Map<String, Value>) {
    let mut pods = shared.pods.lock();
    let Some(e) = pods.get_mut(uid) else { return };
    if e.wanted.as_ref() == Some(&written) {
        e.wanted = None;
    }
    e.sent = written;
    e.done.notify_waiters();
}

fn tree(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(o)) => o,
        _ => Map::new(),
    }
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
            let ours: Vec<Value> = changed.map(|c| without_leftovers(before, c)).collect();
            if !ours.is_empty() {
                out.insert(k.clone(), json!(ours));
            }
        } else if k == "podIPs" && from.contains_key(k) {
            // Merged by address: without the directive the old one would stay beside the new.
            let mut list = vec![json!({"$patch": "replace"})];
            list.extend(v.as_array().into_iter().flatten().cloned());
            out.insert(k.clone(), Value::Array(list));
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
mod tests {
    use std::pin::Pin;

    use kelson_client::{Request, Response, Transport, TransportError, full_body};

    use super::*;

    /// An API server that answers patches with the codes it is given, then with success, and has one pod.
    struct Server {
        codes: Mutex<Vec<u16>>,
        uid: &'static str,
        patches: Mutex<u32>,
    }

    struct Wire(Arc<Server>);

    impl Transport for Wire {
        fn send(&self, request: Request) -> Pin<Box<dyn Future<Output = Result<Response, TransportError>> + Send>> {
            let code = match *request.method() {
                http::Method::PATCH => {
                    *self.0.patches.lock() += 1;
                    self.0.codes.lock().pop().unwrap_or(200)
                }
                _ => 200,
            };
            let body = match code {
                200 => json!({"metadata": {"name": "p", "uid": self.0.uid}, "spec": {"containers": []}}),
                code => json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}),
            };
            let mut answer = Response::new(full_body(body.to_string()));
            *answer.status_mut() = http::StatusCode::from_u16(code).expect("a code");
            Box::pin(async move { Ok(answer) })
        }
    }

    /// How often a status is sent that is set twice, with time between.
    async fn patches(codes: &[u16], uid: &'static str) -> (u32, u32) {
        let server = Arc::new(Server { codes: Mutex::new(codes.to_vec()), uid, patches: Mutex::default() });
        let tasks = Tasks::root("test");
        let writer = StatusWriter::start(Client::new(Arc::new(Wire(Arc::clone(&server))), "test"), &tasks);
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": []}});
        let pod: Pod = serde_json::from_value(pod).expect("pod");
        let status = PodStatus { phase: Some("Running".into()), ..Default::default() };
        let mut counts = [0, 0];
        for count in &mut counts {
            writer.set(&pod, &status);
            tokio::time::sleep(Duration::from_secs(120)).await;
            *count = std::mem::take(&mut *server.patches.lock());
        }
        (counts[0], counts[1])
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_status_that_was_written_counts_as_written() {
        assert_eq!(patches(&[], "u").await, (1, 0), "written once");
        assert_eq!(patches(&[422], "u").await, (1, 1), "refused as invalid: not repeated, and not taken as written");
        assert_eq!(patches(&[409], "u").await, (2, 0), "a conflict about the same pod passes");
        assert_eq!(patches(&[409], "other").await, (1, 0), "another pod has the name");
        assert_eq!(patches(&[404], "u").await, (1, 0), "there is no such pod");
        assert_eq!(patches(&[500, 500], "u").await, (3, 0), "tried again");
    }

    #[test]
    fn only_what_changed_is_sent() {
        let map = |v: Value| v.as_object().cloned().expect("object");
        let a = map(
            json!({"phase":"Pending","conditions":[{"type":"PodScheduled","status":"True"},{"type":"Ready","status":"False"}]}),
        );
        assert_eq!(difference(&a, &a), None);
        let c = map(json!({"conditions":[{"type":"Ready","status":"False","reason":"X"}]}));
        let healed = difference(&c, &map(json!({"conditions":[{"type":"Ready","status":"True"}]}))).expect("changed");
        assert_eq!(json!(healed), json!({"conditions":[{"type":"Ready","status":"True","reason":null}]}));
        let b = map(json!({"phase":"Running","conditions":[{"type":"Ready","status":"True"}],"podIP":"1"}));
        let d = difference(&a, &b).expect("changed");
        assert_eq!(json!(d), json!({"phase":"Running","podIP":"1","conditions":[{"type":"Ready","status":"True"}]}));
        assert_eq!(json!(difference(&b, &a).expect("changed"))["podIP"], Value::Null);
    }
}
