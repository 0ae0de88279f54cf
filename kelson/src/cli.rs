//! The command line: names, defaults and help. What the words do is in the modules named after the commands.
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ipnet::IpNet;

/// Kubernetes in one binary.
#[derive(Parser, Debug)]
#[command(name = "kelson", version = kelson_meta::version::KELSON_VERSION, about, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a control plane and, unless told otherwise, this machine's node.
    Server(Box<ServerArgs>),
    /// Run this machine as a node of a cluster.
    Agent(Box<AgentArgs>),
    /// Work with the images of a running node.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Remove everything a server or agent made on this machine; the data directory itself stays unless asked.
    Cleanup(CleanupArgs),
    /// Print version information.
    Version,
    /// The pod network's CNI plugin; run by the container runtime, not by people.
    #[command(hide = true)]
    Cni,
}

#[derive(Args, Debug, Clone)]
pub struct ServerArgs {
    /// Where everything is kept.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    /// Address the API listens on.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Port the API listens on; 0 takes any free one.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub secure_port: u16,
    /// Addresses of pods.
    #[arg(long, value_name = "CIDR", default_value = "10.42.0.0/16")]
    pub cluster_cidr: IpNet,
    /// Addresses of services.
    #[arg(long, value_name = "CIDR", default_value = "10.43.0.0/16")]
    pub service_cidr: IpNet,
    /// Run the control plane alone: needs no root and touches nothing but the data directory.
    #[arg(long)]
    pub disable_agent: bool,
    /// Also write the admin kubeconfig here.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig_out: Option<PathBuf>,
    /// More names or addresses the server's certificate is good for.
    #[arg(long, value_name = "NAME|IP", value_delimiter = ',')]
    pub tls_san: Vec<String>,
    /// Static tokens, one `token,user,uid[,"group1,group2"]` a line.
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Whether requests without credentials are served as system:anonymous.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub anonymous_auth: bool,
    /// Ordered authorizers: Node, RBAC, AlwaysAllow, AlwaysDeny.
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = "Node,RBAC")]
    pub authorization_mode: Vec<String>,
    /// Admission plugins to run besides the default ones.
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Default admission plugins not to run.
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Args, Debug, Clone)]
pub struct AgentArgs {
    /// The API to join.
    #[arg(long, value_name = "URL")]
    pub server: String,
    /// Bootstrap token to join with.
    #[arg(long, value_name = "TOKEN", env = "KELSON_TOKEN", hide_env_values = true)]
    pub token: String,
    /// CA of the server: its `DIR/pki/ca.crt`.
    #[arg(long, value_name = "FILE", default_value = "/etc/kelson/ca.crt")]
    pub server_ca: PathBuf,
    /// The cluster's pod addresses, as the server was told.
    #[arg(long, value_name = "CIDR", default_value = "10.42.0.0/16")]
    pub cluster_cidr: IpNet,
    /// Address of the cluster's DNS: the tenth of its service addresses.
    #[arg(long, value_name = "IP", default_value = "10.43.0.10")]
    pub cluster_dns: IpAddr,
    /// Where everything is kept.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// What server and agent share about the node.
#[derive(Args, Debug, Clone)]
pub struct NodeArgs {
    /// Name of this node; the host's name when not given.
    #[arg(long, value_name = "HOST")]
    pub node_name: Option<String>,
    /// Address of this node; that of the default route when not given.
    #[arg(long, value_name = "IP")]
    pub node_ip: Option<IpAddr>,
    /// Socket of a container runtime (CRI v1); by default Kelson runs a containerd of its own.
    #[arg(long, value_name = "unix:///…")]
    pub container_runtime_endpoint: Option<String>,
    /// Port of the node agent's own API; 0 takes any free one.
    #[arg(long, value_name = "PORT", default_value_t = 10250)]
    pub kubelet_port: u16,
}

#[derive(Args, Debug, Clone)]
pub struct LogArgs {
    /// error, warn, info, debug, trace, or filters such as `info,kelson_store=debug`.
    #[arg(long, value_name = "LEVEL", default_value = "info", env = "KELSON_LOG")]
    pub log_level: String,
}

#[derive(Subcommand, Debug)]
pub enum ImageCommand {
    /// Load image archives (docker save or OCI layout) into a running node.
    Import {
        /// The archives.
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

#[derive(Args, Debug)]
pub struct CleanupArgs {
    /// The data directory of what is to be cleaned up.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    /// Also delete the data directory.
    #[arg(long)]
    pub delete_data: bool,
}
