//! `kube-apiserver`: the API server alone, as upstream's. It has no controllers, scheduler or node, because test suites
//! rely on their absence; `KELSON_ENVTEST_CONTROLLERS` adds controllers by name.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, before anything is served")]
mod args;
mod keys;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ipnet::{IpNet, Ipv4Net};
use jiff::Timestamp;
use kelson_apiserver::{ApiServer, Config, EndpointReconciler, KubeletConfig, KubeletTrust, Running, ServingConfig};
use kelson_auth::token::{IssuerOptions, TokenIssuer};
use kelson_client::Client;
use kelson_controllers::{Authorities, Controllers};
use kelson_encryption::{Encryption, EncryptionOptions};
use kelson_meta::{Clock, SystemClock};
use kelson_metrics::Registry;
use kelson_pki::SwappableCertificate;
use kelson_store::{AtRest, Store, StoreOptions};
use kelson_tasks::{FILES, OnPanic, Tasks};

pub use args::ApiserverArgs;
use args::PeerArgs;

use crate::args::{feature_gates, runtime_config};
use crate::at_rest::show;
use crate::cluster::CLUSTER_DOMAIN;
use crate::control_plane::{identity, is_asked};
use crate::flags::Spoken;
use crate::host::nth;
use crate::identity_files::IdentityFiles;
use crate::process::{self, within};
use crate::{controller_manager, host, logging, store_limits};

/// The environment variable with controllers to run, by upstream's names and separated by commas.
const CONTROLLERS: &str = "KELSON_ENVTEST_CONTROLLERS";
/// Upstream's default service address range.
const SERVICES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 24);
/// The timeout for each part to end. A test that stops a server should not wait for watches.
const END_MAX: Duration = Duration::from_secs(2);

/// Runs the server until the process ends.
pub fn run(args: ApiserverArgs, spoken: &Spoken) -> anyhow::Result<()> {
    logging::init(args.verbosity.log_level())?;
    spoken.log();
    process::run(async |process| {
        let tasks = process.tasks.child("kube-apiserver");
        let start = StandaloneServer::start(&args, &tasks);
        let alone = tokio::select! {
            alone = start => alone?,
            ended = process.ended() => return ended,
        };
        let ended = process.ended().await;
        alone.shutdown().await;
        ended
    })
}

/// A running API server with its storage and controllers.
struct StandaloneServer {
    api: Running,
    controllers: Option<kelson_controllers::Running>,
    store: Store,
}

impl StandaloneServer {
    async fn start(args: &ApiserverArgs, tasks: &Tasks) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let encryption = encryption(args, tasks).await?;
        let (store, etcd) = open(args, encryption.clone(), tasks).await?;
        // No write can succeed after this, so the process ends and must be restarted.
        let (failed, group) = (store.failed(), tasks.clone());
        tasks.spawn("store-watch", OnPanic::EndProcess, async move { group.fail(&failed.await) });
        let files = IdentityFiles::read(&args.identity)?;
        let mut config = config(args, store.clone())?;
        config.registries.push(files.registry());
        config.tasks = tasks.child("apiserver");
        config.audit = kelson_audit::Audit::open(&args.audit.options(), Arc::clone(&clock))?;
        args.tracing.apply(Arc::clone(&clock), tasks, &mut config).await?;
        show(encryption, &mut config);
        config.registries.extend(etcd);
        let accounts = config.service_accounts.clone();
        let ranges = config.service_cidrs.clone();
        let api = ApiServer::start(config).await?;
        api.ready().await;
        files.follow(&args.identity, &api, tasks);
        let names = std::env::var(CONTROLLERS).unwrap_or_default();
        let names: Vec<String> = names.split(',').filter(|n| !n.trim().is_empty()).map(String::from).collect();
        let controllers = match names.is_empty() {
            true => None,
            false => {
                let signer = accounts.map(|accounts| TokenIssuer::new(accounts.key, IssuerOptions::default()));
                let root = root_ca(args)?;
                Some(controllers(&names, &api, (signer, root, ranges.first().copied()), tasks.child("controllers"))?)
            }
        };
        let address = api.local_addr().map(|a| a.to_string());
        tracing::info!(address, controllers = names.join(","), "API server is ready");
        Ok(Self { api, controllers, store })
    }

    async fn shutdown(self) {
        if let Some(controllers) = self.controllers {
            within(END_MAX, "controllers", controllers.shutdown()).await;
        }
        within(END_MAX, "API server", self.api.shutdown()).await;
        within(END_MAX, "store", self.store.close()).await;
    }
}

