//! What a kubelet is built from: the effects it is given, and what its parts tell each other by.
use std::sync::Arc;

use kelson_bootstrap::{CertificateMetrics, ClientCertificate};
use kelson_client::Client;
use kelson_cri::Runtime;
use kelson_meta::Clock;
use kelson_pki::San;
use kelson_tasks::Tasks;
use tokio::sync::watch;

use crate::config::Config;
use crate::config::thresholds::Pressure;
use crate::csi::drivers::Drivers;
use crate::csi::in_use::InUse;
use crate::devices::Devices;
use crate::metrics::{self, DeviceMetrics, Metrics};
use crate::node::facts::NodeFacts;
use crate::node::runtime::RuntimeState;
use crate::pods::inbox::ManagerInbox;
use crate::pods::known::Known;
use crate::probes::ProbeRunner;
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
    pub metrics: Arc<Metrics>,
    pub names: (watch::Sender<Vec<San>>, watch::Receiver<Vec<San>>),
    pub certificates: CertificateMetrics,
}

impl Channels {
    pub async fn new(config: &Config, client: &Client, clock: &Arc<dyn Clock>, metrics: Arc<Metrics>) -> Self {
        let counted = Arc::new(DeviceMetrics::new(metrics.registry()));
        let devices = Devices::open(config.device_plugins_dir.clone(), counted).await;
        let facts = NodeFacts {
            name: config.node_name.clone(),
            host_ips: config.node_ips.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        let known = Known::default();
        let shown = known.clone();
        metrics.registry().on_scrape(move |families| {
            let pods = shown.list();
            metrics::pods(families, pods.iter().map(|p| &**p));
        });
        Self {
            devices,
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
            csi: CsiVolumes::new(client.clone(), &config.node_name, Drivers::default(), InUse::default()),
        }
    }
}
