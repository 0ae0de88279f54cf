//! The control plane: store, PKI, API server, controllers and scheduler in one process, each with its own identity.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use kelson_apiserver::{ApiServer, Config, KubeletConfig, KubeletTrust, Running, ServiceAccountConfig, ServingConfig};
use kelson_auth::{UserInfo, user};
use kelson_client::{Client, Transport};
use kelson_controllers::{Authorities, ReservedNames};
use kelson_etcd_store::migrate::place;
use kelson_members::Member;
use kelson_meta::{Clock, SystemClock};
use kelson_metrics::Registry;
use kelson_pki::{ClusterPki, PkiError, San};
use kelson_ranges::Ranges;
use kelson_serving::{Delegated, Port};
use kelson_store::{AtRest, Store};
use kelson_tasks::{OnPanic, Tasks};
use tokio::sync::watch;

use crate::args::{feature_gates, runtime_config};
use crate::at_rest;
use crate::authorities::{self, Follower, PKI_DIR};
use crate::certificates::{self, Certificates, CurrentPki};
use crate::cli::{BuiltIn, ServerArgs};
use crate::cluster::{Bundles, CLUSTER_DOMAIN, ClusterSettings};
use crate::elected::Elected;
use crate::election::Election;
use crate::host::nth;
use crate::identity_files::IdentityFiles;
use crate::leading::{Elector, Part};
use crate::own_objects::OwnObjects;
use crate::process::within;
use crate::snapshot_schedule::ScheduledSnapshots;
use crate::token::Token;
use crate::{etcd_member, host, leading, manifests, modes, own_objects, snapshot, storage, token};

/// The position of cluster DNS in the service range, by convention.
const DNS_POSITION: usize = 10;
/// The file with the bootstrap token that nodes join with.
const TOKEN_FILE: &str = "node-token";

/// The timeout for the shutdown of each component. The sum is below 30 s, after which systemd kills the process.
const PART_END_MAX: Duration = Duration::from_secs(5);
/// The timeout for open requests and unwritten audit events.
const API_END_MAX: Duration = Duration::from_secs(14);

/// A running control plane: API server with its store, controllers and scheduler, each acting as its own user.
/// [`ControlPlane::start`] returns when the API is ready; [`ControlPlane::shutdown`] stops the writers first, then the
/// API server, then the store.
pub struct ControlPlane {
    tasks: Tasks,
    api: Running,
    controllers: Part,
    scheduler: Part,
    snapshots: Option<Part>,
    pki: CurrentPki,
    local_url: String,
    token: Token,
    cluster: ClusterSettings,
    member: Option<Arc<Member>>,
}

/// Adds the command that rotates an expired CA to the error.
fn with_remedy(error: PkiError, dir: &Path) -> anyhow::Error {
    let expired = matches!(error, PkiError::SignerExpired(_));
    let error = anyhow::Error::new(error);
    match expired {
        true => error.context(format!(
            "a CA certificate of the cluster has expired; replace it with `kelson certificate rotate-ca --data-dir {}`",
            dir.display()
        )),
        false => error,
    }
}

