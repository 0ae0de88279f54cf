//! What a kubelet is built from: the effects it is given, and what its parts tell each other by.
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
use crate::placement::manager::Kept;
use crate::pods::inbox::ManagerInbox;
use crate::pods::known::Known;
use crate::probes::ProbeRunner;
use crate::spans::Spans;
use crate::volumes::csi::CsiVolumes;
use crate::volumes::mounts::Mounts;

/// Called with the node's pod CIDRs whenever the API has new ones.
pub type OnPodCidrs = Box<dyn Fn(&[String]) + Send + Sync>;

/// The effects a kubelet works through.
pub struct Dependencies {
    /// The group in which the kubelet's tasks run.
    pub tasks: Tasks,
    /// The API, under this node's identity.
    pub client: Client,
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// The clock that timestamps and delays are read from.
    pub clock: Arc<dyn Clock>,
    /// Mounts; [`crate::volumes::mounts::KernelMounts`] on a node.
    pub mounts: Arc<dyn Mounts>,
    /// Probe handlers; `None`: the real ones.
    pub prober: Option<Arc<dyn ProbeRunner>>,
    /// Hears of the node's pod CIDRs.
    pub on_pod_cidrs: Option<OnPodCidrs>,
    /// What keeps the certificate behind `client` good (`rotateCertificates`), and gets the first one where it is awaited
    /// still; `None`: somebody else does.
    pub certificate: Option<ClientCertificate>,
    /// Holds containers until the pod's network is ready for them; `None`: nothing holds them.
    pub network_gate: Option<Arc<dyn NetworkGate>>,
}

/// The two ends of what parts tell each other.
pub(crate) struct Channels {
    pub facts: (watch::Sender<Arc<NodeFacts>>, watch::Receiver<Arc<NodeFacts>>),
    pub runtime: (watch::Sender<Arc<RuntimeState>>, watch::Receiver<Arc<RuntimeState>>),
    pub pressure: (watch::Sender<Pressure>, watch::Receiver<Pressure>),
    pub shutdown: (watch::Sender<bool>, watch::Receiver<bool>),
    pub ready: (watch::Sender<bool>, watch::Receiver<bool>),
    pub manager: ManagerInbox,
    pub known: Known,
    pub csi: CsiVolumes,
    pub devices: Devices,
    pub placement: Placement,
    pub dra: DraDrivers,
    pub claims: DynamicResources,
    pub metrics: Arc<Metrics>,
    pub storage: Arc<StorageMetrics>,
    /// Who traces, and what is counted of that.
    pub spans: (Spans, Option<Registry>),
    pub names: (watch::Sender<Vec<San>>, watch::Receiver<Vec<San>>),
    pub certificates: CertificateMetrics,
}

impl Channels {
    /// # Errors
    /// When what the configuration gives to containers alone cannot be given on this machine.
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
        let known = Known::default();
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

/// What the node keeps from pods.
async fn kept(config: &Config) -> Kept {
    let mut amounts = config.reserved();
    let machine_memory = FILES.run(facts::machine_memory).await.unwrap_or_default().total;
    let machine_memory = u64::try_from(machine_memory).unwrap_or(0);
    let thresholds = config.eviction.thresholds.iter().filter(|t| t.is_hard());
    for t in thresholds.filter(|t| t.signal == Signal::MemoryAvailable) {
        let of_memory = amounts.entry("memory".to_owned()).or_default();
        *of_memory = of_memory.plus(amount(t.value.of(machine_memory)));
    }
    Kept { amounts, machine_memory }
}
