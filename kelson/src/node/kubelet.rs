//! `kelson kubelet`: the node agent alone, with the flags and the configuration file of upstream's kubelet. As
//! upstream, it has no pod network and no service proxy.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use kelson_bootstrap::{ClientCertificate, Paths};
use kelson_client::remote::Remote;
use kelson_client::{Client, Transport};
use kelson_cri::{CriClient, Limits};
use kelson_kubelet::config::file::{self as configuration, FileSettings, HEALTHZ_PORT, LoggingSettings, PORT_DEFAULT};
use kelson_kubelet::volumes::mounts::KernelMounts;
use kelson_kubelet::{Config, CredentialProviderFiles, Dependencies, Kubelet, Running};
use kelson_meta::{Clock, SystemClock};

use super::args::{ImageArgs, RegistrationArgs};
use super::fields::FieldArgs;
use super::placement::PlacementArgs;
use super::{credentials, pod_logs};
use crate::args::VerbosityArgs;
use crate::host;

/// The OOM score adjustment of the kubelet: the kernel kills nearly everything else first.
const OOM_SCORE: i32 = -999;
/// Upstream's default runtime endpoint.
const RUNTIME_ENDPOINT: &str = "unix:///run/containerd/containerd.sock";

#[derive(Args, Debug, Clone)]
pub struct KubeletArgs {
    /// Kubeconfig of this node; TLS bootstrapping writes it when it does not exist.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    /// Kubeconfig for requesting the first client certificate.
    #[arg(long, value_name = "FILE")]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// KubeletConfiguration file (kubelet.config.k8s.io/v1beta1); flags take precedence over it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Renew the client certificate before it expires, and start static pods while the first one is pending.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub rotate_certificates: Option<bool>,
    /// Directory of the kubelet's certificates.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/pki")]
    pub cert_dir: PathBuf,
    /// Directory of pods' volumes and the kubelet's state.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub root_dir: PathBuf,
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// Addresses of this node [default: the default route's address]
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub node_ip: Vec<IpAddr>,
    /// Socket of the container runtime (CRI v1).
    #[arg(long, value_name = "unix:///…")]
    pub container_runtime_endpoint: Option<String>,
    /// Register this node with the API server.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub register_node: Option<bool>,
    #[command(flatten)]
    pub registration: RegistrationArgs,
    /// Addresses of the cluster's DNS server.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub cluster_dns: Vec<IpAddr>,
    /// DNS domain of the cluster.
    #[arg(long, value_name = "DOMAIN")]
    pub cluster_domain: Option<String>,
    /// Resolver configuration on which that of pods is based.
    #[arg(long, value_name = "FILE")]
    pub resolv_conf: Option<PathBuf>,
    /// Maximum number of pods on this node.
    #[arg(long, value_name = "N")]
    pub max_pods: Option<u32>,
    /// Fail to start when swap is enabled.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub fail_swap_on: Option<bool>,
    /// Address on which the kubelet's API listens.
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,
    /// Port on which the kubelet's API listens; 0 selects a free port.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// CA bundle for client certificates on the kubelet's API.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    #[command(flatten)]
    pub placement: PlacementArgs,
    #[command(flatten)]
    pub fields: FieldArgs,
    #[command(flatten)]
    pub images: ImageArgs,
    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

impl KubeletArgs {
    /// Returns the filter of the log.
    pub fn log_level(&self) -> &str {
        self.verbosity.log_level()
    }
}

/// Applies the configuration file and the image flags to `config`, and validates the credential providers. `flag` names
/// the file's flag, and `fields` are the values of flags that override fields.
///
/// # Errors
/// All errors at once, each with the path of its field.
pub fn configure(
    config: &mut Config,
    (flag, file): (&str, Option<&Path>),
    fields: &FieldArgs,
    images: &ImageArgs,
) -> anyhow::Result<FileSettings> {
    let mut faults = Vec::new();
    let mut laid = FileSettings { cgroups_per_qos: true, ..FileSettings::default() };
    if file.is_some() || !fields.0.is_empty() {
        match configuration::load(file, &fields.0, config) {
            Ok(l) => laid = l,
            Err(e) => faults.extend(e.0.into_iter().map(|fault| format!("{flag}: {fault}"))),
        }
    }
    config.image_pulls.progress_deadline =
        Some(images.image_pull_progress_deadline).filter(|d| *d > std::time::Duration::ZERO);
    config.credential_processes_max = images.image_credential_provider_max_processes as usize;
    let files = images.image_credential_provider_config.clone().zip(images.image_credential_provider_bin_dir.clone());
    if let Some((path, bin_dir)) = files {
        if let Err(e) = kelson_credentials::config::load(&path, &bin_dir) {
            faults.extend(e.0.iter().map(|fault| format!("--image-credential-provider-config: {fault}")));
        }
        config.image_credential_provider = Some(CredentialProviderFiles { config: path, bin_dir });
    }
    if faults.is_empty() {
        return Ok(laid);
    }
    bail!("the node's configuration is invalid:\n  {}", faults.join("\n  "))
}

/// Logs the fields of the file that have no effect, each with the reason.
pub fn report_idle(laid: &FileSettings) {
    for field in &laid.ignored {
        let why = configuration::reason(field);
        tracing::warn!(field, why, "field of the kubelet configuration has no effect");
    }
}

/// The settings with which to start.
pub struct Plan {
    /// The log settings of the file.
    pub logging: LoggingSettings,
    config: Config,
    endpoint: String,
    paths: Paths,
    images: ImageArgs,
}

impl Plan {
    /// Reads the command line and its files; changes nothing.
    pub fn of(args: &KubeletArgs) -> anyhow::Result<Self> {
        let name = args.hostname_override.clone().map_or_else(host::name, Ok)?.trim().to_lowercase();
        if let Err(why) = kelson_meta::is_dns1123_subdomain(&name) {
            bail!("--hostname-override {name:?}: {}", why.join(", "));
        }
        let mut config = Config::new(name, &args.root_dir);
        config.pod_logs_dir = PathBuf::from(pod_logs::POD_LOGS);
        config.container_logs_dir = Some(PathBuf::from(pod_logs::CONTAINER_LOGS));
        config.cert_dir = std::path::absolute(&args.cert_dir).context("--cert-dir")?;
        config.server.listen = Some(SocketAddr::from(([0, 0, 0, 0], PORT_DEFAULT)));
        // Upstream's defaults, which a KubeletConfiguration usually changes.
        config.rotate_certificates = false;
        config.server.tls_bootstrap = false;
        config.fail_swap_on = true;
        config.server.healthz = Some(SocketAddr::from(([127, 0, 0, 1], HEALTHZ_PORT)));
        config.process.oom_score = Some(OOM_SCORE);
        let laid = configure(&mut config, ("--config", args.config.as_deref()), &args.fields, &args.images)?;
        report_idle(&laid);
        flags(args, &mut config);
        args.placement.apply_to(&mut config)?;
        config.cgroups = laid.cgroups_per_qos.then(|| config.cgroups.take().unwrap_or_default());
        if let Some(file) = args.client_ca_file.as_ref().or(laid.client_ca_file.as_ref()) {
            config.server.client_ca_pem =
                std::fs::read(file).with_context(|| format!("client CA file {}", file.display()))?;
            config.server.client_ca_file = Some(file.clone());
        }
        let endpoint = args.container_runtime_endpoint.clone().or(laid.runtime_endpoint);
        let endpoint = endpoint.unwrap_or_else(|| RUNTIME_ENDPOINT.to_owned());
        config.runtime_endpoint = endpoint.clone();
        let paths = Paths {
            kubeconfig: args.kubeconfig.clone(),
            bootstrap: args.bootstrap_kubeconfig.clone(),
            cert_dir: args.cert_dir.clone(),
        };
        let mut logging = laid.logging;
        // The flag takes precedence over the file.
        logging.verbosity = logging.verbosity.filter(|_| args.verbosity.v == 0);
        Ok(Self { logging, config, endpoint, paths, images: args.images.clone() })
    }

