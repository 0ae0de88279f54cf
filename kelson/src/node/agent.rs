//! The node: container runtime, pod network, kubelet and service proxy, joined to an API server as any node is.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ipnet::IpNet;
use kelson_bootstrap::{ClientCertificate, Discovery, Paths};
use kelson_client::Client;
use kelson_client::kubeconfig::{self, Credentials};
use kelson_cri::containerd::{Containerd, ContainerdConfig};
use kelson_kubelet::config::cgroups::CgroupConfig;
use kelson_kubelet::config::file::LogFormat;
use kelson_kubelet::volumes::mounts::KernelMounts;
use kelson_kubelet::{Dependencies, Kubelet, NetworkGate};
use kelson_meta::{Clock, SystemClock};
use kelson_net::{Family, Network, NetworkConfig, PeerWatch, ranges};
use kelson_network_policy::NetworkPolicies;
use kelson_pki::{Kubeconfig, UserCredential};
use kelson_proxy::Proxy;
use kelson_ranges::Ranges;
use kelson_tasks::{OnPanic, Tasks};
use tokio::sync::watch;

use super::args::{AgentArgs, NodeArgs};
use super::fields::FieldArgs;
use super::gate::PolicyGate;
use super::kubelet::{configure, runtime_client, tell_idle};
use super::trust::{self, Trust};
use super::{credentials, discovery};
use crate::cluster::ClusterSettings;
use crate::control_plane::ControlPlane;
use crate::host::NodeIdentity;
use crate::token::Token;

/// First and longest pause before the pod network is set up again; doubled each time.
const NETWORK_RETRY_FIRST: Duration = Duration::from_millis(500);
const NETWORK_RETRY_MAX: Duration = Duration::from_secs(30);
/// Where kube-proxy tells load balancers whether this node's services work.
const PROXY_HEALTH_PORT: u16 = 10256;
/// Where kube-proxy serves its metrics.
const PROXY_METRICS_PORT: u16 = 10249;

/// What a node needs to join, and what it must know of the cluster.
#[derive(Clone)]
pub struct Join {
    /// `https://HOST:PORT` of the API server.
    pub server: String,
    /// CA that its certificate leads to.
    pub ca_pem: String,
    /// The bootstrap token with which the node joins.
    pub token: Token,
    /// What all nodes know alike.
    pub cluster: ClusterSettings,
    /// How the cluster's authority is found out while the node runs; `None`: the server of this very process tells it.
    pub discovery: Option<Discovery>,
}

impl Join {
    /// What a server's own node joins with: the same as any other.
    pub fn of(control_plane: &ControlPlane) -> Self {
        Self {
            server: control_plane.local_url().to_owned(),
            ca_pem: control_plane.ca_bundle(),
            token: control_plane.token().clone(),
            cluster: control_plane.cluster().clone(),
            discovery: None,
        }
    }

    /// From the command line of `kelson agent`, and what the cluster says of itself. Waits for a server that is not there
    /// yet.
    pub async fn find(args: &AgentArgs, me: &NodeIdentity) -> anyhow::Result<Self> {
        let token = Token::parse(&args.token).context("--token")?;
        let known = discovery::find(args, &token, &me.name).await?;
        ranges::reserve(&args.data_dir, known.settings.ranges).await?;
        let discovery = Some(trust::discovery(args.clone(), token.clone()));
        Ok(Self { server: args.server.clone(), ca_pem: known.ca, token, cluster: known.settings, discovery })
    }
}

/// A running node.
pub struct Node {
    kubelet: kelson_kubelet::Running,
    proxy: kelson_proxy::Running,
    policies: Option<kelson_network_policy::Running>,
    containerd: Option<Containerd>,
    tasks: Tasks,
}

