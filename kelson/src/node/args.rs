//! Flags and commands of the node.
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use kelson_kubelet::RegisterTaint;

use crate::args::{HostArgs, LogArgs, duration, pair};
use crate::config::ConfigArgs;

/// The commands that only a machine with a node has.
#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// Run this machine as a node of a cluster.
    Agent(Box<AgentArgs>),
    /// Work with image credential provider plugins.
    #[command(subcommand)]
    CredentialProvider(CredentialProviderCommand),
    /// Work with the images of a running node.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Inspect the pod network.
    #[command(subcommand)]
    Network(NetworkCommand),
    /// The pod network's CNI plugin; run by the container runtime, not by people.
    #[command(hide = true)]
    Cni,
}

/// What server and agent share about the node.
#[derive(Args, Debug, Clone)]
pub struct NodeArgs {
    /// Socket of a container runtime (CRI v1); by default Kelson runs a containerd of its own.
    #[arg(long, value_name = "unix:///…")]
    pub container_runtime_endpoint: Option<String>,
    /// Port of the node agent's own API; 0 takes any free one.
    #[arg(long, value_name = "PORT", default_value_t = 10250)]
    pub kubelet_port: u16,
    /// Port of the service proxy's metrics (HTTP, on 127.0.0.1) [default: 10249 where free]; 0: none.
    #[arg(long, value_name = "PORT")]
    pub proxy_metrics_port: Option<u16>,
    /// Where device plugins register and have their sockets; many published ones look in /var/lib/kubelet/device-plugins alone
    /// [default: kubelet/device-plugins in the data directory]
    #[arg(long, value_name = "DIR")]
    pub device_plugins_dir: Option<PathBuf>,
    /// What the node keeps free; below it pods are evicted [default:
    /// memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%]
    #[arg(long, value_name = "SIGNAL<AMOUNT,…")]
    pub eviction_hard: Option<kelson_kubelet::config::thresholds::HardThresholds>,
    /// KubeletConfiguration (kubelet.config.k8s.io/v1beta1) laid over what this command decides by itself.
    #[arg(long, value_name = "FILE")]
    pub kubelet_config: Option<PathBuf>,
    #[command(flatten)]
    pub registration: RegistrationArgs,
    #[command(flatten)]
    pub images: ImageArgs,
}

/// What a node registers with: what server, agent and kubelet share.
#[derive(Args, Debug, Clone)]
pub struct RegistrationArgs {
    /// Taints to register with.
    #[arg(long, value_name = "KEY=VALUE:EFFECT", value_delimiter = ',', value_parser = taint)]
    pub register_with_taints: Vec<RegisterTaint>,
    /// Labels to register with.
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = pair)]
    pub node_labels: Vec<(String, String)>,
}

impl RegistrationArgs {
    /// Lays the flags over what a file says: taints in place of its taints, labels beside its labels.
    pub fn apply(&self, config: &mut kelson_kubelet::Config) {
        if !self.register_with_taints.is_empty() {
            config.register_with_taints.clone_from(&self.register_with_taints);
        }
        config.node_labels.extend(self.node_labels.iter().cloned());
    }
}

fn taint(text: &str) -> Result<RegisterTaint, String> {
    let (about, effect) = text.rsplit_once(':').ok_or("must be KEY=VALUE:EFFECT")?;
    let (key, value) = about.split_once('=').unwrap_or((about, ""));
    if key.is_empty() || !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
        return Err("must be KEY=VALUE:EFFECT with effect NoSchedule, PreferNoSchedule or NoExecute".to_owned());
    }
    Ok(RegisterTaint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() })
}

/// How a node pulls images: what server, agent and kubelet share.
#[derive(Args, Debug, Clone)]
pub struct ImageArgs {
    /// CredentialProviderConfig: a file, or a directory of *.json, *.yaml and *.yml. Reloaded when it changes.
    #[arg(long, value_name = "FILE|DIR", requires = "image_credential_provider_bin_dir")]
    pub image_credential_provider_config: Option<PathBuf>,
    /// Where the executables of the credential providers are.
    #[arg(long, value_name = "DIR", requires = "image_credential_provider_config")]
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// Processes of credential providers at once; further runs wait for one of them.
    #[arg(long, value_name = "N", default_value_t = kelson_credentials::plugin::PROCESSES_MAX as u32,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub image_credential_provider_max_processes: u32,
    /// A pull that makes no progress for so long is given up.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    pub image_pull_progress_deadline: Duration,
}

#[derive(Args, Debug, Clone)]
pub struct AgentArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The API to join.
    #[arg(long, value_name = "URL", env = "KELSON_URL")]
    pub server: String,
    /// Bootstrap token to join with: `kelson token create` on the server makes one.
    #[arg(long, value_name = "TOKEN", env = "KELSON_TOKEN", hide_env_values = true)]
    pub token: String,
    /// Join only a cluster whose CA has this public key, as `kelson token create --print-join-command` shows it.
    #[arg(long, value_name = "sha256:HEX", alias = "discovery-token-ca-cert-hash")]
    pub token_ca_cert_hash: Vec<String>,
    /// CA of the server, where it does not let anybody read `cluster-info`; by default the token's signature tells it.
    #[arg(long, value_name = "FILE")]
    pub server_ca: Option<PathBuf>,
    /// Where everything is kept.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    #[command(flatten)]
    pub host: HostArgs,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Subcommand, Debug)]
pub enum CredentialProviderCommand {
    /// Run the plugins that match an image, and show what they answer without showing a credential.
    Check {
        #[arg(value_name = "IMAGE")]
        image: String,
        /// CredentialProviderConfig, a file or a directory; without it, that of the node in the data directory.
        #[arg(long, value_name = "FILE|DIR", requires = "bin_dir")]
        config: Option<PathBuf>,
        /// Where the executables are.
        #[arg(long, value_name = "DIR", requires = "config")]
        bin_dir: Option<PathBuf>,
        /// The node's data directory.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
    },
}

#[derive(Subcommand, Debug)]
pub enum ImageCommand {
    /// Load image archives (docker save or OCI layout) into a running node.
    Import {
        /// Archives of images, as `docker save` or `ctr image export` write them; `-` is standard input. They may be compressed by gzip,
        /// zstd or xz.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// The node's data directory.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
        /// Socket of the runtime, when it is not Kelson's own.
        #[arg(long, value_name = "unix:///…")]
        container_runtime_endpoint: Option<String>,
    },
}

#[derive(Subcommand, Debug)]
pub enum NetworkCommand {
    /// Print which network policy and rule decide about a connection, and how many connections the policy has counted.
    Explain {
        /// The source: NAMESPACE/POD, a pod in `default`, or an IP address.
        #[arg(value_name = "POD|IP")]
        from: String,
        /// The destination, with its port and protocol (TCP by default): NAMESPACE/POD:80, 10.42.0.5:53/UDP.
        #[arg(value_name = "POD|IP[:PORT[/PROTOCOL]]")]
        to: String,
        /// The data directory of the server; on a node, that of the agent, whose counters are read.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
        /// Kubeconfig of a user who may list pods, namespaces and network policies, instead of the server's own.
        #[arg(long, value_name = "FILE")]
        kubeconfig: Option<PathBuf>,
    },
}
