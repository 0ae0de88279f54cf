//! The command line: names, defaults and help. Each command is implemented in the module of its name.
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use ipnet::IpNet;
use kelson_controllers::AddressPool;
use kelson_serving::Port;

use crate::admission::AdmissionArgs;
use crate::args::{HostArgs, LogArgs, OverloadArgs};
use crate::audit::AuditArgs;
use crate::cleanup::CleanupArgs;
use crate::config::{ConfigArgs, ConfigCommand};
use crate::etcd_flags::EtcdArgs;
use crate::identity::IdentityArgs;
use crate::k3s::MigrateCommand;
use crate::member::MemberCommand;
use crate::member_flags::MemberArgs;
use crate::node::args::{NodeArgs, NodeCommand, VipArgs};
use crate::snapshot_flags::{ScheduleArgs, SnapshotCommand};
use crate::tracing_flags::TracingArgs;
use crate::{config, flags, k3s};

/// Kubernetes in one binary.
#[derive(Parser, Debug)]
#[command(name = "kelson", version = kelson_meta::version::KELSON_VERSION, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses a command line and its configuration file; prints the help or the error and exits the process if
    /// necessary. `more` is added to the help.
    pub fn from_words(words: Vec<OsString>, more: String) -> Self {
        let command = Self::command().after_help(more);
        let expanded = config::expand(&command, words, k3s::hint).unwrap_or_else(|e| {
            eprintln!("Error: {e}");
            std::process::exit(1)
        });
        let end = |e: clap::Error| -> ! {
            // An output that cannot be written leaves nothing to do.
            let _ = e.print();
            if let Some(origin) = expanded.origin(&e) {
                eprintln!("\n{origin}");
            }
            std::process::exit(e.exit_code())
        };
        let matches = command.try_get_matches_from(&expanded.words).unwrap_or_else(|e| end(e));
        let mut cli = Self::from_arg_matches(&matches).unwrap_or_else(|e| end(e));
        let command = Self::command();
        if let (Command::Server(args), Some(command), Some((_, matches))) =
            (&mut cli.command, command.find_subcommand("server"), matches.subcommand())
        {
            args.flags = flags::shown(command, matches);
        }
        cli
    }
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a control plane and, by default, a node on this machine.
    Server(Box<ServerArgs>),
    #[command(flatten)]
    Node(NodeCommand),
    /// Run only an etcd member on this machine, so that two servers and this vote survive the loss of any one of them.
    Vote(Box<crate::vote::VoteArgs>),
    /// Run many nodes without containers in one process, to load-test a control plane.
    Hollow(Box<crate::hollow::HollowArgs>),
    /// Serve test clusters, one per request.
    TestServer(crate::test_server::TestServerArgs),
    /// Manage bootstrap tokens, with which machines join a cluster.
    #[command(subcommand)]
    Token(TokenCommand),
    /// List and renew certificates of a server and its node, or rotate its CAs.
    #[command(subcommand)]
    Certificate(CertificateCommand),
    /// List, remove and replace the etcd members of a cluster of servers.
    #[command(subcommand)]
    Member(MemberCommand),
    /// Move the data of a stopped server between its etcd member and its embedded store, or reset its cluster.
    #[command(subcommand)]
    Cluster(crate::cluster_data::ClusterCommand),
    /// Save, verify, list and restore snapshots of a server.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Show the configuration of a server or agent.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check a migration from another distribution.
    #[command(subcommand)]
    Migrate(MigrateCommand),
    /// Remove what a server or agent created on this machine. The data directory is kept unless --delete-data is given.
    Cleanup(CleanupArgs),
    /// Print a completion script for a shell.
    Completion(crate::manual::CompletionArgs),
    /// Write manual pages.
    Man(crate::manual::ManArgs),
    /// Print version information.
    Version(crate::about::VersionArgs),
}

