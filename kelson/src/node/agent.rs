//! The node: container runtime, pod network, kubelet and service proxy, joined to an API server like any node.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use kelson_announce::ServiceAnnouncer;
use kelson_bootstrap::{ClientCertificate, Discovery, Paths};
use kelson_check::Host;
use kelson_client::Client;
use kelson_client::kubeconfig;
use kelson_cri::containerd::{self, Containerd, ContainerdConfig};
use kelson_kubelet::config::cgroups::{CgroupConfig, CgroupDriver};
use kelson_kubelet::config::file::LogFormat;
use kelson_kubelet::volumes::mounts::KernelMounts;
use kelson_kubelet::{Dependencies, Kubelet, NetworkGate};
use kelson_meta::{Clock, SystemClock};
use kelson_metrics::Registry;
use kelson_net::{Family, ranges};
use kelson_network_policy::NetworkPolicies;
use kelson_pki::{Kubeconfig, UserCredential};
use kelson_proxy::Proxy;
use kelson_tasks::{OnPanic, Tasks};
use tokio::sync::watch;

use super::args::{AgentArgs, NodeArgs};
use super::fields::FieldArgs;
use super::gate::PolicyGate;
use super::kubelet::{configure, report_idle, runtime_client};
use super::pod_network::PodNetwork;
use super::scope::RuntimeScope;
use super::servers::ApiServers;
use super::trust::{self, Trust};
use super::{check, cleanup, credentials, discovery, own_kubeconfig, pod_logs};
use crate::cluster::ClusterSettings;
use crate::control_plane::ControlPlane;
use crate::host::NodeIdentity;
use crate::service::Check;
use crate::token::Token;

/// The port of kube-proxy's health check for load balancers.
const PROXY_HEALTH_PORT: u16 = 10256;
/// The port of kube-proxy's metrics.
const PROXY_METRICS_PORT: u16 = 10249;

/// The data that a node needs to join, and the settings of the cluster.
#[derive(Clone)]
pub struct Join {
    /// The API servers.
    pub servers: ApiServers,
    /// The CA of its certificate.
    pub ca_pem: String,
    /// The bootstrap token with which the node joins.
    pub token: Token,
    /// The settings that all nodes share.
    pub cluster: ClusterSettings,
    /// The discovery by which a running node finds the cluster's CA after it has missed a rotation. `None` for the node
    /// of a server in this process.
    pub discovery: Option<Discovery>,
}

impl Join {
    /// Returns the parameters of a server's own node, which joins like any other.
    pub fn of(control_plane: &ControlPlane, data_dir: &Path, node: &str) -> anyhow::Result<Self> {
        Ok(Self {
            servers: ApiServers::of_server(control_plane.local_url(), data_dir, node)?,
            ca_pem: control_plane.ca_bundle(),
            token: control_plane.token().clone(),
            cluster: control_plane.cluster().clone(),
            discovery: None,
        })
    }

    /// Reads the command line of `kelson agent` and the settings that the cluster publishes. Waits for a server that is
    /// not up yet.
    pub async fn find(args: &AgentArgs, me: &NodeIdentity) -> anyhow::Result<Self> {
        let token = Token::parse(&args.token).context("--token")?;
        let servers = ApiServers::of_agent(&args.server, &args.data_dir, &me.name)?;
        let known = discovery::find(args, &servers, &token, &me.name).await?;
        ranges::reserve(&args.data_dir, known.settings.ranges).await?;
        let discovery = Some(trust::discovery(args.clone(), servers.clone(), token.clone()));
        Ok(Self { servers, ca_pem: known.ca, token, cluster: known.settings, discovery })
    }