impl ControlPlane {
    /// Starts all components; returns when the API is ready.
    pub async fn start(args: &ServerArgs, ranges: Ranges, tasks: &Tasks) -> anyhow::Result<Self> {
        let tasks = tasks.child("control-plane");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (dir, now) = (&args.data_dir, Timestamp::now());
        let cluster = settings(args, ranges)?;
        place::settle(dir).with_context(|| format!("data directory {}", dir.display()))?;
        tidy_files(args);
        let scheduled = ScheduledSnapshots::read(&args.snapshots, dir)?;
        let address = advertised(args);
        let encryption = at_rest::start(args, &tasks).await?;
        let at_rest = encryption.clone().map(|encryption| encryption as Arc<dyn AtRest>);
        let member = etcd_member::start(args, address, at_rest, &tasks).await?;
        let (store, pki, etcd) = storage::open(args, member.as_deref(), now, encryption.clone(), &tasks).await?;
        let (is_shared, failed, group) = (etcd.is_some(), store.failed(), tasks.clone());
        tasks.spawn("store-watch", OnPanic::EndProcess, async move { group.fail(&failed.await) });
        let authorities = CurrentPki::new(pki);
        let pki = authorities.get();
        let names = ClusterPki::server_sans(CLUSTER_DOMAIN, nth(ranges.service, 1)?, &machine_names(args, address));
        let certificates = Certificates::issue(&authorities, names, now).map_err(|e| with_remedy(e, dir))?;
        let files = IdentityFiles::read(&args.identity)?;
        let api = {
            let mut config = api_config(args, &ranges, store, &pki, &certificates, address)?;
            config.tasks = tasks.child("apiserver");
            config.audit = kelson_audit::Audit::open(&args.audit.options(), Arc::clone(&clock))?;
            args.tracing.apply(Arc::clone(&clock), &tasks, &mut config).await?;
            config.snapshots = Some(dir.join(snapshot::DIR));
            config.registries.extend(etcd);
            at_rest::show(encryption.clone(), &mut config);
            etcd_member::show(member.as_ref(), dir, &mut config);
            config.registries.extend([files.registry(), scheduled.registry()]);
            ApiServer::start(config).await.with_context(|| format!("data directory {}", dir.display()))?
        };
        api.ready().await;
        files.follow(&args.identity, &api, &tasks);
        let port = api.local_addr().map_or(args.secure_port, |a| a.port());
        let local = if args.bind_address.is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { args.bind_address };
        let local_url = format!("https://{}", SocketAddr::new(local, port));
        let admin = authorities::administrator(args, &pki, &local_url, now)?;
        let masters = client(&api, UserInfo::new(user::API_SERVER, [user::MASTERS]), "server");
        let public_url = format!("https://{}", SocketAddr::new(address, port));
        let token = token::own(&dir.join(TOKEN_FILE))?;
        let own = OwnObjects {
            masters: masters.clone(),
            url: public_url.clone(),
            bundles: Bundles::of(&pki),
            cluster: cluster.clone(),
            token: token.clone(),
        };
        own.write_or_keep_trying(&api.server().store, encryption.as_deref(), &tasks).await?;
        etcd_member::report(member.as_ref(), args, &pki, &masters, &tasks)?;
        let (manager, scheduling) = (Registry::of_component(), Registry::of_component());
        let (signing, signed_with) = watch::channel(authorities::of_controllers(&pki));
        let elected = elected(args, &ranges, &api, &pki, (address, is_shared), signed_with, &tasks).await?;
        let (controllers, scheduler) = (elected.start_controllers(&manager)?, elected.start_scheduler(&scheduling)?);
        let snapshots = elected.start_snapshots(scheduled, &api);
        for name in ["controller-manager", "scheduler"] {
            api.register_component(name, Box::new(running(&tasks)));
        }
        let issued = dir.join(PKI_DIR).join(certificates::ISSUED_DIR);
        certificates::keep(&tasks, &manager, Arc::clone(&clock), certificates.all(), &authorities, issued);
        let ports = Ports { args, tasks: &tasks, api: &api, pki: &pki, certificates: &certificates, clock };
        let ports = ports.serve_all(scheduling, manager).await?;
        let (dir, pki, urls) = (dir.clone(), authorities.clone(), (local_url.clone(), public_url));
        let (api_of, cluster_of) = (api.clone(), cluster.clone());
        let follower =
            Follower { dir, pki, api: api_of, ports, signing, certificates, masters, urls, cluster: cluster_of };
        follower.start(&tasks);
        tracing::info!(url = local_url, kubeconfig = %admin.display(), "API server is ready");
        Ok(Self { tasks, api, controllers, scheduler, snapshots, pki: authorities, local_url, token, cluster, member })
    }

    /// Returns the URL for clients on this machine, `https://HOST:PORT`.
    pub fn local_url(&self) -> &str {
        &self.local_url
    }

    /// Returns the CA bundle of its certificates, PEM.
    pub fn ca_bundle(&self) -> String {
        self.pki.get().ca_bundle()
    }

