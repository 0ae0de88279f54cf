//! Starts the pod workers and forwards events to them: pods from the API and from manifests, changes in the runtime, pods of an earlier
//! kubelet. A worker that panicked is started again with what is known of its pod.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]
mod judge;
mod orphans;
mod statics;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kelson_client::{Change, Client, EventType, Informer, InformerConfig, InformerHandle};
use kelson_tasks::{OnPanic, Tasks};
use tokio::sync::watch;

use super::event::{WorkerInbox, WorkerStart};
use super::inbox::{ManagerInbox, ManifestSource, Pending, PodChange};
use super::known::PodRegistry;
use super::mirror::{MirrorInbox, MirrorManager};
use super::parts::Parts;
use super::resize::{self, Granted, ResizePending};
use super::room::{EndingPods, Wait};
use super::worker::Worker;
use crate::config::thresholds::Pressure;
use crate::pod;
use crate::runtime::events::RunningPod;
pub use statics::read_manifests;
use statics::{Statics, name};

/// First and maximum delay before a worker is restarted after panics.
const RESTART_MIN: Duration = Duration::from_secs(1);
const RESTART_MAX: Duration = Duration::from_secs(60);
/// Interval at which deferred resizes are tried again if nothing else happens (upstream: `retryDelay`).
const RESIZE_RETRY: Duration = Duration::from_secs(180);

/// A pod and its worker.
struct PodEntry {
    inbox: WorkerInbox,
    /// Initial state for the worker if it must be restarted.
    start: WorkerStart,
    /// The pod as the API has it. The worker's pod has the granted resources instead.
    wanted: Arc<Pod>,
    /// Number of panics of the worker.
    panics: u32,
}

/// The manager of pod workers, a single task. It takes all pending events from its [`ManagerInbox`], admits new pods, grants resizes in
/// place, starts one worker per pod, restarts a worker that panicked, and ends pods that the runtime has and the API does not know. The
/// containers themselves are handled by the workers.
pub struct PodManager {
    parts: Arc<Parts>,
    node: watch::Receiver<Option<Arc<Node>>>,
    pressure: watch::Receiver<Pressure>,
    /// Whether the node is shutting down.
    shutdown: watch::Receiver<bool>,
    inbox: ManagerInbox,
    workers: HashMap<String, PodEntry>,
    known: PodRegistry,
    /// UIDs of unknown pods whose directories are being removed.
    leaving: BTreeSet<String>,
    /// Pods that the runtime had at start and that the API has not named yet.
    found: Option<HashMap<String, RunningPod>>,
    synced: bool,
    /// Static pods, by source.
    statics: Statics,
    /// Static pods that wait for the end of an earlier pod of the same name.
    waiting: HashMap<(String, String), Arc<Pod>>,
    /// Pods that wait for resources of ending pods, by UID of the waiting pod.
    rooms: HashMap<String, EndingPods>,
    mirrors: MirrorInbox,
}

/// Starts the watch of this node's pods in the API.
pub fn source(tasks: &Tasks, client: &Client, node_name: &str, to: ManagerInbox) -> InformerHandle<Pod> {
    let config = InformerConfig { fields: format!("spec.nodeName={node_name}"), ..Default::default() };
    let inbox = to.clone();
    let handle = Informer::new(client.clone(), config)
        .on_change(move |change: &Change<Pod>| {
            inbox.pod(match change {
                Change::Added(p) | Change::Updated { new: p, .. } => PodChange::Is(of_the_api(p)),
                Change::Deleted(p) => PodChange::Gone(of_the_api(p)),
            });
        })
        .start_in(tasks);
    let waiting = handle.clone();
    tasks.spawn("pods-synced", OnPanic::Contain, async move {
        waiting.synced().await;
        to.synced();
    });
    handle
}

/// Overwrites the source annotation of static pods. Only manifests of this node make static pods, which are never evicted; a pod of the API must not
/// claim to be one.
fn of_the_api(pod: &Arc<Pod>) -> Arc<Pod> {
    if !pod::is_static(pod) || pod::is_mirror(pod) {
        return Arc::clone(pod);
    }
    let mut pod = Pod::clone(pod);
    pod.metadata.annotations.get_or_insert_default().insert(pod::CONFIG_SOURCE.to_owned(), "api".to_owned());
    Arc::new(pod)
}

