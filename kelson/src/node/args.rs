//! Flags and commands of the node.
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use clap::{ArgAction, Args, Subcommand};
use ipnet::IpNet;
use kelson_kubelet::RegisterTaint;
use kelson_meta::parse_duration;

use super::check::CheckArgs;
use crate::args::{HostArgs, LogArgs, pair};
use crate::config::ConfigArgs;
use crate::vote::VoteArgs;

/// The commands that only exist on a machine that can be a node.
#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// Run this machine as a node of a cluster.
    Agent(Box<AgentArgs>),
    /// Check whether this machine can be a server or a node, and print how to resolve problems.
    Check(CheckArgs),
    /// Show the components that run with a data directory, their data, what expires soon, and what to do.
    Status(StatusArgs),
    /// Write a file for support: logs, configuration, metrics, status, objects, network; without secrets.
    SupportBundle(SupportArgs),
    /// Replace the installed binary by a newer one, restart the service, and return to the old binary if it does not work.
    Upgrade(UpgradeArgs),
    /// Check image credential provider plugins.
    #[command(subcommand)]
    CredentialProvider(CredentialProviderCommand),
    /// Manage images of a running node.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Inspect the pod network.
    #[command(subcommand)]
    Network(NetworkCommand),
    /// CNI plugin of the pod network. Run by the container runtime.
    #[command(hide = true)]
    Cni,
}

/// The node's flags that server and agent share.
#[derive(Args, Debug, Clone)]
pub struct NodeArgs {
    /// Socket of a container runtime (CRI v1) [default: Kelson starts its own containerd]
    #[arg(long, value_name = "unix:///…")]
    pub container_runtime_endpoint: Option<String>,
    /// Port of the kubelet's API; 0 selects a free port.
    #[arg(long, value_name = "PORT", default_value_t = 10250)]
    pub kubelet_port: u16,
    /// HTTP port on 127.0.0.1 for the service proxy's metrics; 0 disables it [default: 10249, if it is free]
    #[arg(long, value_name = "PORT")]
    pub proxy_metrics_port: Option<u16>,
    /// Directory for sockets of device plugins; many plugins support only /var/lib/kubelet/device-plugins [default:
    /// kubelet/device-plugins in the data directory]
    #[arg(long, value_name = "DIR")]
    pub device_plugins_dir: Option<PathBuf>,
    /// Hard eviction thresholds [default:
    /// memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%]
    #[arg(long, value_name = "SIGNAL<AMOUNT,…")]
    pub eviction_hard: Option<kelson_kubelet::config::thresholds::HardThresholds>,
    /// KubeletConfiguration file (kubelet.config.k8s.io/v1beta1) that overrides this command's settings.
    #[arg(long, value_name = "FILE")]
    pub kubelet_config: Option<PathBuf>,
    #[command(flatten)]
    pub registration: RegistrationArgs,
    #[command(flatten)]
    pub images: ImageArgs,
}

/// Flags for the node's registration that server, agent and kubelet share.
#[derive(Args, Debug, Clone)]
pub struct RegistrationArgs {
    /// Taints of this node at registration.
    #[arg(long, value_name = "KEY=VALUE:EFFECT", value_delimiter = ',', value_parser = taint)]
    pub register_with_taints: Vec<RegisterTaint>,
    /// Labels of this node at registration.
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = pair)]
    pub node_labels: Vec<(String, String)>,
}

impl RegistrationArgs {
    /// Applies the flags over a file's settings: taints replace its taints, labels are added to its labels.
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

/// Flags for pulling images that server, agent and kubelet share.
#[derive(Args, Debug, Clone)]
pub struct ImageArgs {
    /// CredentialProviderConfig file, or a directory with *.json, *.yaml and *.yml files. Reloaded when it changes.
    #[arg(long, value_name = "FILE|DIR", requires = "image_credential_provider_bin_dir")]
    pub image_credential_provider_config: Option<PathBuf>,
    /// Directory of the credential providers' executables.
    #[arg(long, value_name = "DIR", requires = "image_credential_provider_config")]
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// Maximum number of credential provider processes at a time.
    #[arg(long, value_name = "N", default_value_t = kelson_credentials::plugin::PROCESSES_MAX as u32,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub image_credential_provider_max_processes: u32,
    /// Time without progress after which an image pull is cancelled.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    pub image_pull_progress_deadline: Duration,
}

/// Flags of the addresses that servers share.
#[derive(Args, Debug, Clone, Default)]
pub struct VipArgs {
    /// Addresses of the API server for clients outside the cluster. One of several servers has them on its interface,
    /// announces them with ARP or NDP, and passes them on when it stops. In the server's certificate and in
    /// --kubeconfig-out [default prefix: 32, for IPv6 128]
    #[arg(long, value_name = "IP[/PREFIX]", value_delimiter = ',', value_parser = shared_address)]
    pub vip: Vec<IpNet>,
    /// Interface for --vip [default: the one in whose network the address is]
    #[arg(long, value_name = "NAME", requires = "vip")]
    pub vip_interface: Option<String>,
}

impl VipArgs {
    /// Returns the addresses.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.vip.iter().map(IpNet::addr).collect()
    }
}

