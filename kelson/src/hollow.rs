//! `kelson hollow`: nodes without containers, to see what a control plane bears.
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use kelson_client::kubeconfig::Config as Kubeconfig;
use kelson_hollow::{Config, NODES_MAX};
use kelson_kubelet::config::file::duration;
use kelson_meta::{Quantity, SystemClock};

use crate::args::LogArgs;
use crate::component::client;
use crate::process::{self, within};

/// How long writes under way are waited for at the end.
const END_MAX: Duration = Duration::from_secs(12);
/// How often progress is told while nodes register.
const TELL: Duration = Duration::from_secs(5);

#[derive(Args, Debug, Clone)]
pub struct HollowArgs {
    /// How many nodes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nodes: usize,
    /// How to reach the API, as somebody who may make nodes and leases and change and delete pods.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: PathBuf,
    /// Names of nodes are this and a number.
    #[arg(long, value_name = "TEXT", default_value = "hollow-")]
    pub name_prefix: String,
    /// CPU of each node.
    #[arg(long, value_name = "QUANTITY", default_value = "8")]
    pub cpu: String,
    /// Memory of each node.
    #[arg(long, value_name = "QUANTITY", default_value = "32Gi")]
    pub memory: String,
    /// Pods that each node takes.
    #[arg(long, value_name = "N", default_value_t = 110)]
    pub max_pods: u32,
    /// Labels of all nodes.
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = crate::kubelet::label)]
    pub node_labels: Vec<(String, String)>,
    /// How long pods run that do not restart always.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    pub run_for: Duration,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Runs them until the process is to end; their objects stay.
pub fn run(args: &HollowArgs) -> anyhow::Result<()> {
    crate::logging::init(&args.log.log_level)?;
    if args.nodes == 0 || args.nodes > NODES_MAX {
        bail!("--nodes {}: from 1 to {NODES_MAX}", args.nodes);
    }
    for (flag, quantity) in [("--cpu", &args.cpu), ("--memory", &args.memory)] {
        if quantity.parse::<Quantity>().is_err() {
            bail!("{flag} {quantity:?} is no quantity");
        }
    }
    let config = Config {
        nodes: args.nodes,
        prefix: args.name_prefix.clone(),
        cpu: args.cpu.clone(),
        memory: args.memory.clone(),
        pods: args.max_pods,
        labels: args.node_labels.clone(),
        run_for: args.run_for,
    };
    let client = client(Kubeconfig::load(&args.kubeconfig)?, "hollow")?;
    process::run(async |process| {
        let running = kelson_hollow::start(config, &client, Arc::new(SystemClock), &process.tasks);
        let mut told = 0;
        let ended = loop {
            tokio::select! {
                ended = process.ended() => break ended,
                () = tokio::time::sleep(TELL), if told < args.nodes => {
                    told = running.registered();
                    tracing::info!(nodes = args.nodes, registered = told, "hollow nodes");
                }
            }
        };
        within(END_MAX, "hollow nodes", running.shutdown()).await;
        ended
    })
}
