//! Starts the kubelet: builds the shared parts, then its tasks in order, and ends them when told to. Containers go on.
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kelson_client::{Change, Client, EventRecorder, Informer, InformerConfig};
use kelson_cri::Runtime;
use kelson_meta::Clock;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::effects::Context;
use crate::env::fields::NodeFacts;
use crate::env::services::ServiceView;
use crate::eviction;
use crate::images::{self, Images};
use crate::node::facts::Pressure;
use crate::node::sync::NodeSync;
use crate::objects::Objects;
use crate::objects::tokens::Tokens;
use crate::pods::manager::{Known, Manager, Signal, source};
use crate::pods::manifests;
use crate::probes::ProbeRunner;
use crate::runtime::events;
use crate::server;
use crate::status::writer::StatusWriter;
use crate::volumes::mounts::Mounts;

/// Before the runtime is asked again at start.
const RUNTIME_RETRY: Duration = Duration::from_millis(200);

/// The effects a kubelet works through.
pub struct Dependencies {
    /// The API, under this node's identity.
    pub client: Client,
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// Wall clock.
    pub clock: Arc<dyn Clock>,
    /// Mounts; [`crate::volumes::mounts::KernelMounts`] on a node.
    pub mounts: Arc<dyn Mounts>,
    /// Probe handlers; `None`: the real ones.
    pub prober: Option<Arc<dyn ProbeRunner>>,
    /// Called with the node's pod CIDRs whenever the API has new ones.
    pub on_pod_cidrs: Option<Box<dyn Fn(&[String]) + Send + Sync>>,
}

/// Why a kubelet did not start.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// A directory of its own could not be made.
    #[error("cannot create {path}: {source}")]
    Directory {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Its server could not start.
    #[error("kubelet server: {0}")]
    Server(String),
    /// The credential providers' configuration is not sound; every fault at once.
    #[error(transparent)]
    CredentialProviders(#[from] kelson_credentials::config::ConfigError),
    /// The configuration contradicts itself.
    #[error("invalid kubelet configuration: {0}")]
    Config(String),
}

/// The node agent.
pub struct Kubelet;

/// A kubelet that runs. Dropping it ends its tasks; containers go on.
pub struct Running {
    tasks: JoinSet<()>,
    ready: watch::Receiver<bool>,
    port: u16,
    known: Known,
}

impl Running {
    /// Whether the node has been reported ready; changes as it does.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.clone()
    }
    /// The port of the kubelet's server; 0 without one.
    pub fn port(&self) -> u16 {
        self.port
    }
    /// The pods this kubelet knows.
    pub fn known(&self) -> Known {
        self.known.clone()
    }
    /// Ends the kubelet's tasks and waits for them. Containers go on.
    pub async fn shutdown(mut self) {
        self.tasks.shutdown().await;
    }
}

