//! The commands of a node, and the node that a server starts next to its control plane: start order, stop order.
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use kelson_kubelet::config::file::LogFormat;
use kelson_net::ranges;
use kelson_ranges::{ConfiguredRanges, Ranges};
use kelson_tasks::{FILES, OnPanic};

use super::agent::{self, Join};
use super::args::{AgentArgs, CredentialProviderCommand, ImageCommand, NetworkCommand, NodeArgs, NodeCommand};
use super::dns::Dns;
use super::kubelet::{self, KubeletArgs};
use super::vote::NodeVote;
use super::{check, cleanup, credentials, image, network, status, support, upgrade};
use crate::control_plane::ControlPlane;
use crate::flags::Spoken;
use crate::host::{self, NodeIdentity};
use crate::lock::DataDirLock;
use crate::logging;
use crate::process::{self, Process, within};

/// The timeout for stopping the parts of a node. Upstream's systemd units allow 30 s before a kill.
const NODE_END_MAX: Duration = Duration::from_secs(15);

/// The work that must be done before a command line is read: the container runtime runs this binary as its network plugin, dozens of
/// times a minute; and an upgrade may be in progress, which a server or agent decides about as it starts. `None`: this is a command line.
pub fn before(words: &[OsString]) -> Option<ExitCode> {
    let code = kelson_net::cni::run_if_invoked();
    if code.is_none() {
        upgrade::at_start(words);
    }
    code
}

/// The time for which a new version must work before the previous one is no longer waited for.
const PROVEN: Duration = Duration::from_secs(10);

/// Runs a command.
pub fn run(command: NodeCommand) -> anyhow::Result<()> {
    match command {
        NodeCommand::Agent(args) => agent(*args),
        NodeCommand::Check(args) => check::run(&args),
        NodeCommand::SupportBundle(args) => process::small(support::run(&args)),
        NodeCommand::Upgrade(args) => process::small(upgrade::run(&args)),
        NodeCommand::Status(args) => process::small(status::run(&args)),
        NodeCommand::CredentialProvider(CredentialProviderCommand::Check { image, config, bin_dir, data_dir }) => {
            process::small(credentials::check(&image, config.zip(bin_dir), &data_dir))
        }
        NodeCommand::Image(ImageCommand::Import { files, data_dir, container_runtime_endpoint }) => {
            process::small(image::import(&files, &data_dir, container_runtime_endpoint.as_deref()))
        }
        NodeCommand::Network(NetworkCommand::Explain { from, to, data_dir, kubeconfig }) => {
            process::small(network::explain(&from, &to, &data_dir, kubeconfig))
        }
        NodeCommand::Cni => {
            bail!("CNI_COMMAND is not set; this command is a CNI plugin and is run by a container runtime")
        }
    }
}

/// Fails if the process is not root, which pods need; later errors would be less clear.
pub fn need_root(hint: &str) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("a node must run as root{hint}");
    }
    Ok(())
}

/// Checks whether a server can have a node with these flags, before anything is started.
pub fn check(args: &NodeArgs) -> anyhow::Result<()> {
    agent::check(args)?;
    need_root("; with --disable-agent the control plane runs alone and needs no root")?;
    check::at_start(args.container_runtime_endpoint.is_some());
    Ok(())
}

/// Returns the address ranges of a server whose node is on this host.
pub async fn settle(data_dir: &Path, given: ConfiguredRanges) -> anyhow::Result<Ranges> {
    Ok(ranges::settle(data_dir, given).await?)
}

/// Runs the server's own node, with cluster DNS, until the process ends.
pub async fn beside(
    control_plane: &ControlPlane,
    data_dir: &Path,
    args: &NodeArgs,
    me: &NodeIdentity,
    process: &mut Process,
) -> anyhow::Result<()> {
    let tasks = process.tasks.child("node");
    let start = async {
        let dns = Dns::start(control_plane, me).await?;
        let join = Join::of(control_plane, data_dir, &me.name)?;
        let node = agent::Node::start(data_dir, args, me, join, Some(dns.registry().clone()), &tasks).await?;
        anyhow::Ok((node, dns))
    };
    let (node, dns) = tokio::select! {
        started = start => started?,
        ended = process.ended() => return ended,
    };
    process.service.watch("kubelet", node.check());
    let ended = process.ended().await;
    tracing::info!("stopping; containers keep running");
    within(NODE_END_MAX, "node", node.shutdown()).await;
    dns.shutdown();
    ended
}

