//! The surroundings of the core: informers feed it, one task asks it for steps, bindings and status writes run beside it
//! in bounded numbers. At rest nothing wakes up but for what the queue says is due.
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

/// The gate of extended resources that classes of devices stand for.
const EXTENDED_RESOURCES: &str = "DRAExtendedResource";
/// The feature gates that change what the scheduler does.
pub const FEATURE_GATES: [&str; 1] = [EXTENDED_RESOURCES];
/// Bindings under way at once.
const BINDS_MAX: usize = 64;
/// Status writes under way at once.
const REPORTS_MAX: usize = 16;
/// Pods whose volumes or devices are being made ready at once; those beyond wait for their turn as pods do.
const PREPARED_MAX: usize = 1024;
/// How long bindings under way are waited for at the end.
const SHUTDOWN_MAX: Duration = Duration::from_secs(10);

/// How to schedule.
#[derive(Clone, Debug)]
pub struct Config {
    /// At least one; no two of one name.
    pub profiles: Vec<Profile>,
    /// Pauses of a pod between tries.
    pub pauses: Backoff,
    /// How long a pod that fits nowhere waits at most until it is tried again.
    pub longest_wait: Duration,
    /// Features that are on; those in [`FEATURE_GATES`] are asked.
    pub gates: Arc<FeatureGates>,
    /// Seed of the choice among equal nodes; `None`: from the system.
    pub seed: Option<u64>,
    /// Who else has a say in where pods go.
    pub extenders: Extenders,
    /// The machine's name, which events tell.
    pub host: String,
    /// Where it counts what it does: for one start, as a metric is registered only once. `None`: a registry of its own.
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

/// What starts a scheduler; see [`Scheduler::start`].
pub struct Scheduler;

/// A running scheduler.
pub struct Running {
    shared: Arc<Shared>,
    tasks: Tasks,
}

impl Scheduler {
    /// Starts scheduling. Events come from `recorder`, or from one made here. A panic in a decision or a watch would leave
    /// half a scheduler that looks well, so it ends the process; one in a single binding is that pod's alone.
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
        // Not of the group: what was decided last is still told after the scheduler has ended. Each profile has a voice of its
        // own.
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
    /// Takes no more pods and waits for the bindings under way, for a while.
    pub async fn shutdown(self) {
        self.tasks.shutdown(SHUTDOWN_MAX).await;
    }

    /// What it shows under `/metrics`.
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
    // Pods come last: what decides on them should be there first.
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
            // Whoever is asked is asked before.
            Step::Ask(_) | Step::AskForRoom(_) => {}
            Step::Idle(None) => changed.await,
            Step::Idle(Some(due)) => {
                tokio::select! { () = changed => {}, () = tokio::time::sleep_until(due) => {} }
            }
        }
    }
}

/// Makes ready what a pod needs before it is bound, and binds it.
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