    /// Returns the token with which nodes join.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Reports whether it has an etcd member, so that servers can join it.
    pub fn has_member(&self) -> bool {
        self.member.is_some()
    }

    /// Returns the settings that all nodes share.
    pub fn cluster(&self) -> &ClusterSettings {
        &self.cluster
    }

    /// Returns a client for a component that runs in this process as `user`.
    pub fn client(&self, user: &str, component: &str) -> Client {
        client(&self.api, identity(user), component)
    }

    /// Returns the connection of an administrator in this process.
    pub fn administrator(&self) -> Arc<dyn Transport> {
        self.api.in_process(UserInfo::new(user::API_SERVER, [user::MASTERS]))
    }

    /// Returns this server's side of an election for a lease in `kube-system`; `None` if no other server has its store.
    pub fn elector(&self, lease: &str) -> Option<Elector> {
        let identity = self.controllers.identity()?.to_owned();
        Some(Elector { transport: self.administrator(), identity, election: Election::of(lease) })
    }

    /// Returns the group of its tasks.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Stops the components in order: writers first, then the API server, then the store, then its etcd member.
    pub async fn shutdown(self) {
        let snapshots = self.snapshots.map(Part::shutdown);
        let snapshots = async {
            if let Some(stopped) = snapshots {
                stopped.await;
            }
        };
        tokio::join!(self.scheduler.shutdown(), self.controllers.shutdown(), snapshots);
        if let Some(member) = &self.member {
            within(PART_END_MAX, "leadership of etcd", member.hand_over()).await;
        }
        self.tasks.token().cancel();
        within(API_END_MAX, "API server", self.api.shutdown()).await;
        // Acknowledged writes are on disk already; this lets the engine close its file cleanly.
        within(PART_END_MAX, "store", self.api.server().store.close()).await;
        if let Some(member) = &self.member {
            // Cut short by the service manager, it loses nothing.
            member.shutdown().await;
        }
    }
}

/// Removes snapshots that were never fetched, and warns of files with secrets that other users can read.
fn tidy_files(args: &ServerArgs) {
    snapshot::discard_unfetched(&args.data_dir);
    let snapshots = [&args.snapshots.snapshot_passphrase_file, &args.snapshots.s3.s3_credentials_file];
    let given = [&args.encryption_provider_config, &args.token_auth_file].into_iter().chain(snapshots).flatten();
    modes::check(&args.data_dir, &given.map(PathBuf::as_path).collect::<Vec<_>>());
}

/// Prepares the components that one server runs for the cluster, with the address of this server and whether others have
/// the same store.
async fn elected<'a>(
    args: &'a ServerArgs,
    ranges: &'a Ranges,
    api: &Running,
    pki: &'a ClusterPki,
    (address, is_shared): (IpAddr, bool),
    authorities: watch::Receiver<Authorities>,
    tasks: &'a Tasks,
) -> anyhow::Result<Elected<'a>> {
    if let Some(node) = own_node(args).filter(|_| is_shared && !args.disable_agent) {
        let masters = client(api, UserInfo::new(user::API_SERVER, [user::MASTERS]), "server");
        own_objects::label_own_node(masters, node, tasks);
    }
    let of_api = api.clone();
    Ok(Elected {
        args,
        ranges,
        pki,
        reserved_names: reserved_names(args, ranges, address)?,
        authorities,
        manifests: manifests::follow(&args.data_dir, args.manifests_prune, tasks).await?,
        transports: Arc::new(move |user: &str| of_api.in_process(identity(user))),
        identity: is_shared.then(|| leading::identity(&args.data_dir)).transpose()?,
        tasks,
        end_max: PART_END_MAX,
    })
}

/// Returns the names for which no kubelet gets a serving certificate.
fn reserved_names(args: &ServerArgs, ranges: &Ranges, address: IpAddr) -> anyhow::Result<ReservedNames> {
    Ok(ReservedNames {
        control_plane: ClusterPki::server_sans(CLUSTER_DOMAIN, nth(ranges.service, 1)?, &[]),
        server: machine_names(args, address),
        server_node: own_node(args).unwrap_or_default(),
        service_cidrs: vec![ranges.service],
    })
}