impl Node {
    /// Starts everything; returns when the kubelet runs, which is before the node is Ready.
    pub async fn start(
        dir: &Path,
        args: &NodeArgs,
        me: &NodeIdentity,
        join: Join,
        tasks: &Tasks,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("data directory {}", dir.display()))?;
        let dir = dir.canonicalize().with_context(|| format!("data directory {}", dir.display()))?;
        let (name, address) = (me.name.as_str(), me.address);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let trust = Trust::begin(&dir, &join.ca_pem)?;
        // The runtime starts while the certificate is being signed.
        let (runtime, identity) =
            tokio::join!(runtime(&dir, args, tasks), identity(&dir, name, (&join, &trust), &clock));
        let ((containerd, endpoint), (identity, certificate)) = (runtime?, identity?);
        let client = |component: &str| anyhow::Ok(Client::new(certificate.connection(&identity)?, component));
        // Only the newest ranges count: a slow set-up of the network never piles them up.
        let (cidrs, given) = watch::channel(Vec::new());
        let config = kubelet_config(&dir, me, args, (&join, &trust), &endpoint)?;
        credentials::remember(&dir, &args.images)?;
        let policies = if join.cluster.network_policy {
            let families = vec![Family::of(&join.cluster.ranges.cluster.addr())];
            let config = kelson_network_policy::Config::new(&dir, name, families);
            Some(NetworkPolicies::start(config, client("network-policy")?, tasks))
        } else {
            tracing::info!("this node does not enforce network policies: the cluster has --disable network-policy");
            None
        };
        let dependencies = Dependencies {
            tasks: kelson_tasks::Tasks::root("node"),
            client: client("kubelet")?,
            runtime: Arc::new(runtime_client(&endpoint, &config)?),
            clock: Arc::clone(&clock),
            mounts: Arc::new(KernelMounts),
            prober: None,
            on_pod_cidrs: Some(Box::new(move |c: &[String]| drop(cidrs.send_replace(c.to_vec())))),
            certificate: config.rotate_certificates.then(|| certificate.clone()),
            network_gate: policies.as_ref().map(|p| Arc::new(PolicyGate(p.gate())) as Arc<dyn NetworkGate>),
        };
        let kept_images = containerd.as_ref().map(|c| c.kept_images().to_vec()).unwrap_or_default();
        let config = kelson_kubelet::Config { kept_images, ..config };
        let kubelet = Kubelet::start(config, dependencies).await.context("start the kubelet")?;
        trust.follow(client("kubelet")?, name, tasks);
        let ranges = join.cluster.ranges;
        let network = PodNetwork {
            dir: dir.clone(),
            ranges,
            me: me.clone(),
            client: client("net")?,
            tasks: tasks.clone(),
            peers: None,
        };
        tasks.spawn("pod-network", OnPanic::EndProcess, network.keep(given));
        let mut proxy = kelson_proxy::Config::new(&dir, name, vec![address], vec![ranges.cluster]);
        proxy.health_bind = free(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PROXY_HEALTH_PORT)), "health");
        proxy.metrics_bind = metrics_bind(args.proxy_metrics_port)?;
        proxy.more_metrics.extend(policies.as_ref().map(|p| p.registry().clone()));
        let proxy = Proxy::start(proxy, client("proxy")?, clock, tasks);
        tracing::info!(node = name, %address, port = kubelet.port(), "the node agent runs");
        Ok(Self { kubelet, proxy, policies, containerd, tasks: tasks.clone() })
    }

    /// Ends it; containers, addresses and rules stay for the next start.
    pub async fn shutdown(self) {
        self.tasks.token().cancel();
        self.kubelet.shutdown().await;
        self.proxy.shutdown().await;
        if let Some(policies) = self.policies {
            policies.shutdown().await;
        }
        if let Some(containerd) = self.containerd {
            containerd.shutdown().await;
        }
    }
}

/// The runtime's endpoint, with the containerd behind it where it is our own.
async fn runtime(dir: &Path, args: &NodeArgs, tasks: &Tasks) -> anyhow::Result<(Option<Containerd>, String)> {
    if let Some(endpoint) = &args.container_runtime_endpoint {
        return Ok((None, endpoint.clone()));
    }
    let containerd = Containerd::start(ContainerdConfig::new(dir)?, tasks).await.context("start containerd")?;
    let endpoint = containerd.endpoint();
    Ok((Some(containerd), endpoint))
}

