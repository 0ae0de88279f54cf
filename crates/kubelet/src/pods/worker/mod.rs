//! The pod worker: one task per pod. It receives events through its inbox and steps from its executor, keeps the state for decisions, runs
//! at most one execution at a time, and publishes the pod's status (upstream: `pkg/kubelet/pod_workers.go`). `sync` handles a live pod,
//! `end` a terminating one, `probing` the probes, and `renewal` the renewal of tokens. All timers use the monotonic clock, because the wall
//! clock may be changed.
mod end;
mod probing;
mod renewal;
mod sync;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kelson_tasks::Scoped;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::backoff::BackOff;
use super::event::{Events, STEPS_MAX, Step, WorkerInbox, WorkerStart};
use super::health;
use super::in_flight::InFlight;
use super::parts::Parts;
use super::plan::SANDBOX;
use super::resize::{Granted, ResizePending, same_resources};
use crate::images::error::{StartError, StartReason};
use crate::pod;
use crate::probes::ProbeKind;
use crate::probes::view::ProbeView;
use crate::runtime::snapshot::{RuntimePod, SnapshotReader};
use crate::status::container::StateInput;
use crate::status::pod::{StatusInput, own_over};
use crate::volumes;
use renewal::Renewal;

/// Delay before a container that failed to start is tried again (upstream: the worker's back-off period).
const RETRY: Duration = Duration::from_secs(10);
/// First delay after a failed sandbox or volume; doubles up to [`PREPARE_MAX`].
const PREPARE_MIN: Duration = Duration::from_millis(500);
/// Maximum delay between attempts to prepare a pod.
const PREPARE_MAX: Duration = Duration::from_secs(60);
/// Delay after the runtime could not be read.
const RUNTIME_RETRY: Duration = Duration::from_secs(1);
/// Maximum time for writing the last status. Then the object is deleted without it.
const FLUSH_MAX: Duration = Duration::from_secs(30);
/// Grace period of a pod whose object is already gone: the deletion was forced, and the name may be in use again.
const FORCED_GRACE: Duration = Duration::from_secs(1);

/// Phase of a pod's life on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Containers are started and kept running.
    Syncing,
    /// Containers are being stopped.
    Terminating,
    /// No container runs; volumes and cgroups are removed.
    Cleaning,
    /// Only the record of the pod is left.
    Stopped,
}

/// State of a worker, owned by the pod's task. [`Worker::run`] waits for an event, a step of the executor or a timer, applies it, computes
/// a [`plan::Plan`], and starts an executor for its actions. The status is computed from the same state after each round and passed to the
/// status writer if it changed. The phases are syncing, terminating, cleaning and stopped, in this order and never back.
pub struct Worker {
    parts: Arc<Parts>,
    pod: Arc<Pod>,
    gone: bool,
    inbox: WorkerInbox,
    /// Receives the steps of the executor.
    steps: mpsc::Receiver<Step>,
    report: mpsc::Sender<Step>,
    mode: Mode,
    reader: SnapshotReader,
    runtime: Arc<RuntimePod>,
    stale: bool,
    probes: ProbeView,
    probing: HashMap<(String, ProbeKind), Scoped<()>>,
    backoff: BackOff,
    holds: HashMap<String, Instant>,
    start_errors: BTreeMap<String, StartError>,
    crash_loops: BTreeMap<String, Duration>,
    /// Whether all containers restart because of a container's restart rule.
    restarting_all: bool,
    prepare_failures: u32,
    renewal: Option<Renewal>,
    job: Option<Scoped<()>>,
    job_grace: Option<Duration>,
    /// Calls of an execution that are not interrupted when the pod must end.
    in_flight: InFlight,
    verdict: Option<(String, String)>,
    rejected: bool,
    /// Grace period of an eviction.
    evicted: Option<Duration>,
    start_time: Timestamp,
    /// Why the pod does not have the resources that its spec requests.
    deferred: Option<ResizePending>,
    resize: Resize,
    wake_at: Option<Instant>,
    /// No actions are executed before this time, because a task of this pod panicked.
    rest_until: Option<Instant>,
    /// Whether the volumes of a pod that already ran at start are known.
    is_taken_over: bool,
    /// The status that was published last.
    published: Option<PodStatus>,
}

/// Progress of an in-place resize.
#[derive(Debug, Default)]
struct Resize {
    /// Whether the granted resources changed and the pod's cgroup is not updated yet.
    cgroup_stale: bool,
    /// Whether a resize is in progress.
    running: bool,
    /// Why the last attempt failed, and when the next one is due.
    failed: Option<(String, Instant)>,
}