/// Removes what a node created on this machine, and its pods in the runtime at `endpoint` if that is not its own;
/// returns what could not be removed.
pub async fn remove(data_dir: &Path, endpoint: Option<&str>) -> Vec<String> {
    cleanup::remove(data_dir, endpoint).await
}

/// Returns whether a server or an agent uses the data directory. Its lock is not taken: a process that starts meanwhile would not get it.
///
/// # Errors
/// The open files of the process cannot be read.
pub fn is_running(data_dir: &Path) -> anyhow::Result<bool> {
    Ok(status::gather::holder(data_dir)?.is_some())
}

/// A server or agent of this machine is ready. An upgrade to its program is over when its parts have worked for a while: a version that gets
/// ready and hangs then is restarted by the watchdog, and is not kept.
pub fn ready(process: &Process) {
    let service = process.service.clone();
    process.tasks.spawn("upgrade-trial", OnPanic::Contain, async move {
        service.steady(PROVEN).await;
        // Fails only at the end of the process.
        let _ = FILES.run(upgrade::at_ready).await;
    });
}

/// Runs `kelson agent` to its end.
fn agent(args: AgentArgs) -> anyhow::Result<()> {
    logging::init(&args.log.log_level)?;
    args.config.log();
    agent::check(&args.node)?;
    need_root("")?;
    check::at_start(args.node.container_runtime_endpoint.is_some());
    host::wait_for_route(&args.host);
    let me = NodeIdentity::of(&args.host)?;
    let _lock = DataDirLock::make(&args.data_dir)?;
    let vote = args.as_vote();
    let _lock_of_vote = vote.as_ref().map(|vote| DataDirLock::make(&vote.data_dir)).transpose()?;
    process::run(async |process| {
        let vote = vote.map(|vote| NodeVote::begin(vote, me.clone(), &process.tasks));
        let ended = agent_to_end(&args, &me, process).await;
        if let Some(vote) = vote {
            vote.end().await;
        }
        ended
    })
}

/// Runs the node of an agent until the process ends.
async fn agent_to_end(args: &AgentArgs, me: &NodeIdentity, process: &mut Process) -> anyhow::Result<()> {
    let tasks = process.tasks.child("node");
    let start = async {
        let join = Join::find(args, me).await?;
        agent::Node::start(&args.data_dir, &args.node, me, join, None, &tasks).await
    };
    let node = tokio::select! {
        node = start => node?,
        ended = process.ended() => return ended,
    };
    process.service.watch("kubelet", node.check());
    process.service.ready(&format!("node {} of {}", me.name, args.server.join(",")));
    ready(process);
    let ended = process.ended().await;
    tracing::info!("stopping; containers keep running");
    within(NODE_END_MAX, "node", node.shutdown()).await;
    ended
}

/// Runs `kelson kubelet` until it ends.
pub fn kubelet(args: KubeletArgs, spoken: &Spoken) -> anyhow::Result<()> {
    logging::init(args.log_level())?;
    spoken.log();
    let plan = kubelet::Plan::of(&args)?;
    let wanted = plan.logging;
    logging::follow(wanted.verbosity, wanted.format == Some(LogFormat::Json)).map_err(anyhow::Error::msg)?;
    need_root("")?;
    let _lock = DataDirLock::make(&args.root_dir)?;
    process::run(async |process| {
        let kubelet = tokio::select! {
            kubelet = plan.start() => kubelet?,
            ended = process.ended() => return ended,
        };
        process.service.watch("kubelet", agent::check_of(&kubelet));
        process.service.ready("the kubelet runs");
        let ended = process.ended().await;
        tracing::info!("stopping; containers keep running");
        within(NODE_END_MAX, "kubelet", kubelet.shutdown()).await;
        ended
    })
}
