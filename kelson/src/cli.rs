//! The command line: names, defaults and help. What the words do is in the modules named after the commands.
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use ipnet::IpNet;
use kelson_serving::Port;

use crate::admission::AdmissionArgs;
use crate::args::{HostArgs, LogArgs, OverloadArgs};
use crate::audit::AuditArgs;
use crate::etcd_flags::EtcdArgs;
use crate::flags;
use crate::identity::IdentityArgs;
use crate::node::args::{NodeArgs, NodeCommand};
use crate::tracing_flags::TracingArgs;

/// Kubernetes in one binary.
#[derive(Parser, Debug)]
#[command(name = "kelson", version = kelson_meta::version::KELSON_VERSION, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads a command line; prints and ends the process where that asks for help, or is wrong. `more` stands below the help.
    pub fn from_words(words: Vec<OsString>, more: String) -> Self {
        let matches = Self::command().after_help(more).get_matches_from(words);
        let mut cli = Self::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
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
    /// Run a control plane and, unless told otherwise, this machine's node.
    Server(Box<ServerArgs>),
    #[command(flatten)]
    Node(NodeCommand),
    /// Run many nodes without containers in one process, to see what a control plane bears.
    Hollow(Box<crate::hollow::HollowArgs>),
    /// Hand out clusters to tests, one by each call.
    TestServer(crate::test_server::TestServerArgs),
    /// Work with the tokens by which other machines join a cluster; on the server's machine.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Look at and renew the certificates of a server and its node, replace its authorities.
    #[command(subcommand)]
    Certificate(CertificateCommand),
    /// Work with copies of a server's objects.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Remove everything a server or agent made on this machine; the data directory itself stays unless asked.
    Cleanup(CleanupArgs),
    /// Print a shell's script for completion.
    Completion(crate::manual::CompletionArgs),
    /// Write the manual's pages.
    Man(crate::manual::ManArgs),
    /// Print version information.
    Version,
}

#[derive(Args, Debug, Clone)]
pub struct ServerArgs {
    /// All flags with the values that hold, as `/flagz` shows them.
    #[arg(skip)]
    pub flags: Vec<(String, String)>,
    /// Where everything is kept.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    /// Address the API listens on.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Address at which nodes and pods reach the API [default: --bind-address, else --node-ip, else that of the default route]
    #[arg(long, value_name = "IP")]
    pub advertise_address: Option<IpAddr>,
    /// Port the API listens on; 0 takes any free one.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub secure_port: u16,
    /// Addresses of pods, fixed at the first start; when not given, 10.42.0.0/16 or the next range free on this machine.
    #[arg(long, value_name = "CIDR")]
    pub cluster_cidr: Option<IpNet>,
    /// Addresses of services, fixed at the first start; when not given, 10.43.0.0/16 or the next range free on this machine.
    #[arg(long, value_name = "CIDR")]
    pub service_cidr: Option<IpNet>,
    /// Run the control plane alone: needs no root and touches nothing but the data directory. Must be given elsewhere than on Linux,
    /// since a node runs there alone.
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
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub anonymous_auth: bool,
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// Ordered authorizers: Node, RBAC, Webhook, AlwaysAllow, AlwaysDeny.
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = "Node,RBAC")]
    pub authorization_mode: Vec<String>,
    #[command(flatten)]
    pub admission: AdmissionArgs,
    /// CA of kubelets that get their serving certificates elsewhere, beside the cluster's own; '' believes every kubelet,
    /// self-signed ones included, as upstream does without the flag [default: the cluster's own alone].
    #[arg(long, value_name = "FILE")]
    pub kubelet_certificate_authority: Option<String>,
    /// Built-in parts to disable: `local-storage` is the storage class `local-path` and its provisioner, `network-policy` the
    /// enforcement of network policies by the nodes, which another CNI plug-in may do instead.
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub disable: Vec<BuiltIn>,
    /// Features to switch on or off, under upstream's names; the flag may be given several times.
    #[arg(long, value_name = "NAME=BOOL,…")]
    pub feature_gates: Vec<String>,
    /// Built-in APIs to serve or not: `GROUP/VERSION`, `GROUP/VERSION/RESOURCE`, or `api/all`, `api/ga`, `api/beta`, `api/alpha`; the
    /// stable ones are by default. The flag may be given several times.
    #[arg(long, value_name = "KEY=BOOL,…")]
    pub runtime_config: Vec<String>,
    #[command(flatten)]
    pub overload: OverloadArgs,
    #[command(flatten)]
    pub audit: AuditArgs,
    #[command(flatten)]
    pub tracing: TracingArgs,
    /// EncryptionConfiguration: which resources are encrypted on the disk, and with which keys.
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
    /// Take the encryption configuration up when its file changes.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set,
        num_args = 0..=1, default_missing_value = "true", requires = "encryption_provider_config")]
    pub encryption_provider_config_automatic_reload: bool,
    /// Bytes that all objects together may take, as etcd's flag of this name; beyond it only deletions and what makes objects smaller
    /// are taken. 0 is 2 GiB, or a quarter of the memory where that is less.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub quota_backend_bytes: u64,
    #[command(flatten)]
    pub etcd: EtcdArgs,
    #[command(flatten)]
    pub metrics: MetricsArgs,
    #[command(flatten)]
    pub host: HostArgs,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Parts of a cluster that can be left out; the names are k3s'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BuiltIn {
    /// The provisioner of directories of nodes.
    LocalStorage,
    /// The enforcement of network policies by the nodes.
    NetworkPolicy,
}