fn shared_address(text: &str) -> Result<IpNet, String> {
    let alone = IpAddr::from_str(text).map(IpNet::from).ok();
    alone.or_else(|| text.parse().ok()).ok_or_else(|| "must be an IP address, or one with a prefix length".to_owned())
}

/// Flags of the etcd member beside a node. Its settings are stored in its directory, so later starts need --vote only.
#[derive(Args, Debug, Clone)]
pub struct AgentVoteArgs {
    /// Also run an etcd member on this machine, as `kelson vote` does, so that two servers and this vote survive the loss
    /// of any one of them.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub vote: bool,
    /// Token with which the etcd member joins by the first --server; `kelson token create --vote` on a server creates one.
    /// Has no effect on later starts.
    #[arg(long, value_name = "TOKEN", env = "KELSON_VOTE_TOKEN", hide_env_values = true)]
    pub vote_token: Option<String>,
    /// Directory of the etcd member.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson-vote", requires = "vote")]
    pub vote_data_dir: PathBuf,
    /// etcd program of the member, 3.5.13 to 3.7 [default: bin/etcd in --vote-data-dir, else etcd in PATH]
    #[arg(long, value_name = "FILE", requires = "vote")]
    pub etcd_binary: Option<PathBuf>,
    /// Port on which the etcd members of servers reach this one, at --node-ip [default: 2380]
    #[arg(long, value_name = "PORT", requires = "vote")]
    pub etcd_peer_port: Option<u16>,
    /// Port of the member on the loopback address [default: 2379]
    #[arg(long, value_name = "PORT", requires = "vote")]
    pub etcd_client_port: Option<u16>,
}

#[derive(Args, Debug, Clone)]
pub struct AgentArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// URL of the API server to join. Repeatable; servers that the cluster lists are used as well.
    #[arg(long, value_name = "URL", env = "KELSON_URL", required = true, value_delimiter = ',')]
    pub server: Vec<String>,
    /// Bootstrap token for joining the cluster; `kelson token create` on the server creates one.
    #[arg(long, value_name = "TOKEN", env = "KELSON_TOKEN", hide_env_values = true)]
    pub token: String,
    /// Hash of the public key that the cluster's CA must have; `kelson token create --print-join-command` prints it.
    #[arg(long, value_name = "sha256:HEX", alias = "discovery-token-ca-cert-hash")]
    pub token_ca_cert_hash: Vec<String>,
    /// CA bundle of the server, for clusters where `cluster-info` is not public [default: the CA in `cluster-info`,
    /// verified with the token]
    #[arg(long, value_name = "FILE")]
    pub server_ca: Option<PathBuf>,
    /// Directory of all data.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    #[command(flatten)]
    pub host: HostArgs,
    #[command(flatten)]
    pub member: AgentVoteArgs,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

impl AgentArgs {
    /// Returns the same flags as those of `kelson vote` on this machine; `None` without --vote.
    pub fn as_vote(&self) -> Option<VoteArgs> {
        let member = &self.member;
        member.vote.then(|| VoteArgs {
            server: self.server.first().cloned(),
            token: member.vote_token.clone(),
            server_ca: self.server_ca.clone(),
            data_dir: member.vote_data_dir.clone(),
            etcd_binary: member.etcd_binary.clone(),
            etcd_peer_port: member.etcd_peer_port,
            etcd_client_port: member.etcd_client_port,
            host: self.host.clone(),
            log: self.log.clone(),
        })
    }
}

#[derive(Subcommand, Debug)]
pub enum CredentialProviderCommand {
    /// Run the plugins that match an image and print their responses without credentials.
    Check {
        #[arg(value_name = "IMAGE")]
        image: String,
        /// CredentialProviderConfig file or directory [default: the configuration of the node in the data directory]
        #[arg(long, value_name = "FILE|DIR", requires = "bin_dir")]
        config: Option<PathBuf>,
        /// Directory of the credential providers' executables.
        #[arg(long, value_name = "DIR", requires = "config")]
        bin_dir: Option<PathBuf>,
        /// Data directory of the node.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
    },
}