/// The node's own credentials, by bootstrap token and certificate request where it has none yet (KEP-43).
async fn identity(
    dir: &Path,
    name: &str,
    (join, trust): (&Join, &Trust),
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<(kubeconfig::Config, ClientCertificate)> {
    trust::forget_foreign(dir, &join.ca_pem, clock.now())?;
    let dir = dir.join("kubelet");
    std::fs::create_dir_all(&dir)?;
    let file = dir.join("bootstrap.kubeconfig");
    let bootstrap = Kubeconfig {
        cluster: "kelson".into(),
        user: "kubelet-bootstrap".into(),
        server: join.server.clone(),
        ca_pem: join.ca_pem.clone(),
        ca_file: Some(trust.ca_file()),
        credential: UserCredential::Token(join.token.reveal()),
    };
    bootstrap.write(&file)?;
    follow_server(&dir.join("kubeconfig"), join, &trust.ca_file())?;
    let paths = Paths { kubeconfig: dir.join("kubeconfig"), bootstrap: Some(file), cert_dir: dir.join("pki") };
    let mut certificate = ClientCertificate::new(paths, name, Arc::clone(clock)).demanding(trust.demands().0);
    if let Some(discovery) = &join.discovery {
        certificate = certificate.discovering(Arc::clone(discovery));
    }
    let config = certificate.load().await.context("join the cluster")?;
    Ok((config, certificate))
}

/// A server that has moved, to another port perhaps, is followed: the credentials of an earlier start stay good.
fn follow_server(file: &Path, join: &Join, ca_file: &Path) -> anyhow::Result<()> {
    let Ok(there) = kubeconfig::Config::load(file) else { return Ok(()) };
    let Credentials::CertificateFiles { cert, key } = there.credentials else { return Ok(()) };
    if there.server == join.server && there.ca_file.as_deref() == Some(ca_file) {
        return Ok(());
    }
    if there.server != join.server {
        tracing::info!(from = there.server, to = join.server, "the API server has moved");
    }
    let moved = Kubeconfig {
        cluster: "default-cluster".into(),
        user: "default-auth".into(),
        server: join.server.clone(),
        ca_pem: join.ca_pem.clone(),
        ca_file: Some(ca_file.to_owned()),
        credential: UserCredential::CertificateFiles { cert, key },
    };
    Ok(moved.write(file)?)
}

fn kubelet_config(
    dir: &Path,
    me: &NodeIdentity,
    args: &NodeArgs,
    (join, trust): (&Join, &Trust),
    endpoint: &str,
) -> anyhow::Result<kelson_kubelet::Config> {
    let mut config = kelson_kubelet::Config::new(&me.name, &dir.join("kubelet"));
    config.node_ips = vec![me.address];
    config.runtime_endpoint = endpoint.to_owned();
    config.cluster_dns = vec![join.cluster.dns];
    config.cluster_domain = join.cluster.domain.clone();
    if let Some(hard) = &args.eviction_hard {
        config.eviction.thresholds.clone_from(&hard.0);
    }
    config.pod_manifest_path = Some(dir.join("kubelet").join("manifests"));
    config.local_volumes_dir = Some(dir.join("storage"));
    if let Some(dir) = &args.device_plugins_dir {
        config.device_plugins_dir.clone_from(dir);
    }
    config.cgroups = Some(CgroupConfig::below(format!("kelson-{}", kelson_net::network_id(dir))));
    config.server.listen = Some(SocketAddr::from(([0, 0, 0, 0], free_or_any(args.kubelet_port))));
    config.server.client_ca_pem = join.ca_pem.clone().into_bytes();
    config.server.client_ca_file = Some(trust.ca_file());
    config.server.serving_demands = Some(trust.demands().1);
    config.server.tls_bootstrap = true;
    let file = ("--kubelet-config", args.kubelet_config.as_deref());
    let laid = configure(&mut config, file, &FieldArgs::default(), &args.images)?;
    tell_idle(&laid);
    if laid.logging.format == Some(LogFormat::Json) || laid.logging.verbosity.is_some_and(|v| v > 0) {
        let why = "the log is the whole process's, and its command line says what is logged";
        tracing::warn!(field = "logging", why, "the kubelet configuration sets a field that has no effect here");
    }
    Ok(config)
}

/// Whether what the command line says of the node can be followed, before anything is started.
pub fn check(args: &NodeArgs) -> anyhow::Result<()> {
    let mut config = kelson_kubelet::Config::new("", Path::new("/"));
    configure(&mut config, ("--kubelet-config", args.kubelet_config.as_deref()), &FieldArgs::default(), &args.images)
        .map(drop)
}

/// The port, or 0 (any) where another server of this machine has it: the node's status tells which one it became.
fn free_or_any(port: u16) -> u16 {
    match TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))) {
        Ok(_) => port,
        Err(e) => {
            tracing::warn!(port, error = %e, "the kubelet's port is taken; it takes a free one");
            0
        }
    }
}

