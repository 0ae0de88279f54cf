//! The commands that stay: start order, stop order.
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use kelson_net::ranges;

use crate::agent::{self, Join};
use crate::cli::{AgentArgs, ServerArgs};
use crate::control_plane::{ControlPlane, Dns};
use crate::flags::Spoken;
use crate::host::NodeIdentity;
use crate::kubelet::{self, KubeletArgs};
use crate::lock::DataDirLock;
use crate::logging;
use crate::process::{self, Process, within};

/// How long the parts of a node may take to end. Kubernetes' own units give a component 30 s before they kill it.
const NODE_END_MAX: Duration = Duration::from_secs(15);

/// Runs something short on a runtime of one thread.
pub fn small(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    logging::init("warn")?;
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?.block_on(work)
}

fn private_dir(dir: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("data directory {}", dir.display()))
}

/// Pods need what only root may do; better said at once than by whatever fails first.
fn need_root(hint: &str) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("a node runs as root only{hint}");
    }
    Ok(())
}

/// Runs `kelson server` to its end.
pub fn server(args: ServerArgs) -> anyhow::Result<()> {
    logging::init(&args.log.log_level)?;
    if !args.disable_agent {
        agent::check(&args.node)?;
        need_root("; --disable-agent runs the control plane alone, as anybody")?;
    }
    let me = NodeIdentity::of(&args.node)?;
    private_dir(&args.data_dir)?;
    let _lock = DataDirLock::take(&args.data_dir)?;
    process::run(async |process| {
        let given = ranges::Given { cluster: args.cluster_cidr, service: args.service_cidr };
        let ranges = ranges::settle(&args.data_dir, given, !args.disable_agent).await?;
        let control_plane = ControlPlane::start(&args, ranges, &process.tasks).await?;
        let (result, node) = with_node(&args, &me, &control_plane, process).await;
        if let Some((node, dns)) = node {
            within(NODE_END_MAX, "node", node.shutdown()).await;
            dns.shutdown();
        }
        control_plane.shutdown().await;
        result
    })
}

/// Starts the server's own node where it has one, and waits for the end of the process; gives why it ended, and what is to
/// be shut down.
async fn with_node(
    args: &ServerArgs,
    me: &NodeIdentity,
    control_plane: &ControlPlane,
    process: &mut Process,
) -> (anyhow::Result<()>, Option<(agent::Node, Dns)>) {
    if args.disable_agent {
        return (process.ended().await, None);
    }
    let tasks = process.tasks.child("node");
    let start = async {
        let dns = control_plane.start_dns(me).await?;
        let node = agent::Node::start(&args.data_dir, &args.node, me, control_plane.join(), &tasks).await?;
        anyhow::Ok((node, dns))
    };
    let started = tokio::select! {
        started = start => started,
        ended = process.ended() => return (ended, None),
    };
    match started {
        Ok(node) => {
            let ended = process.ended().await;
            tracing::info!("stopping; containers stay");
            (ended, Some(node))
        }
        Err(e) => (Err(e), None),
    }
}

/// Runs `kelson agent` to its end.
pub fn agent(args: AgentArgs) -> anyhow::Result<()> {
    logging::init(&args.log.log_level)?;
    agent::check(&args.node)?;
    need_root("")?;
    let me = NodeIdentity::of(&args.node)?;
    private_dir(&args.data_dir)?;
    let _lock = DataDirLock::take(&args.data_dir)?;
    process::run(async |process| {
        let tasks = process.tasks.child("node");
        let start = async {
            let join = Join::find(&args, &me).await?;
            agent::Node::start(&args.data_dir, &args.node, &me, join, &tasks).await
        };
        let node = tokio::select! {
            node = start => node?,
            ended = process.ended() => return ended,
        };
        let ended = process.ended().await;
        tracing::info!("stopping; containers stay");
        within(NODE_END_MAX, "node", node.shutdown()).await;
        ended
    })
}

/// Runs `kelson kubelet` to its end.
pub fn kubelet(args: KubeletArgs, spoken: &Spoken) -> anyhow::Result<()> {
    logging::init(args.log_level())?;
    spoken.log();
    let plan = kubelet::Plan::of(&args)?;
    need_root("")?;
    private_dir(&args.root_dir)?;
    let _lock = DataDirLock::take(&args.root_dir)?;
    process::run(async |process| {
        let kubelet = tokio::select! {
            kubelet = plan.start() => kubelet?,
            ended = process.ended() => return ended,
        };
        let ended = process.ended().await;
        tracing::info!("stopping; containers stay");
        within(NODE_END_MAX, "kubelet", kubelet.shutdown()).await;
        ended
    })
}