impl Worker {
    /// Creates a worker that is not running yet.
    pub fn new(parts: Arc<Parts>, start: WorkerStart, inbox: WorkerInbox) -> Self {
        let start_time = parts.effects.clock.now();
        let (report, steps) = mpsc::channel(STEPS_MAX);
        let evicted = start.evicted.map(|e| ((e.reason.to_owned(), e.message), e.grace));
        let (verdict, evicted) = match (start.rejected.clone(), evicted) {
            (None, Some((verdict, grace))) => (Some(verdict), Some(grace)),
            (rejected, _) => (rejected, None),
        };
        Self {
            pod: start.pod,
            gone: start.gone,
            inbox,
            steps,
            report,
            mode: if start.rejected.is_some() { Mode::Terminating } else { Mode::Syncing },
            reader: SnapshotReader::new(Arc::clone(&parts.effects.clock), parts.config.node_ips.first().copied()),
            runtime: Arc::default(),
            stale: true,
            probes: ProbeView::default(),
            probing: HashMap::new(),
            backoff: BackOff::of_restarts(parts.config.restart_period_max),
            holds: HashMap::new(),
            start_errors: BTreeMap::new(),
            crash_loops: BTreeMap::new(),
            restarting_all: false,
            prepare_failures: 0,
            renewal: None,
            job: None,
            job_grace: None,
            in_flight: InFlight::default(),
            rejected: start.rejected.is_some(),
            evicted,
            verdict,
            start_time,
            deferred: start.deferred,
            resize: Resize::default(),
            wake_at: None,
            rest_until: None,
            is_taken_over: false,
            published: None,
            parts,
        }
    }

    /// Runs until the pod has left the node.
    pub async fn run(mut self) {
        self.parts.volumes.objects.register(&self.pod);
        loop {
            self.wake_at = self.renewal.as_ref().map(Renewal::look_at);
            if self.stale {
                self.refresh().await;
            }
            if !self.stale && self.decide().await {
                break;
            }
            self.wait().await;
        }
        let uid = pod::uid(&self.pod);
        self.parts.volumes.objects.unregister(uid);
        self.parts.volumes.tokens.forget(uid);
        self.parts.user_namespaces.forget(uid);
        self.parts.statuses.forget(uid);
        self.parts.effects.metrics.forget_probes(&self.pod);
    }

    async fn wait(&mut self) {
        let wake_at = self.wake_at;
        let timer = async {
            match wake_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let job = async {
            match self.job.as_mut() {
                Some(j) => j.await,
                None => std::future::pending().await,
            }
        };
        let mut first = None;
        tokio::select! {
            step = self.steps.recv() => first = step,
            ended = job => self.job_ended(ended.is_some()),
            () = self.inbox.changed() => {}
            () = timer => {}
        }
        // All steps of an execution that ended are applied before the next decision.
        while let Some(step) = first.take().or_else(|| self.steps.try_recv().ok()) {
            self.stepped(step);
        }
        let events = self.inbox.take();
        self.apply(events).await;
    }

    /// Handles the end of the executor or of the task that stops containers. `finished` is false if it panicked.
    fn job_ended(&mut self, finished: bool) {
        self.job = None;
        self.job_grace = None;
        self.stale = true;
        if !finished {
            // The panic would likely repeat at once, so wait with back-off.
            self.hold_all("a task of this pod panicked");
            self.rest_until = self.holds.get(SANDBOX).copied();
        }
    }

    async fn apply(&mut self, events: Events) {
        if let Some(pod) = events.pod {
            self.replaced(pod).await;
        }
        self.gone |= events.gone;
        self.stale |= events.runtime;
        if events.objects {
            self.objects_changed().await;
        }
        for ((id, kind), ok) in events.probes {
            self.probed(id, kind, ok);
        }
        if let Some(eviction) = events.evicted
            && self.mode == Mode::Syncing
            && self.verdict.is_none()
        {
            self.verdict = Some((eviction.reason.to_owned(), eviction.message));
            self.evicted = Some(eviction.grace);
        }
    }

    async fn replaced(&mut self, granted: Granted) {
        let mut pod = granted.pod;
        self.deferred = granted.deferred;
        self.parts.statuses.seen(&pod);
        if let Some(own) = &self.published {
            let status = own_over(pod.status.as_ref().unwrap_or(&PodStatus::default()), own);
            if pod.status.as_ref() != Some(&status) {
                Arc::make_mut(&mut pod).status = Some(status);
            }
        }
        let old = std::mem::replace(&mut self.pod, pod);
        if !same_resources(&old, &self.pod) {
            self.resize = Resize { cgroup_stale: true, running: true, failed: None };
        }
        let (old, new) = (&old.metadata, &self.pod.metadata);
        // Downward API volumes show metadata, which may change while the pod runs.
        if (old.labels != new.labels || old.annotations != new.annotations)
            && self.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).any(volumes::follows_api)
        {
            self.update_volumes().await;
        }
    }

    async fn objects_changed(&mut self) {
        // A container that failed because an object was missing may start now.
        let waits = self.start_errors.iter().filter(|(_, e)| e.reason == StartReason::Config);
        for name in waits.map(|(n, _)| n.clone()).collect::<Vec<_>>() {
            self.holds.remove(&name);
        }
        self.holds.remove(SANDBOX);
        self.update_volumes().await;
    }