/// Returns the settings that nodes read from the cluster.
fn settings(args: &ServerArgs, ranges: Ranges) -> anyhow::Result<ClusterSettings> {
    let network_policy = !args.disable.contains(&BuiltIn::NetworkPolicy);
    let dns = nth(ranges.service, DNS_POSITION)?;
    Ok(ClusterSettings { ranges, dns, domain: CLUSTER_DOMAIN.to_owned(), network_policy })
}

/// The health check of components: all are in one process, and it fails when the process is ending.
fn running(tasks: &Tasks) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
    let token = tasks.token().clone();
    move || match token.is_cancelled() {
        true => Err("the process is ending".to_owned()),
        false => Ok(()),
    }
}

/// Returns the user a component acts as: a service account's groups follow from its name.
pub fn identity(name: &str) -> UserInfo {
    match user::split_service_account(name) {
        Some((namespace, account)) => UserInfo::service_account(namespace, account, ""),
        None => UserInfo::new(name, [user::AUTHENTICATED]),
    }
}

/// The serving options of the components' ports.
struct Ports<'a> {
    args: &'a ServerArgs,
    tasks: &'a Tasks,
    api: &'a Running,
    pki: &'a ClusterPki,
    certificates: &'a Certificates,
    clock: Arc<dyn Clock>,
}

impl Ports<'_> {
    /// Serves the ports of scheduler and controllers. Returns the delegates of their authorization.
    async fn serve_all(&self, scheduler: Registry, manager: Registry) -> anyhow::Result<Vec<Arc<Delegated>>> {
        let ports = &self.args.metrics;
        let one = self.serve("kube-scheduler", user::KUBE_SCHEDULER, ports.scheduler_port(), scheduler).await?;
        let port = ports.controller_manager_port();
        let other = self.serve("kube-controller-manager", user::KUBE_CONTROLLER_MANAGER, port, manager).await?;
        Ok(vec![one, other])
    }

    /// Serves health and metrics of one component. Access is authorized by the API server, as the returned user.
    async fn serve(
        &self,
        name: &'static str,
        user: &str,
        port: Port,
        registry: Registry,
    ) -> anyhow::Result<Arc<Delegated>> {
        let reviewer = client(self.api, UserInfo::new(user, [user::AUTHENTICATED]), name);
        let ca = &self.pki.ca_bundle();
        let access = Arc::new(Delegated::new(reviewer, Arc::clone(&self.clock), ca)?);
        let component = kelson_serving::Component {
            name,
            registry,
            healthy: Arc::new(running(self.tasks)),
            open: kelson_serving::OpenPaths::default(),
            access: Arc::clone(&access),
            certificate: Arc::clone(self.certificates.serving.certificate()),
            client_ca_pem: ca.to_owned(),
        };
        let address = self.args.metrics.metrics_bind_address;
        kelson_serving::start(self.tasks, address, port, component).await.with_context(|| format!("serve {name}"))?;
        Ok(access)
    }
}

/// Returns the CAs of kubelets by `--kubelet-certificate-authority`.
fn kubelet_trust(args: &ServerArgs, pki: &ClusterPki) -> anyhow::Result<KubeletTrust> {
    let own = pki.kubelet_serving_bundle();
    Ok(match &args.kubelet_certificate_authority {
        None => KubeletTrust::Cluster(own),
        Some(file) if file.is_empty() => KubeletTrust::Anyone,
        Some(file) => {
            let given =
                std::fs::read_to_string(file).with_context(|| format!("--kubelet-certificate-authority {file}"))?;
            KubeletTrust::Authority { own, given }
        }
    })
}

/// Reports whether a component of the control plane reads this feature gate.
pub fn is_asked(gate: &str) -> bool {
    kelson_apiserver::asks_for(gate)
        || kelson_controllers::FEATURE_GATES.contains(&gate)
        || kelson_scheduler::FEATURE_GATES.contains(&gate)
}