#[derive(Args, Debug, Clone)]
pub struct ServerArgs {
    /// All flags with the values that hold, as `/flagz` shows them.
    #[arg(skip)]
    pub flags: Vec<(String, String)>,
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Directory of all data.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    /// Address on which the API server listens.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Address at which nodes and pods reach the API server [default: --bind-address, else --node-ip, else the default
    /// route's address]
    #[arg(long, value_name = "IP")]
    pub advertise_address: Option<IpAddr>,
    /// Port on which the API server listens; 0 selects a free port.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub secure_port: u16,
    /// Pod address range, fixed at the first start [default: 10.42.0.0/16, or the next range that is free on this
    /// machine]
    #[arg(long, value_name = "CIDR")]
    pub cluster_cidr: Option<IpNet>,
    /// Service address range, fixed at the first start [default: 10.43.0.0/16, or the next range that is free on this
    /// machine]
    #[arg(long, value_name = "CIDR")]
    pub service_cidr: Option<IpNet>,
    /// Run the control plane only. Needs no root and writes only to the data directory. Required on systems other than
    /// Linux.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub disable_agent: bool,
    /// Additional file to write the admin kubeconfig to.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig_out: Option<PathBuf>,
    /// Additional DNS names and IP addresses for the server's certificate.
    #[arg(long, value_name = "NAME|IP", value_delimiter = ',')]
    pub tls_san: Vec<String>,
    /// File with static tokens, one `token,user,uid[,"group1,group2"]` per line.
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Serve requests without credentials as system:anonymous.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub anonymous_auth: bool,
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// Ordered authorizers: Node, RBAC, Webhook, AlwaysAllow, AlwaysDeny.
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = "Node,RBAC")]
    pub authorization_mode: Vec<String>,
    #[command(flatten)]
    pub admission: AdmissionArgs,
    /// Additional CA bundle for kubelets' serving certificates; '' accepts any certificate, including self-signed ones,
    /// as upstream does without the flag [default: the cluster's CA only].
    #[arg(long, value_name = "FILE")]
    pub kubelet_certificate_authority: Option<String>,
    /// Built-in components to disable: `local-storage` (the storage class `local-path` and its provisioner),
    /// `metrics-server` (the API `metrics.k8s.io` with the resource usage of nodes and pods), `network-policy`
    /// (enforcement of network policies by the nodes, for clusters whose CNI plugin enforces them) or `servicelb` (the
    /// addresses of nodes for services of type LoadBalancer).
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub disable: Vec<BuiltIn>,
    /// Addresses for services of type LoadBalancer, of which each service gets its own. One node announces them with ARP
    /// or NDP. The same on every server [default: services get the addresses of nodes]
    #[arg(long, value_name = "FIRST-LAST|CIDR", value_delimiter = ',')]
    pub load_balancer_pool: Vec<AddressPool>,
    #[command(flatten)]
    pub vip: VipArgs,
    /// Delete objects that came from a file in DIR/manifests when no file there has them any more; without it only those with the
    /// annotation `manifests.kelson.dev/prune: "true"`.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub manifests_prune: bool,
    /// Feature gates to enable or disable, by upstream's names. Repeatable.
    #[arg(long, value_name = "NAME=BOOL,…")]
    pub feature_gates: Vec<String>,
    /// Built-in APIs to enable or disable: `GROUP/VERSION`, `GROUP/VERSION/RESOURCE`, `api/all`, `api/ga`, `api/beta`
    /// or `api/alpha`. Stable APIs are enabled by default. Repeatable.
    #[arg(long, value_name = "KEY=BOOL,…")]
    pub runtime_config: Vec<String>,
    #[command(flatten)]
    pub overload: OverloadArgs,
    #[command(flatten)]
    pub audit: AuditArgs,
    #[command(flatten)]
    pub tracing: TracingArgs,
    /// EncryptionConfiguration file: the resources to encrypt at rest and the keys.
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
    /// Reload the encryption configuration when its file changes.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set,
        num_args = 0..=1, default_missing_value = "true", requires = "encryption_provider_config")]
    pub encryption_provider_config_automatic_reload: bool,
    /// Maximum size of all objects in bytes, as with etcd's flag. Above it only deletions and updates that shrink an
    /// object are accepted. 0 is 2 GiB or a quarter of the memory, whichever is less.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub quota_backend_bytes: u64,
    /// Maximum size of all objects of one namespace in bytes; above it new and larger objects are rejected. 0 is half
    /// of --quota-backend-bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub quota_namespace_bytes: u64,
    #[command(flatten)]
    pub etcd: EtcdArgs,
    #[command(flatten)]
    pub member: MemberArgs,
    #[command(flatten)]
    pub snapshots: ScheduleArgs,
    #[command(flatten)]
    pub metrics: MetricsArgs,
    #[command(flatten)]
    pub host: HostArgs,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Parts of a cluster that can be disabled; the names are those of k3s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BuiltIn {
    /// Storage class `local-path` and its provisioner.
    LocalStorage,
    /// The API `metrics.k8s.io`, with the resource usage of nodes and pods.
    MetricsServer,
    /// Enforcement of network policies by the nodes.
    NetworkPolicy,
    /// The addresses of nodes for services of type LoadBalancer.
    #[value(name = "servicelb")]
    ServiceLb,
}

