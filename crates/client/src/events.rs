//! Records core/v1 Events about objects: repeated ones are counted on one object, floods from one source are dropped,
//! and nothing a recorder does can hold up its caller (upstream: client-go `tools/record`).
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kelson_meta::{Clock, format_seconds};
use kelson_tasks::Tasks;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::{Client, ClientError, Object, PatchKind, WriteOptions};

/// Events waiting to be sent; more are dropped.
const PENDING_MAX: usize = 1000;
/// Distinct events remembered for counting.
const REMEMBERED_MAX: usize = 4096;
/// Events about one object at once, then one per [`REFILL`] (client-go's spam filter).
const BURST: f64 = 25.0;
/// How long it takes until one more event about the same object may be sent.
const REFILL: Duration = Duration::from_secs(300);
/// Longest message the API accepts.
const MESSAGE_MAX_BYTES: usize = 1024;

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Something went as it should.
    Normal,
    /// Something to look at.
    Warning,
}

/// `v1.ObjectReference` of what an event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// Group and version of the object's kind.
    pub api_version: String,
    /// Kind of the object that the event is about.
    pub kind: String,
    /// Namespace; empty for cluster-scoped objects (their events go to `default`).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the object that the event is about.
    pub name: String,
    /// Its UID, so that a namesake's events are told apart.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The version of the object that was looked at.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Part of the object, e.g. `spec.containers{app}`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_path: String,
}

impl ObjectRef {
    /// A reference to a whole object.
    pub fn of<T: Object>(object: &T) -> Self {
        Self {
            api_version: T::TYPE.api_version(),
            kind: T::TYPE.kind.to_owned(),
            namespace: object.namespace().to_owned(),
            name: object.name().to_owned(),
            uid: object.uid().to_owned(),
            resource_version: object.resource_version().to_owned(),
            field_path: String::new(),
        }
    }
    /// The same, of one part.
    pub fn at(mut self, field_path: impl Into<String>) -> Self {
        self.field_path = field_path.into();
        self
    }
}

/// Records events of one component; cheap to clone.
#[derive(Clone)]
pub struct EventRecorder {
    sender: mpsc::Sender<Pending>,
}

struct Pending {
    about: ObjectRef,
    kind: EventType,
    reason: String,
    message: String,
}

impl EventRecorder {
    /// A recorder whose events say they come from `component` on `host` (may be empty). Its task ends with the last
    /// recorder.
    pub fn new(client: Client, clock: Arc<dyn Clock>, component: &str, host: &str) -> Self {
        Self::start_in(&Tasks::root("events"), client, clock, component, host)
    }

    /// As [`new`](Self::new), in a group of tasks whose end also ends the recorder: events that are waiting then are lost.
    pub fn start_in(tasks: &Tasks, client: Client, clock: Arc<dyn Clock>, component: &str, host: &str) -> Self {
        let (sender, receiver) = mpsc::channel(PENDING_MAX);
        let worker = Worker {
            client,
            clock,
            component: component.to_owned(),
            host: host.to_owned(),
            seen: HashMap::new(),
            budgets: HashMap::new(),
        };
        let worker = Arc::new(tokio::sync::Mutex::new((worker, receiver)));
        tasks.supervise("events", move || {
            let worker = Arc::clone(&worker);
            async move {
                let (worker, receiver) = &mut *worker.lock().await;
                worker.run(receiver).await;
            }
        });
        Self { sender }
    }

    /// Records an event. Never waits; under a flood it is dropped.
    pub fn event(&self, about: &ObjectRef, kind: EventType, reason: &str, message: impl Into<String>) {
        let mut message = message.into();
        if message.len() > MESSAGE_MAX_BYTES {
            let mut end = MESSAGE_MAX_BYTES - 3;
            while !message.is_char_boundary(end) {
                end -= 1;
            }
            message.truncate(end);
            message.push_str("...");
        }
        let pending = Pending { about: about.clone(), kind, reason: reason.to_owned(), message };
        if self.sender.try_send(pending).is_err() {
            tracing::debug!(reason, "event dropped: too many pending");
        }
    }
}

struct Worker {
    client: Client,
    clock: Arc<dyn Clock>,
    component: String,
    host: String,
    seen: HashMap<(ObjectRef, EventType, String, String), Recorded>,
    budgets: HashMap<(String, String), (f64, Instant)>,
}

struct Recorded {
    namespace: String,
    name: String,
    count: i64,
}

impl Worker {
    async fn run(&mut self, receiver: &mut mpsc::Receiver<Pending>) {
        while let Some(p) = receiver.recv().await {
            if !self.within_budget(&p.about) {
                continue;
            }
            if let Err(e) = self.record(p).await {
                tracing::debug!(error = %e, "event not recorded");
            }
        }
    }

    fn within_budget(&mut self, about: &ObjectRef) -> bool {
        let now = Instant::now();
        if self.budgets.len() >= REMEMBERED_MAX {
            self.budgets.retain(|_, (_, t)| now.duration_since(*t) < REFILL);
        }
        if self.budgets.len() >= REMEMBERED_MAX {
            self.budgets.clear();
        }
        let key = (about.namespace.clone(), format!("{}/{}", about.kind, about.name));
        let (tokens, at) = self.budgets.entry(key).or_insert((BURST, now));
        *tokens = (*tokens + now.duration_since(*at).as_secs_f64() / REFILL.as_secs_f64()).min(BURST);
        *at = now;
        if *tokens < 1.0 {
            return false;
        }
        *tokens -= 1.0;
        true
    }

    async fn record(&mut self, p: Pending) -> Result<(), ClientError> {
        let now = format_seconds(self.clock.now());
        let mut identity = p.about.clone();
        identity.resource_version.clear();
        let key = (identity, p.kind, p.reason.clone(), p.message.clone());
        if let Some(seen) = self.seen.get_mut(&key) {
            let patch = json!({"count": seen.count + 1, "lastTimestamp": now});
            let options = WriteOptions::default();
            let sent = self.client.patch::<Event>(&seen.namespace, &seen.name, "", PatchKind::Merge, &patch, &options);
            match sent.await {
                Ok(_) => {
                    seen.count += 1;
                    return Ok(());
                }
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        let namespace = if p.about.namespace.is_empty() { "default" } else { &p.about.namespace };
        let name = format!("{}.{:x}", p.about.name, unique(self.clock.now()));
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": p.about, "reason": p.reason, "message": p.message,
            "type": match p.kind { EventType::Normal => "Normal", EventType::Warning => "Warning" },
            "source": source(&self.component, &self.host),
            "reportingComponent": self.component, "reportingInstance": self.host,
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        });
        self.client.create::<Event>(namespace, &event).await?;
        if self.seen.len() >= REMEMBERED_MAX {
            self.seen.clear();
        }
        self.seen.insert(key, Recorded { namespace: namespace.to_owned(), name, count: 1 });
        Ok(())
    }
}

fn source(component: &str, host: &str) -> serde_json::Value {
    if host.is_empty() { json!({"component": component}) } else { json!({"component": component, "host": host}) }
}

/// Nanoseconds since the epoch with the low bits random: unique enough for a name, ordered like upstream's.
fn unique(now: jiff::Timestamp) -> u64 {
    let nanos = u64::try_from(now.as_nanosecond()).unwrap_or_default();
    (nanos & !0xffff) | u64::from(rand::random::<u16>())
}
