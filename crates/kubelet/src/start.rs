//! Starts and stops the kubelet: builds each part with its dependencies, then starts the tasks in order. Stopping ends the tasks;
//! containers continue to run. Only this file, `wiring` and `upkeep` import all other modules.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kelson_bootstrap::serving;
use kelson_client::{API_HOST, Change, Client, EventRecorder, Informer, InformerConfig, Metered, RateLimit};
use kelson_cri::{Runtime, proto as cri};
use kelson_metrics::Registry;
use kelson_pki::San;
use kelson_tasks::{FILES, OnPanic, Tasks};
use tokio::sync::watch;

use crate::cgroups::Cgroups;
use crate::cgroups::memory::MemoryRules;
use crate::cgroups::swap::SwapRules;
use crate::config::Config;
use crate::config::cgroups::CgroupDriver;
use crate::config::process::Pacing;
use crate::effects::{EventReporter, PodEffects};
use crate::env::resolve::Environment;
use crate::env::services::ServiceView;
use crate::images::Images;
use crate::images::error::OpenError;
use crate::metrics::{MeteredRuntime, Metrics};
use crate::node::facts;
use crate::node::runtime::runtime_version;
use crate::node::sync::NodeSync;
use crate::objects::Objects;
use crate::objects::tokens::Tokens;
use crate::pods::inbox::ManagerInbox;
use crate::pods::known::PodRegistry;
use crate::pods::manager::{PodManager, read_manifests, source};
use crate::pods::parts::Parts;
use crate::probes::handlers::Handlers;
use crate::runtime::dns::HostDns;
use crate::runtime::events::{self, RuntimeNotice};
use crate::runtime::userns::{self, UserNamespaces};
use crate::server::state::ServerState;
use crate::server::{Server, ServerError, command};
use crate::spans::Spans;
use crate::status::writer::StatusWriter;
use crate::upkeep::upkeep;
use crate::volumes::Volumes;
use crate::volumes::csi::VolumeGrowth;
use crate::volumes::persistent::Claims;
use crate::volumes::usage::VolumeUsages;
use crate::wiring::{Channels, Dependencies, OnPodCidrs};

/// Longest time that pods' statuses may take to reach the API before the kubelet's tasks end.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// Longest time that the kubelet's tasks may take to end.
const SHUTDOWN_MAX: Duration = Duration::from_secs(10);