impl PodManager {
    /// Creates a manager that is not running yet. The mirror pods are managed from now on.
    pub fn new(
        parts: Arc<Parts>,
        node: watch::Receiver<Option<Arc<Node>>>,
        (pressure, shutdown): (watch::Receiver<Pressure>, watch::Receiver<bool>),
        inbox: ManagerInbox,
        known: PodRegistry,
    ) -> Self {
        let mirrors = MirrorInbox::default();
        let manager = MirrorManager::new(parts.client.clone(), node.clone(), parts.statuses.clone(), mirrors.clone());
        parts.tasks.supervise("mirror-pods", move || manager.clone().run());
        let statics = Statics::new(&parts.config);
        mirrors.wanted(Vec::new(), statics.complete());
        Self {
            parts,
            node,
            pressure,
            shutdown,
            inbox,
            workers: HashMap::new(),
            known,
            leaving: BTreeSet::new(),
            found: None,
            synced: false,
            statics,
            waiting: HashMap::new(),
            rooms: HashMap::new(),
            mirrors,
        }
    }

    /// Runs until its task is aborted.
    pub async fn run(mut self) {
        loop {
            // No event reports that a node grew, so deferred resizes are also retried periodically.
            let waits = self.workers.values().any(|e| e.start.deferred.is_some());
            let mut pending = tokio::select! {
                pending = self.inbox.next() => pending,
                () = tokio::time::sleep(RESIZE_RETRY), if waits => Pending::default(),
            };
            let (trigger, pings) = (pending.retry_trigger(), std::mem::take(&mut pending.pings));
            self.take(pending).await;
            self.rooms_left();
            self.retry_deferred(trigger);
            for ping in pings {
                // The caller may have given up.
                let _ = ping.send(());
            }
        }
    }

    async fn take(&mut self, mut pending: Pending) {
        // The runtime's state comes first: pods that already run are adopted without admission.
        let mut settled = pending.synced;
        if let Some(found) = pending.found.take() {
            self.found = Some(found.into_iter().map(|p| (p.uid.clone(), p)).collect());
            settled = true;
        }
        for change in pending.changes() {
            match change {
                PodChange::Is(pod) if pod::is_mirror(&pod) => self.mirrors.seen(pod),
                PodChange::Gone(pod) if pod::is_mirror(&pod) => self.mirrors.gone(&pod),
                PodChange::Is(pod) => self.pod(pod),
                PodChange::Gone(pod) => self.gone(pod::uid(&pod)),
            }
        }
        self.parts.effects.metrics.lives().mirrored(self.mirrors.count());
        for (source, pods) in std::mem::take(&mut pending.statics) {
            self.manifests(source, pods);
            settled = true;
        }
        if pending.synced {
            self.synced = true;
            self.mirrors.synced();
        }
        if settled {
            self.orphans().await;
        }
        for (uid, there) in pending.runtime {
            match (there.filter(|_| self.complete()), self.workers.get(&uid)) {
                (_, Some(entry)) => entry.inbox.runtime(),
                // A call that was abandoned created the container after its pod had ended.
                (Some(left), None) => self.end_orphan(left),
                (None, None) => {}
            }
        }
        for entry in pending.objects.iter().filter_map(|uid| self.workers.get(uid)) {
            entry.inbox.objects();
        }
        for entry in pending.health.iter().filter_map(|uid| self.workers.get(uid)) {
            entry.inbox.health();
        }
        for (uid, eviction) in pending.evictions {
            if let Some(entry) = self.workers.get_mut(&uid) {
                entry.start.evicted = Some(eviction.clone());
                entry.inbox.evict(eviction);
            }
        }
        for (uid, by_itself) in pending.ended {
            if by_itself { self.ended(&uid) } else { self.panicked(&uid) }
        }
    }

