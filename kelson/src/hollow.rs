//! `kelson hollow`: nodes without containers, to load-test a control plane, or with the behaviour that `Stage` objects
//! define. By the name `kwok` or `kwok-controller` it replaces kwok's controller.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{ArgAction, Args};
use ipnet::IpNet;
use kelson_client::Client;
use kelson_client::kubeconfig::Config as Kubeconfig;
use kelson_client::remote::choose_server;
use kelson_client::servers::Servers;
use kelson_hollow::staged::{Manage, Settings};
use kelson_hollow::{Config, NODES_MAX};
use kelson_meta::{Clock, LabelSelector, Quantity, SystemClock, parse_duration};
use kelson_stages::{Document, Settings as Options};

use crate::args::LogArgs;
use crate::component::client;
use crate::process::{self, Process, within};

/// The time for which the end waits for writes in progress.
const END_MAX: Duration = Duration::from_secs(12);
/// The interval of progress messages while nodes register.
const REPORT: Duration = Duration::from_secs(5);
/// The kind that `--enable-crds` reads from the API.
const STAGE: &str = "Stage";

#[derive(Args, Debug, Clone)]
pub struct HollowArgs {
    /// Number of nodes [default: 1; 0 with stages].
    #[arg(long, value_name = "N")]
    pub nodes: Option<usize>,
    /// Kubeconfig of a user who may create nodes and leases, and update and delete pods.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: PathBuf,
    /// URLs of the API servers, of which one that answers is used [default: the one in the kubeconfig]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub server: Vec<String>,
    /// Prefix of node names; a number follows.
    #[arg(long, value_name = "TEXT", default_value = "hollow-")]
    pub name_prefix: String,
    /// CPU of each node.
    #[arg(long, value_name = "QUANTITY", default_value = "8")]
    pub cpu: String,
    /// Memory of each node.
    #[arg(long, value_name = "QUANTITY", default_value = "32Gi")]
    pub memory: String,
    /// Pod capacity of each node.
    #[arg(long, value_name = "N", default_value_t = 110)]
    pub max_pods: u32,
    /// Labels of all nodes.
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = crate::args::pair)]
    pub node_labels: Vec<(String, String)>,
    /// Run time of pods whose restart policy is not Always.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub run_for: Duration,
    #[command(flatten)]
    pub stages: StageArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Flags of kwok's controller. If any of them enables stages, they define how nodes and pods behave.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Stages (kwok.x-k8s.io/v1alpha1)")]
pub struct StageArgs {
    /// Files with Stage objects and a KwokConfiguration; flags take precedence over it. Repeatable.
    #[arg(long, short = 'c', value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// kwok kinds to read from the API instead of files; only `Stage` is supported.
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    pub enable_crds: Vec<String>,
    /// Manage all nodes.
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    pub manage_all_nodes: Option<bool>,
    /// Manage the node with this name.
    #[arg(long, value_name = "NAME")]
    pub manage_single_node: Option<String>,
    /// Manage nodes whose annotations match.
    #[arg(long, value_name = "SELECTOR")]
    pub manage_nodes_with_annotation_selector: Option<String>,
    /// Manage nodes whose labels match.
    #[arg(long, value_name = "SELECTOR")]
    pub manage_nodes_with_label_selector: Option<String>,
    /// Pod address range of nodes without a pod CIDR [default: 100.64.0.0/10].
    #[arg(long, value_name = "CIDR")]
    pub cidr: Option<String>,
    /// Address of nodes whose status has none.
    #[arg(long, value_name = "IP")]
    pub node_ip: Option<String>,
    /// Host name of nodes.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Kubelet port of nodes.
    #[arg(long, value_name = "PORT")]
    pub node_port: Option<u16>,
    /// Duration of node leases in seconds; 0 disables node leases [default: 40].
    #[arg(long, value_name = "SECONDS")]
    pub node_lease_duration_seconds: Option<u32>,
    /// kwok's; without effect.
    #[arg(long, hide = true)]
    pub server_address: Option<String>,
    #[arg(long, hide = true)]
    pub tls_cert_file: Option<PathBuf>,
    #[arg(long, hide = true)]
    pub tls_private_key_file: Option<PathBuf>,
    #[arg(long, hide = true)]
    pub tracing_endpoint: Option<String>,
    #[arg(long, hide = true)]
    pub tracing_sampling_rate_per_million: Option<i32>,
    /// kwok's way to ask for more in the log.
    #[arg(long, short = 'v', hide = true, allow_hyphen_values = true)]
    pub v: Option<String>,
}

