//! `kelson vote`: a machine that has an etcd member and no API server.
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use kelson_members::{Member, MemberError, MemberOptions, Phase, Start};
use kelson_meta::SystemClock;
use kelson_tasks::Tasks;

use crate::args::{HostArgs, LogArgs};
use crate::host::{self, NodeIdentity};
use crate::lock::DataDirLock;
use crate::member_flags::MemberArgs;
use crate::process::within;
use crate::{joining, logging, process};

/// The timeout for handing over the leadership of etcd, and for the end of the member.
const END_MAX: Duration = Duration::from_secs(10);

/// Flags of `kelson vote`. Its settings are stored in DIR/etcd, so later starts need none of those for joining.
#[derive(Args, Debug)]
pub struct VoteArgs {
    /// Join the cluster of this server, which has an etcd member. Has no effect on later starts.
    #[arg(long, value_name = "URL", env = "KELSON_URL")]
    pub server: Option<String>,
    /// Token with which this machine joins; `kelson token create --vote` on a server creates one.
    #[arg(long, value_name = "TOKEN", env = "KELSON_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// CA bundle of the server, for clusters where `cluster-info` is not public [default: the CA in `cluster-info`,
    /// verified with the token]
    #[arg(long, value_name = "FILE")]
    pub server_ca: Option<PathBuf>,
    /// Directory of all data. A server or an agent on this machine has another one.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson-vote")]
    pub data_dir: PathBuf,
    /// etcd program, 3.5.13 to 3.7 [default: DIR/bin/etcd, else etcd in PATH]
    #[arg(long, value_name = "FILE")]
    pub etcd_binary: Option<PathBuf>,
    /// Port on which the etcd members of servers reach this one, at --node-ip [default: 2380]
    #[arg(long, value_name = "PORT")]
    pub etcd_peer_port: Option<u16>,
    /// Port of the member on the loopback address [default: 2379]
    #[arg(long, value_name = "PORT")]
    pub etcd_client_port: Option<u16>,
    #[command(flatten)]
    pub host: HostArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

impl VoteArgs {
    fn options(&self, me: &NodeIdentity, tasks: &Tasks) -> anyhow::Result<MemberOptions> {
        Ok(MemberOptions {
            data_dir: std::path::absolute(&self.data_dir).context("--data-dir")?,
            binary: self.etcd_binary.clone(),
            name: me.name.clone(),
            peer_address: me.address,
            peer_address_given: self.host.node_ip.is_some(),
            peer_port: self.etcd_peer_port,
            client_port: self.etcd_client_port,
            quota_bytes: 0,
            tasks: tasks.clone(),
            clock: Arc::new(SystemClock),
        })
    }

    /// Returns the same flags as those of a server that joins.
    fn join(&self) -> MemberArgs {
        MemberArgs {
            cluster_init: false,
            server: self.server.clone(),
            token: self.token.clone(),
            server_ca: self.server_ca.clone(),
            etcd_binary: self.etcd_binary.clone(),
            etcd_peer_port: self.etcd_peer_port,
            etcd_client_port: self.etcd_client_port,
        }
    }
}

/// The running member of a machine that has no API server.
pub struct Vote(Member);

impl Vote {
    /// Starts the member, or joins, which waits for other servers as long as it takes. The caller has the lock of the data
    /// directory.
    ///
    /// # Errors
    /// The member cannot run, or the cluster rejects it.
    pub async fn start(args: &VoteArgs, me: &NodeIdentity, tasks: &Tasks) -> anyhow::Result<Self> {
        let member = start(args, &args.options(me, tasks)?).await?;
        tracing::info!(name = member.name(), "this machine votes in the etcd cluster");
        Ok(Self(member))
    }

    /// Stops the member.
    pub async fn end(&self) {
        within(END_MAX, "leadership of etcd", self.0.hand_over()).await;
        within(END_MAX, "etcd member", self.0.shutdown()).await;
    }
}

/// Runs the member until the process ends.
pub fn run(args: &VoteArgs) -> anyhow::Result<()> {
    logging::init(&args.log.log_level)?;
    host::wait_for_route(&args.host);
    let me = NodeIdentity::of(&args.host)?;
    let _lock = DataDirLock::make(&args.data_dir)?;
    process::run(async |process| {
        let tasks = process.tasks.clone();
        let vote = tokio::select! {
            started = Vote::start(args, &me, &tasks) => started?,
            ended = process.ended() => return ended,
        };
        process.service.ready(&format!("etcd member {}", me.name));
        let ended = process.ended().await;
        vote.end().await;
        ended
    })
}

/// Starts the member with its settings on disk, or joins.
async fn start(args: &VoteArgs, options: &MemberOptions) -> anyhow::Result<Member> {
    let Some(settings) = kelson_members::settings(&args.data_dir).await? else {
        return joining::enter_as_vote(&args.join(), options).await;
    };
    match Member::start(options.clone(), Start::Resume).await {
        // The cluster removed the learner of an interrupted join, or has other members by now.
        Err(MemberError::Removed { .. } | MemberError::StaleCluster)
            if settings.phase == Phase::Joining && args.server.is_some() =>
        {
            joining::enter_as_vote(&args.join(), options).await
        }
        started => started.context("etcd member"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[tokio::test]
    async fn what_is_missing_for_a_join_is_named_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let started = async |more: &[&str]| {
            let data_dir = dir.path().display().to_string();
            let words = [&["kelson", "vote", "--data-dir", &data_dir, "--node-ip", "127.0.0.1"], more].concat();
            let Command::Vote(args) = Cli::parse_from(words).command else { panic!("the command is vote") };
            let me = NodeIdentity::of(&args.host).unwrap();
            let options = args.options(&me, &Tasks::root("test")).unwrap();
            assert!(options.peer_address_given);
            format!("{:#}", start(&args, &options).await.err().unwrap())
        };
        let token = format!("--token=K10{}::server:abcdef.0123456789abcdef", "0a".repeat(32));
        let server = "--server=https://127.0.0.1:1";
        for (more, part) in [
            (&[][..], "--server is missing"),
            (&[server], "--server needs --token"),
            (&[server, "--token=abcdef.0123456789abcdef"], "--token must be the token of a server"),
            (&[server, &token, "--etcd-binary=/none/etcd"], "/none/etcd"),
        ] {
            let error = started(more).await;
            assert!(error.contains(part) && !error.contains("0123456789abcdef"), "{error}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