/// The ports on which the control plane's components serve `/healthz` and `/metrics`, as upstream's do. A default port
/// that another process uses is skipped; a configured one must be free.
#[derive(Args, Debug, Clone)]
pub struct MetricsArgs {
    /// Address of the scheduler's and the controller manager's health and metrics ports.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub metrics_bind_address: IpAddr,
    /// HTTPS port for the scheduler's health and metrics; 0 disables it [default: 10259, if it is free]
    #[arg(long, value_name = "PORT")]
    pub scheduler_secure_port: Option<u16>,
    /// HTTPS port for the controller manager's health and metrics; 0 disables it [default: 10257, if it is free]
    #[arg(long, value_name = "PORT")]
    pub controller_manager_secure_port: Option<u16>,
}

impl MetricsArgs {
    /// Returns the scheduler's port.
    pub fn scheduler_port(&self) -> Port {
        Port::of(self.scheduler_secure_port, 10259)
    }

    /// Returns the controller manager's port.
    pub fn controller_manager_port(&self) -> Port {
        Port::of(self.controller_manager_secure_port, 10257)
    }
}

/// The cluster of `kelson token`.
#[derive(Args, Debug)]
pub struct TokenServer {
    /// Data directory of the server.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    /// Kubeconfig of an administrator, used instead of a server's data directory.
    #[arg(long, value_name = "FILE", conflicts_with = "data_dir")]
    pub kubeconfig: Option<PathBuf>,
    /// Print what would be done without doing it.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Subcommand, Debug)]
pub enum TokenCommand {
    /// Create a token and print it.
    Create {
        /// Token to create, such as one from `kelson token generate` [default: a random token]
        #[arg(value_name = "TOKEN")]
        token: Option<String>,
        /// Allowed uses of the token: `signing` and `authentication`.
        #[arg(long, value_name = "USES", value_delimiter = ',', default_value = "signing,authentication",
            value_parser = ["signing", "authentication"])]
        usages: Vec<String>,
        /// Extra groups for clients that authenticate with this token, besides `system:bootstrappers`. Each must begin
        /// with `system:bootstrappers:`.
        #[arg(
            long,
            value_name = "GROUPS",
            value_delimiter = ',',
            default_value = "system:bootstrappers:kelson:default-node-token"
        )]
        groups: Vec<String>,
        /// Create a token with which servers join as members of the cluster: `kelson server --server URL --token TOKEN`. A server
        /// receives all keys of the cluster.
        #[arg(long, conflicts_with_all = ["groups", "usages"])]
        server: bool,
        /// Create a token with which a machine joins as an etcd member only: `kelson vote --server URL --token TOKEN`. It
        /// receives the CA of the etcd cluster.
        #[arg(long, conflicts_with_all = ["groups", "usages", "server"])]
        vote: bool,
        /// Lifetime of the token: seconds, or a number with s, m or h; 0 never expires.
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = crate::args::parse_ttl)]
        ttl: std::time::Duration,
        /// Description of the token.
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// Print the command that joins a machine with the token.
        #[arg(long)]
        print_join_command: bool,
        #[command(flatten)]
        of: TokenServer,
    },
    /// Generate and print a random token without storing it.
    Generate,
    /// List tokens. Token secrets are hidden by default.
    List {
        /// Output format: `text`, `json` or `yaml` (one document per token, as kubeadm prints).
        #[arg(long, short, value_name = "FORM", default_value = "text", value_parser = ["text", "json", "yaml"])]
        output: String,
        /// Print complete tokens. Anyone who sees one can join a machine to the cluster.
        #[arg(long)]
        show_secrets: bool,
        #[command(flatten)]
        of: TokenServer,
    },
    /// Delete tokens. Nodes that joined with them stay in the cluster.
    Delete {
        /// Tokens or token IDs.
        #[arg(required = true, value_name = "TOKEN")]
        tokens: Vec<String>,
        #[command(flatten)]
        of: TokenServer,
    },
}