/// Translates a command line with kwok's name to the words of `kelson hollow`.
pub fn named(words: &[OsString]) -> Option<Vec<OsString>> {
    let (program, rest) = words.split_first()?;
    let name = Path::new(program).file_name().and_then(OsStr::to_str)?;
    let name = name.strip_suffix(".exe").unwrap_or(name);
    if !matches!(name, "kwok" | "kwok-controller") {
        return None;
    }
    // kwokctl asks every binary for its version first.
    let asked = rest.first().is_some_and(|first| first == "--version" || first == "version");
    let rest = if asked { vec!["version".into()] } else { [&["hollow".into()], rest].concat() };
    Some([vec![program.clone()], rest].concat())
}

impl StageArgs {
    /// Reads the files.
    fn files(&self) -> anyhow::Result<(Vec<Document>, Options)> {
        let (mut stages, mut options) = (Vec::new(), Options::default());
        for file in &self.config {
            let what = || format!("--config {}", file.display());
            let text = std::fs::read_to_string(file).with_context(what)?;
            let read = kelson_stages::read(&text).with_context(what)?;
            stages.extend(read.stages);
            options = read.settings.unwrap_or(options);
        }
        Ok((stages, options))
    }

    /// Returns the settings for stages; flags take precedence over files. `None` when stages are not enabled.
    pub fn settings(&self) -> anyhow::Result<Option<Settings>> {
        let (stages, options) = self.files()?;
        let kinds = if self.enable_crds.is_empty() {
            options.enable_crds.clone().unwrap_or_default()
        } else {
            self.enable_crds.clone()
        };
        let follow_stages = kinds.iter().any(|k| k == STAGE);
        if stages.is_empty() && !follow_stages {
            return if self.chosen(&options).is_some() {
                bail!("no stages: --config or --enable-crds={STAGE} is needed")
            } else {
                Ok(None)
            };
        }
        if !stages.is_empty() && follow_stages {
            bail!("stages cannot come from both files and the API: give either --config or --enable-crds={STAGE}");
        }
        let given = |flag: &Option<String>, option: Option<String>| flag.clone().or(option).filter(|t| !t.is_empty());
        let usual = Settings::default();
        let cidr: IpNet = match given(&self.cidr, options.cidr.clone()) {
            Some(text) => text.parse().with_context(|| format!("--cidr {text}"))?,
            None => usual.cidr,
        };
        let holder = format!("{}_{:032x}", crate::host::name()?, rand::random::<u128>());
        Ok(Some(Settings {
            manage: self.chosen(&options).unwrap_or(Ok(Manage::All))?,
            stages,
            follow_stages,
            lease_seconds: self
                .node_lease_duration_seconds
                .or(options.node_lease_duration_seconds)
                .unwrap_or(usual.lease_seconds),
            holder,
            cidr: cidr.trunc(),
            node_ip: given(&self.node_ip, options.node_ip.clone()).unwrap_or_default(),
            node_name: given(&self.node_name, options.node_name.clone()).unwrap_or_default(),
            node_port: self.node_port.or(options.node_port).unwrap_or_default(),
        }))
    }

    /// Returns which nodes to manage.
    fn chosen(&self, options: &Options) -> Option<anyhow::Result<Manage>> {
        let given =
            |flag: &Option<String>, option: &Option<String>| flag.clone().or(option.clone()).filter(|t| !t.is_empty());
        let one = given(&self.manage_single_node, &options.manage_single_node);
        let labels = given(&self.manage_nodes_with_label_selector, &options.manage_nodes_with_label_selector);
        let annotations =
            given(&self.manage_nodes_with_annotation_selector, &options.manage_nodes_with_annotation_selector);
        let all = self.manage_all_nodes.or(options.manage_all_nodes).unwrap_or(false);
        let selected = labels.is_some() || annotations.is_some();
        match (all, one, selected) {
            (false, None, false) => None,
            (true, None, false) => Some(Ok(Manage::All)),
            (false, Some(name), false) => Some(Ok(Manage::One(name))),
            (false, None, true) => {
                let annotations = LabelSelector::parse(&annotations.unwrap_or_default());
                let annotations = annotations.context("--manage-nodes-with-annotation-selector");
                Some(
                    annotations.map(|annotations| Manage::Selected { labels: labels.unwrap_or_default(), annotations }),
                )
            }
            _ => Some(Err(anyhow::anyhow!(
                "--manage-all-nodes, --manage-single-node and node selectors are mutually exclusive"
            ))),
        }
    }
}

