//! Runs the core: informers update it, one task takes its steps, and bindings and status writes run concurrently in
//! bounded numbers. An idle scheduler wakes up only for times that the queue returns.
mod devices;
mod extend;
mod extended;
mod follow;
mod scrape;
mod shared;
mod volumes;
mod write;

use std::sync::Arc;
use std::time::Duration;

use kelson_client::{API_HOST, Client, EventRecorder, Metered};
use kelson_meta::gates::FeatureGates;
use kelson_meta::{Backoff, Clock};
use kelson_metrics::Registry;
use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

pub use self::extend::Extenders;
use self::shared::Shared;
use self::write::{Voice, Writer};
use crate::core::{Core, Step};
use crate::profile::Profile;
use crate::queue::{BACKOFF, UNSCHEDULABLE_MAX};

/// The feature gate for extended resources that DeviceClasses map to.
const EXTENDED_RESOURCES: &str = "DRAExtendedResource";
/// The feature gates that change the scheduler's behaviour.
pub const FEATURE_GATES: [&str; 1] = [EXTENDED_RESOURCES];
/// The maximum number of bindings in progress.
const BINDS_MAX: usize = 64;
/// The maximum number of status writes in progress.
const REPORTS_MAX: usize = 16;
/// The maximum number of pods whose volumes or devices are being prepared; further ones wait for their turn.
const PREPARED_MAX: usize = 1024;
/// The time for which a shutdown waits for bindings in progress.
const SHUTDOWN_MAX: Duration = Duration::from_secs(10);

/// The settings of a scheduler.
#[derive(Clone, Debug)]
pub struct Config {
    /// The profiles: at least one, with different names.
    pub profiles: Vec<Profile>,
    /// The back-off of a pod between attempts.
    pub pauses: Backoff,
    /// The maximum time an unschedulable pod waits for another attempt.
    pub longest_wait: Duration,
    /// The enabled features; those in [`FEATURE_GATES`] are read.
    pub gates: Arc<FeatureGates>,
    /// The seed for the choice among equal nodes; `None` takes a random one.
    pub seed: Option<u64>,
    /// The extenders to call.
    pub extenders: Extenders,
    /// The host name in events.
    pub host: String,
    /// The registry for metrics, for one start only since a metric can be registered once; `None` creates a registry.
    pub metrics: Option<Registry>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            profiles: vec![Profile::default()],
            pauses: BACKOFF,
            longest_wait: UNSCHEDULABLE_MAX,
            gates: Arc::default(),
            seed: None,
            extenders: Extenders::default(),
            host: String::new(),
            metrics: None,
        }
    }
}

/// The scheduler. [`Scheduler::start`] watches the objects that decisions depend on, feeds them to the pure `core`, and
/// performs its steps: bindings, preemptions, statuses and events. One task decides for one pod at a time; bindings run
/// concurrently and may fail without an effect on other pods. It is the counterpart of upstream's kube-scheduler, with
/// the same profiles and plug-ins.
pub struct Scheduler;

/// A running scheduler.
pub struct Running {
    shared: Arc<Shared>,
    tasks: Tasks,
}

impl Scheduler {
    /// Starts scheduling. Events are recorded by `recorder`, or by one created here. A panic in a decision or in a
    /// watch ends the process, since it would leave a scheduler that looks healthy and is not; a panic in a single
    /// binding affects that pod only.
    pub fn start(
        config: Config,
        client: Client,
        clock: Arc<dyn Clock>,
        recorder: Option<EventRecorder>,
        tasks: &Tasks,
    ) -> Running {
        let tasks = tasks.child("scheduler");
        let registry = config.metrics.unwrap_or_else(Registry::of_component);
        let client = client.counted(&Metered::new(&registry, API_HOST));
        let seed = config.seed.unwrap_or_else(rand::random);
        let within: Vec<_> =
            config.profiles.iter().map(|p| (p.name.clone(), p.volumes_within, p.devices_within)).collect();
        let mut core = Core::with_profiles(config.profiles, seed, registry.clone());
        core.queue.pause_like(config.pauses);
        core.queue.wait_at_most(config.longest_wait);
        if !config.gates.enabled(EXTENDED_RESOURCES) {
            core.cluster.devices.without_extended();
        }
        core.extenders = config.extenders.settings();
        // Not in the task group: events of the last decisions are still sent after the scheduler has ended. Each
        // profile has its own event source.
        let voice = |name: &str| {
            let own = || EventRecorder::new(client.clone(), Arc::clone(&clock), name, &config.host);
            recorder.clone().unwrap_or_else(own)
        };
        let voices = within.into_iter().map(|(name, volumes_within, devices_within)| {
            let recorder = voice(&name);
            Voice { name, recorder, volumes_within, devices_within }
        });
        let voices = voices.collect();
        let shared = Arc::new(Shared { core: Mutex::new(core), changed: Notify::new(), known: Notify::new() });
        let (of, gates) = (Arc::downgrade(&shared), Arc::clone(&config.gates));
        registry.on_scrape(move |families| {
            if let Some(shared) = of.upgrade() {
                scrape::scraped(families, &shared.core.lock());
                scrape::features(families, &gates);
            }
        });
        let metrics = shared.core.lock().metrics.clone();
        let writer = Arc::new(Writer {
            shared: Arc::clone(&shared),
            client,
            clock,
            voices,
            extenders: config.extenders,
            metrics,
        });
        tasks.spawn("schedule", OnPanic::EndProcess, run(Arc::clone(&shared), writer, tasks.clone()));
        Running { shared, tasks }
    }
}

