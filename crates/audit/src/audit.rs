//! The entry point of audit: opens a policy and the outputs from the flags, receives every stage of a request, and is
//! closed with the process.
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use kelson_auth::Attributes;
use kelson_meta::Clock;
use kelson_metrics::Registry;
use kelson_tasks::{OnPanic, Tasks};
use kelson_transport::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::backend::{AcceptResult, Backend};
use crate::batch::Queue;
use crate::counters::{Counters, Part};
use crate::event::Event;
use crate::file::Rotation;
use crate::log::Log;
use crate::options::{Batching, LogOptions, Mode, Options, Truncation};
use crate::output::Output;
use crate::policy::{Policy, PolicyError};
use crate::rules::Decision;
use crate::webhook::Webhook;

/// The maximum number of events of finished requests that wait for a blocking output.
const DETACHED_MAX: usize = 10_000;
/// The memory for copies of responses in progress, in units of [`ROOM_UNIT_BYTES`].
const ROOM_UNITS: usize = 64 * 1024;
const ROOM_UNIT_BYTES: usize = 1024;
/// The timeout for closing the outputs at the end of the process.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum size of a batch in bytes if truncation is disabled. A write holds this much in memory a second time.
const BATCH_BYTES_MAX: usize = 10 * 1024 * 1024;

/// The error that prevents audit from starting.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The flags contradict each other.
    #[error("{0}")]
    Options(String),
    /// The policy file is invalid.
    #[error("loading audit policy file: {source}: from file {path:?}")]
    Policy {
        /// The value of `--audit-policy-file`.
        path: PathBuf,
        /// The error in the policy.
        source: PolicyError,
    },
    /// The log cannot be opened.
    #[error("audit log {path:?}: {source}")]
    Log {
        /// The path of the log file from the flags.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The configuration of the webhook is invalid.
    #[error("initializing audit webhook: {0}")]
    Webhook(String),
}

/// The audit policy with its outputs. The API server asks it once for each request how to log it, and passes an event
/// to it at every stage. Outputs in batch mode never delay a request; only blocking outputs return a future for the
/// request to wait for.
pub struct Audit {
    policy: Policy,
    backends: Vec<Backend>,
    counters: Arc<Counters>,
    tasks: Tasks,
    closing: CancellationToken,
    detached: Arc<Semaphore>,
    room: Arc<Semaphore>,
}

impl Audit {
    /// Opens the policy and the outputs in the flags. Returns `None` if the flags name no policy or no output. Reads
    /// and creates files, so it blocks.
    ///
    /// # Errors
    /// See [`AuditError`].
    pub fn open(options: &Options, clock: Arc<dyn Clock>) -> Result<Option<Arc<Self>>, AuditError> {
        options.check().map_err(AuditError::Options)?;
        let Some(path) = &options.policy_file else {
            if options.log.path.is_some() || options.webhook.config_file.is_some() {
                tracing::warn!("no audit policy file is given; not recording audit events");
            }
            return Ok(None);
        };
        let policy = Policy::load(path).map_err(|source| AuditError::Policy { path: path.clone(), source })?;
        if !policy.unknown_fields.is_empty() {
            tracing::warn!(fields = ?policy.unknown_fields, "the audit policy has unknown fields; ignoring them");
        }
        let mut audit = Self::new(policy);
        if let Some(path) = &options.log.path {
            let log = log(path, &options.log, clock, &audit.tasks)
                .map_err(|source| AuditError::Log { path: path.clone(), source })?;
            audit.add(Arc::new(log), options.log.mode, options.log.batching, options.log.truncation);
        }
        if let Some(file) = &options.webhook.config_file {
            let w = &options.webhook;
            let webhook = Webhook::load(file, w.initial_backoff).map_err(AuditError::Webhook)?;
            audit.add(Arc::new(webhook), w.mode, w.batching, w.truncation);
        }
        Ok((!audit.backends.is_empty()).then(|| Arc::new(audit)))
    }