/// Runs the nodes until the process ends; their objects are not deleted.
pub fn run(args: &HollowArgs) -> anyhow::Result<()> {
    crate::logging::init(&args.log.log_level)?;
    let mut connection = Kubeconfig::load(&args.kubeconfig)?;
    if !args.server.is_empty() {
        let servers = Servers::new(&args.server, &args.name_prefix).context("--server")?;
        connection.servers = Some(Arc::new(servers));
    }
    let client = client(connection.clone(), "hollow")?;
    if let Some(settings) = args.stages.settings()? {
        if args.nodes.is_some() {
            bail!("--nodes: where stages say how nodes live, nodes are those that users make");
        }
        return drive(settings, &client, &connection);
    }
    let nodes = args.nodes.unwrap_or(1);
    if nodes == 0 || nodes > NODES_MAX {
        bail!("--nodes {nodes}: from 1 to {NODES_MAX}");
    }
    for (flag, quantity) in [("--cpu", &args.cpu), ("--memory", &args.memory)] {
        if quantity.parse::<Quantity>().is_err() {
            bail!("{flag} must be a quantity, got {quantity:?}");
        }
    }
    let config = Config {
        nodes,
        prefix: args.name_prefix.clone(),
        cpu: args.cpu.clone(),
        memory: args.memory.clone(),
        pods: args.max_pods,
        labels: args.node_labels.clone(),
        run_for: args.run_for,
    };
    process::run(async |process| {
        choose(&connection, process);
        let running = kelson_hollow::start(config, &client, Arc::new(SystemClock), &process.tasks);
        let mut reported = 0;
        let ended = loop {
            tokio::select! {
                ended = process.ended() => break ended,
                () = tokio::time::sleep(REPORT), if reported < nodes => {
                    reported = running.registered();
                    tracing::info!(nodes, registered = reported, "registering hollow nodes");
                }
            }
        };
        within(END_MAX, "hollow nodes", running.shutdown()).await;
        ended
    })
}

/// Uses another server when one does not answer, if there are several.
fn choose(connection: &Kubeconfig, process: &Process) {
    let connection = connection.clone();
    process.tasks.supervise("api-server-choice", move || choose_server(connection.clone()));
}

/// Applies stages until the process ends.
fn drive(settings: Settings, client: &Client, connection: &Kubeconfig) -> anyhow::Result<()> {
    process::run(async |process| {
        choose(connection, process);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let driven = kelson_hollow::staged::start(settings, client, &clock, &process.tasks)?;
        let ended = process.ended().await;
        within(END_MAX, "stages", driven.shutdown()).await;
        ended
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGES: &str = "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: Stage\nmetadata: {name: a}\nspec: {resourceRef: {kind: Pod}, selector: {}}\n";

    fn check(text: &str, change: impl FnOnce(&mut StageArgs)) -> Result<Option<Settings>, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kwok.yaml");
        std::fs::write(&file, text).unwrap();
        let mut args = StageArgs { config: vec![file], ..StageArgs::default() };
        change(&mut args);
        args.settings().map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn stages_by_files_and_flags() {
        assert!(check("", |_| {}).unwrap().is_none());
        let settings = check(STAGES, |a| a.node_ip = Some("10.0.0.1".to_owned())).unwrap().unwrap();
        assert_eq!((settings.stages.len(), &*settings.node_ip, settings.lease_seconds), (1, "10.0.0.1", 40));
        assert!(matches!(settings.manage, Manage::All));
        let options = format!(
            "{STAGES}---\nkind: KwokConfiguration\noptions: {{manageSingleNode: one, nodeLeaseDurationSeconds: 0, cidr: 10.0.0.1/24}}\n"
        );
        let settings = check(&options, |_| {}).unwrap().unwrap();
        assert!(matches!(&settings.manage, Manage::One(n) if n == "one"));
        assert_eq!((settings.lease_seconds, settings.cidr.to_string()), (0, "10.0.0.0/24".to_owned()));
        // Flags take precedence over files.
        let settings = check(&options, |a| a.node_lease_duration_seconds = Some(7)).unwrap().unwrap();
        assert_eq!(settings.lease_seconds, 7);
        let settings = check("", |a| a.enable_crds = vec!["Logs".to_owned(), "Stage".to_owned()]).unwrap().unwrap();
        assert!(settings.follow_stages);
        for (text, change, wrong) in [
            ("", (|a| a.manage_all_nodes = Some(true)) as fn(&mut StageArgs), "no stages"),
            (
                &options,
                |a| a.manage_all_nodes = Some(true),
                "--manage-all-nodes, --manage-single-node and node selectors",
            ),
            (STAGES, |a| a.enable_crds = vec!["Stage".to_owned()], "stages cannot come from both"),
            (STAGES, |a| a.manage_nodes_with_annotation_selector = Some("a b".to_owned()), "--manage-nodes-with"),
            (STAGES, |a| a.cidr = Some("x".to_owned()), "--cidr x"),
        ] {
            let error = check(text, change).unwrap_err();
            assert!(error.starts_with(wrong), "{error}");
        }
    }

    #[test]
    fn by_its_other_names() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(
            named(&words("/x/kwok-controller --manage-all-nodes=true")),
            Some(words("/x/kwok-controller hollow --manage-all-nodes=true"))
        );
        assert_eq!(named(&words("kwok --version")), Some(words("kwok version")));
        assert_eq!(named(&words("/x/kelson hollow")), None);
    }
}
