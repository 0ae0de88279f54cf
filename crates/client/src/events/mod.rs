//! Records events about objects, of core/v1 and of `events.k8s.io`. Repeated events are counted on one Event object,
//! floods from one source are dropped, and a recorder never blocks its caller (upstream: client-go `tools/record` and
//! `tools/events`).
mod correlate;
mod reference;
mod series;

use std::future::pending;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::events::v1::Event as ActionEvent;
use kelson_meta::{Clock, format_seconds};
use kelson_tasks::Tasks;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::correlate::{CoreEvent, Correlated, Correlator, Recorded};
pub use self::reference::{EventType, ObjectRef};
use self::series::{Act, Acts, Written};
use crate::{Client, ClientError, PatchKind, WriteOptions};

/// The maximum number of pending events; more are dropped.
const PENDING_MAX: usize = 1000;
/// The maximum length of a message that the API accepts.
const MESSAGE_MAX_BYTES: usize = 1024;

/// Records events of one component. Cloning is cheap.
#[derive(Clone)]
pub struct EventRecorder {
    sender: mpsc::Sender<Pending>,
}

enum Pending {
    /// An event of core/v1 as it was recorded.
    Core(CoreEvent),
    /// An event of `events.k8s.io` with its note.
    Done(Act, String),
}

impl EventRecorder {
    /// Returns a recorder whose events have the source `component` on `host`, which may be empty. Its task ends with
    /// the last clone.
    pub fn new(client: Client, clock: Arc<dyn Clock>, component: &str, host: &str) -> Self {
        Self::start_in(&Tasks::root("events"), client, clock, component, host)
    }

    /// Like [`new`](Self::new), in a task group whose end stops the recorder. Pending events are then lost.
    pub fn start_in(tasks: &Tasks, client: Client, clock: Arc<dyn Clock>, component: &str, host: &str) -> Self {
        let (sender, receiver) = mpsc::channel(PENDING_MAX);
        let worker = Worker {
            client,
            clock,
            component: component.to_owned(),
            host: host.to_owned(),
            correlator: Correlator::default(),
            acts: Acts::new(component, host),
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

    /// Records an event. Never blocks; events of a flood are dropped.
    pub fn event(&self, about: &ObjectRef, kind: EventType, reason: &str, message: impl Into<String>) {
        let message = bounded(message.into());
        self.send(Pending::Core(CoreEvent { about: about.clone(), kind, reason: reason.to_owned(), message }));
    }

    /// Records an event of `events.k8s.io`: the action on an object, and the related object. Never blocks; events of a
    /// flood are dropped.
    pub fn action(
        &self,
        (regarding, related): (&ObjectRef, Option<&ObjectRef>),
        kind: EventType,
        reason: &str,
        action: &str,
        note: impl Into<String>,
    ) {
        let (regarding, related) = (regarding.clone(), related.cloned());
        let act = Act { regarding, related, kind, reason: reason.to_owned(), action: action.to_owned() };
        self.send(Pending::Done(act, bounded(note.into())));
    }

    fn send(&self, pending: Pending) {
        if self.sender.try_send(pending).is_err() {
            tracing::debug!("too many pending events; dropping an event");
        }
    }
}

/// Truncates a message to the length that the API accepts.
fn bounded(mut message: String) -> String {
    if message.len() > MESSAGE_MAX_BYTES {
        let mut end = MESSAGE_MAX_BYTES - 3;
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push_str("...");
    }
    message
}

struct Worker {
    client: Client,
    clock: Arc<dyn Clock>,
    component: String,
    host: String,
    correlator: Correlator,
    acts: Acts,
}

impl Worker {
    async fn run(&mut self, receiver: &mut mpsc::Receiver<Pending>) {
        loop {
            let next = self.acts.next();
            let ended = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => pending().await,
                }
            };
            let done = tokio::select! {
                waiting = receiver.recv() => match waiting {
                    Some(Pending::Core(event)) => self.report(&event).await,
                    Some(Pending::Done(act, note)) => self.act(act, &note).await,
                    None => return,
                },
                () = ended => self.end().await,
            };
            if let Err(e) = done {
                tracing::debug!(error = %e, "recording an event failed");
            }
        }
    }

    /// Returns the name of a new event about an object.
    fn name(&self, about: &ObjectRef) -> String {
        format!("{}.{:x}", about.name, unique(self.clock.now()))
    }

    async fn act(&mut self, act: Act, note: &str) -> Result<(), ClientError> {
        let (name, at) = (self.name(&act.regarding), (Instant::now(), self.clock.now()));
        match self.acts.take(act, note, name, at) {
            Some(written) => self.write(&written).await,
            None => Ok(()),
        }
    }

    async fn end(&mut self) -> Result<(), ClientError> {
        for written in self.acts.ended(Instant::now()) {
            self.write(&written).await?;
        }
        Ok(())
    }

    async fn write(&self, written: &Written) -> Result<(), ClientError> {
        let metadata = &written.event["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        if written.is_series {
            let (patch, options) = (json!({"series": written.event["series"]}), WriteOptions::default());
            let (namespace, name, kind) = (text("namespace"), text("name"), PatchKind::Strategic);
            match self.client.patch::<ActionEvent>(namespace, name, "", kind, &patch, &options).await {
                Err(e) if e.is_not_found() => {}
                sent => return sent.map(drop),
            }
        }
        self.client.create::<ActionEvent>(text("namespace"), &written.event).await.map(drop)
    }

    async fn report(&mut self, reported: &CoreEvent) -> Result<(), ClientError> {
        let Some(correlated) = self.correlator.take(reported, Instant::now()) else { return Ok(()) };
        let Correlated { key, message, combined, before } = correlated;
        let now = format_seconds(self.clock.now());
        if let Some(mut before) = before {
            before.count += 1;
            let mut patch = json!({"count": before.count, "lastTimestamp": now});
            if combined {
                patch["message"] = json!(message);
            }
            let options = WriteOptions::default();
            let sent =
                self.client.patch::<Event>(&before.namespace, &before.name, "", PatchKind::Merge, &patch, &options);
            match sent.await {
                Ok(_) => {
                    self.correlator.wrote(key, before);
                    return Ok(());
                }
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        let about = &reported.about;
        let namespace = if about.namespace.is_empty() { "default" } else { &about.namespace };
        let name = self.name(about);
        let mut event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": about, "reason": reported.reason, "message": message, "type": reported.kind.word(),
            "source": source(&self.component, &self.host),
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        });
        // A combined event has no reporting component, as upstream.
        if !combined {
            event["reportingComponent"] = json!(self.component);
            event["reportingInstance"] = json!(self.host);
        }
        self.client.create::<Event>(namespace, &event).await?;
        self.correlator.wrote(key, Recorded { namespace: namespace.to_owned(), name, count: 1 });
        Ok(())
    }
}

fn source(component: &str, host: &str) -> serde_json::Value {
    if host.is_empty() { json!({"component": component}) } else { json!({"component": component, "host": host}) }
}

/// Returns the nanoseconds since the epoch with random low bits: sufficiently unique for a name, and ordered like
/// upstream's.
fn unique(now: jiff::Timestamp) -> u64 {
    let nanos = u64::try_from(now.as_nanosecond()).unwrap_or_default();
    (nanos & !0xffff) | u64::from(rand::random::<u16>())
}
