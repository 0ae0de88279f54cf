//! The control plane: store, PKI, API server, controllers, scheduler and cluster DNS in one process, each under its own
//! identity.
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use jiff::Timestamp;
use kelson_apiserver::{
    ApiServer, AuthorizationMode, Config, KubeletConfig, Running, ServiceAccountConfig, ServingConfig,
};
use kelson_auth::token::{IssuerOptions, TokenIssuer};
use kelson_auth::{UserInfo, user};
use kelson_client::{Client, InformerHandle};
use kelson_controllers::{Controllers, ReservedNames};
use kelson_dns::{EndpointSlice, Forwarder, Node, Published, Service, Sources, Zone};
use kelson_meta::SystemClock;
use kelson_net::ranges::Ranges;
use kelson_pki::{ClusterPki, Component, PkiOptions, San, SwappableCertificate};
use kelson_scheduler::Scheduler;
use kelson_store::{Store, StoreOptions};
use kelson_tasks::{OnPanic, Tasks};

use crate::agent::Join;
use crate::cli::ServerArgs;
use crate::cluster::{self, ClusterSettings};
use crate::host::NodeIdentity;
use crate::token::Token;
use crate::{host, rbac, token};

/// Name under which services and pods are resolved.
pub const CLUSTER_DOMAIN: &str = "cluster.local";
/// Position of cluster DNS in the service range, by tradition.
const DNS_POSITION: usize = 10;
/// File with the bootstrap token that nodes join with.
const TOKEN_FILE: &str = "node-token";

/// A running control plane.
pub struct ControlPlane {
    api: Running,
    controllers: kelson_controllers::Running,
    scheduler: kelson_scheduler::Running,
    pki: ClusterPki,
    local_url: String,
    token: Token,
    cluster: ClusterSettings,
}

impl ControlPlane {
    /// Starts everything; returns when the API is ready.
    pub async fn start(args: &ServerArgs, ranges: Ranges) -> anyhow::Result<Self> {
        let dir = &args.data_dir;
        let cluster =
            ClusterSettings { ranges, dns: nth(ranges.service, DNS_POSITION)?, domain: CLUSTER_DOMAIN.to_owned() };
        let now = Timestamp::now();
        let (store, pki) = open(dir, now).await?;
        let address = if args.bind_address.is_unspecified() { host::address() } else { args.bind_address };
        let api = ApiServer::start(api_config(args, &ranges, store, &pki, address, now)?).await?;
        api.ready().await;
        let port = api.local_addr().map_or(args.secure_port, |a| a.port());
        let local = if args.bind_address.is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { args.bind_address };
        let local_url = format!("https://{}", SocketAddr::new(local, port));
        let admin = dir.join("admin.kubeconfig");
        pki.ensure_admin_kubeconfig(&admin, &local_url, now)?;
        if let Some(out) = &args.kubeconfig_out {
            let text = std::fs::read(&admin).with_context(|| format!("read {}", admin.display()))?;
            kelson_pki::write_secret(out, &text, false)?;
        }
        let masters = client(&api, UserInfo::new(user::API_SERVER, [user::MASTERS]), "server");
        let public_url = format!("https://{}", SocketAddr::new(address, port));
        let token_file = dir.join(TOKEN_FILE);
        let serving_ca = pki.kubelet_serving_bundle();
        let (policy, published, token) = tokio::join!(
            rbac::ensure(&masters),
            cluster::publish(&masters, &public_url, pki.ca.cert_pem(), &serving_ca, &cluster),
            token::ensure(&masters, &token_file),
        );
        policy?;
        published?;
        let token = token?;
        let controllers = start_controllers(args, &ranges, &api, &pki, address)?;
        let scheduler = client(&api, UserInfo::new(user::KUBE_SCHEDULER, [user::AUTHENTICATED]), "scheduler");
        let scheduler = Scheduler::start(kelson_scheduler::Config::default(), scheduler, Arc::new(SystemClock), None);
        tracing::info!(url = local_url, kubeconfig = %admin.display(), "the API is ready");
        Ok(Self { api, controllers, scheduler, pki, local_url, token, cluster })
    }

    /// What the server's own node joins with: the same as any other.
    pub fn join(&self) -> Join {
        Join {
            server: self.local_url.clone(),
            ca_pem: self.pki.ca.cert_pem().to_owned(),
            token: self.token.clone(),
            cluster: self.cluster.clone(),
        }
    }