    fn pod(&mut self, pod: Arc<Pod>) {
        let uid = pod::uid(&pod).to_owned();
        if let Some(entry) = self.workers.get(&uid) {
            let before = Arc::clone(&entry.start.pod);
            return self.grant(&uid, &before, pod);
        }
        let adopted = self.found.as_ref().is_some_and(|f| f.contains_key(&uid));
        if adopted {
            let before = resize::remembered(&pod);
            self.start(WorkerStart::of(Arc::clone(&before)), None);
            return self.grant(&uid, &before, pod);
        }
        self.parts.effects.metrics.lives().came(pod.spec.as_ref().map_or(0, |s| s.containers.len()));
        let ends = pod::is_deleted(&pod) || pod::is_terminal(&pod);
        let judged = if ends { Ok(None) } else { self.judge(&pod) };
        let (wait, rejected) = judged.map_or_else(|rejection| (None, Some(rejection)), |wait| (wait, None));
        self.start(WorkerStart { rejected, ..WorkerStart::of(pod) }, wait);
    }

    /// Grants a running pod the resources of its newest spec, if the node has them.
    fn grant(&mut self, uid: &str, before: &Arc<Pod>, wanted: Arc<Pod>) {
        let node = self.node.borrow().clone();
        let granted = if resize::same_resources(before, &wanted) {
            Granted { pod: Arc::clone(&wanted), deferred: None }
        } else {
            let devices = self.parts.devices.offered();
            let here = (node.as_deref(), &self.parts.config.placement, &devices);
            resize::grant(here, &self.others(), before, &wanted)
        };
        let Some(entry) = self.workers.get_mut(uid) else { return };
        let record = |kind, reason, what, why: &str| {
            self.parts.effects.events.pod(&wanted, kind, reason, resize::message(what, &wanted, why));
        };
        let metrics = self.parts.effects.metrics.resizes();
        if !resize::same_resources(&entry.wanted, &wanted) {
            metrics.requested(&entry.wanted, &wanted);
        }
        let generation = |p: &Pod| p.metadata.generation;
        match &granted.deferred {
            Some(why) if entry.start.deferred.is_none() || generation(&wanted) != generation(&entry.wanted) => {
                let reason = if why.reason == "Deferred" { "ResizeDeferred" } else { "ResizeInfeasible" };
                record(EventType::Warning, reason, why.reason, &why.message);
                if !why.detail.is_empty() {
                    metrics.infeasible(why.detail);
                }
            }
            Some(_) => {}
            None if !resize::same_resources(before, &granted.pod) => {
                record(EventType::Normal, "ResizeStarted", "started", "")
            }
            None => {}
        }
        entry.start.pod = Arc::clone(&granted.pod);
        entry.start.deferred.clone_from(&granted.deferred);
        entry.wanted = wanted;
        self.known.put(&granted.pod);
        entry.inbox.pod(granted);
    }

    /// Retries deferred resizes, by priority.
    fn retry_deferred(&mut self, trigger: &str) {
        let may_come = |p: &ResizePending| p.reason == "Deferred";
        let waiting = self.workers.iter().filter(|(_, e)| e.start.deferred.as_ref().is_some_and(may_come));
        let priority = |p: &Pod| p.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
        let mut waiting: Vec<_> =
            waiting.map(|(uid, e)| (uid.clone(), e.start.pod.clone(), e.wanted.clone())).collect();
        waiting.sort_by_key(|(uid, _, wanted)| (std::cmp::Reverse(priority(wanted)), uid.clone()));
        if waiting.is_empty() {
            return;
        }
        let (node, devices) = (self.node.borrow().clone(), self.parts.devices.offered());
        for (uid, before, wanted) in waiting {
            let here = (node.as_deref(), &self.parts.config.placement, &devices);
            if resize::grant(here, &self.others(), &before, &wanted).deferred.is_none() {
                self.parts.effects.metrics.resizes().accepted_later(trigger);
                self.grant(&uid, &before, wanted);
            }
        }
    }

    fn gone(&mut self, uid: &str) {
        if let Some(entry) = self.workers.get_mut(uid) {
            entry.start.gone = true;
            entry.inbox.gone();
        }
    }

    /// Returns whether both the API and the manifests were read completely.
    fn complete(&self) -> bool {
        self.synced && self.statics.complete()
    }

