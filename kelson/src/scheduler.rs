//! `kelson scheduler`: the scheduler alone, with any API server and the flags of upstream's kube-scheduler.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use kelson_meta::{SystemClock, parse_duration};
use kelson_metrics::Registry;
use kelson_scheduler::configuration::{self, Configuration};
use kelson_scheduler::{Config, FEATURE_GATES, Scheduler};
use serde_json::Value;

use crate::args::feature_gates;
use crate::component::{Alone, ComponentArgs, client};
use crate::flags::Spoken;
use crate::process::{self, within};

const NAME: &str = "kube-scheduler";
const PORT: u16 = 10259;
/// The time for which the end waits for bindings in progress.
const END_MAX: Duration = Duration::from_secs(12);

#[derive(Args, Debug, Clone)]
pub struct SchedulerArgs {
    /// KubeSchedulerConfiguration file (kubescheduler.config.k8s.io/v1).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// File to write the complete configuration with defaults to; the command then exits.
    #[arg(long, value_name = "FILE")]
    pub write_config_to: Option<PathBuf>,
    /// Maximum time an unschedulable pod waits before it is tried again.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub pod_max_in_unschedulable_pods_duration: Duration,
    /// Feature gates to enable or disable, by upstream's names. Repeatable.
    #[arg(long, value_name = "NAME=BOOL,…")]
    pub feature_gates: Vec<String>,
    #[command(flatten)]
    pub component: ComponentArgs,
}

/// Reads a KubeSchedulerConfiguration in YAML or JSON; returns the document and the configuration.
pub fn read(file: &Path) -> anyhow::Result<(Value, Configuration)> {
    let what = || format!("--config {}", file.display());
    let text = std::fs::read(file).with_context(what)?;
    let (tree, duplicates) = kelson_codec::yaml::to_value(&text).with_context(what)?;
    if let Some(twice) = duplicates.first() {
        bail!("{}: duplicate field {twice:?}", what());
    }
    let configuration = configuration::read(&tree).with_context(what)?;
    Ok((tree, configuration))
}

/// Writes the complete configuration, with the kubeconfig in use.
fn write_config(file: &Path, said: &Value, kubeconfig: Option<&Path>) -> anyhow::Result<()> {
    let mut whole = configuration::completed(said);
    if let Some(kubeconfig) = kubeconfig {
        whole["clientConnection"]["kubeconfig"] = kubeconfig.display().to_string().into();
    }
    let text = kelson_codec::yaml::to_yaml(&whole);
    std::fs::write(file, text).with_context(|| format!("--write-config-to {}", file.display()))?;
    tracing::info!(file = %file.display(), "wrote the configuration");
    Ok(())
}

/// Runs the scheduler until the process ends.
pub fn run(args: SchedulerArgs, spoken: &Spoken) -> anyhow::Result<()> {
    crate::logging::init(args.component.log_level())?;
    spoken.log();
    let (said, read) = match &args.config {
        Some(file) => read(file)?,
        None => (Value::Null, Configuration::default()),
    };
    let Configuration { mut config, connection: asked, election } = read;
    let election = args.component.election.over(&election, NAME)?;
    let kubeconfig = &asked.kubeconfig;
    config.longest_wait = args.pod_max_in_unschedulable_pods_duration;
    config.gates = Arc::new(feature_gates(&args.feature_gates, |gate| FEATURE_GATES.contains(&gate))?);
    if let Some(file) = &args.write_config_to {
        return write_config(file, &said, args.component.kubeconfig.as_deref().or(kubeconfig.as_deref()));
    }
    let connection = args.component.connection(kubeconfig.as_deref())?;
    let ca_pem = connection.ca_pem.clone();
    let client = client(connection, "scheduler")?;
    let client = match args.component.rate_limit_over(args.config.as_ref().map(|_| &asked)) {
        Some(limit) => client.limited(&limit),
        None => client,
    };
    process::run(async |process| {
        let tasks = process.tasks.child("component");
        let alone = Alone { args: &args.component, name: NAME, port: PORT, client: client.clone(), ca_pem, election };
        let registry = Registry::of_component();
        alone.serve(&tasks, registry.clone()).await?;
        alone
            .lead(process, async |ending| {
                let clock = Arc::new(SystemClock);
                let config = Config { metrics: Some(registry), host: crate::host::name()?, ..config };
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
        let (said, meant) = read(&file).unwrap();
        assert_eq!(&*meant.config.profiles[0].name, "mine");
        let whole = dir.path().join("whole.yaml");
        write_config(&whole, &said, Some(Path::new("/k"))).unwrap();
        assert_eq!(&*read(&whole).unwrap().1.config.profiles[0].name, "mine");
        assert_eq!(read(&whole).unwrap().0["clientConnection"]["kubeconfig"], "/k");
        std::fs::write(&file, format!("{head}profilez: []\n")).unwrap();
        let error = format!("{:#}", read(&file).unwrap_err());
        assert!(error.contains("scheduler.yaml: profilez: unknown field"), "{error}");
    }
}