    /// Starts cluster DNS on an address of this machine's node and points the `kube-dns` service at it.
    pub async fn start_dns(&self, node: &NodeIdentity) -> anyhow::Result<Dns> {
        let client = client(&self.api, UserInfo::new(user::API_SERVER, [user::MASTERS]), "dns");
        let tasks = Tasks::root("cluster-dns");
        let directory = Arc::default();
        let watched = kelson_dns::watch(&client, &directory);
        let zone = Zone::new(CLUSTER_DOMAIN, directory).map_err(anyhow::Error::msg)?;
        let resolvers = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let service_ip = self.cluster.dns;
        let forwarder = Forwarder::from_resolv_conf(&resolvers, &[service_ip]);
        let sources = Arc::new(Sources::new(vec![self.cluster.ranges.cluster, self.cluster.ranges.service]));
        sources.put_node(&node.name, [node.address]);
        let nodes = sources.watch(&client);
        let server = kelson_dns::Server::start(node.address, 0, zone, forwarder, sources, &tasks);
        let server = server.await.context("start cluster DNS")?;
        let published = Published { service_ip, endpoint: server.address(), node_name: node.name.clone() };
        tasks.spawn("dns-publish", OnPanic::Contain, async move { kelson_dns::publish(&client, &published).await });
        Ok(Dns { server, tasks, _watched: (watched, nodes) })
    }

    /// Ends it in the order that lets each part finish: writers first, then the API, then the store.
    pub async fn shutdown(self) {
        self.scheduler.shutdown().await;
        self.controllers.shutdown().await;
        self.api.shutdown().await;
        self.api.server().store.close().await;
    }
}

fn start_controllers(
    args: &ServerArgs,
    ranges: &Ranges,
    api: &Running,
    pki: &ClusterPki,
    address: IpAddr,
) -> anyhow::Result<kelson_controllers::Running> {
    let issuer = TokenIssuer::new(pki.service_account.clone(), IssuerOptions::default());
    let sign = move |namespace: &str, account: &str, uid: &str, secret: &str| {
        issuer.legacy_token(namespace, account, uid, secret).map_err(|e| e.message)
    };
    let config = kelson_controllers::Config {
        // Off by default upstream, on wherever bootstrap tokens are used: cluster-info is signed, and those that expired go.
        controllers: ["*", "bootstrap-signer-controller", "token-cleaner-controller"].map(String::from).into(),
        cluster_cidrs: vec![ranges.cluster],
        service_cidr: Some(ranges.service),
        root_ca: pki.ca.cert_pem().to_owned(),
        signer: Some(Arc::new(pki.ca.clone())),
        kubelet_serving_signer: Some(Arc::new(pki.kubelet_serving_ca.clone())),
        reserved_names: ReservedNames {
            control_plane: ClusterPki::server_sans(CLUSTER_DOMAIN, nth(ranges.service, 1)?, &[]),
            server: machine_names(args, address),
            server_node: own_node(args).unwrap_or_default(),
            service_cidrs: vec![ranges.service],
        },
        legacy_tokens: Some(Arc::new(sign)),
        ..kelson_controllers::Config::default()
    };
    let api = api.clone();
    let factory = move |name: &str| client(&api, identity(name), "controller-manager");
    Ok(Controllers::start(config, Box::new(factory), Arc::new(SystemClock), Tasks::root("controllers")))
}

/// The user a component acts as: a service account's groups follow from its name.
fn identity(name: &str) -> UserInfo {
    match user::split_service_account(name) {
        Some((namespace, account)) => UserInfo::service_account(namespace, account, ""),
        None => UserInfo::new(name, [user::AUTHENTICATED]),
    }
}

/// Running cluster DNS.
pub struct Dns {
    server: kelson_dns::Server,
    tasks: Tasks,
    _watched: ((InformerHandle<Service>, InformerHandle<EndpointSlice>), InformerHandle<Node>),
}

impl Dns {
    /// Ends it.
    pub fn shutdown(&self) {
        self.tasks.token().cancel();
        self.server.shutdown();
    }
}

