//! `kelson scheduler`: the scheduler alone, against any API server, with the flags of upstream's kube-scheduler.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use kelson_meta::SystemClock;
use kelson_metrics::Registry;
use kelson_scheduler::configuration::{self, Configuration};
use kelson_scheduler::{Config, Scheduler};

use crate::component::{Alone, ComponentArgs, client};
use crate::flags::Spoken;
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

/// A KubeSchedulerConfiguration, in YAML or JSON.
pub fn read(file: &Path) -> anyhow::Result<Configuration> {
    let what = || format!("--config {}", file.display());
    let text = std::fs::read(file).with_context(what)?;
    let (tree, duplicates) = kelson_codec::yaml::to_value(&text).with_context(what)?;
    if let Some(twice) = duplicates.first() {
        bail!("{}: {twice:?} is there twice", what());
    }
    configuration::read(&tree).with_context(what)
}

/// Runs it until the process is to end.
pub fn run(args: SchedulerArgs, spoken: &Spoken) -> anyhow::Result<()> {
    crate::logging::init(args.component.log_level())?;
    spoken.log();
    let Configuration { config, kubeconfig, leader_elect } = match &args.config {
        Some(file) => read(file)?,
        None => Configuration { config: Config::default(), kubeconfig: None, leader_elect: None },
    };
    let connection = args.component.connection(kubeconfig.as_deref())?;
    let ca_pem = connection.ca_pem.clone();
    let client = client(connection, "scheduler")?;
    process::run(async |process| {
        let tasks = process.tasks.child("component");
        let elects = leader_elect.unwrap_or(true);
        let alone = Alone { args: &args.component, name: NAME, port: PORT, client: client.clone(), ca_pem, elects };
        let registry = Registry::of_component();
        alone.serve(&tasks, registry.clone()).await?;
        alone
            .lead(process, async |ending| {
                let clock = Arc::new(SystemClock);
                let config = Config { metrics: Some(registry), ..config };
                let scheduler = Scheduler::start(config, client, clock, None, &tasks);
                let ended = ending.come().await;
                within(END_MAX, "scheduler", scheduler.shutdown()).await;
                ended
            })
            .await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_its_faults() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("scheduler.yaml");
        let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
        std::fs::write(&file, format!("{head}profiles:\n- schedulerName: mine\n")).unwrap();
        assert_eq!(&*read(&file).unwrap().config.profiles[0].name, "mine");
        std::fs::write(&file, format!("{head}profilez: []\n")).unwrap();
        let error = format!("{:#}", read(&file).unwrap_err());
        assert!(error.contains("scheduler.yaml: profilez: unknown field"), "{error}");
    }
}