/// Starts encryption at rest, if it is configured.
async fn encryption(args: &ApiserverArgs, tasks: &Tasks) -> anyhow::Result<Option<Arc<Encryption>>> {
    let Some(file) = args.storage.encryption_provider_config.clone() else { return Ok(None) };
    let options = EncryptionOptions {
        file,
        automatic_reload: args.storage.encryption_provider_config_automatic_reload,
        server_id: host::name().unwrap_or_default(),
        prefix: args.storage.etcd.prefix(),
        tasks: tasks.child("encryption"),
    };
    Ok(Some(Encryption::start(options).await.context("--encryption-provider-config")?))
}

/// Opens the storage, and returns the metrics of an etcd.
async fn open(
    args: &ApiserverArgs,
    encryption: Option<Arc<Encryption>>,
    tasks: &Tasks,
) -> anyhow::Result<(Store, Option<Registry>)> {
    let at_rest = encryption.map(|encryption| encryption as Arc<dyn AtRest>);
    let bytes_max = store_limits::bytes_max(0);
    let namespace_bytes_max = store_limits::namespace_bytes_max(0, bytes_max);
    let options = StoreOptions { at_rest, bytes_max, namespace_bytes_max, ..StoreOptions::default() };
    let StoreOf::Directory(dir) = store_of(args)? else {
        let opened = args.storage.etcd.open(options, tasks).await?;
        return Ok((opened.store, Some(opened.metrics)));
    };
    let dir = dir.join("store");
    let shown = dir.display().to_string();
    let store = FILES.run(move || Store::open_dir(&dir, options)).await?;
    Ok((store.with_context(|| format!("--data-dir: {shown}"))?, None))
}

enum StoreOf<'a> {
    Directory(&'a Path),
    Etcd,
}

fn store_of(args: &ApiserverArgs) -> anyhow::Result<StoreOf<'_>> {
    match (&args.storage.data_dir, args.storage.etcd.is_used()) {
        (Some(dir), _) => Ok(StoreOf::Directory(dir)),
        (None, true) => Ok(StoreOf::Etcd),
        (None, false) => bail!("--etcd-servers must be specified, or --data-dir"),
    }
}

/// Returns the configuration of the flags.
fn config(args: &ApiserverArgs, store: Store) -> anyhow::Result<Config> {
    let mut config = Config::new(store);
    let range = args.service_cluster_ip_range.clone();
    config.service_cidrs = if range.is_empty() { vec![IpNet::V4(SERVICES)] } else { range };
    config.node_ports = args.service_node_port_range;
    config.advertise_address = advertised(args);
    config.external_host = Some(args.serving.external_hostname.clone());
    config.advertise_port = args.serving.secure_port;
    config.feature_gates = Arc::new(feature_gates(&args.feature_gates, is_asked)?);
    config.identity_host = Some(kelson_platform::process::host_name());
    config.endpoints = endpoints(args)?;
    of_one_family(&config)?;
    config.cluster_domain = CLUSTER_DOMAIN.to_owned();
    config.event_ttl = args.event_ttl;
    let service = config.service_cidrs.first().map(|range| nth(*range, 1)).transpose()?;
    let serving = keys::serving(&args.serving, config.advertise_address, service, Timestamp::now())?;
    config.serving = Some(ServingConfig {
        bind: SocketAddr::new(args.serving.bind_address, args.serving.secure_port),
        certificate: SwappableCertificate::new(&serving).context("the API server's certificate")?,
    });
    config.service_accounts = Some(keys::service_accounts(&args.accounts)?);
    if let Some(file) = &args.client_ca_file {
        config.client_ca_pem = keys::text("--client-ca-file", file)?;
    }
    if let Some(file) = &args.proxies.requestheader_client_ca_file {
        config.request_header_ca_pem = keys::text("--requestheader-client-ca-file", file)?;
        config.request_headers = keys::request_headers(&args.proxies);
        keys::apart(&config.client_ca_pem, &config.request_header_ca_pem, &config.request_headers.allowed_names)?;
    }
    let proxies = &args.proxies;
    let front = (proxies.proxy_client_cert_file.as_ref(), proxies.proxy_client_key_file.as_ref());
    if let Some(front) = keys::pair("--proxy-client-cert-file", front.0, front.1)? {
        config.front_proxy_client = Some(SwappableCertificate::new(&front).context("--proxy-client-cert-file")?);
    }
    peers(&args.peers, &mut config)?;
    config.kubelet = kubelets(args)?;
    config.token_auth_file = args.token_auth_file.clone();
    config.bootstrap_tokens = args.enable_bootstrap_token_auth;
    let modes = match args.authorization_mode.as_slice() {
        [] => vec!["AlwaysAllow".to_owned()],
        given => given.to_vec(),
    };
    args.identity.apply(&modes, &mut config)?;
    let all_may = args.identity.authorization_config.is_none() && modes.iter().any(|mode| mode == "AlwaysAllow");
    // With AlwaysAllow, anonymous requests are rejected, as upstream.
    config.anonymous_auth = args.anonymous_auth && !all_may;
    config.allow_privileged = args.allow_privileged;
    config.admission = args.admission.options().map_err(anyhow::Error::msg)?;
    // Only upstream's default plugins, without those that Kelson adds.
    config.admission.usual = Vec::new();
    config.flags = args.flags.clone();
    config.verbosity = Some(crate::logging::set_verbosity);
    config.runtime_config = Arc::new(runtime_config(&args.runtime_config)?);
    let overload = &args.overload;
    config.priority_and_fairness = overload.enable_priority_and_fairness;
    config.reads_in_flight_max = unlimited(overload.max_requests_inflight);
    config.writes_in_flight_max = unlimited(overload.max_mutating_requests_inflight);
    config.request_timeout = overload.request_timeout;
    Ok(config)
}

