//! The pod worker: one task per pod, fed by one closed enum of events. It keeps what the decision needs, runs at most one
//! execution at a time, and publishes the pod's status (upstream: `pkg/kubelet/pod_workers.go`).
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kelson_client::{DeleteOptions, EventType};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};

use super::actions::{self, Input, Plan, ProbeView, SANDBOX, timestamp};
use super::backoff::BackOff;
use super::execute::{Executor, Step};
use super::spec::{self, Role};
use super::terminate;
use crate::context::Context;
use crate::images::StartError;
use crate::probes::{ProbeKind, Target, task};
use crate::runtime::snapshot::{Reader, RuntimePod, State};
use crate::status::container::Circumstances;
use crate::status::pod::About;
use crate::volumes;

/// A container whose start failed is tried again after this (upstream: the worker's back-off period).
const RETRY: Duration = Duration::from_secs(10);
/// First delay after a failed sandbox or volume, doubling to [`PREPARE_MAX`].
const PREPARE_MIN: Duration = Duration::from_millis(500);
/// See [`PREPARE_MIN`].
const PREPARE_MAX: Duration = Duration::from_secs(60);
/// After the runtime could not be asked.
const RUNTIME_RETRY: Duration = Duration::from_secs(1);
/// How long the last status may take before the object is deleted nevertheless tried.
const FLUSH_MAX: Duration = Duration::from_secs(30);
/// Events handled before the next decision, so that a flood cannot hold it up.
const BATCH_MAX: usize = 64;
/// Least grace of a pod whose object is already gone.
const FORCED_GRACE: Duration = Duration::from_secs(1);

/// Everything that can happen to a pod.
#[derive(Debug)]
pub enum Event {
    /// The API's newest state.
    Pod(Arc<Pod>),
    /// The object is gone from the API.
    Gone,
    /// Something happened in the runtime.
    Runtime,
    /// A config map or secret it refers to changed.
    Objects,
    /// A probe's result.
    Probe {
        /// Container ID.
        id: String,
        /// Which probe.
        kind: ProbeKind,
        /// The result.
        ok: bool,
    },
    /// The executor got somewhere.
    Step(Step),
}

/// Where a pod is in its life here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Made and kept running.
    Syncing,
    /// Being ended.
    Terminating,
    /// Nothing runs; volumes and cgroup go.
    Cleaning,
    /// Nothing of it is left but its record.
    Stopped,
}

/// What a worker starts with.
pub struct Start {
    /// The pod.
    pub pod: Arc<Pod>,
    /// A rejection by admission: reason and message.
    pub rejected: Option<(String, String)>,
    /// The object is already gone.
    pub gone: bool,
}

/// A worker's state.
pub struct Worker {
    ctx: Arc<Context>,
    pod: Arc<Pod>,
    gone: bool,
    events: mpsc::UnboundedReceiver<Event>,
    own: mpsc::UnboundedSender<Event>,
    mode: Mode,
    reader: Reader,
    runtime: Arc<RuntimePod>,
    stale: bool,
    probes: ProbeView,
    tasks: HashMap<(String, ProbeKind), AbortHandle>,
    backoff: BackOff,
    holds: HashMap<String, Timestamp>,
    start_errors: BTreeMap<String, StartError>,
    crash_loops: BTreeMap<String, Duration>,
    prepare_failures: u32,
    renew_at: Option<Timestamp>,
    job: Option<JoinHandle<()>>,
    job_grace: Option<Duration>,
    verdict: Option<(String, String)>,
    rejected: bool,
    start_time: Timestamp,
    wake_at: Option<Timestamp>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop_job();
        self.tasks.values().for_each(AbortHandle::abort);
    }
}

impl Worker {
    /// A worker that has not run yet.
    pub fn new(
        ctx: Arc<Context>,
        start: Start,
        events: mpsc::UnboundedReceiver<Event>,
        own: mpsc::UnboundedSender<Event>,
    ) -> Self {
        let start_time = ctx.clock.now();
        Self {
            pod: start.pod,
            gone: start.gone,
            events,
            own,
            mode: if start.rejected.is_some() { Mode::Terminating } else { Mode::Syncing },
            reader: Reader::default(),
            runtime: Arc::default(),
            stale: true,
            probes: ProbeView::default(),
            tasks: HashMap::new(),
            backoff: BackOff::default(),
            holds: HashMap::new(),
            start_errors: BTreeMap::new(),
            crash_loops: BTreeMap::new(),
            prepare_failures: 0,
            renew_at: None,
            job: None,
            job_grace: None,
            rejected: start.rejected.is_some(),
            verdict: start.rejected,
            start_time,
            wake_at: None,
            ctx,
        }
    }