    /// Creates an audit with a policy and no outputs.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            backends: Vec::new(),
            counters: Arc::default(),
            tasks: Tasks::root("audit"),
            closing: CancellationToken::new(),
            detached: Arc::new(Semaphore::new(DETACHED_MAX)),
            room: Arc::new(Semaphore::new(ROOM_UNITS)),
        }
    }

    /// Adds an output.
    pub fn add(&mut self, output: Arc<dyn Output>, mode: Mode, batching: Batching, truncation: Truncation) {
        let part = if output.name() == "log" { Part::Log } else { Part::Webhook };
        let batch_bytes_max = if truncation.enabled { truncation.batch_bytes_max } else { BATCH_BYTES_MAX };
        let queue = (mode == Mode::Batch).then(|| {
            let (output, counters) = (Arc::clone(&output), Arc::clone(&self.counters));
            Queue::start(output, part, batching, batch_bytes_max, counters, &self.tasks, self.closing.clone())
        });
        let counters = Arc::clone(&self.counters);
        self.backends.push(Backend { output, part, mode, truncation, queue, counters });
    }

    /// Registers the counters.
    pub fn register(&self, registry: &Registry) {
        let counters = Arc::clone(&self.counters);
        registry.on_scrape(move |families| counters.scrape(families));
    }

    /// Returns how a request is logged; called once per request.
    pub fn decide(&self, request: &Attributes<'_>) -> Decision {
        let decision = self.policy.decide(request);
        self.counters.level(decision.level);
        decision
    }

    /// Writes an event. Returns a future only if an output blocks; it resolves when the event is written, with whether
    /// the request may continue.
    pub fn record(&self, event: &Event) -> Option<BoxFuture<bool>> {
        self.counters.event();
        let item = event.json();
        let mut waits = Vec::new();
        let mut refused = false;
        for backend in &self.backends {
            match backend.take(event, &item) {
                AcceptResult::Done => {}
                AcceptResult::Refused => refused = true,
                AcceptResult::Wait(written) => waits.push(written),
            }
        }
        if waits.is_empty() && !refused {
            return None;
        }
        Some(Box::pin(async move {
            let mut goes_on = !refused;
            for wait in waits {
                goes_on &= wait.await;
            }
            goes_on
        }))
    }

    /// Writes an event of a request without waiting for it.
    pub fn record_detached(&self, event: &Event) {
        let Some(written) = self.record(event) else { return };
        let Ok(place) = Arc::clone(&self.detached).try_acquire_owned() else {
            return self.counters.lost(Part::Buffered, 1, "audit buffer queue blocked");
        };
        self.tasks.spawn_graceful("audit-event", OnPanic::Contain, async move {
            written.await;
            drop(place);
        });
    }

    /// Reserves memory for a copy of a response, until the permit is dropped. Returns `None` if too little is left.
    pub fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(ROOM_UNIT_BYTES)).ok()?;
        Arc::clone(&self.room).try_acquire_many_owned(units).ok()
    }

    /// Counts a request that is rejected because its event could not be written.
    pub fn rejected(&self) {
        self.counters.rejected();
    }

    /// Writes the queued events. In batch mode, it then accepts no more. Call it when no request is in progress.
    pub async fn close(&self) {
        self.closing.cancel();
        self.tasks.shutdown(CLOSE_TIMEOUT).await;
        for backend in &self.backends {
            backend.output.flush().await;
        }
    }
}

