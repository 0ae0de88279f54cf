//! Flags of the etcd member that `kelson server` starts.
use std::path::PathBuf;

use clap::Args;

/// The etcd member of this server. Its settings are stored in DIR/etcd, so later starts need none of these flags.
#[derive(Args, Debug, Clone)]
pub struct MemberArgs {
    /// Start a cluster of servers: this one stores the objects in an etcd member that it starts and supervises, and other
    /// servers can join. Has no effect on later starts.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub cluster_init: bool,
    /// Join the cluster of this server, which was started with --cluster-init or has joined it itself. Has no effect on later starts.
    #[arg(long, value_name = "URL", env = "KELSON_URL")]
    pub server: Option<String>,
    /// Token with which this server joins the cluster of --server; `kelson token create --server` there creates one.
    #[arg(long, value_name = "TOKEN", env = "KELSON_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// CA bundle of the server to join, for clusters where `cluster-info` is not public [default: the CA in `cluster-info`,
    /// verified with the token]
    #[arg(long, value_name = "FILE")]
    pub server_ca: Option<PathBuf>,
    /// etcd program of the member, 3.5.13 to 3.7 [default: DIR/bin/etcd, else etcd in PATH]
    #[arg(long, value_name = "FILE")]
    pub etcd_binary: Option<PathBuf>,
    /// Port on which the etcd members of other servers reach this one's, at the advertised address [default: 2380]
    #[arg(long, value_name = "PORT")]
    pub etcd_peer_port: Option<u16>,
    /// Port on the loopback address on which this server reaches its etcd member [default: 2379]
    #[arg(long, value_name = "PORT")]
    pub etcd_client_port: Option<u16>,
}