    /// Follows the servers of the cluster until `tasks` ends. `config` has their CA.
    fn follow_servers(&self, dir: &Path, config: &kubeconfig::Config, client: Client, tasks: &Tasks) {
        self.servers.follow(dir, config, client, tasks);
        if self.discovery.is_some() {
            // The node of a server stays with the server of its machine.
            own_kubeconfig::follow(dir.join("kubelet/kubeconfig"), &self.servers.choice, tasks);
        }
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
    /// Starts everything; returns when the kubelet runs, which is before the node is Ready. The service proxy's port serves the
    /// metrics of `beside` as well.
    pub async fn start(
        dir: &Path,
        args: &NodeArgs,
        me: &NodeIdentity,
        join: Join,
        beside: Option<Registry>,
        tasks: &Tasks,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("data directory {}", dir.display()))?;
        let dir = dir.canonicalize().with_context(|| format!("data directory {}", dir.display()))?;
        let (name, address) = (me.name.as_str(), me.address);
        let foreign_runtime = args.container_runtime_endpoint.is_some();
        tasks.spawn("firewall-check", OnPanic::Contain, check::firewalls_at_start(foreign_runtime));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let trust = Trust::begin(&dir, &join.ca_pem)?;
        let driver = cgroup_driver(args)?;
        // The runtime starts while the certificate is being signed.
        let (runtime, identity) =
            tokio::join!(runtime(&dir, args, driver, tasks), identity(&dir, name, (&join, &trust), &clock));
        let ((containerd, endpoint), (identity, certificate)) = (runtime?, identity?);
        let client = |component: &str| anyhow::Ok(Client::new(certificate.connection(&identity)?, component));
        join.follow_servers(&dir, &identity, client("servers")?, tasks);
        // Only the newest ranges matter, so that a slow set-up of the network does not queue them.
        let (cidrs, given) = watch::channel(Vec::new());
        let config = kubelet_config(&dir, me, args, (&join, &trust), &endpoint)?;
        credentials::remember(&dir, &args.images)?;
        cleanup::remember_runtime(&dir, args.container_runtime_endpoint.as_deref())?;
        let policies = if join.cluster.network_policy {
            let families = vec![Family::of(&join.cluster.ranges.cluster.addr())];
            let config = kelson_network_policy::Config::new(&dir, name, families);
            Some(NetworkPolicies::start(config, client("network-policy")?, Arc::clone(&clock), tasks))
        } else {
            tracing::info!("network policies are not enforced: the cluster runs with --disable network-policy");
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
            clock: Arc::clone(&clock),
            registry: kubelet.registry(),
        };
        tasks.spawn("pod-network", OnPanic::EndProcess, network.keep(given));
        let mut proxy = kelson_proxy::Config::new(&dir, name, vec![address], vec![ranges.cluster]);
        proxy.health_bind = free(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PROXY_HEALTH_PORT)), "health");
        proxy.metrics_bind = metrics_bind(args.proxy_metrics_port)?;
        proxy.more_metrics.extend(policies.as_ref().map(|p| p.registry().clone()).into_iter().chain(beside));
        let proxy = Proxy::start(proxy, client("proxy")?, Arc::clone(&clock), tasks);
        ServiceAnnouncer::start(name, address, client("announcer")?, clock, tasks)?;
        tracing::info!(node = name, %address, port = kubelet.port(), "node agent is running");
        Ok(Self { kubelet, proxy, policies, containerd, tasks: tasks.clone() })
    }

    /// Returns the check that the kubelet works, for the service manager.
    pub fn check(&self) -> Check {
        check_of(&self.kubelet)
    }

    /// Stops it; containers, addresses and rules stay for the next start.
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

/// Returns the check that a kubelet processes events of its pods.
pub fn check_of(kubelet: &kelson_kubelet::Running) -> Check {
    let manager = kubelet.manager();
    Box::new(move || {
        let manager = manager.clone();
        Box::pin(async move { manager.ping().await })
    })
}

/// Returns the runtime's endpoint, and Kelson's own containerd if it is used.
async fn runtime(
    dir: &Path,
    args: &NodeArgs,
    driver: CgroupDriver,
    tasks: &Tasks,
) -> anyhow::Result<(Option<Containerd>, String)> {
    if let Some(endpoint) = &args.container_runtime_endpoint {
        let (to, dir) = (endpoint.clone(), dir.to_owned());
        // In a separate task: an external runtime may start later than this node.
        tasks.spawn("image-archives", OnPanic::Contain, async move {
            containerd::load_into(&to, &dir).await;
        });
        return Ok((None, endpoint.clone()));
    }
    // Both create cgroups and must use the same driver: otherwise containers would run outside their pods' cgroups.
    let scope = RuntimeScope::find(&Host::this(), &kelson_net::network_id(dir));
    let config = ContainerdConfig {
        systemd_cgroup: driver == CgroupDriver::Systemd,
        scope: scope.map(|scope| Arc::new(scope) as _),
        ..ContainerdConfig::new(dir)?
    };
    let containerd = Containerd::start(config, tasks).await.context("start containerd")?;
    let endpoint = containerd.endpoint();
    Ok((Some(containerd), endpoint))
}