/// Applies the flags for other API servers on the same etcd.
fn peers(args: &PeerArgs, config: &mut Config) -> anyhow::Result<()> {
    const GATE: &str = "UnknownVersionInteroperabilityProxy";
    let given = [
        ("--peer-ca-file", args.peer_ca_file.is_some()),
        ("--peer-advertise-ip", args.peer_advertise_ip.is_some()),
        ("--peer-advertise-port", args.peer_advertise_port.is_some()),
    ];
    if let Some((flag, _)) = given.iter().find(|(_, is_given)| *is_given && !config.feature_gates.enabled(GATE)) {
        bail!("{flag} requires UnknownVersionInteroperabilityProxy feature to be turned on");
    }
    if let Some(file) = &args.peer_ca_file {
        config.peer_ca_pem = keys::text("--peer-ca-file", file)?;
    }
    if args.peer_advertise_ip.is_some() || args.peer_advertise_port.is_some() {
        let ip = args.peer_advertise_ip.unwrap_or(config.advertise_address);
        config.peer_address = Some(SocketAddr::new(ip, args.peer_advertise_port.unwrap_or(config.advertise_port)));
    }
    Ok(())
}

/// Returns how the endpoints of the `kubernetes` service are maintained.
fn endpoints(args: &ApiserverArgs) -> anyhow::Result<EndpointReconciler> {
    let servers = usize::try_from(args.apiserver_count).unwrap_or(0);
    if servers == 0 {
        bail!("--apiserver-count should be a positive number, but value '{}' provided", args.apiserver_count);
    }
    Ok(match args.endpoint_reconciler_type.as_str() {
        "none" => EndpointReconciler::Elsewhere,
        "master-count" => EndpointReconciler::Count(servers),
        _ => EndpointReconciler::Lease,
    })
}

/// Checks that the `kubernetes` service and its endpoints have the same address family.
fn of_one_family(config: &Config) -> anyhow::Result<()> {
    if let Some(range) = config.service_cidrs.first()
        && config.endpoints != EndpointReconciler::Elsewhere
        && range.addr().is_ipv4() != config.advertise_address.is_ipv4()
    {
        let (range, address) = (range.to_string(), config.advertise_address.to_string());
        bail!("service IP family {range:?} must match public address family {address:?}");
    }
    Ok(())
}

/// Zero requests in flight mean no limit, as upstream.
fn unlimited(limit: usize) -> usize {
    const MANY: usize = 1 << 20;
    if limit == 0 { MANY } else { limit }
}

fn kubelets(args: &ApiserverArgs) -> anyhow::Result<Option<KubeletConfig>> {
    let kubelets = &args.kubelets;
    let (cert, key) = (kubelets.kubelet_client_certificate.as_ref(), kubelets.kubelet_client_key.as_ref());
    let Some(client) = keys::pair("--kubelet-client-certificate", cert, key)? else { return Ok(None) };
    // Without the flag upstream trusts every kubelet, and most have self-signed certificates.
    let trust = match &kubelets.kubelet_certificate_authority {
        Some(file) if !file.as_os_str().is_empty() => {
            let given = keys::text("--kubelet-certificate-authority", file)?;
            KubeletTrust::Authority { own: String::new(), given }
        }
        _ => KubeletTrust::Anyone,
    };
    Ok(Some(KubeletConfig {
        client: SwappableCertificate::new(&client).context("--kubelet-client-certificate")?,
        trust,
        local_node: host::name().ok(),
        address_types: kubelets.kubelet_preferred_address_types.clone(),
    }))
}

