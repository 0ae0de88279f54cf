//! The pod worker: one task per pod, fed by one closed enum of events. It keeps what the decision needs, runs at most one
//! execution at a time, and publishes the pod's status (upstream: `pkg/kubelet/pod_workers.go`). What it does with a pod
//! that lives is in `sync`, with one that ends in `end`, with its probes in `probing`.
mod end;
mod probing;
mod sync;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};

use super::backoff::BackOff;
use super::execute::Step;
use super::plan::{ProbeView, SANDBOX};
use crate::effects::Context;
use crate::images::StartError;
use crate::pod;
use crate::probes::ProbeKind;
use crate::runtime::snapshot::{Reader, RuntimePod};
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
/// Grace of a pod whose object is already gone: it was deleted by force, and its name may be taken again.
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
    /// The node is short of something, and this pod has to go.
    Evict {
        /// The text of status and event.
        message: String,
        /// What its containers get to end.
        grace: Duration,
    },
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
    /// The grace period of an eviction.
    evicted: Option<Duration>,
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
            evicted: None,
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
        let uid = pod::uid(&self.pod);
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
            Event::Pod(pod) => self.replaced(pod).await,
            Event::Gone => self.gone = true,
            Event::Runtime => self.stale = true,
            Event::Objects => self.objects_changed().await,
            Event::Probe { id, kind, ok } => self.probed(id, kind, ok),
            Event::Step(step) => self.stepped(step),
            Event::Evict { message, grace } => {
                if self.mode == Mode::Syncing && self.verdict.is_none() {
                    self.verdict = Some((crate::eviction::REASON.into(), message));
                    self.evicted = Some(grace);
                }
            }
        }
    }

    async fn replaced(&mut self, pod: Arc<Pod>) {
        let old = std::mem::replace(&mut self.pod, pod);
        let (old, new) = (&old.metadata, &self.pod.metadata);
        // What a downward API volume shows of a pod's metadata may change while it runs.
        if (old.labels != new.labels || old.annotations != new.annotations)
            && self.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).any(volumes::payload::is_rendered)
        {
            self.update_volumes().await;
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
                tracing::info!(pod = %pod::format_pod(&self.pod), error = %e, "volumes not updated");
                self.renew_at = Some(self.ctx.clock.now() + RETRY);
            }
        }
    }

    async fn refresh(&mut self) {
        match self.reader.read(&*self.ctx.runtime, pod::uid(&self.pod)).await {
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
                tracing::warn!(pod = %pod::format_pod(&self.pod), error = %e, "runtime state not read");
                self.wake_at = Some(self.ctx.clock.now() + RUNTIME_RETRY);
            }
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
        if pod::is_static(&self.pod) && self.pod.status.as_ref() != Some(&status) {
            // No API gives it back: times of conditions and what the runtime has forgotten are read from here.
            Arc::make_mut(&mut self.pod).status = Some(status);
        }
    }
}