impl Running {
    /// Stops taking pods and waits up to [`SHUTDOWN_MAX`] for bindings in progress.
    pub async fn shutdown(self) {
        self.tasks.shutdown(SHUTDOWN_MAX).await;
    }

    /// Returns the registry for `/metrics`.
    pub fn metrics(&self) -> Registry {
        self.shared.core.lock().metrics.registry().clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

async fn run(shared: Arc<Shared>, writer: Arc<Writer>, tasks: Tasks) {
    // Pods come last, since decisions on them need the other objects.
    let _surroundings = follow::surroundings(&shared, &writer.client, &tasks).await;
    let _pods = follow::pods(&shared, &writer, &tasks).await;
    tracing::info!("scheduler is running");
    schedule(&shared, &writer, &tasks).await;
}

async fn schedule(shared: &Arc<Shared>, writer: &Arc<Writer>, tasks: &Tasks) {
    let binds = Arc::new(Semaphore::new(BINDS_MAX));
    let reports = Arc::new(Semaphore::new(REPORTS_MAX));
    let prepared = Arc::new(Semaphore::new(PREPARED_MAX));
    loop {
        let changed = shared.changed.notified();
        let step = shared.core.lock().step(Instant::now());
        let step = writer.ask(step).await;
        match step {
            Step::Bind(pod) => {
                // The semaphore is never closed.
                let Ok(permit) = Arc::clone(&binds).acquire_owned().await else { return };
                let writer = Arc::clone(writer);
                tasks.spawn_graceful("scheduler-bind", OnPanic::Contain, async move {
                    let _counted = writer.begins_to_bind();
                    writer.bind(&pod).await;
                    drop(permit);
                });
            }
            step @ (Step::BindVolumes(_) | Step::BindDevices(_)) => prepare(writer, tasks, (&prepared, &binds), step),
            Step::Report(report) => {
                let Ok(permit) = Arc::clone(&reports).acquire_owned().await else { return };
                let writer = Arc::clone(writer);
                tasks.spawn_graceful("scheduler-report", OnPanic::Contain, async move {
                    writer.report(&report).await;
                    drop(permit);
                });
            }
            Step::Preempt(p) => {
                let Ok(permit) = Arc::clone(&reports).acquire_owned().await else { return };
                let writer = Arc::clone(writer);
                tasks.spawn_graceful("scheduler-preempt", OnPanic::Contain, async move {
                    writer.preempt(&p).await;
                    drop(permit);
                });
            }
            // Questions to extenders were answered before.
            Step::Ask(_) | Step::AskForRoom(_) => {}
            Step::Idle(None) => changed.await,
            Step::Idle(Some(due)) => {
                tokio::select! { () = changed => {}, () = tokio::time::sleep_until(due) => {} }
            }
        }
    }
}

/// Prepares what a pod needs before it is bound, and binds it.
fn prepare(writer: &Arc<Writer>, tasks: &Tasks, (places, binds): (&Arc<Semaphore>, &Arc<Semaphore>), step: Step) {
    let pod = match &step {
        Step::BindVolumes(binding) => &binding.pod,
        Step::BindDevices(binding) => &binding.pod,
        _ => return,
    };
    let Ok(permit) = Arc::clone(places).try_acquire_owned() else {
        return writer.shared.core.lock().failed(pod, false, Instant::now());
    };
    let (writer, binds) = (Arc::clone(writer), Arc::clone(binds));
    tasks.spawn_graceful("scheduler-prepare", OnPanic::Contain, async move {
        let _counted = writer.begins_to_bind();
        match &step {
            Step::BindVolumes(binding) => writer.bind_volumes_and_pod(binding, &binds).await,
            Step::BindDevices(binding) => writer.bind_devices_and_pod(binding, &binds).await,
            _ => {}
        }
        drop(permit);
    });
}