/// Why a kubelet did not start.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// A directory of the kubelet could not be created.
    #[error("cannot create {path}: {source}")]
    Directory {
        /// Path of the directory.
        path: String,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// The kubelet's HTTPS server could not start.
    #[error("kubelet server: {0}")]
    Server(#[from] ServerError),
    /// The image pull manager could not be set up.
    #[error(transparent)]
    Images(#[from] OpenError),
    /// The configuration is invalid or does not suit this machine.
    #[error("invalid kubelet configuration: {0}")]
    Config(String),
}

/// The node agent. [`Kubelet::start`] connects to the container runtime, registers the node, and starts the tasks that
/// run pods: the pod manager with a worker per pod, probes, eviction, volumes, devices, the status writer, and the
/// HTTPS server for logs, exec and metrics. Each task belongs to the given group and ends with it; containers continue
/// to run. It is the counterpart of upstream's kubelet.
pub struct Kubelet;

/// A running kubelet. Dropping it aborts its tasks without waiting. In both cases containers continue to run.
pub struct Running {
    tasks: Tasks,
    ready: watch::Receiver<bool>,
    port: u16,
    known: PodRegistry,
    manager: ManagerInbox,
    statuses: StatusWriter,
    registry: Registry,
    spans: Spans,
}

impl Running {
    /// Returns whether the node was reported as ready. The receiver is notified of each change.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.clone()
    }
    /// Port of the kubelet's server; 0 if no server runs.
    pub fn port(&self) -> u16 {
        self.port
    }
    /// The pods that this kubelet manages.
    pub fn known(&self) -> PodRegistry {
        self.known.clone()
    }
    /// The metrics registry that the kubelet serves. Other components on the node add their metrics to it.
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }
    /// Returns the inbox of the pod manager, whose [`ManagerInbox::ping`] shows that the kubelet works.
    pub fn manager(&self) -> ManagerInbox {
        self.manager.clone()
    }
    /// Ends all tasks of the kubelet, including pod workers, probes and streams, and waits for them. Containers continue to run.
    pub async fn shutdown(self) {
        if !self.statuses.flush(FLUSH_MAX).await {
            tracing::info!("statuses of pods did not reach the API before the end; the next start writes them");
        }
        self.tasks.shutdown(SHUTDOWN_MAX).await;
        self.spans.close().await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

impl Kubelet {
    /// Starts all tasks and returns without waiting for registration, the runtime or the network.
    ///
    /// # Errors
    /// The configuration is invalid, directories cannot be created, or the server cannot listen.
    pub async fn start(config: Config, mut deps: Dependencies) -> Result<Running, KubeletError> {
        if config.node_name.is_empty() || config.node_ips.is_empty() {
            return Err(KubeletError::Config("a node name and at least one node IP are needed".into()));
        }
        let (swap, memory) = settle(&config).await.map_err(KubeletError::Config)?;
        let config = Arc::new(config);
        let made = Arc::clone(&config);
        let made = FILES.run(move || directories(&made)).await;
        made.map_err(|e| KubeletError::Config(e.to_string()))??;
        let tasks = deps.tasks.child("kubelet");
        let metrics = Arc::new(Metrics::new(&config.node_name));
        deps.client =
            paced(deps.client, config.process.api).counted(&Metered::new(metrics.registry(), API_HOST)).traced();
        deps.runtime = Arc::new(MeteredRuntime::new(deps.runtime, Arc::clone(&metrics)));
        let (name, version) = runtime_version(&*deps.runtime).await;
        let spans = Spans::start(config.tracing.as_ref(), &config.node_name, &deps.clock, &deps.tasks);
        let spans = spans.map_err(KubeletError::Config)?;
        let channels = Channels::new(&config, &deps.client, &deps.clock, (metrics, spans), &tasks).await;
        let channels = channels.map_err(KubeletError::Config)?;
        let (seen, dirs) = (channels.csi.clone(), config.dirs());
        // Must precede the first node status: volumes of pods that survived the previous kubelet are in `volumesInUse`.
        let _ = FILES.run(move || seen.remember(&dirs)).await;
        let node = watch_node(&tasks, &deps.client, &config, (deps.on_pod_cidrs.take(), channels.names.0.clone()));
        let cgroups = cgroups(&config, &*deps.runtime, channels.metrics.registry()).await;
        let parts = Arc::new(parts(&tasks, &config, &deps, &channels, (name.clone(), cgroups, swap, memory))?);
        let port = server(&tasks, &deps, &parts, &channels).start().await?;
        let sync = NodeSync {
            config: Arc::clone(&config),
            client: deps.client.clone(),
            runtime: Arc::clone(&deps.runtime),
            clock: Arc::clone(&deps.clock),
            runtime_version: format!("{name}://{version}"),
            port,
            runtime_state: channels.runtime.0.clone(),
            node_facts: channels.facts.0.clone(),
            pressure: channels.pressure.1.clone(),
            shutdown: channels.shutdown.1.clone(),
            ready: channels.ready.0.clone(),
            in_use: channels.csi.in_use.clone(),
            devices: channels.devices.clone(),
            tasks: tasks.clone(),
        };
        let sync = Arc::new(sync);
        tasks.supervise("node-status", move || {
            let sync = Arc::clone(&sync);
            async move { sync.run().await }
        });
        upkeep(&tasks, &deps, &parts, &channels);
        if let Some(certificate) = deps.certificate.take() {
            let metrics = channels.certificates.clone();
            tasks.supervise("client-certificate", move || certificate.clone().run(metrics.clone()));
        }
        let (statuses, manager) = (parts.statuses.clone(), channels.manager.clone());
        pods(&tasks, &deps, parts, node, &channels);
        let (registry, spans) = (channels.metrics.registry().clone(), channels.spans.0);
        Ok(Running { tasks, ready: channels.ready.1, port, known: channels.known, manager, statuses, registry, spans })
    }
}

/// Applies the settings of the process (OOM score, open files) after it checked that the machine suits the configuration. Returns the swap
/// and memory rules for containers.
async fn settle(config: &Config) -> Result<(SwapRules, MemoryRules), String> {
    let (behavior, own) = (config.swap_behavior, config.clone());
    let swap = FILES.run(move || facts::swap_rules(behavior)).await.unwrap_or_default();
    swap.check(config.fail_swap_on)?;
    userns::enough(config.ids_per_pod, config.max_pods)?;
    let memory = FILES.run(move || facts::memory_rules(&own)).await.map_err(|e| e.to_string())??;
    let process = config.process.clone();
    let settled = FILES
        .run(move || process.suits(Path::new("/proc/sys"), Path::new("/sys/fs/cgroup")).map(|()| process.settle()));
    for fault in settled.await.map_err(|e| e.to_string())?? {
        tracing::warn!(fault, "cannot apply a setting of the process; continuing without it");
    }
    Ok((swap, memory))
}

/// Limits the rate of requests to the API, if a rate is configured.
fn paced(client: Client, pacing: Option<Pacing>) -> Client {
    match pacing {
        Some(pacing) => client.limited(&RateLimit::new(pacing.per_second, pacing.burst)),
        None => client,
    }
}

/// Creates the manager of pods' cgroups. If the runtime reports its cgroup driver, that one is used (KEP-4033).
async fn cgroups(config: &Config, runtime: &dyn Runtime, registry: &Registry) -> Cgroups {
    let mut wanted = config.cgroups.clone();
    let said = runtime.runtime_config().await.ok().and_then(|c| c.linux).map(|l| l.cgroup_driver);
    if let (Some(wanted), Some(said)) = (&mut wanted, said) {
        let theirs =
            if said == cri::CgroupDriver::Systemd as i32 { CgroupDriver::Systemd } else { CgroupDriver::Cgroupfs };
        if theirs != wanted.driver {
            tracing::warn!(
                ours = wanted.driver.name(),
                theirs = theirs.name(),
                "the configured cgroup driver differs from the runtime's; using the runtime's"
            );
            wanted.driver = theirs;
        }
    }
    Cgroups::open(wanted.as_ref(), config.pod_max_pids, config.memory).await.counted(registry)
}

/// Creates the event recorder with the configured rate limit.
fn recorder(tasks: &Tasks, config: &Config, deps: &Dependencies) -> EventRecorder {
    let client = paced(deps.client.clone(), config.process.events);
    EventRecorder::start_in(tasks, client, Arc::clone(&deps.clock), "kubelet", &config.node_name)
}

/// Collects what the pod workers need.
fn parts(
    tasks: &Tasks,
    config: &Arc<Config>,
    deps: &Dependencies,
    channels: &Channels,
    (runtime_name, cgroups, swap, memory): (String, Cgroups, SwapRules, MemoryRules),
) -> Result<Parts, KubeletError> {
    let (client, clock, node) = (deps.client.clone(), Arc::clone(&deps.clock), channels.facts.1.clone());
    let csi = &channels.csi;
    let recorder = recorder(tasks, config, deps);
    let events = EventReporter::new(recorder.clone(), &config.node_name);
    let images = Images::open(config, client.clone(), recorder, Arc::clone(&clock), channels.metrics.registry())?;
    let follow = images.clone();
    tasks.supervise("credential-providers", move || follow.clone().follow());
    let changed = channels.manager.clone();
    let objects = Objects::new(tasks, client.clone(), move |uid| changed.objects(uid));
    let real = || Arc::new(Handlers::new(Arc::clone(&deps.runtime))) as Arc<dyn crate::probes::ProbeRunner>;
    Ok(Parts {
        tasks: tasks.clone(),
        dirs: config.dirs(),
        effects: PodEffects {
            runtime: Arc::clone(&deps.runtime),
            prober: deps.prober.clone().unwrap_or_else(real),
            events: events.clone(),
            clock: Arc::clone(&clock),
            metrics: Arc::clone(&channels.metrics),
            spans: channels.spans.0.clone(),
            network_gate: deps.network_gate.clone(),
        },
        volumes: Volumes {
            dirs: config.dirs(),
            objects: objects.clone(),
            tokens: Tokens::new(client.clone(), Arc::clone(&clock)),
            claims: Claims::new(client.clone()),
            local_volumes: config.local_volumes_dir.clone(),
            csi: csi.clone(),
            growth: VolumeGrowth::new(client.clone(), Arc::clone(&clock), config.dirs(), csi.clone(), events.clone()),
            usages: VolumeUsages::default(),
            metrics: Arc::clone(&channels.storage),
            mounts: Arc::clone(&deps.mounts),
            node: node.clone(),
            clock,
            cluster_domain: config.cluster_domain.clone(),
        },
        environment: Environment {
            objects,
            services: Informer::<ServiceView>::new(client.clone(), InformerConfig::default()).start_in(tasks),
            node: node.clone(),
            events,
        },
        images,
        devices: channels.devices.clone(),
        placement: channels.placement.clone(),
        claims: channels.claims.clone(),
        cgroups,
        swap,
        memory,
        user_namespaces: UserNamespaces::open(config.dirs(), config.max_pods, config.ids_per_pod),
        statuses: StatusWriter::start(client.clone(), tasks, Arc::clone(&channels.metrics)),
        node,
        runtime_state: channels.runtime.1.clone(),
        host_dns: HostDns::new(config.resolv_conf.clone()),
        runtime_name,
        client,
        config: Arc::clone(config),
    })
}

fn server(tasks: &Tasks, deps: &Dependencies, parts: &Parts, channels: &Channels) -> Server {
    let state = ServerState {
        tasks: tasks.child("server"),
        config: Arc::clone(&parts.config),
        runtime: Arc::clone(&deps.runtime),
        runtime_name: parts.runtime_name.clone(),
        known: channels.known.clone(),
        statuses: parts.statuses.clone(),
        clock: Arc::clone(&deps.clock),
        cgroups: parts.cgroups.clone(),
        metrics: Arc::clone(&channels.metrics),
        spans: channels.spans.0.clone(),
        traced: channels.spans.1.clone(),
        certificates: channels.certificates.clone(),
        volumes: parts.volumes.usages.clone(),
        rates: Default::default(),
        pipes_dir: command::directory(&parts.config.root_dir),
    };
    Server { state, client: deps.client.clone(), names: channels.names.1.clone() }
}

/// Starts the sources of pods and the manager of their workers.
fn pods(
    tasks: &Tasks,
    deps: &Dependencies,
    parts: Arc<Parts>,
    node: watch::Receiver<Option<Arc<Node>>>,
    channels: &Channels,
) {
    let inbox = channels.manager.clone();
    read_manifests(tasks, &parts.config, &inbox);
    let (runtime, group, to) = (Arc::clone(&deps.runtime), tasks.clone(), inbox.clone());
    let endpoint = parts.config.runtime_endpoint.clone();
    let effects = parts.effects.clone();
    tasks.supervise("runtime-watch", move || {
        let (to, effects) = (to.clone(), effects.clone());
        let relisted = move |took| {
            let now = effects.clock.now().as_millisecond() as f64 / 1e3;
            effects.metrics.lives().relisted(took, now);
        };
        events::watch(group.clone(), Arc::clone(&runtime), endpoint.clone(), relisted, move |notice| match notice {
            RuntimeNotice::Initial(all) => to.found(all),
            RuntimeNotice::Changed(uid, there) => to.runtime(uid, there),
        })
    });
    let pressure = (channels.pressure.1.clone(), channels.shutdown.1.clone());
    let manager = PodManager::new(Arc::clone(&parts), node, pressure, inbox.clone(), channels.known.clone());
    let group = tasks.clone();
    // Service environment variables are part of every container, so pods of the API do not start before services are known. Static pods do
    // not wait for the API, because the API server itself may be one.
    let from = Arc::clone(&parts);
    tasks.spawn("pod-source", OnPanic::EndProcess, async move {
        from.environment.services.synced().await;
        let _pods = source(&group, &from.client, &from.config.node_name, inbox);
        std::future::pending::<()>().await;
    });
    // The process cannot work without the manager: no pod would start or end.
    tasks.spawn("pod-manager", OnPanic::EndProcess, async move {
        parts.images.initialize(&*parts.effects.runtime).await;
        manager.run().await;
    });
}

fn directories(config: &Config) -> Result<(), KubeletError> {
    use std::os::unix::fs::PermissionsExt as _;
    let own = [config.root_dir.join("pods"), config.pod_logs_dir.clone(), config.cert_dir.clone()];
    for dir in own.into_iter().chain(config.pod_manifest_path.clone()) {
        let fail = |source| KubeletError::Directory { path: dir.display().to_string(), source };
        std::fs::create_dir_all(&dir).map_err(fail)?;
    }
    // Removes pipes of commands that an earlier kubelet ran.
    let _ = std::fs::remove_dir_all(command::directory(&config.root_dir));
    let private = std::fs::Permissions::from_mode(0o750);
    let _ = std::fs::set_permissions(&config.root_dir, private);
    Ok(())
}

/// Watches the Node object. Admission reads its labels, the network its pod CIDRs, and the serving certificate its addresses.
fn watch_node(
    tasks: &Tasks,
    client: &Client,
    config: &Config,
    (on_cidrs, names): (Option<OnPodCidrs>, watch::Sender<Vec<San>>),
) -> watch::Receiver<Option<Arc<Node>>> {
    let (to, node) = watch::channel(None);
    let fields = format!("metadata.name={}", config.node_name);
    let informer = Informer::<Node>::new(client.clone(), InformerConfig { fields, ..Default::default() });
    let handle = informer
        .on_change(move |change: &Change<Node>| {
            let gone = matches!(change, Change::Deleted(_));
            let addresses = change.object().status.as_ref().and_then(|s| s.addresses.as_deref());
            let named = serving::names(addresses.unwrap_or_default());
            names.send_if_modified(|old| !named.is_empty() && std::mem::replace(old, named.clone()) != named);
            to.send_replace((!gone).then(|| Arc::clone(change.object())));
        })
        .start_in(tasks);
    let mut changes = node.clone();
    tasks.spawn("pod-cidrs", OnPanic::Contain, async move {
        let _running = handle;
        let mut last = Vec::new();
        while changes.changed().await.is_ok() {
            let spec = changes.borrow_and_update().as_ref().and_then(|n| n.spec.clone()).unwrap_or_default();
            let cidrs = spec.pod_cidrs.filter(|c| !c.is_empty()).or_else(|| spec.pod_cidr.map(|c| vec![c]));
            let cidrs = cidrs.unwrap_or_default();
            if !cidrs.is_empty() && cidrs != last {
                if let Some(f) = &on_cidrs {
                    f(&cidrs);
                }
                last = cidrs;
            }
        }
    });
    node
}