fn api_config(
    args: &ServerArgs,
    ranges: &Ranges,
    store: Store,
    pki: &ClusterPki,
    certificates: &Certificates,
    address: IpAddr,
) -> anyhow::Result<Config> {
    let certificate = Arc::clone(certificates.serving.certificate());
    let mut config = Config::new(store);
    config.advertise_port = args.secure_port;
    // Servers on machines that were cloned have the same host name, but must have different node names.
    let host = args.host.node_name.clone().unwrap_or_else(kelson_platform::process::host_name);
    config.identity_host = Some(host);
    if config.store.is_mirror() {
        // Only servers with an etcd can have peers.
        config.peer_ca_pem = pki.ca_bundle();
    }
    config.enforces_network_policies = !args.disable.contains(&BuiltIn::NetworkPolicy);
    config.serving = Some(ServingConfig { bind: SocketAddr::new(args.bind_address, args.secure_port), certificate });
    config.client_ca_pem = pki.ca_bundle();
    config.request_header_ca_pem = pki.front_proxy_bundle();
    config.front_proxy_client = Some(Arc::clone(certificates.front_proxy_client.certificate()));
    let overload = &args.overload;
    config.priority_and_fairness = overload.enable_priority_and_fairness;
    config.reads_in_flight_max = overload.max_requests_inflight;
    config.writes_in_flight_max = overload.max_mutating_requests_inflight;
    config.request_timeout = overload.request_timeout;
    config.token_auth_file = args.token_auth_file.clone();
    config.anonymous_auth = args.anonymous_auth;
    args.identity.apply(&args.authorization_mode, &mut config)?;
    config.admission = args.admission.options().map_err(anyhow::Error::msg)?;
    config.flags = args.flags.clone();
    config.verbosity = Some(crate::logging::set_verbosity);
    config.feature_gates = Arc::new(feature_gates(&args.feature_gates, is_asked)?);
    config.runtime_config = Arc::new(runtime_config(&args.runtime_config)?);
    config.service_accounts = Some(ServiceAccountConfig {
        issuer: format!("https://kubernetes.default.svc.{CLUSTER_DOMAIN}"),
        issuers_before: Vec::new(),
        key: pki.service_account.clone(),
        verifiers: pki.service_account_verifiers()?,
        audiences: Vec::new(),
        terms: Default::default(),
    });
    config.kubelet = Some(KubeletConfig {
        client: Arc::clone(certificates.kubelet_client.certificate()),
        trust: kubelet_trust(args, pki)?,
        local_node: own_node(args),
        address_types: ["InternalIP", "Hostname", "ExternalIP"].map(String::from).into(),
    });
    config.resource_metrics = !args.disable.contains(&BuiltIn::MetricsServer);
    config.service_cidrs = vec![ranges.service];
    config.advertise_address = address;
    config.cluster_domain = CLUSTER_DOMAIN.to_owned();
    Ok(config)
}

/// Returns the address at which nodes and pods reach the API server: the configured one, else the bound one, else the
/// node's.
pub fn advertised(args: &ServerArgs) -> IpAddr {
    let bound = (!args.bind_address.is_unspecified()).then_some(args.bind_address);
    args.advertise_address.or(bound).or(args.host.node_ip).unwrap_or_else(host::address)
}

/// Returns the names of this machine, in addition to those of every API server.
fn machine_names(args: &ServerArgs, address: IpAddr) -> Vec<San> {
    let mut names = vec![San::Ip(address)];
    names.extend(host::name().map(San::Dns));
    names.extend(args.host.node_name.clone().map(San::Dns));
    names.extend(args.tls_san.iter().map(|s| s.parse().map_or_else(|_| San::Dns(s.clone()), San::Ip)));
    names.extend(args.vip.addresses().into_iter().map(San::Ip));
    names
}

/// Returns the name of this machine's node.
fn own_node(args: &ServerArgs) -> Option<String> {
    args.host.node_name.clone().or_else(|| host::name().ok())
}

fn client(api: &Running, user: UserInfo, component: &str) -> Client {
    Client::new(api.in_process(user), component)
}