    /// Runs until nothing of the pod is left here.
    pub async fn run(mut self) {
        self.ctx.objects.register(&self.pod);
        loop {
            self.wake_at = self.renew_at;
            if self.stale {
                self.refresh().await;
            }
            if !self.stale && self.decide().await {
                break;
            }
            self.wait().await;
        }
        let uid = spec::uid(&self.pod);
        self.ctx.objects.unregister(uid);
        self.ctx.tokens.forget(uid);
        self.ctx.statuses.forget(uid);
    }

    async fn wait(&mut self) {
        let now = self.ctx.clock.now();
        let sleep = self.wake_at.map(|t| t.duration_since(now).max(jiff::SignedDuration::ZERO).unsigned_abs());
        let timer = async {
            match sleep {
                // A hair later, so that the time has surely come when it is looked at.
                Some(d) => tokio::time::sleep(d + Duration::from_millis(1)).await,
                None => std::future::pending().await,
            }
        };
        let job = async {
            match self.job.as_mut() {
                Some(j) => drop(j.await),
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            event = self.events.recv() => event,
            () = job => {
                self.job = None;
                self.job_grace = None;
                self.stale = true;
                None
            }
            () = timer => None,
        };
        // What an execution reported before it ended is known before anything is decided again.
        let mut next = event.or_else(|| self.events.try_recv().ok());
        for _ in 0..BATCH_MAX {
            let Some(event) = next else { break };
            self.apply(event).await;
            next = self.events.try_recv().ok();
        }
    }

    async fn apply(&mut self, event: Event) {
        match event {
            Event::Pod(pod) => self.pod = pod,
            Event::Gone => self.gone = true,
            Event::Runtime => self.stale = true,
            Event::Objects => self.objects_changed().await,
            Event::Probe { id, kind, ok } => self.probed(id, kind, ok),
            Event::Step(step) => self.stepped(step),
        }
    }

    fn probed(&mut self, id: String, kind: ProbeKind, ok: bool) {
        match (kind, ok) {
            (ProbeKind::Readiness, ok) => {
                self.probes.ready.insert(id, ok);
            }
            (ProbeKind::Liveness, false) => {
                self.probes.liveness_failed.insert(id);
            }
            (ProbeKind::Startup, true) => {
                self.probes.started.insert(id);
            }
            (ProbeKind::Startup, false) => {
                self.probes.startup_failed.insert(id);
            }
            (ProbeKind::Liveness, true) => {}
        }
    }

    fn stepped(&mut self, step: Step) {
        let now = self.ctx.clock.now();
        match step {
            Step::Prepared(v) => {
                self.prepare_failures = 0;
                self.renew_at = v.renew_at;
            }
            Step::NotPrepared(message) | Step::SandboxFailed(message) => {
                tracing::info!(pod = %spec::format_pod(&self.pod), message, "pod cannot be set up yet");
                let delay = PREPARE_MIN.saturating_mul(1 << self.prepare_failures.min(10)).min(PREPARE_MAX);
                self.prepare_failures += 1;
                self.holds.insert(SANDBOX.to_owned(), now + delay);
            }
            Step::Changed => self.stale = true,
            Step::Started { name, restarted_after } => {
                self.start_errors.remove(&name);
                self.holds.remove(&name);
                if let Some(ended) = restarted_after {
                    self.backoff.next(&name, ended, now);
                }
                self.stale = true;
            }
            Step::StartFailed { name, error, restarted_after } => {
                let image = spec::member(&self.pod, &name).and_then(|m| m.container.image.clone());
                let again = image.and_then(|i| self.ctx.images.retry_at(&self.pod, &i, now));
                // The change from ErrImagePull to ImagePullBackOff is shown soon after, as upstream does.
                let pulling = error.reason == "ErrImagePull";
                let until = again.filter(|_| !pulling).unwrap_or(now + if pulling { RUNTIME_RETRY } else { RETRY });
                self.holds.insert(name.clone(), until);
                if let Some(ended) = restarted_after {
                    self.backoff.next(&name, ended, now);
                }
                self.start_errors.insert(name, error);
                self.stale = true;
            }
        }
    }

    async fn objects_changed(&mut self) {
        // What failed for want of an object may succeed now.
        let waits = self.start_errors.iter().filter(|(_, e)| e.reason == "CreateContainerConfigError");
        for name in waits.map(|(n, _)| n.clone()).collect::<Vec<_>>() {
            self.holds.remove(&name);
        }
        self.holds.remove(SANDBOX);
        self.update_volumes().await;
    }

    /// Brings rendered volumes of a pod that runs up to date.
    async fn update_volumes(&mut self) {
        if self.mode != Mode::Syncing || self.runtime.ready_sandbox().is_none() {
            return;
        }
        match volumes::setup::ensure(&self.ctx, &self.pod).await {
            Ok(v) => self.renew_at = v.renew_at,
            Err(e) => {
                tracing::info!(pod = %spec::format_pod(&self.pod), error = %e, "volumes not updated");
                self.renew_at = Some(self.ctx.clock.now() + RETRY);
            }
        }
    }

    async fn refresh(&mut self) {
        match self.reader.read(&*self.ctx.runtime, spec::uid(&self.pod)).await {
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
                tracing::warn!(pod = %spec::format_pod(&self.pod), error = %e, "runtime state not read");
                self.wake_at = Some(self.ctx.clock.now() + RUNTIME_RETRY);
            }
        }
    }

