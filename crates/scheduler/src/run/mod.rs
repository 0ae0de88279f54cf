//! The surroundings of the core: informers feed it, one task asks it for steps, bindings and status writes run beside it
//! in bounded numbers. At rest nothing wakes up but for what the queue says is due.
use std::sync::Arc;

use kelson_client::{
    Change, Client, ClientError, DeleteOptions, EventRecorder, EventType, Informer, InformerConfig, InformerHandle,
    Object, PatchKind, ResourceType, WriteOptions,
};
use kelson_meta::{Clock, Reason, format_seconds};
use kelson_metrics::Registry;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cluster::workloads::owner_selector;
use crate::core::{Core, Preemption, Report, Step};
use crate::metrics;
use crate::view::{
    Claim, DisruptionBudget, Namespace, Node, Pod, ReplicaSet, ReplicationController, Service, StatefulSet,
    StorageClass, Volume,
};

/// Bindings under way at once.
const BINDS_MAX: usize = 64;
/// Status writes under way at once.
const REPORTS_MAX: usize = 16;
/// What the API server says of a gated pod.
const GATED: &str = "Scheduling is blocked due to non-empty scheduling gates";

/// How to schedule.
#[derive(Clone, Debug)]
pub struct Config {
    /// Pods whose `schedulerName` is another are left alone.
    pub scheduler_name: String,
    /// `percentageOfNodesToScore`; 0: by the number of nodes.
    pub percentage_of_nodes_to_score: usize,
    /// Seed of the choice among equal nodes; `None`: from the system.
    pub seed: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self { scheduler_name: "default-scheduler".into(), percentage_of_nodes_to_score: 0, seed: None }
    }
}

/// Starts schedulers.
pub struct Scheduler;