fn log(path: &std::path::Path, options: &LogOptions, clock: Arc<dyn Clock>, tasks: &Tasks) -> std::io::Result<Log> {
    const MEGABYTE: u64 = 1024 * 1024;
    const DAY_HOURS: i64 = 24;
    if path.as_os_str() == "-" {
        return Ok(Log::to_stdout(options.format, clock));
    }
    let days = i64::from(options.age_days_max);
    let rotation = Rotation {
        bytes_max: (options.size_mb_max > 0).then(|| options.size_mb_max.saturating_mul(MEGABYTE)),
        backups_max: options.backups_max,
        age_max: (days > 0).then(|| SignedDuration::from_hours(days.saturating_mul(DAY_HOURS))),
        compress: options.compress,
    };
    Log::to_file(options.format, clock, path.to_owned(), rotation, tasks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use kelson_meta::SystemClock;
    use parking_lot::Mutex;

    use crate::event::sample;
    use crate::options::WebhookOptions;
    use crate::output::Entry;

    /// Stores all entries of a batch, or rejects all of them.
    #[derive(Default)]
    struct Memory {
        kept: Mutex<Vec<Bytes>>,
        broken: bool,
    }

    #[derive(Clone, Default)]
    struct Shared(Arc<Memory>);

    impl Output for Shared {
        fn name(&self) -> &'static str {
            "webhook"
        }
        fn entry(&self, _event: &Event, item: &Bytes) -> Entry {
            Entry(item.clone())
        }
        fn write(&self, batch: Vec<Entry>) -> BoxFuture<Result<(), String>> {
            let memory = Arc::clone(&self.0);
            Box::pin(async move {
                if memory.broken {
                    return Err("broken".to_owned());
                }
                memory.kept.lock().extend(batch.into_iter().map(|e| e.0));
                Ok(())
            })
        }
    }

    fn audit(mode: Mode, truncation: Truncation, broken: bool) -> (Audit, Arc<Memory>) {
        let text = b"{\"apiVersion\":\"audit.k8s.io/v1\",\"kind\":\"Policy\",\"rules\":[{\"level\":\"Metadata\"}]}";
        let mut audit = Audit::new(Policy::parse(text).expect("a policy"));
        let memory = Arc::new(Memory { broken, ..Memory::default() });
        audit.add(Arc::new(Shared(Arc::clone(&memory))), mode, WebhookOptions::default().batching, truncation);
        (audit, memory)
    }

    #[tokio::test(start_paused = true)]
    async fn modes() {
        for (mode, broken, goes_on) in [
            (Mode::Batch, true, None),
            (Mode::Blocking, false, Some(true)),
            (Mode::Blocking, true, Some(true)),
            (Mode::BlockingStrict, false, Some(true)),
            (Mode::BlockingStrict, true, Some(false)),
        ] {
            let (audit, memory) = audit(mode, Truncation::default(), broken);
            let got = match audit.record(&sample::full()) {
                None => None,
                Some(written) => Some(written.await),
            };
            assert_eq!(got, goes_on, "{mode:?} {broken}");
            audit.record_detached(&sample::full());
            audit.close().await;
            assert_eq!(memory.kept.lock().len(), if broken { 0 } else { 2 }, "{mode:?}");
            assert_eq!(audit.counters.errors(Part::Webhook), if broken { 2 } else { 0 }, "{mode:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn large_events_lose_their_objects_first() {
        let whole = sample::full().json().len();
        for (event_bytes_max, kept, lost) in [(whole, "whole", 0), (whole - 1, "short", 0), (100, "", 1)] {
            let truncation = Truncation { enabled: true, event_bytes_max, batch_bytes_max: whole * 2 };
            let (audit, memory) = audit(Mode::Batch, truncation, false);
            assert!(audit.record(&sample::full()).is_none());
            audit.close().await;
            let events = memory.kept.lock().clone();
            let got = match events.first().map(|e| serde_json::from_slice::<serde_json::Value>(e).expect("JSON")) {
                None => "",
                Some(e) if e["annotations"]["audit.k8s.io/truncated"] == "true" && e["requestObject"].is_null() => {
                    "short"
                }
                Some(_) => "whole",
            };
            assert_eq!((got, audit.counters.errors(Part::Truncate)), (kept, lost), "{event_bytes_max}");
        }
    }

    #[tokio::test]
    async fn from_flags_to_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let policy = dir.path().join("policy.yaml");
        let mut options = Options { policy_file: Some(policy.clone()), ..Options::default() };
        let open = |options: &Options| Audit::open(options, Arc::new(SystemClock));
        assert!(matches!(open(&options), Err(AuditError::Policy { .. })), "there is no such file");
        std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]")
            .expect("written");
        assert!(matches!(open(&options), Ok(None)), "there is no output");
        let log = dir.path().join("audit.log");
        options.log.path = Some(log.clone());
        let audit = open(&options).expect("opens").expect("an output");
        assert!(audit.record(&sample::full()).expect("the log blocks by default").await);
        assert_eq!(std::fs::read_to_string(&log).expect("a log").lines().count(), 1);
        audit.close().await;
        let registry = Registry::new();
        audit.register(&registry);
        assert!(registry.text().contains("apiserver_audit_event_total 1"), "{}", registry.text());
    }
}
