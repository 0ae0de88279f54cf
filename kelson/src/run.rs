//! Process life: runtime, signals, start order, stop order.
use std::path::Path;

use anyhow::{Context as _, bail};
use kelson_net::ranges;
use tokio::signal::unix::{SignalKind, signal};

use crate::agent::{self, Join};
use crate::cli::{AgentArgs, ServerArgs};
use crate::control_plane::ControlPlane;
use crate::host::NodeIdentity;
use crate::kubelet::{self, KubeletArgs};
use crate::lock::DataDirLock;
use crate::logging;

/// Stack of a worker thread. Deep recursion is bounded everywhere, and idle threads should cost little.
const STACK_BYTES: usize = 2 << 20;

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK_BYTES)
        .thread_name("kelson")
        .build()
        .context("start the runtime")
}

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

/// `kelson server`.
pub fn server(args: ServerArgs) -> anyhow::Result<()> {
    logging::init(&args.log.log_level)?;
    if !args.disable_agent {
        agent::check(&args.node)?;
        need_root("; --disable-agent runs the control plane alone, as anybody")?;
    }
    let me = NodeIdentity::of(&args.node)?;
    private_dir(&args.data_dir)?;
    let _lock = DataDirLock::take(&args.data_dir)?;
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let mut ended = ended()?;
        let given = ranges::Given { cluster: args.cluster_cidr, service: args.service_cidr };
        let ranges = ranges::settle(&args.data_dir, given, !args.disable_agent).await?;
        let control_plane = ControlPlane::start(&args, ranges).await?;
        let node = if args.disable_agent {
            None
        } else {
            let dns = control_plane.start_dns(&me).await?;
            let join = control_plane.join();
            tokio::select! {
                node = agent::Node::start(&args.data_dir, &args.node, &me, join) => Some((node?, dns)),
                () = ended.recv() => { control_plane.shutdown().await; return Ok(()) }
            }
        };
        ended.recv().await;
        tracing::info!("stopping; containers stay");
        if let Some((node, dns)) = node {
            node.shutdown().await;
            dns.shutdown();
        }
        control_plane.shutdown().await;
        Ok(())
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    result
}

/// `kelson agent`.
pub fn agent(args: AgentArgs) -> anyhow::Result<()> {
    logging::init(&args.log.log_level)?;
    agent::check(&args.node)?;
    need_root("")?;
    let me = NodeIdentity::of(&args.node)?;
    private_dir(&args.data_dir)?;
    let _lock = DataDirLock::take(&args.data_dir)?;
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let mut ended = ended()?;
        let start = async {
            let join = Join::find(&args, &me).await?;
            agent::Node::start(&args.data_dir, &args.node, &me, join).await
        };
        let node = tokio::select! {
            node = start => node?,
            () = ended.recv() => return Ok(()),
        };
        ended.recv().await;
        tracing::info!("stopping; containers stay");
        node.shutdown().await;
        Ok(())
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    result
}

/// `kelson kubelet`.
pub fn kubelet(args: KubeletArgs) -> anyhow::Result<()> {
    logging::init(&args.log.log_level)?;
    let plan = kubelet::Plan::of(&args)?;
    need_root("")?;
    private_dir(&args.root_dir)?;
    let _lock = DataDirLock::take(&args.root_dir)?;
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let mut ended = ended()?;
        let kubelet = tokio::select! {
            kubelet = plan.start() => kubelet?,
            () = ended.recv() => return Ok(()),
        };
        ended.recv().await;
        tracing::info!("stopping; containers stay");
        kubelet.shutdown().await;
        Ok(())
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    result
}

/// SIGTERM and SIGINT.
struct Ended {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

fn ended() -> anyhow::Result<Ended> {
    let on = |kind| signal(kind).context("listen for signals");
    Ok(Ended { terminate: on(SignalKind::terminate())?, interrupt: on(SignalKind::interrupt())? })
}

impl Ended {
    async fn recv(&mut self) {
        tokio::select! { _ = self.terminate.recv() => {}, _ = self.interrupt.recv() => {} }
    }
}