    /// Joins the cluster and starts the kubelet.
    pub async fn start(self) -> anyhow::Result<Running> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        std::fs::create_dir_all(self.config.root_dir.join("kubelet"))?;
        credentials::remember(&self.config.root_dir, &self.images)?;
        let name = self.config.node_name.clone();
        let certificate = ClientCertificate::new(self.paths, &name, Arc::clone(&clock));
        let (connection, certificate): (Arc<dyn Transport>, _) = match self.config.rotate_certificates {
            true => {
                let joined = certificate.begin().await.context("join the cluster")?;
                if joined.awaited {
                    tracing::info!("waiting for the client certificate; static pods run in the meantime");
                }
                (certificate.connection(&joined.config)?, Some(certificate))
            }
            false => (Arc::new(Remote::new(certificate.load().await.context("join the cluster")?)?), None),
        };
        let dependencies = Dependencies {
            tasks: kelson_tasks::Tasks::root("node"),
            client: Client::new(connection, "kubelet"),
            runtime: Arc::new(runtime_client(&self.endpoint, &self.config)?),
            clock,
            mounts: Arc::new(KernelMounts),
            prober: None,
            on_pod_cidrs: None,
            certificate,
            network_gate: None,
        };
        let running = Kubelet::start(self.config, dependencies).await.context("start the kubelet")?;
        tracing::info!(node = name, port = running.port(), "kubelet is running");
        Ok(running)
    }
}

/// Creates the client of the runtime at `endpoint`, with the image service of the configuration.
pub fn runtime_client(endpoint: &str, config: &Config) -> anyhow::Result<CriClient> {
    let client = CriClient::new(endpoint, Limits { request: config.process.runtime_request })?;
    Ok(match &config.image_endpoint {
        Some(images) => client.with_images(images).context("imageServiceEndpoint")?,
        None => client,
    })
}

/// Flags take precedence over the file, as upstream's do.
fn flags(args: &KubeletArgs, config: &mut Config) {
    config.node_ips = if args.node_ip.is_empty() { vec![host::address()] } else { args.node_ip.clone() };
    config.rotate_certificates = args.rotate_certificates.unwrap_or(config.rotate_certificates);
    config.fail_swap_on = args.fail_swap_on.unwrap_or(config.fail_swap_on);
    config.register_node = args.register_node.unwrap_or(config.register_node);
    args.registration.apply(config);
    if !args.cluster_dns.is_empty() {
        config.cluster_dns.clone_from(&args.cluster_dns);
    }
    if let Some(domain) = &args.cluster_domain {
        config.cluster_domain.clone_from(domain);
    }
    if let Some(file) = &args.resolv_conf {
        config.resolv_conf.clone_from(file);
    }
    config.max_pods = args.max_pods.unwrap_or(config.max_pods);
    if let Some(listen) = &mut config.server.listen {
        listen.set_ip(args.address.unwrap_or(listen.ip()));
        listen.set_port(args.port.unwrap_or(listen.port()));
    }
}