/// A running scheduler.
pub struct Running {
    shared: Arc<Shared>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

struct Shared {
    core: Mutex<Core>,
    changed: Notify,
    client: Client,
    clock: Arc<dyn Clock>,
    recorder: EventRecorder,
}

impl Scheduler {
    /// Starts scheduling. Events come from `recorder`, or from one made here.
    pub fn start(config: Config, client: Client, clock: Arc<dyn Clock>, recorder: Option<EventRecorder>) -> Running {
        let recorder = recorder
            .unwrap_or_else(|| EventRecorder::new(client.clone(), Arc::clone(&clock), &config.scheduler_name, ""));
        let seed = config.seed.unwrap_or_else(rand::random);
        let core = Core::new(&config.scheduler_name, config.percentage_of_nodes_to_score, seed);
        let registry = core.metrics.registry().clone();
        let shared = Arc::new(Shared { core: Mutex::new(core), changed: Notify::new(), client, clock, recorder });
        let of = Arc::downgrade(&shared);
        registry.on_scrape(move |families| {
            if let Some(shared) = of.upgrade() {
                metrics::pending(families, &shared.core.lock().queue.depth());
            }
        });
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let work = run(Arc::clone(&shared), tasks.clone());
        let token = stop.clone();
        tasks.spawn(async move { token.run_until_cancelled(work).await });
        Running { shared, stop, tasks }
    }
}

impl Running {
    /// Takes no more pods and waits for the bindings under way.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// What it shows under `/metrics`.
    pub fn metrics(&self) -> Registry {
        self.shared.core.lock().metrics.registry().clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Feeds changes of one type to the core.
fn follow<T: Object>(
    shared: &Arc<Shared>,
    config: InformerConfig,
    f: impl Fn(&mut Core, &Change<T>, Instant) + Send + Sync + 'static,
) -> InformerHandle<T> {
    let to = Arc::clone(shared);
    Informer::new(shared.client.clone(), config)
        .on_change(move |change| {
            f(&mut to.core.lock(), change, Instant::now());
            to.changed.notify_one();
        })
        .start()
}

/// The present state of what changed; `None` when it is gone.
fn present<T>(change: &Change<T>) -> Option<&Arc<T>> {
    match change {
        Change::Deleted(_) => None,
        other => Some(other.object()),
    }
}

async fn run(shared: Arc<Shared>, tasks: TaskTracker) {
    let all = InformerConfig::default;
    let nodes = follow::<Node>(&shared, all(), |core, c, now| match present(c) {
        Some(node) => core.put_node(node, now),
        None => core.remove_node(c.object().name(), now),
    });
    let namespaces = follow::<Namespace>(&shared, all(), |core, c, now| {
        match present(c) {
            Some(ns) => core.cluster.namespaces().put(ns),
            None => core.cluster.namespaces().remove(c.object().name()),
        }
        core.namespaces_changed(now);
    });
    let workloads = follow_workloads(&shared);
    let storage = follow_storage(&shared);
    let budgets = follow::<DisruptionBudget>(&shared, all(), |core, c, _| {
        match present(c) {
            Some(b) => core.budgets.insert(b.key(), DisruptionBudget::clone(b)),
            None => core.budgets.remove(&c.object().key()),
        };
    });
    // Pods come last: what decides on them should be there first.
    nodes.synced().await;
    namespaces.synced().await;
    storage.0.synced().await;
    storage.1.synced().await;
    storage.2.synced().await;
    workloads.0.synced().await;
    workloads.1.synced().await;
    workloads.2.synced().await;
    workloads.3.synced().await;
    budgets.synced().await;
    let unfinished = InformerConfig { fields: "status.phase!=Succeeded,status.phase!=Failed".into(), ..all() };
    let name = shared.core.lock().name().into();
    let gates = GateReporter { shared: Arc::clone(&shared), tasks: tasks.clone(), name };
    let pods = follow::<Pod>(&shared, unfinished, move |core, c, now| match c {
        Change::Deleted(pod) => core.remove_pod(pod, now),
        Change::Added(pod) | Change::Updated { new: pod, .. } => {
            core.put_pod(Arc::clone(pod), now);
            gates.look(pod);
        }
    });
    pods.synced().await;
    tracing::info!("scheduling");
    schedule(&shared, &tasks).await;
}

type Followed4 = (
    InformerHandle<Service>,
    InformerHandle<ReplicationController>,
    InformerHandle<ReplicaSet>,
    InformerHandle<StatefulSet>,
);

fn follow_workloads(shared: &Arc<Shared>) -> Followed4 {
    let all = InformerConfig::default;
    let services = follow::<Service>(shared, all(), |core, c, _| {
        let selector = present(c).and_then(|s| s.spec.selector.as_ref());
        core.cluster.workloads.put_service(&c.object().key(), selector);
    });
    let controllers = follow::<ReplicationController>(shared, all(), |core, c, _| {
        let selector = present(c).and_then(|s| s.spec.selector.as_ref());
        let selector = selector.map(kelson_meta::LabelSelector::from_map);
        core.cluster.workloads.put_owner("ReplicationController", &c.object().key(), selector);
    });
    let sets = follow::<ReplicaSet>(shared, all(), |core, c, _| {
        let selector = present(c).and_then(|s| owner_selector(s.spec.selector.as_ref()));
        core.cluster.workloads.put_owner("ReplicaSet", &c.object().key(), selector);
    });
    let stateful = follow::<StatefulSet>(shared, all(), |core, c, _| {
        let selector = present(c).and_then(|s| owner_selector(s.spec.selector.as_ref()));
        core.cluster.workloads.put_owner("StatefulSet", &c.object().key(), selector);
    });
    (services, controllers, sets, stateful)
}

fn follow_storage(
    shared: &Arc<Shared>,
) -> (InformerHandle<Claim>, InformerHandle<Volume>, InformerHandle<StorageClass>) {
    let all = InformerConfig::default;
    let claims = follow::<Claim>(shared, all(), |core, c, now| {
        core.cluster.storage.put_claim(c.object().key(), present(c).map(|c| Claim::clone(c)));
        core.storage_changed(now);
    });
    let volumes = follow::<Volume>(shared, all(), |core, c, now| {
        core.cluster.storage.put_volume(c.object().name(), present(c).map(|v| Volume::clone(v)));
        core.storage_changed(now);
    });
    let classes = follow::<StorageClass>(shared, all(), |core, c, now| {
        core.cluster.storage.put_class(c.object().name(), present(c).map(|s| StorageClass::clone(s)));
        core.storage_changed(now);
    });
    (claims, volumes, classes)
}

/// Says on gated pods that they are, where the API server has not.
struct GateReporter {
    shared: Arc<Shared>,
    tasks: TaskTracker,
    name: Box<str>,
}

impl GateReporter {
    fn look(&self, pod: &Arc<Pod>) {
        let ours = pod.is_pending() && pod.spec.scheduler_name == self.name;
        if ours && !pod.spec.gates.is_empty() && pod.condition.is_none() {
            let (shared, pod) = (Arc::clone(&self.shared), Arc::clone(pod));
            self.tasks.spawn(async move { shared.condition(&pod, "SchedulingGated", GATED).await });
        }
    }
}

async fn schedule(shared: &Arc<Shared>, tasks: &TaskTracker) {
    let binds = Arc::new(Semaphore::new(BINDS_MAX));
    let reports = Arc::new(Semaphore::new(REPORTS_MAX));
    loop {
        let changed = shared.changed.notified();
        let step = shared.core.lock().step(Instant::now());
        match step {
            Step::Bind(pod) => {
                // The semaphore is never closed.
                let Ok(permit) = Arc::clone(&binds).acquire_owned().await else { return };
                let shared = Arc::clone(shared);
                tasks.spawn(async move {
                    shared.bind(&pod).await;
                    drop(permit);
                });
            }
            Step::Report(report) => {
                let Ok(permit) = Arc::clone(&reports).acquire_owned().await else { return };
                let shared = Arc::clone(shared);
                tasks.spawn(async move {
                    shared.report(&report).await;
                    drop(permit);
                });
            }
            Step::Preempt(p) => {
                let Ok(permit) = Arc::clone(&reports).acquire_owned().await else { return };
                let shared = Arc::clone(shared);
                tasks.spawn(async move {
                    shared.preempt(&p).await;
                    drop(permit);
                });
            }
            Step::Idle(None) => changed.await,
            Step::Idle(Some(due)) => {
                tokio::select! { () = changed => {}, () = tokio::time::sleep_until(due) => {} }
            }
        }
    }
}

const PODS: ResourceType = <Pod as Object>::TYPE;

impl Shared {
    async fn bind(&self, pod: &Pod) {
        let (namespace, name, node) = (pod.namespace(), &*pod.name, &*pod.node_name);
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": &*pod.uid},
            "target": {"kind": "Node", "name": node},
        });
        let done = self.client.create_sub::<serde::de::IgnoredAny>(&PODS, namespace, name, "binding", &binding).await;
        match done {
            Ok(_) => {
                self.core.lock().bound(pod, Instant::now());
                let text = format!("Successfully assigned {namespace}/{name} to {node}");
                self.recorder.event(&pod.reference(), EventType::Normal, "Scheduled", text);
            }
            Err(e) => self.bind_failed(pod, &e).await,
        }
    }