    /// Updates the contents of volumes of a running pod.
    async fn update_volumes(&mut self) {
        if self.mode != Mode::Syncing || self.runtime.ready_sandbox().is_none() {
            return;
        }
        match self.parts.volumes.ensure(&self.pod).await {
            Ok(v) => self.renews(v.renew_at),
            Err(e) => {
                tracing::info!(pod = %pod::format_pod(&self.pod), error = %e, "updating the pod's volumes failed; retrying");
                self.renewal = Some(Renewal::after(RETRY, self.parts.effects.clock.now()));
            }
        }
    }

    async fn refresh(&mut self) {
        match self.reader.read(&*self.parts.effects.runtime, pod::uid(&self.pod)).await {
            Ok(r) => {
                self.runtime = Arc::new(r);
                self.stale = false;
                self.adopt();
                let alive = |id: &String| self.runtime.containers.iter().any(|c| c.id == *id);
                self.probes.liveness_failed.retain(alive);
                self.probes.startup_failed.retain(alive);
                self.probes.started.retain(alive);
                self.probes.ready.retain(|id, _| alive(id));
            }
            Err(e) => {
                tracing::warn!(pod = %pod::format_pod(&self.pod), error = %e, "reading the pod's state from the runtime failed; retrying");
                self.wake_at = Some(Instant::now() + RUNTIME_RETRY);
            }
        }
    }

    /// Computes the next actions and starts them. Returns `true` when the worker is done.
    async fn decide(&mut self) -> bool {
        let now = Instant::now();
        if self.mode == Mode::Syncing {
            self.sync(now).await;
        }
        if self.mode == Mode::Terminating {
            self.terminating();
        }
        if self.mode == Mode::Cleaning {
            self.clean(now).await;
        }
        if self.mode == Mode::Stopped {
            return self.stopped(now).await;
        }
        false
    }

    /// Counts the containers that ended since the last status.
    fn count_ended(&self, now: &PodStatus) {
        let before = self.published.as_ref().or(self.pod.status.as_ref());
        let lives = self.parts.effects.metrics.lives();
        type Of = fn(&PodStatus) -> Option<&[ContainerStatus]>;
        let lists: [(&str, Of); 3] = [
            ("init_container", |s| s.init_container_statuses.as_deref()),
            ("container", |s| s.container_statuses.as_deref()),
            ("ephemeral_container", |s| s.ephemeral_container_statuses.as_deref()),
        ];
        for (kind, of) in lists {
            lives.ended(kind, before.and_then(of), of(now));
        }
    }

    fn publish(&mut self, over: bool) {
        if self.gone {
            return;
        }
        let by = StateInput {
            probes: &self.probes,
            crash_loops: &self.crash_loops,
            start_errors: &self.start_errors,
            runtime_name: &self.parts.runtime_name,
            ending: self.mode != Mode::Syncing,
            restarting_all: self.restarting_all && self.mode == Mode::Syncing,
        };
        let about = StatusInput {
            host_ips: &self.parts.host_ips(),
            start_time: self.start_time,
            now: self.parts.effects.clock.now(),
            over,
            verdict: self.verdict.as_ref().map(|(r, m)| (r.as_str(), m.as_str())),
            resize_pending: self
                .deferred
                .as_ref()
                .map(|p| (p.reason, p.message.as_str()))
                .filter(|_| self.mode == Mode::Syncing),
            cgroup_stale: self.resize.cgroup_stale && self.mode == Mode::Syncing,
            resizing: Some(self.resize.failed.as_ref().map_or("", |(why, _)| why.as_str()))
                .filter(|_| self.resize.running && self.mode == Mode::Syncing),
        };
        let mut status = crate::status::pod::status(&self.pod, &self.runtime, &by, &about);
        if self.rejected && self.runtime.is_empty() {
            // The pod was rejected before anything was created, so its containers have no state.
            (status.container_statuses, status.init_container_statuses) = (None, None);
        }
        let phase = |of: Option<&PodStatus>| of.and_then(|s| s.phase.clone()).unwrap_or_default();
        if phase(Some(&status)) == "Running" && matches!(&*phase(self.pod.status.as_ref()), "" | "Pending") {
            let after = about.now.duration_since(self.start_time).max(jiff::SignedDuration::ZERO).unsigned_abs();
            self.parts.effects.metrics.pod_runs(after);
            if let Some(made) = &self.pod.metadata.creation_timestamp {
                let since = about.now.duration_since(made.0).max(jiff::SignedDuration::ZERO).unsigned_abs();
                self.parts.effects.metrics.lives().runs(since);
            }
        }
        health::add(&self.parts, &self.pod, &mut status, self.mode != Mode::Syncing);
        self.count_ended(&status);
        self.parts.statuses.set(&self.pod, &status);
        // The status of claims is read again when containers start next.
        let of_claims = self
            .pod
            .status
            .as_ref()
            .map(|s| (s.resource_claim_statuses.clone(), s.extended_resource_claim_status.clone()));
        let mut known = status.clone();
        (known.resource_claim_statuses, known.extended_resource_claim_status) = of_claims.unwrap_or_default();
        if self.pod.status.as_ref() != Some(&known) {
            // The next status copies times of conditions and forgotten instances from here.
            Arc::make_mut(&mut self.pod).status = Some(known);
        }
        self.published = Some(status);
    }
}