/// Returns the node's credentials, requested with the bootstrap token if it has none yet (KEP-43).
async fn identity(
    dir: &Path,
    name: &str,
    (join, trust): (&Join, &Trust),
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<(kubeconfig::Config, ClientCertificate)> {
    trust::forget_foreign(dir, &join.ca_pem, clock.now())?;
    let dir = dir.join("kubelet");
    let file = dir.join("bootstrap.kubeconfig");
    let server = own_kubeconfig::in_use(&join.servers.choice);
    let bootstrap = Kubeconfig {
        cluster: "kelson".into(),
        user: "kubelet-bootstrap".into(),
        server: server.clone(),
        ca_pem: join.ca_pem.clone(),
        ca_file: Some(trust.ca_file()),
        credential: UserCredential::Token(join.token.reveal()),
    };
    bootstrap.write(&file)?;
    own_kubeconfig::name_server(&dir.join("kubeconfig"), &server, &join.ca_pem, &trust.ca_file())?;
    let paths = Paths { kubeconfig: dir.join("kubeconfig"), bootstrap: Some(file), cert_dir: dir.join("pki") };
    let certificate = ClientCertificate::new(paths, name, Arc::clone(clock)).demanding(trust.demands().0);
    let mut certificate = certificate.among(Arc::clone(&join.servers.choice));
    if let Some(discovery) = &join.discovery {
        certificate = certificate.discovering(Arc::clone(discovery));
    }
    let config = certificate.load().await.context("join the cluster")?;
    Ok((config, certificate))
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
    config.container_logs_dir = Some(pod_logs::CONTAINER_LOGS.into());
    let usual_logs = config.pod_logs_dir.clone();
    let laid = configure(&mut config, file, &FieldArgs::default(), &args.images)?;
    args.registration.apply(&mut config);
    if config.pod_logs_dir == usual_logs {
        config.pod_logs_dir = pod_logs::choose(dir);
    }
    report_idle(&laid);
    if laid.logging.format == Some(LogFormat::Json) || laid.logging.verbosity.is_some_and(|v| v > 0) {
        let why = "the log is the whole process's, and its command line says what is logged";
        tracing::warn!(field = "logging", why, "field of the kubelet configuration has no effect");
    }
    Ok(config)
}

/// Validates the node's settings before anything is started.
pub fn check(args: &NodeArgs) -> anyhow::Result<()> {
    cgroup_driver(args).map(drop)
}

/// Returns the cgroup driver of the node's configuration (`cgroupDriver`).
fn cgroup_driver(args: &NodeArgs) -> anyhow::Result<CgroupDriver> {
    let mut config = kelson_kubelet::Config::new("", Path::new("/"));
    config.cgroups = Some(CgroupConfig::default());
    let file = ("--kubelet-config", args.kubelet_config.as_deref());
    configure(&mut config, file, &FieldArgs::default(), &args.images)?;
    Ok(config.cgroups.map(|c| c.driver).unwrap_or_default())
}

/// Returns the port, or 0 (any) if another server on this machine uses it; the node's status publishes the actual port.
fn free_or_any(port: u16) -> u16 {
    match TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))) {
        Ok(_) => port,
        Err(e) => {
            tracing::warn!(port, error = %e, "kubelet port is in use; selecting a free one");
            0
        }
    }
}

/// Returns the address of the service proxy's metrics: the configured port, or upstream's if it is free.
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

/// Returns an address for `what` of the service proxy; none if another process uses its port.
fn free(at: SocketAddr, what: &str) -> Vec<SocketAddr> {
    match TcpListener::bind(at) {
        Ok(_) => vec![at],
        Err(e) => {
            let port = at.port();
            tracing::info!(port, error = %e, "default port of the service proxy is in use; {what} are not served");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    #[test]
    fn the_runtime_gets_the_cgroup_driver_of_the_kubelet_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubelet.yaml");
        let driver = |fields: &str| {
            let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
            std::fs::write(&file, format!("{head}{fields}")).unwrap();
            let words = ["kelson", "--kubelet-config", file.to_str().unwrap()];
            let found = NodeArgs::augment_args(Command::new("kelson")).get_matches_from(words);
            cgroup_driver(&NodeArgs::from_arg_matches(&found).unwrap()).unwrap()
        };
        assert_eq!(driver("cgroupDriver: systemd\n"), CgroupDriver::Systemd);
        assert_eq!(driver("cgroupDriver: cgroupfs\n"), CgroupDriver::Cgroupfs);
        assert_eq!(driver("maxPods: 5\n"), CgroupDriver::Cgroupfs);
    }
}