    async fn bind_failed(&self, pod: &Pod, e: &ClientError) {
        let gone = e.is_not_found();
        self.core.lock().failed(pod, gone, Instant::now());
        self.changed.notify_one();
        if gone {
            return;
        }
        tracing::warn!(pod = %pod.name, namespace = pod.namespace(), node = %pod.node_name, error = %e, "binding failed");
        let text = format!("binding rejected: {e}");
        self.recorder.event(&pod.reference(), EventType::Warning, "FailedScheduling", text.clone());
        // Somebody else bound it: the API will tell, and its status is no longer ours.
        if !e.is(Reason::Conflict) {
            self.condition(pod, "SchedulerError", &text).await;
        }
    }

    async fn report(&self, report: &Report) {
        let pod = &report.pod;
        self.recorder.event(&pod.reference(), EventType::Warning, "FailedScheduling", report.message.clone());
        self.write_status(pod, "Unschedulable", &report.message, report.nominate.as_deref()).await;
    }

    /// Promises the room first, so that it is known by the time the victims go.
    async fn preempt(&self, p: &Preemption) {
        self.report(&p.report).await;
        for pod in &p.disappointed {
            let patch = json!({"metadata": {"uid": &*pod.uid}, "status": {"nominatedNodeName": null}});
            self.patch_status(pod, &patch).await;
        }
        let (uid, node) = (&p.report.pod.uid, p.report.nominate.as_deref().unwrap_or_default());
        for victim in p.victims.iter().filter(|v| !v.deleting) {
            let by = &p.report.pod.spec.scheduler_name;
            let patch = json!({"metadata": {"uid": &*victim.uid}, "status": {"conditions": [{
                "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                "message": format!("{by}: preempting to accommodate a higher priority pod"),
                "lastTransitionTime": format_seconds(self.clock.now()),
            }]}});
            self.patch_status(victim, &patch).await;
            let options = DeleteOptions::default().with_uid(&*victim.uid);
            match self.client.delete::<Pod>(victim.namespace(), &victim.name, &options).await {
                Ok(()) => {
                    let text = format!("Preempted by pod {uid} on node {node}");
                    self.recorder.event(&victim.reference(), EventType::Normal, "Preempted", text);
                }
                Err(e) if e.is_not_found() || e.is(Reason::Conflict) => {}
                Err(e) => tracing::warn!(pod = %victim.name, error = %e, "could not preempt a pod"),
            }
        }
        self.core.lock().room_asked(p, Instant::now());
        self.changed.notify_one();
    }

    /// Writes `PodScheduled=False`, unless the pod says just that already.
    async fn condition(&self, pod: &Pod, reason: &str, message: &str) {
        self.write_status(pod, reason, message, None).await;
    }

    async fn write_status(&self, pod: &Pod, reason: &str, message: &str, nominate: Option<&str>) {
        let said = pod.condition.as_ref().is_some_and(|c| &*c.reason == reason && &*c.message == message);
        let nominated = nominate.is_none_or(|n| n == pod.nominated.as_deref().unwrap_or_default());
        if said && nominated {
            return;
        }
        let mut condition = json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": message});
        if pod.condition.is_none() {
            condition["lastTransitionTime"] = format_seconds(self.clock.now()).into();
        }
        let mut patch = json!({"metadata": {"uid": &*pod.uid}, "status": {"conditions": [condition]}});
        if let Some(node) = nominate {
            patch["status"]["nominatedNodeName"] = if node.is_empty() { json!(null) } else { json!(node) };
        }
        self.patch_status(pod, &patch).await;
    }

    async fn patch_status(&self, pod: &Pod, patch: &serde_json::Value) {
        let options = WriteOptions::default();
        let kind = PatchKind::Strategic;
        match self.client.patch::<Pod>(pod.namespace(), &pod.name, "status", kind, patch, &options).await {
            Ok(_) => {}
            // Gone, or made anew under its name: nothing of ours any more.
            Err(e) if e.is_not_found() || e.is(Reason::Conflict) => {}
            Err(e) => tracing::warn!(pod = %pod.name, error = %e, "could not write the pod's status"),
        }
    }
}
