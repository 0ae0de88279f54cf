//! `kelson scheduler`: the scheduler alone, against any API server, with the flags of upstream's kube-scheduler.
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use kelson_meta::SystemClock;
use kelson_metrics::Registry;
use kelson_scheduler::Scheduler;

use crate::component::{Alone, ComponentArgs, client};
use crate::process::{self, within};

const NAME: &str = "kube-scheduler";
const PORT: u16 = 10259;
/// How long bindings under way are waited for at the end.
const END_MAX: Duration = Duration::from_secs(12);

#[derive(Args, Debug, Clone)]
pub struct SchedulerArgs {
    /// KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub component: ComponentArgs,
}

/// Runs it until the process is to end.
pub fn run(args: &SchedulerArgs) -> anyhow::Result<()> {
    crate::logging::init(args.component.log_level())?;
    let config = kelson_scheduler::Config::default();
    let connection = args.component.connection(None)?;
    let ca_pem = connection.ca_pem.clone();
    let client = client(connection, "scheduler")?;
    process::run(async |process| {
        let tasks = process.tasks.child("component");
        let alone = Alone { args: &args.component, name: NAME, port: PORT, client: client.clone(), ca_pem };
        let registry = Registry::of_component();
        alone.serve(&tasks, registry.clone()).await?;
        alone
            .lead(process, async |ending| {
                let clock = Arc::new(SystemClock);
                let config = kelson_scheduler::Config { metrics: Some(registry), ..config };
                let scheduler = Scheduler::start(config, client, clock, None, &tasks);
                let ended = ending.come().await;
                within(END_MAX, "scheduler", scheduler.shutdown()).await;
                ended
            })
            .await
    })
}