/// Flags of `kelson status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Data directory of the server or agent.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    /// Output format: `text` or `json`.
    #[arg(long, short, value_name = "FORM", default_value = "text", value_parser = ["text", "json"])]
    pub output: String,
}

/// Flags of `kelson support-bundle`.
#[derive(Args, Debug)]
pub struct SupportArgs {
    /// File to write; must not exist [default: kelson-support-TIME.tar.gz in the current directory]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Data directory of the server or agent.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
}

/// Flags of `kelson upgrade`.
#[derive(Args, Debug)]
pub struct UpgradeArgs {
    /// New binary, or the kept PROGRAM.previous to go back. Verified with the SHA256SUMS beside it, if there is one.
    #[arg(long, value_name = "FILE")]
    pub from: PathBuf,
    /// Data directory of the server or agent.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    /// Time within which the new version must work; afterwards the old one returns.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Shell command that restarts the server or agent [default: that of its systemd unit or OpenRC service]
    #[arg(long, value_name = "COMMAND")]
    pub restart_command: Option<String>,
    /// Only check whether FILE can be installed.
    #[arg(long)]
    pub check: bool,
    /// Accept a version whose data the installed one cannot read. It is kept even if it does not work.
    #[arg(long)]
    pub one_way: bool,
}

#[derive(Subcommand, Debug)]
pub enum ImageCommand {
    /// Load image archives (docker save or OCI layout) into a running node.
    Import {
        /// Image archives as written by `docker save` or `ctr image export`, optionally compressed with gzip, zstd or
        /// xz; `-` is standard input.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Data directory of the node.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
        /// Socket of the container runtime [default: Kelson's own containerd]
        #[arg(long, value_name = "unix:///…")]
        container_runtime_endpoint: Option<String>,
    },
}

#[derive(Subcommand, Debug)]
pub enum NetworkCommand {
    /// Print the network policy and rule that decide about a connection, and the policy's connection counters.
    Explain {
        /// Source: NAMESPACE/POD, a pod in `default`, or an IP address.
        #[arg(value_name = "POD|IP")]
        from: String,
        /// Destination with port and protocol [default: TCP]: NAMESPACE/POD:80, 10.42.0.5:53/UDP.
        #[arg(value_name = "POD|IP[:PORT[/PROTOCOL]]")]
        to: String,
        /// Data directory of the server, or of the agent, whose counters are read.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
        /// Kubeconfig of a user who may list pods, namespaces and network policies, instead of the server's own.
        #[arg(long, value_name = "FILE")]
        kubeconfig: Option<PathBuf>,
    },
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;

    #[test]
    fn an_agent_has_the_flags_of_a_vote() {
        let parse = |more: &[&str]| {
            let words = ["agent", "--server=https://10.0.0.1:6443,https://10.0.0.2:6443", "--token=a.b"];
            let command = AgentArgs::augment_args(clap::Command::new("agent"));
            let found = command.try_get_matches_from([&words[..], more].concat()).map_err(|e| e.to_string())?;
            AgentArgs::from_arg_matches(&found).map_err(|e| e.to_string())
        };
        assert!(parse(&[]).unwrap().as_vote().is_none());
        let given = ["--vote", "--vote-token=K10x", "--etcd-peer-port=2390", "--node-name=n", "--data-dir=/d"];
        let vote = parse(&given).unwrap().as_vote().unwrap();
        assert_eq!(vote.server.as_deref(), Some("https://10.0.0.1:6443"), "one is enough to join");
        assert_eq!((vote.token.as_deref(), vote.etcd_peer_port), (Some("K10x"), Some(2390)));
        assert_eq!(vote.data_dir, PathBuf::from("/var/lib/kelson-vote"), "not the node's");
        assert_eq!(vote.host.node_name.as_deref(), Some("n"));
        let rejected = parse(&["--etcd-peer-port=2390"]).unwrap_err();
        assert!(rejected.contains("--vote"), "{rejected}");
    }

    #[test]
    fn an_address_with_or_without_its_prefix_length() {
        let shown = |text: &str| shared_address(text).map(|net| net.to_string());
        assert_eq!(shown("192.0.2.9"), Ok("192.0.2.9/32".into()));
        assert_eq!(shown("192.0.2.9/24"), Ok("192.0.2.9/24".into()), "the address of a machine, not of the network");
        assert_eq!(shown("2001:db8::9"), Ok("2001:db8::9/128".into()));
        for text in ["", "kelson.example", "192.0.2.9/33", "192.0.2.9:6443"] {
            assert!(shown(text).unwrap_err().contains("must be an IP address"), "{text}");
        }
    }
}