    fn manifests(&mut self, source: ManifestSource, pods: Vec<Arc<Pod>>) {
        let (before, wanted) = self.statics.put(source, pods);
        let all: Vec<_> = wanted.values().cloned().collect();
        let same = |a: &Pod, b: Option<&Arc<Pod>>| b.is_some_and(|b| pod::uid(a) == pod::uid(b));
        for (n, pod) in before.iter().filter(|(n, p)| !same(p, wanted.get(*n))) {
            self.waiting.remove(n);
            self.gone(pod::uid(pod));
        }
        for (n, pod) in wanted.into_iter().filter(|(n, p)| !same(p, before.get(n))) {
            let busy = self.workers.values().any(|w| pod::is_static(&w.start.pod) && name(&w.start.pod) == n);
            if busy {
                self.waiting.insert(n, pod);
            } else {
                self.pod(pod);
            }
        }
        self.mirrors.wanted(all, self.statics.complete());
    }

    fn ended(&mut self, uid: &str) {
        self.known.remove(uid);
        let Some(entry) = self.workers.remove(uid) else { return };
        let pod = entry.start.pod;
        if let Some(next) = self.waiting.remove(&name(&pod)).filter(|_| pod::is_static(&pod)) {
            self.pod(next);
        }
    }

    /// Restarts the worker. Its state is lost, but the runtime and the API have everything that matters.
    fn panicked(&mut self, uid: &str) {
        let Some(entry) = self.workers.get_mut(uid) else { return };
        let pause = RESTART_MIN.saturating_mul(1 << entry.panics.min(10)).min(RESTART_MAX);
        entry.panics = entry.panics.saturating_add(1);
        tracing::error!(pod = %pod::format_pod(&entry.start.pod), ?pause, "the pod's worker panicked; restarting it");
        let (start, inbox) = (entry.start.clone(), entry.inbox.clone());
        self.spawn(start, inbox, tokio::time::sleep(pause));
    }

    fn start(&mut self, start: WorkerStart, wait: Option<Wait>) {
        let uid = pod::uid(&start.pod).to_owned();
        let inbox = WorkerInbox::default();
        self.known.put(&start.pod);
        let wanted = Arc::clone(&start.pod);
        self.workers.insert(uid, PodEntry { inbox: inbox.clone(), start: start.clone(), wanted, panics: 0 });
        self.spawn(start, inbox, async move {
            if let Some(wait) = wait {
                wait.over().await;
            }
        });
    }

    /// Starts a worker after the future `first` completed.
    fn spawn(&self, start: WorkerStart, inbox: WorkerInbox, first: impl Future<Output = ()> + Send + 'static) {
        let uid = pod::uid(&start.pod).to_owned();
        let ending = WorkerEndNotice { uid, by_itself: false, to: self.inbox.clone(), tasks: self.parts.tasks.clone() };
        let parts = Arc::clone(&self.parts);
        self.parts.tasks.spawn("pod-worker", OnPanic::Contain, async move {
            let mut ending = ending;
            first.await;
            Worker::new(parts, start, inbox).run().await;
            ending.by_itself = true;
            drop(ending);
        });
    }
}

/// Notifies the manager when it is dropped that a worker ended: returned or panicked. The end of the kubelet is ignored.
struct WorkerEndNotice {
    uid: String,
    by_itself: bool,
    to: ManagerInbox,
    /// The task group whose end also ends the worker.
    tasks: Tasks,
}

impl Drop for WorkerEndNotice {
    fn drop(&mut self) {
        if self.by_itself || !self.tasks.token().is_cancelled() {
            self.to.ended(std::mem::take(&mut self.uid), self.by_itself);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn workers_that_end_with_the_kubelet_have_not_panicked() {
        let inbox = ManagerInbox::default();
        let tasks = Tasks::root("test");
        let worker = |uid: &str, panics: bool| {
            let ending = WorkerEndNotice { uid: uid.into(), by_itself: false, to: inbox.clone(), tasks: tasks.clone() };
            tasks.spawn("pod-worker", OnPanic::Contain, async move {
                let _ending = ending;
                assert!(!panics, "as the test wants it");
                std::future::pending::<()>().await;
            });
        };
        worker("broken", true);
        worker("whole", false);
        let ended = inbox.next().await.ended;
        assert_eq!(ended, HashMap::from([("broken".to_owned(), false)]));
        tasks.shutdown(Duration::from_secs(1)).await;
        let next = tokio::time::timeout(Duration::from_secs(1), inbox.next()).await;
        assert!(next.is_err(), "the worker that was ended with its group is reported as {:?}", next.map(|t| t.ended));
    }
}
