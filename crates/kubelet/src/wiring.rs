//! The dependencies that a kubelet is built from, and the channels between its parts.
use std::sync::Arc;

use kelson_bootstrap::{CertificateMetrics, ClientCertificate};
use kelson_client::Client;
use kelson_cri::Runtime;
use kelson_meta::Clock;
use kelson_metrics::Registry;
use kelson_pki::San;
use kelson_tasks::{FILES, Tasks};
use tokio::sync::watch;

use crate::config::Config;
use crate::config::thresholds::{Pressure, Signal, amount};
use crate::csi::drivers::Drivers;
use crate::csi::in_use::InUse;
use crate::devices::Devices;
use crate::dra::DynamicResources;
use crate::dra::drivers::DraDrivers;
use crate::effects::NetworkGate;
use crate::metrics::{self, ClaimMetrics, DeviceMetrics, Metrics, PlacementMetrics, StorageMetrics};
use crate::node::facts::{self, NodeFacts};
use crate::node::runtime::RuntimeState;
use crate::placement::Placement;
use crate::placement::manager::NodeReservation;
use crate::pods::inbox::ManagerInbox;
use crate::pods::known::PodRegistry;
use crate::probes::ProbeRunner;
use crate::spans::Spans;
use crate::volumes::csi::CsiVolumes;
use crate::volumes::mounts::Mounts;

/// Called with the node's pod CIDRs each time they change in the API.
pub type OnPodCidrs = Box<dyn Fn(&[String]) + Send + Sync>;

/// The dependencies that the caller of [`crate::Kubelet::start`] provides. Tests replace them by doubles.
pub struct Dependencies {
    /// The group in which the kubelet's tasks run.
    pub tasks: Tasks,
    /// Client of the API server that authenticates as this node.
    pub client: Client,
    /// Client of the container runtime (CRI).
    pub runtime: Arc<dyn Runtime>,
    /// Source of timestamps and timers.
    pub clock: Arc<dyn Clock>,
    /// Mount operations. [`crate::volumes::mounts::KernelMounts`] on a real node.
    pub mounts: Arc<dyn Mounts>,
    /// Runs probe handlers. `None` selects the default implementation.
    pub prober: Option<Arc<dyn ProbeRunner>>,
    /// Receives the node's pod CIDRs.
    pub on_pod_cidrs: Option<OnPodCidrs>,
    /// Obtains and renews the certificate that `client` uses (`rotateCertificates`). `None` if the certificate is managed elsewhere.
    pub certificate: Option<ClientCertificate>,
    /// Delays containers until the pod's network is ready. `None` means no delay.
    pub network_gate: Option<Arc<dyn NetworkGate>>,
}

/// The channels and shared state between parts of the kubelet.
pub(crate) struct Channels {
    pub facts: (watch::Sender<Arc<NodeFacts>>, watch::Receiver<Arc<NodeFacts>>),
    pub runtime: (watch::Sender<Arc<RuntimeState>>, watch::Receiver<Arc<RuntimeState>>),
    pub pressure: (watch::Sender<Pressure>, watch::Receiver<Pressure>),
    pub shutdown: (watch::Sender<bool>, watch::Receiver<bool>),
    pub ready: (watch::Sender<bool>, watch::Receiver<bool>),
    pub manager: ManagerInbox,
    pub known: PodRegistry,
    pub csi: CsiVolumes,
    pub devices: Devices,
    pub placement: Placement,
    pub dra: DraDrivers,
    pub claims: DynamicResources,
    pub metrics: Arc<Metrics>,
    pub storage: Arc<StorageMetrics>,
    /// The recorder of spans, and the registry of the exporter's metrics.
    pub spans: (Spans, Option<Registry>),
    pub names: (watch::Sender<Vec<San>>, watch::Receiver<Vec<San>>),
    pub certificates: CertificateMetrics,
}

impl Channels {
    /// # Errors
    /// The configured CPU or memory manager policy cannot work on this machine.
    pub async fn new(
        config: &Config,
        client: &Client,
        clock: &Arc<dyn Clock>,
        (metrics, spans): (Arc<Metrics>, (Spans, Option<Registry>)),
        tasks: &Tasks,
    ) -> Result<Self, String> {
        let placing = Arc::new(PlacementMetrics::new(metrics.registry()));
        let kept = kept(config).await;
        let placement = Placement::open(&config.placement, &config.root_dir, kept, placing).await?;
        let counted = Arc::new(DeviceMetrics::new(metrics.registry()));
        let devices = Devices::open(config.device_plugins_dir.clone(), counted).await;
        let dra = DraDrivers::new(Arc::new(ClaimMetrics::new(metrics.registry())), tasks.child("device-drivers"));
        let claims = DynamicResources::open(client.clone(), dra.clone(), config.root_dir.clone()).await?;
        let facts = NodeFacts {
            name: config.node_name.clone(),
            host_ips: config.node_ips.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        let known = PodRegistry::default();
        let (shown, used) = (known.clone(), claims.clone());
        metrics.registry().on_scrape(move |families| {
            let pods = shown.list();
            metrics::pods(families, pods.iter().map(|p| &**p));
            metrics::resizes(families, pods.iter().map(|p| &**p));
            metrics::claims_in_use(families, &used.in_use());
        });
        let storage = Arc::new(StorageMetrics::new(metrics.registry()));
        let csi = CsiVolumes::new(client.clone(), &config.node_name, Drivers::default(), InUse::default());
        Ok(Self {
            devices,
            placement,
            dra,
            claims,
            csi: csi.counted(Arc::clone(&storage)),
            storage,
            spans,
            metrics,
            facts: watch::channel(Arc::new(facts)),
            runtime: watch::channel(Arc::default()),
            pressure: watch::channel(Pressure::default()),
            shutdown: watch::channel(false),
            ready: watch::channel(false),
            manager: ManagerInbox::default(),
            known,
            names: watch::channel(Vec::new()),
            certificates: CertificateMetrics::new(Arc::clone(clock)),
        })
    }
}

/// Resources that the node reserves and pods cannot use.
async fn kept(config: &Config) -> NodeReservation {
    let mut amounts = config.reserved();
    let machine_memory = FILES.run(facts::machine_memory).await.unwrap_or_default().total;
    let machine_memory = u64::try_from(machine_memory).unwrap_or(0);
    let thresholds = config.eviction.thresholds.iter().filter(|t| t.is_hard());
    for t in thresholds.filter(|t| t.signal == Signal::MemoryAvailable) {
        let of_memory = amounts.entry("memory".to_owned()).or_default();
        *of_memory = of_memory.plus(amount(t.value.of(machine_memory)));
    }
    NodeReservation { amounts, machine_memory }
}