#[derive(Subcommand, Debug)]
pub enum CertificateCommand {
    /// List certificates with expiry dates and what renews them.
    List {
        /// Data directory of the server or agent.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
    },
    /// Renew all certificates now. Running components reload them.
    Renew {
        /// Data directory of the server or agent.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
    },
    /// Rotate the CAs of a running cluster: old and new CAs are trusted until --finish removes the old ones.
    RotateCa(RotateArgs),
}

#[derive(Args, Debug)]
pub struct RotateArgs {
    /// Stop trusting the replaced CAs.
    #[arg(long)]
    pub finish: bool,
    /// With --finish: continue even if nodes or servers do not use the new CAs.
    #[arg(long, requires = "finish")]
    pub force: bool,
    /// Data directory of the server.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_is_asked_and_what_is_wrong() {
        fn look(path: &[&str], command: &clap::Command, seen: &mut usize) {
            *seen += 1;
            let said = |words: &[&str]| {
                let words: Vec<&str> = path.iter().chain(words).copied().collect();
                let error = Cli::command().try_get_matches_from(words).err();
                (error.as_ref().map(clap::Error::kind), error.map(|e| e.to_string()).unwrap_or_default())
            };
            for word in ["--help", "-h"] {
                let (kind, text) = said(&[word]);
                assert_eq!(kind, Some(clap::error::ErrorKind::DisplayHelp), "{path:?} {word}");
                assert!(text.contains("Usage: "), "{text}");
            }
            let (_, unknown) = said(&["--no-such-flag"]);
            assert!(unknown.contains("--no-such-flag"), "{path:?}: {unknown}");
            let (_, alone) = said(&[]);
            for arg in command.get_arguments().filter(|arg| arg.is_required_set()) {
                let name = arg.get_long().map_or_else(|| format!("<{}", arg.get_id()), |name| format!("--{name}"));
                let is_named = alone.to_lowercase().contains(&name.to_lowercase());
                assert!(is_named || alone.contains("Usage: "), "{path:?}: {name} is missing in {alone:?}");
            }
            let (kind, help) = said(&["help"]);
            match command.has_subcommands() {
                true => assert_eq!(kind, Some(clap::error::ErrorKind::DisplayHelp), "{path:?}: {help}"),
                // A word is accepted if the option has values, else it is rejected by name.
                false => assert!(kind.is_none() || help.contains("help"), "{path:?}: {help}"),
            }
            for child in command.get_subcommands().filter(|child| child.get_name() != "help") {
                look(&[path, &[child.get_name()]].concat(), child, seen);
            }
        }
        let (mut command, mut seen) = (Cli::command(), 0);
        command.build();
        look(&["kelson"], &command, &mut seen);
        assert!(seen > 12, "the commands are found: {seen}");
    }

    #[test]
    fn a_flag_that_is_true_or_false_may_stand_alone() {
        fn look(command: &clap::Command, seen: &mut usize) {
            for arg in command.get_arguments().filter(|a| a.get_value_names().is_some_and(|n| n == ["BOOL"])) {
                *seen += 1;
                let values = arg.get_num_args().map(|n| n.min_values());
                assert_eq!(
                    values,
                    Some(0),
                    "kelson {}: {arg} as an installer writes it, without a value",
                    command.get_name()
                );
            }
            command.get_subcommands().for_each(|c| look(c, seen));
        }
        let (mut command, mut seen) = (Cli::command(), 0);
        command.build();
        look(&command, &mut seen);
        assert!(seen > 5, "the flags are found: {seen}");
    }
}