    /// Containers of a kubelet before this one keep what the API knows of them, so that they are not seen as unready.
    fn adopt(&mut self) {
        let Some(status) = self.pod.status.as_ref() else { return };
        let lists = [&status.container_statuses, &status.init_container_statuses];
        for s in lists.into_iter().flat_map(|l| l.iter().flatten()) {
            let Some(id) = s.container_id.as_deref().and_then(|id| id.split_once("://")).map(|(_, id)| id) else {
                continue;
            };
            let running = self.runtime.containers.iter().any(|c| c.id == id && c.state == State::Running);
            if !running || self.tasks.keys().any(|(t, _)| t == id) || self.probes.ready.contains_key(id) {
                continue;
            }
            if s.started == Some(true) {
                self.probes.started.insert(id.to_owned());
            }
            self.probes.ready.insert(id.to_owned(), s.ready);
        }
    }

    /// Decides and starts what follows; true when the worker's work is over.
    async fn decide(&mut self) -> bool {
        let now = self.ctx.clock.now();
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

    async fn sync(&mut self, now: Timestamp) {
        if self.must_end(now) {
            self.end();
            return;
        }
        if self.renew_at.is_some_and(|t| t <= now) {
            self.update_volumes().await;
            self.wake_at = self.renew_at;
        }
        let plan = self.plan(now);
        self.announce_crash_loops(&plan);
        self.crash_loops = plan.crash_loops;
        if let Some(at) = plan.wake_at {
            self.wake_at = Some(self.wake_at.map_or(at, |t| t.min(at)));
        }
        if plan.finished && self.job.is_none() {
            self.end();
            return;
        }
        self.publish(false);
        self.reconcile_probes(now);
        if self.job.is_none() && !plan.actions.is_empty() {
            self.spawn_sync(plan.actions);
        } else if self.job.is_none() {
            terminate::collect(&self.ctx, &self.runtime).await;
        }
    }

    fn plan(&self, now: Timestamp) -> Plan {
        actions::compute(&Input {
            pod: &self.pod,
            runtime: &self.runtime,
            probes: &self.probes,
            backoff: &self.backoff,
            holds: &self.holds,
            now,
        })
    }

    fn must_end(&mut self, now: Timestamp) -> bool {
        if self.gone || spec::is_deleted(&self.pod) || spec::is_terminal(&self.pod) {
            return true;
        }
        let started = self.pod.status.as_ref().and_then(|s| s.start_time.as_ref()).map_or(self.start_time, |t| t.0);
        let limit = self.pod.spec.as_ref().and_then(|s| s.active_deadline_seconds).and_then(|s| u64::try_from(s).ok());
        let Some(limit) = limit else { return false };
        let at = started + Duration::from_secs(limit);
        if now < at {
            self.wake_at = Some(self.wake_at.map_or(at, |t| t.min(at)));
            return false;
        }
        let message = "Pod was active on the node longer than the specified deadline";
        self.ctx.event(&self.pod, EventType::Normal, "DeadlineExceeded", message);
        self.verdict = Some(("DeadlineExceeded".into(), message.into()));
        true
    }

    fn announce_crash_loops(&self, plan: &Plan) {
        for name in plan.crash_loops.keys().filter(|n| !self.crash_loops.contains_key(*n)) {
            let role = spec::member(&self.pod, name).map_or(Role::App, |m| m.role);
            let message = format!("Back-off restarting failed container {name} in pod {}", spec::format_pod(&self.pod));
            self.ctx.container_event(&self.pod, role, name, EventType::Warning, "BackOff", message);
        }
    }

    fn end(&mut self) {
        self.stop_job();
        self.tasks.drain().for_each(|(_, t)| t.abort());
        self.mode = Mode::Terminating;
        // What the stopped execution did last is not known yet.
        self.stale = true;
    }

    fn stop_job(&mut self) {
        if let Some(j) = self.job.take() {
            j.abort();
        }
        self.job_grace = None;
    }

    fn spawn_sync(&mut self, actions: Vec<actions::Action>) {
        let executor = Executor {
            ctx: Arc::clone(&self.ctx),
            pod: Arc::clone(&self.pod),
            runtime: Arc::clone(&self.runtime),
            report: self.own.clone(),
        };
        self.job = Some(tokio::spawn(executor.run(actions)));
    }

    fn grace(&self) -> Duration {
        let wanted = Duration::from_secs(u64::try_from(spec::grace_seconds(&self.pod)).unwrap_or(0));
        if !self.gone {
            return wanted;
        }
        let annotated =
            self.runtime.containers.iter().find_map(|c| c.annotations.get(crate::runtime::labels::GRACE_PERIOD));
        match annotated.and_then(|a| a.parse().ok()).filter(|_| self.pod.metadata.deletion_timestamp.is_none()) {
            Some(seconds) => Duration::from_secs(seconds),
            None => wanted.max(FORCED_GRACE),
        }
    }

    fn terminating(&mut self) {
        if self.stale {
            // A fresh look first: `wait` returns at once because of `wake_at`.
            self.wake_at = Some(self.ctx.clock.now());
            return;
        }
        if !self.runtime.is_running() && self.job.is_none() {
            self.mode = Mode::Cleaning;
            return;
        }
        let grace = self.grace();
        // A shorter grace period (a second, forced delete) replaces the one under way.
        if self.job_grace.is_some_and(|g| grace < g) {
            self.stop_job();
        }
        if self.job.is_none() {
            self.job_grace = Some(grace);
            let work = terminate::pod(Arc::clone(&self.ctx), Arc::clone(&self.pod), Arc::clone(&self.runtime), grace);
            self.job = Some(tokio::spawn(work));
        }
        if self.verdict.is_none() {
            self.publish(false);
        }
    }

    async fn clean(&mut self, now: Timestamp) {
        self.publish(true);
        let uid = spec::uid(&self.pod).to_owned();
        if let Err(e) = volumes::setup::tear_down(&self.ctx, &uid) {
            tracing::warn!(pod = %spec::format_pod(&self.pod), error = %e, "volumes not taken down yet");
            self.wake_at = Some(now + PREPARE_MIN.saturating_mul(1 << self.prepare_failures.min(7)));
            self.prepare_failures += 1;
            return;
        }
        self.ctx.cgroups.remove(&uid);
        self.ctx.objects.unregister(&uid);
        self.renew_at = None;
        self.wake_at = None;
        self.mode = Mode::Stopped;
    }

    /// All is down: confirm the deletion to the API, then remove the last traces.
    async fn stopped(&mut self, now: Timestamp) -> bool {
        if !self.gone && spec::is_deleted(&self.pod) {
            self.ctx.statuses.flushed(spec::uid(&self.pod), FLUSH_MAX).await;
            let options = DeleteOptions::default().with_grace(0).with_uid(spec::uid(&self.pod));
            let (namespace, name) = (spec::namespace(&self.pod), spec::name(&self.pod));
            match self.ctx.client.delete::<Pod>(namespace, name, &options).await {
                Ok(()) => self.gone = true,
                Err(e) if e.is_not_found() || e.status().is_some_and(|s| s.code == 409) => self.gone = true,
                Err(e) => {
                    tracing::warn!(pod = name, error = %e, "pod not deleted from the API yet");
                    self.wake_at = Some(now + RUNTIME_RETRY);
                    return false;
                }
            }
        }
        if !self.gone {
            return false;
        }
        match terminate::remove(&self.ctx, &self.pod, &self.runtime).await {
            Ok(()) => true,
            Err(e) => {
                tracing::warn!(pod = %spec::format_pod(&self.pod), error = %e, "containers not removed yet");
                self.stale = true;
                self.wake_at = Some(now + RUNTIME_RETRY);
                false
            }
        }
    }

    fn publish(&mut self, over: bool) {
        if self.gone {
            return;
        }
        let name = self.ctx.node_runtime_name();
        let by = Circumstances {
            probes: &self.probes,
            crash_loops: &self.crash_loops,
            start_errors: &self.start_errors,
            runtime_name: &name,
            ending: self.mode != Mode::Syncing,
        };
        let about = About {
            host_ips: &self.ctx.host_ips(),
            start_time: self.start_time,
            now: self.ctx.clock.now(),
            over,
            verdict: self.verdict.as_ref().map(|(r, m)| (r.as_str(), m.as_str())),
        };
        let mut status = crate::status::pod::status(&self.pod, &self.runtime, &by, &about);
        if self.rejected && self.runtime.is_empty() {
            // Nothing of it was ever made: its containers have no state to tell.
            (status.container_statuses, status.init_container_statuses) = (None, None);
        }
        self.ctx.statuses.set(&self.pod, &status);
    }

    /// Starts the probes that running containers should have and stops all others.
    fn reconcile_probes(&mut self, now: Timestamp) {
        let mut wanted = HashMap::new();
        for m in spec::members(&self.pod).filter(|m| matches!(m.role, Role::App | Role::Sidecar)) {
            let c = &*m.container;
            let Some(i) = self.runtime.latest(&c.name).filter(|i| i.state == State::Running) else { continue };
            let started = self.probes.is_started(c, &i.id);
            for kind in [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness] {
                let active = (kind == ProbeKind::Startup) != started;
                if let Some(p) = kind.of(c).filter(|_| active) {
                    wanted.insert((i.id.clone(), kind), (c.clone(), p.clone(), timestamp(i.started_at), m.role));
                }
            }
        }
        self.tasks.retain(|key, t| {
            let keep = wanted.contains_key(key);
            if !keep {
                t.abort();
            }
            keep
        });
        let ip = match self.runtime.ready_sandbox().and_then(|s| s.ips.first()) {
            Some(ip) => ip.clone(),
            None => self.ctx.host_ips().first().cloned().unwrap_or_default(),
        };
        for ((id, kind), (c, probe, started, role)) in wanted {
            if self.tasks.contains_key(&(id.clone(), kind)) {
                continue;
            }
            let age = now.duration_since(started).max(jiff::SignedDuration::ZERO).unsigned_abs();
            let target = Target::new(&c, &id, &ip);
            let (ctx, pod, own, of) = (Arc::clone(&self.ctx), Arc::clone(&self.pod), self.own.clone(), id.clone());
            let report = move |r: task::Report| match r {
                task::Report::Result(ok) => {
                    let _ = own.send(Event::Probe { id: of.clone(), kind, ok });
                }
                task::Report::Attempt(text) => {
                    ctx.container_event(&pod, role, &c.name, EventType::Warning, "Unhealthy", text);
                }
            };
            let runner = Arc::clone(&self.ctx.prober);
            let handle = tokio::spawn(task::run(kind, probe, target, age, runner, report)).abort_handle();
            self.tasks.insert((id, kind), handle);
        }
    }
}