/// Where the service proxy serves its metrics: upstream's port unless another has it, or the one that was asked for.
fn metrics_bind(asked: Option<u16>) -> anyhow::Result<Vec<SocketAddr>> {
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, asked.unwrap_or(PROXY_METRICS_PORT)));
    if at.port() == 0 {
        return Ok(Vec::new());
    }
    if asked.is_some() {
        TcpListener::bind(at).with_context(|| format!("--proxy-metrics-port: {at}"))?;
    }
    Ok(free(at, "metrics"))
}

/// An address for `what` of the service proxy; none where another process has its port.
fn free(at: SocketAddr, what: &str) -> Vec<SocketAddr> {
    match TcpListener::bind(at) {
        Ok(_) => vec![at],
        Err(e) => {
            let port = at.port();
            tracing::info!(port, error = %e, "the service proxy's usual port is taken: it serves no {what} there");
            Vec::new()
        }
    }
}

/// Keeps the pod network of this node: whenever the cluster gives it its range, and as nodes come and go.
struct PodNetwork {
    dir: PathBuf,
    ranges: Ranges,
    me: NodeIdentity,
    client: Client,
    tasks: Tasks,
    peers: Option<PeerWatch>,
}

impl PodNetwork {
    async fn keep(mut self, mut given: watch::Receiver<Vec<String>>) {
        let (mut subnets, mut pause) = (None::<Vec<IpNet>>, NETWORK_RETRY_FIRST);
        loop {
            let mut retry = None;
            if let Some(subnets) = &subnets {
                match self.set_up(subnets.clone()).await {
                    Ok(()) => pause = NETWORK_RETRY_FIRST,
                    // Without it no pod starts: whatever stood in the way may go.
                    Err(e) => {
                        tracing::error!(error = format!("{e:#}"), retry_in = ?pause, "cannot set up the pod network");
                        retry = Some(pause);
                        pause = (pause * 2).min(NETWORK_RETRY_MAX);
                    }
                }
            }
            let again = async {
                match retry {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = given.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    subnets = Some(given.borrow_and_update().iter().filter_map(|c| c.parse().ok()).collect());
                }
                () = again => {}
            }
        }
    }

    async fn set_up(&mut self, subnets: Vec<IpNet>) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("find this program")?;
        self.peers = None;
        let network =
            Network::new(NetworkConfig::within(&self.ranges, &self.dir, subnets, overlay_address(self.me.address))?);
        network.ensure(&program).await?;
        tracing::info!(bridge = network.config().bridge(), subnet = %network.config().subnet(), "the pod network is up");
        self.peers = Some(PeerWatch::start(network, &self.me.name, self.client.clone(), &self.tasks));
        Ok(())
    }
}

/// The address at which other nodes' tunnels end. A node that has none but its loopback is alone.
fn overlay_address(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(v4) if !v4.is_loopback() => Some(v4),
        _ => None,
    }
}