/// Opens store and PKI side by side; both block on the disk.
async fn open(dir: &Path, now: Timestamp) -> anyhow::Result<(Store, ClusterPki)> {
    let store_dir = dir.join("store");
    let pki_dir = dir.join("pki");
    let store = tokio::task::spawn_blocking(move || Store::open_dir(&store_dir, StoreOptions::default()));
    let pki = tokio::task::spawn_blocking(move || ClusterPki::open(&PkiOptions { dir: pki_dir }, now));
    let store = store.await?.with_context(|| format!("data directory {}", dir.display()))?;
    Ok((store, pki.await?.context("cluster PKI")?))
}

fn api_config(
    args: &ServerArgs,
    ranges: &Ranges,
    store: Store,
    pki: &ClusterPki,
    address: IpAddr,
    now: Timestamp,
) -> anyhow::Result<Config> {
    let sans = ClusterPki::server_sans(CLUSTER_DOMAIN, nth(ranges.service, 1)?, &machine_names(args, address));
    let certificate = SwappableCertificate::new(&pki.issue_server(&sans, now)?)?;
    let mut config = Config::new(store);
    config.serving = Some(ServingConfig { bind: SocketAddr::new(args.bind_address, args.secure_port), certificate });
    config.client_ca_pem = pki.ca.cert_pem().to_owned();
    config.request_header_ca_pem = pki.front_proxy_ca.cert_pem().to_owned();
    config.token_auth_file = args.token_auth_file.clone();
    config.anonymous_auth = args.anonymous_auth;
    config.authorization = args.authorization_mode.iter().map(|m| mode(m)).collect::<Result<_, _>>()?;
    // Nodes hold credentials that may be stolen; upstream leaves this off by default, its installers switch it on.
    config.enable_admission = vec!["NodeRestriction".to_owned()];
    config.enable_admission.extend(args.enable_admission_plugins.iter().cloned());
    config.disable_admission = args.disable_admission_plugins.clone();
    config.service_accounts = Some(ServiceAccountConfig {
        issuer: format!("https://kubernetes.default.svc.{CLUSTER_DOMAIN}"),
        key: pki.service_account.clone(),
        verifiers: pki.service_account_verifiers()?,
        audiences: Vec::new(),
    });
    config.kubelet = Some(KubeletConfig {
        client: Arc::new(pki.issue_component(Component::KubeletClient, now)?),
        ca_pem: pki.kubelet_serving_bundle(),
        local_node: own_node(args),
        address_types: ["InternalIP", "Hostname", "ExternalIP"].map(String::from).into(),
    });
    config.service_cidrs = vec![ranges.service];
    config.advertise_address = address;
    config.cluster_domain = CLUSTER_DOMAIN.to_owned();
    Ok(config)
}

/// What this machine is called beyond the names that every API server has.
fn machine_names(args: &ServerArgs, address: IpAddr) -> Vec<San> {
    let mut names = vec![San::Ip(address)];
    names.extend(host::name().map(San::Dns));
    names.extend(args.node.node_name.clone().map(San::Dns));
    names.extend(args.tls_san.iter().map(|s| s.parse().map_or_else(|_| San::Dns(s.clone()), San::Ip)));
    names
}

/// The name of this machine's node.
fn own_node(args: &ServerArgs) -> Option<String> {
    args.node.node_name.clone().or_else(|| host::name().ok())
}

fn mode(name: &str) -> anyhow::Result<AuthorizationMode> {
    Ok(match name {
        "Node" => AuthorizationMode::Node,
        "RBAC" => AuthorizationMode::Rbac,
        "AlwaysAllow" => AuthorizationMode::AlwaysAllow,
        "AlwaysDeny" => AuthorizationMode::AlwaysDeny,
        other => bail!("--authorization-mode: {other:?} is none of Node, RBAC, AlwaysAllow, AlwaysDeny"),
    })
}

/// The `n`th address of a range.
pub fn nth(range: IpNet, n: usize) -> anyhow::Result<IpAddr> {
    let address = match range {
        IpNet::V4(r) => {
            u32::try_from(n).ok().and_then(|n| u32::from(r.network()).checked_add(n)).map(|a| IpAddr::V4(a.into()))
        }
        IpNet::V6(r) => u128::from(r.network()).checked_add(n as u128).map(|a| IpAddr::V6(a.into())),
    };
    address.filter(|a| range.contains(a)).with_context(|| format!("range {range} has no address {n}"))
}

fn client(api: &Running, user: UserInfo, component: &str) -> Client {
    Client::new(api.in_process(user), component)
}