/// Where the control plane's components serve `/healthz` and `/metrics` beside the API, as upstream's do. A usual port that
/// another process has is left out; one that was asked for must be free.
#[derive(Args, Debug, Clone)]
pub struct MetricsArgs {
    /// Address of the scheduler's and the controller manager's ports.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub metrics_bind_address: IpAddr,
    /// Port of the scheduler's health and metrics (HTTPS) [default: 10259 where free]; 0: none.
    #[arg(long, value_name = "PORT")]
    pub scheduler_secure_port: Option<u16>,
    /// Port of the controller manager's health and metrics (HTTPS) [default: 10257 where free]; 0: none.
    #[arg(long, value_name = "PORT")]
    pub controller_manager_secure_port: Option<u16>,
}

impl MetricsArgs {
    /// The scheduler's port.
    pub fn scheduler_port(&self) -> Port {
        Port::of(self.scheduler_secure_port, 10259)
    }

    /// The controller manager's port.
    pub fn controller_manager_port(&self) -> Port {
        Port::of(self.controller_manager_secure_port, 10257)
    }
}

/// Which cluster's tokens.
#[derive(Args, Debug)]
pub struct TokenServer {
    /// The server's data directory.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    /// kubeconfig of an administrator, of any cluster, instead of a server's data directory.
    #[arg(long, value_name = "FILE", conflicts_with = "data_dir")]
    pub kubeconfig: Option<PathBuf>,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Subcommand, Debug)]
pub enum TokenCommand {
    /// Make a token, and print it.
    Create {
        /// The token to make, as `kelson token generate` prints one; a random one when not given.
        #[arg(value_name = "TOKEN")]
        token: Option<String>,
        /// What it may be used for: `signing` and `authentication`.
        #[arg(long, value_name = "USES", value_delimiter = ',', default_value = "signing,authentication",
            value_parser = ["signing", "authentication"])]
        usages: Vec<String>,
        /// Groups that who comes with it is in, besides `system:bootstrappers`; each begins with `system:bootstrappers:`.
        #[arg(
            long,
            value_name = "GROUPS",
            value_delimiter = ',',
            default_value = "system:bootstrappers:kelson:default-node-token"
        )]
        groups: Vec<String>,
        /// How long it is good for: seconds, or a number with s, m or h; 0 is for ever.
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = crate::args::parse_ttl)]
        ttl: std::time::Duration,
        /// What it is for.
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// Print the command that joins a machine with it.
        #[arg(long)]
        print_join_command: bool,
        #[command(flatten)]
        of: TokenServer,
    },
    /// Print a token of the right form, and store nothing: for who gives it to a server and its nodes by other means.
    Generate,
    /// List the tokens there are, without their secret halves.
    List {
        /// `text`, or for programs `json` and `yaml` (a document for each token, as kubeadm's).
        #[arg(long, short, value_name = "FORM", default_value = "text", value_parser = ["text", "json", "yaml"])]
        output: String,
        /// Show whole tokens: whoever sees one can join a machine.
        #[arg(long)]
        show_secrets: bool,
        #[command(flatten)]
        of: TokenServer,
    },
    /// Delete tokens: nobody joins with them any more. Nodes that have joined stay.
    Delete {
        /// Tokens, or their first halves.
        #[arg(required = true, value_name = "TOKEN")]
        tokens: Vec<String>,
        #[command(flatten)]
        of: TokenServer,
    },
}

#[derive(Subcommand, Debug)]
pub enum CertificateCommand {
    /// List them with their ends, and by whom each is renewed.
    List {
        /// The data directory of the server or agent.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
    },
    /// Renew all of them now, whatever their ends; what runs goes on with the new ones.
    Renew {
        /// The data directory of the server or agent.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
    },
    /// Replace the authorities while the cluster runs: first both are trusted, then (--finish) the new ones alone.
    RotateCa(RotateArgs),
}

#[derive(Args, Debug)]
pub struct RotateArgs {
    /// Stop trusting the authorities that were replaced.
    #[arg(long)]
    pub finish: bool,
    /// With --finish: also when nodes have not said that they use the new ones.
    #[arg(long, requires = "finish")]
    pub force: bool,
    /// The server's data directory.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
}

#[derive(Subcommand, Debug)]
pub enum SnapshotCommand {
    /// Have a running server copy all its objects, and keep the copy in a file.
    Save {
        /// The file; it must not exist.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The server's data directory.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
    },
    /// Make a copy the objects of a server that is stopped; what it had is kept beside.
    Restore {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The server's data directory.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
    },
    /// Check that a copy is whole, and say what it holds.
    Verify {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
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
    /// Socket of the container runtime whose pods are removed [default: the one that the node was last started with]
    #[arg(long, value_name = "unix:///…")]
    pub container_runtime_endpoint: Option<String>,
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
                // A word where it takes one, else refused by name.
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