fn advertised(args: &ApiserverArgs) -> IpAddr {
    let bound = (!args.serving.bind_address.is_unspecified()).then_some(args.serving.bind_address);
    args.serving.advertise_address.or(bound).unwrap_or_else(host::address)
}

/// Returns the CA of the API's certificate for service accounts: the certificates after the first one in its file, or
/// the certificate itself.
fn root_ca(args: &ApiserverArgs) -> anyhow::Result<String> {
    let file = match &args.serving.tls_cert_file {
        Some(file) => file.clone(),
        None => Path::new(&args.serving.cert_dir).join("apiserver.crt"),
    };
    Ok(std::fs::read_to_string(file).unwrap_or_default())
}

fn controllers(
    names: &[String],
    api: &Running,
    (signer, root_ca, service_cidr): (Option<TokenIssuer>, String, Option<IpNet>),
    tasks: Tasks,
) -> anyhow::Result<kelson_controllers::Running> {
    let controllers = controller_manager::names(names).context(CONTROLLERS)?;
    let authorities = Authorities { root_ca, ..Authorities::default() }.fixed();
    let mut config =
        kelson_controllers::Config { controllers, authorities, service_cidr, ..kelson_controllers::Config::default() };
    if let Some(signer) = signer {
        config.legacy_tokens = Some(Arc::new(move |namespace: &str, account: &str, uid: &str, secret: &str| {
            signer.legacy_token(namespace, account, uid, secret).map_err(|e| e.message)
        }));
    }
    let api = api.clone();
    let factory = move |name: &str| Client::new(api.in_process(identity(name)), "controller-manager");
    Ok(Controllers::start(config, Box::new(factory), Arc::new(SystemClock), tasks))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ApiserverArgs,
    }

    fn args(words: &[&str]) -> ApiserverArgs {
        Line::try_parse_from([&["kube-apiserver"], words].concat()).expect("parses").args
    }

    #[test]
    fn where_objects_are_kept() {
        Line::command().debug_assert();
        let of = |words: &[&str]| match store_of(&args(words)) {
            Ok(StoreOf::Directory(dir)) => format!("directory {}", dir.display()),
            Ok(StoreOf::Etcd) => "etcd".to_owned(),
            Err(e) => e.to_string(),
        };
        assert_eq!(of(&["--etcd-servers=http://127.0.0.1:2379"]), "etcd");
        assert_eq!(of(&["--data-dir=/k"]), "directory /k");
        assert_eq!(of(&[]), "--etcd-servers must be specified, or --data-dir");
        assert!(Line::try_parse_from(["x", "--data-dir=/k", "--etcd-servers=http://127.0.0.1:2379"]).is_err());
    }

    #[test]
    fn gates_of_one_component() {
        let gates =
            feature_gates(&["kube:WatchList=false, AllAlpha=false".into(), "kube:AllBeta=true".into()], is_asked);
        let changed: Vec<_> = gates.expect("gates").changed().filter(|(name, _)| !name.starts_with("All")).collect();
        assert!(changed.contains(&("WatchList", false)), "{changed:?}");
        // Gates of the server, of a kind, of a field and of a controller; and one that has no effect here.
        for asked in ["WatchList", "ClusterTrustBundle", "ContainerStopSignals", "PodLevelResources"] {
            assert!(is_asked(asked), "{asked}");
        }
        assert!(!is_asked("CBORServingAndStorage"));
    }

    #[test]
    fn endpoint_addresses() {
        let of = |words: &[&str]| endpoints(&args(words)).map_err(|e| e.to_string());
        assert_eq!(of(&[]), Ok(EndpointReconciler::Lease));
        assert_eq!(of(&["--endpoint-reconciler-type="]), Ok(EndpointReconciler::Lease));
        assert_eq!(of(&["--endpoint-reconciler-type=none"]), Ok(EndpointReconciler::Elsewhere));
        let count = &["--endpoint-reconciler-type=master-count", "--apiserver-count=3"];
        assert_eq!(of(count), Ok(EndpointReconciler::Count(3)));
        let refused = "--apiserver-count should be a positive number, but value '-1' provided".to_owned();
        assert_eq!(of(&["--apiserver-count=-1"]), Err(refused));
        assert!(Line::try_parse_from(["x", "--endpoint-reconciler-type=odd"]).is_err());
    }

    #[test]
    fn the_advertised_address() {
        let of = |words: &[&str]| advertised(&args(words)).to_string();
        assert_eq!(of(&["--bind-address=127.0.0.1"]), "127.0.0.1");
        assert_eq!(of(&["--bind-address=127.0.0.1", "--advertise-address=192.0.2.9"]), "192.0.2.9");
        assert_eq!(of(&["--advertise-address=192.0.2.9"]), "192.0.2.9");
    }
}