impl Kubelet {
    /// Starts all tasks and returns as soon as they run: registration, the runtime and the network may come later.
    ///
    /// # Errors
    /// When its directories cannot be made or its server cannot listen.
    pub async fn start(config: Config, deps: Dependencies) -> Result<Running, KubeletError> {
        directories(&config)?;
        if config.node_name.is_empty() || config.node_ips.is_empty() {
            return Err(KubeletError::Config("a node name and at least one node IP are needed".into()));
        }
        let mut tasks = JoinSet::new();
        let version = runtime_version(&*deps.runtime).await;
        let (signals, inbox) = mpsc::unbounded_channel();
        let (facts_to, facts) = watch::channel(Arc::new(NodeFacts {
            name: config.node_name.clone(),
            host_ips: config.node_ips.iter().map(ToString::to_string).collect(),
            ..Default::default()
        }));
        let (network_to, network_fault) = watch::channel(None);
        let (pressure_to, pressure) = watch::channel(Pressure::default());
        let (ready_to, ready) = watch::channel(false);
        let (client, clock) = (deps.client.clone(), Arc::clone(&deps.clock));
        let objects_to = signals.clone();
        let prober: Arc<dyn ProbeRunner> = match deps.prober {
            Some(p) => p,
            None => Arc::new(crate::probes::handlers::Handlers::new(Arc::clone(&deps.runtime))),
        };
        let recorder = EventRecorder::new(client.clone(), Arc::clone(&clock), "kubelet", &config.node_name);
        let images = Images::open(&config, client.clone(), recorder.clone(), Arc::clone(&clock))?;
        tasks.spawn(images.follow());
        let ctx = Arc::new(Context {
            recorder,
            objects: Objects::new(client.clone(), move |uid| {
                let _ = objects_to.send(Signal::Objects(uid.to_owned()));
            }),
            tokens: Tokens::new(client.clone(), Arc::clone(&clock)),
            images,
            services: Informer::<ServiceView>::new(client.clone(), InformerConfig::default()).start(),
            mounts: deps.mounts,
            prober,
            cgroups: Cgroups::below(&config.cgroup_root, config.pod_max_pids),
            statuses: StatusWriter::start(client.clone()),
            node: facts,
            network_fault,
            pressure: pressure.clone(),
            runtime_name: version.0.clone(),
            runtime: Arc::clone(&deps.runtime),
            client: client.clone(),
            clock: Arc::clone(&clock),
            config: config.clone(),
        });
        let known = Known::default();
        let port = match config.server.listen {
            Some(_) => {
                server::start(&mut tasks, Arc::clone(&ctx), known.clone()).await.map_err(KubeletError::Server)?
            }
            None => 0,
        };
        let node = watch_node(&mut tasks, &client, &config, deps.on_pod_cidrs);
        if config.rotate_certificates {
            let (dir, name) = (config.cert_dir.clone(), config.node_name.clone());
            tasks.spawn(crate::certs::rotate::client(client.clone(), Arc::clone(&clock), dir, name));
        }
        let sync = NodeSync {
            config: config.clone(),
            client,
            runtime: Arc::clone(&deps.runtime),
            clock,
            runtime_version: format!("{}://{}", version.0, version.1),
            port,
            network_fault: network_to,
            node_facts: facts_to,
            pressure,
            ready: ready_to,
        };
        tasks.spawn(sync.run());
        let effects = eviction::measure::Real::new(Arc::clone(&ctx), known.clone(), signals.clone());
        let evictions = eviction::Manager::new(config.eviction.clone(), effects, Arc::clone(&ctx.clock), pressure_to);
        tasks.spawn(evictions.run());
        if let Some(dir) = config.pod_manifest_path.clone() {
            tasks.spawn(manifests::run(dir, config.node_name.clone(), signals.clone()));
        }
        tasks.spawn(images::gc::run(Arc::clone(&ctx)));
        tasks.spawn(crate::logs::rotate::run(Arc::clone(&ctx), known.clone()));
        let told = signals.clone();
        let endpoint = config.runtime_endpoint.clone();
        tasks.spawn(events::watch(deps.runtime, endpoint, move |t| {
            let _ = told.send(match t {
                events::Told::First(all) => Signal::Found(all),
                events::Told::Changed(uid, there) => Signal::Runtime(uid, there),
            });
        }));
        let manager = Manager::new(Arc::clone(&ctx), node, inbox, signals.clone(), known.clone());
        tasks.spawn(async move {
            // Services are part of every container's environment: none starts before they are known.
            ctx.services.synced().await;
            ctx.images.initialize(&*ctx.runtime).await;
            let _pods = source(&ctx, signals);
            manager.run().await;
        });
        Ok(Running { tasks, ready, port, known })
    }
}

fn directories(config: &Config) -> Result<(), KubeletError> {
    use std::os::unix::fs::PermissionsExt as _;
    let own = [config.root_dir.join("pods"), config.pod_logs_dir.clone(), config.cert_dir.clone()];
    for dir in own.into_iter().chain(config.pod_manifest_path.clone()) {
        let fail = |source| KubeletError::Directory { path: dir.display().to_string(), source };
        std::fs::create_dir_all(&dir).map_err(fail)?;
    }
    // Pipes of commands that an earlier kubelet ran.
    let _ = std::fs::remove_dir_all(server::command::directory(&config.root_dir));
    let private = std::fs::Permissions::from_mode(0o750);
    let _ = std::fs::set_permissions(&config.root_dir, private);
    Ok(())
}

/// Name and version of the runtime; waits until it answers.
async fn runtime_version(runtime: &dyn Runtime) -> (String, String) {
    let mut told = false;
    loop {
        match runtime.version().await {
            Ok(v) => return (v.runtime_name, v.runtime_version),
            Err(e) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(error = %e, "the container runtime does not answer yet");
                }
                tokio::time::sleep(RUNTIME_RETRY).await;
            }
        }
    }
}

type OnCidrs = Option<Box<dyn Fn(&[String]) + Send + Sync>>;

/// The Node object as the API has it, for admission, and its pod CIDRs for the network.
fn watch_node(
    tasks: &mut JoinSet<()>,
    client: &Client,
    config: &Config,
    on_cidrs: OnCidrs,
) -> watch::Receiver<Option<Arc<Node>>> {
    let (to, node) = watch::channel(None);
    let fields = format!("metadata.name={}", config.node_name);
    let informer = Informer::<Node>::new(client.clone(), InformerConfig { fields, ..Default::default() });
    let handle = informer
        .on_change(move |change: &Change<Node>| {
            let gone = matches!(change, Change::Deleted(_));
            to.send_replace((!gone).then(|| Arc::clone(change.object())));
        })
        .start();
    let mut changes = node.clone();
    tasks.spawn(async move {
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
