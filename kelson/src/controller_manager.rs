//! `kelson controller-manager`: the controllers alone, with any API server and the flags of upstream's
//! kube-controller-manager.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use clap::{ArgAction, Args};
use ipnet::IpNet;
use jiff::tz::TimeZone;
use kelson_auth::token::{IssuerOptions, TokenIssuer};
use kelson_auth::user;
use kelson_client::Client;
use kelson_controllers::{ABSENT, CONTROLLERS, Config, Controllers, EvictionRates, FEATURE_GATES, canonical_name};
use kelson_meta::{SystemClock, parse_duration};
use kelson_metrics::Registry;
use kelson_pki::Key;
use kelson_scheduler::configuration::LeaderElection;

use crate::accounts::Account;
use crate::args::feature_gates;
use crate::component::{Alone, ComponentArgs, client};
use crate::controller_flags::{AutoscalerArgs, SigningArgs, SliceArgs, text};
use crate::flags::Spoken;
use crate::process::{self, within};
use crate::sync_flags::{BatchArgs, SyncArgs};

/// Controllers of `kelson server` that are off by default upstream. Bootstrap tokens are used, so cluster-info is signed and expired tokens are
/// removed. The load balancer runs while it is disabled, too: it takes back the addresses that it gave before.
pub const CONTROLLERS_ADDED: [&str; 4] =
    ["bootstrap-signer-controller", "manifests-controller", "service-lb-controller", "token-cleaner-controller"];

const NAME: &str = "kube-controller-manager";
const PORT: u16 = 10257;
/// The time for which the end waits for work in progress.
const END_MAX: Duration = Duration::from_secs(12);

#[derive(Args, Debug, Clone)]
pub struct ControllerManagerArgs {
    /// Controllers to run: '*' enables those that are on by default, 'foo' enables foo, '-foo' disables foo.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// Use a separate service account for each controller.
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1,
        require_equals = true, action = ArgAction::Set)]
    pub use_service_account_credentials: bool,
    /// Allocate a pod CIDR from --cluster-cidr to each node.
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1,
        require_equals = true, action = ArgAction::Set)]
    pub allocate_node_cidrs: bool,
    /// Pod address ranges.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub cluster_cidr: Vec<IpNet>,
    /// Service address range, which is excluded from the nodes' pod CIDRs.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub service_cluster_ip_range: Vec<IpNet>,
    /// Prefix length of a node's pod CIDR in single-stack clusters [default: 24 for IPv4, 64 for IPv6].
    #[arg(long, value_name = "BITS")]
    pub node_cidr_mask_size: Option<u8>,
    /// Prefix length of a node's IPv4 pod CIDR.
    #[arg(long, value_name = "BITS", default_value_t = 24)]
    pub node_cidr_mask_size_ipv4: u8,
    /// Prefix length of a node's IPv6 pod CIDR.
    #[arg(long, value_name = "BITS", default_value_t = 64)]
    pub node_cidr_mask_size_ipv6: u8,
    /// Name of the cluster; without effect, there is no cloud provider.
    #[arg(long, value_name = "NAME", default_value = "kubernetes")]
    pub cluster_name: String,
    #[command(flatten)]
    pub signing: SigningArgs,
    /// Maximum lifetime of signed certificates.
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = parse_duration)]
    pub cluster_signing_duration: Duration,
    /// CA bundle of the API server, published in service account secrets and in every namespace.
    #[arg(long, value_name = "FILE")]
    pub root_ca_file: Option<PathBuf>,
    /// Private key that signs service account tokens in secrets.
    #[arg(long, value_name = "FILE")]
    pub service_account_private_key_file: Option<PathBuf>,
    /// Time without use after which a service account token in a secret is invalidated, and again until it is deleted.
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = parse_duration)]
    pub legacy_service_account_token_clean_up_period: Duration,
    /// Number of terminated pods to keep before the oldest are deleted; 0 keeps all.
    #[arg(long, value_name = "N", default_value_t = 12_500)]
    pub terminated_pod_gc_threshold: usize,
    /// Time without a heartbeat before a node is marked unhealthy.
    #[arg(long, value_name = "DURATION", default_value = "50s", value_parser = parse_duration)]
    pub node_monitor_grace_period: Duration,
    /// Time without a status from a new node before it is marked unhealthy.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    pub node_startup_grace_period: Duration,
    /// Nodes per second whose pods are evicted in a healthy zone.
    #[arg(long, value_name = "RATE", default_value_t = 0.1)]
    pub node_eviction_rate: f64,
    /// Nodes per second whose pods are evicted in a large zone that is partially disrupted.
    #[arg(long, value_name = "RATE", default_value_t = 0.01)]
    pub secondary_node_eviction_rate: f64,
    /// Share of unhealthy nodes at which a zone is partially disrupted.
    #[arg(long, value_name = "PART", default_value_t = 0.55)]
    pub unhealthy_zone_threshold: f64,
    /// Maximum number of nodes of a small zone.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub large_cluster_size_threshold: usize,
    /// Enable the garbage collector, which deletes objects whose owners are gone.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
        require_equals = true, action = ArgAction::Set)]
    pub enable_garbage_collector: bool,
    #[command(flatten)]
    pub autoscaler: AutoscalerArgs,
    #[command(flatten)]
    pub slices: SliceArgs,
    #[command(flatten)]
    pub syncs: SyncArgs,
    #[command(flatten)]
    pub batches: BatchArgs,
    /// Feature gates to enable or disable, by upstream's names. Repeatable.
    #[arg(long, value_name = "NAME=BOOL,…")]
    pub feature_gates: Vec<String>,
    #[command(flatten)]
    pub component: ComponentArgs,
}

/// Returns the current names for `--controllers`. Controllers that do not exist here are logged, as upstream does for
/// those it does not start.
pub fn names(asked: &[String]) -> anyhow::Result<Vec<String>> {
    let mut out = Vec::new();
    for entry in asked.iter().map(|e| e.trim()).filter(|e| !e.is_empty()) {
        if entry == "*" {
            out.push(entry.to_owned());
            continue;
        }
        let (off, name) = entry.strip_prefix('-').map_or(("", entry), |name| ("-", name));
        let Some(canonical) = canonical_name(name) else { bail!("{name:?} is not in the list of known controllers") };
        if let Some((_, why)) = ABSENT.iter().find(|(absent, _)| *absent == canonical)
            && off.is_empty()
        {
            tracing::warn!(controller = canonical, why, "controller is not implemented; ignoring it");
        }
        out.push(format!("{off}{canonical}"));
    }
    Ok(out)
}

/// Returns the configuration of the flags.
fn config(args: &ControllerManagerArgs, metrics: Registry) -> anyhow::Result<Config> {
    let mut out = Config { controllers: names(&args.controllers)?, metrics, ..Config::default() };
    if args.allocate_node_cidrs {
        if args.cluster_cidr.is_empty() {
            bail!("--allocate-node-cidrs needs --cluster-cidr");
        }
        out.cluster_cidrs.clone_from(&args.cluster_cidr);
    }
    out.service_cidr = args.service_cluster_ip_range.first().copied();
    out.node_cidr_mask_size_v4 = args.node_cidr_mask_size_ipv4;
    out.node_cidr_mask_size_v6 = args.node_cidr_mask_size_ipv6;
    if let (Some(bits), [one]) = (args.node_cidr_mask_size, args.cluster_cidr.as_slice()) {
        let size = if one.addr().is_ipv4() { &mut out.node_cidr_mask_size_v4 } else { &mut out.node_cidr_mask_size_v6 };
        *size = bits;
    }
    let mut authorities = args.signing.authorities()?;
    out.signing_duration = args.cluster_signing_duration;
    if let Some(file) = &args.root_ca_file {
        authorities.root_ca = text("--root-ca-file", file)?;
    }
    out.authorities = authorities.fixed();
    if let Some(file) = &args.service_account_private_key_file {
        let key = Key::from_pem(&text("--service-account-private-key-file", file)?)?;
        let issuer = TokenIssuer::new(key, IssuerOptions::default());
        out.legacy_tokens = Some(Arc::new(move |namespace: &str, account: &str, uid: &str, secret: &str| {
            issuer.legacy_token(namespace, account, uid, secret).map_err(|e| e.message)
        }));
    }
    if args.legacy_service_account_token_clean_up_period.is_zero() {
        bail!("--legacy-service-account-token-clean-up-period must be greater than 0");
    }
    out.legacy_token_clean_up_period = args.legacy_service_account_token_clean_up_period;
    out.terminated_pod_threshold = args.terminated_pod_gc_threshold;
    out.node_monitor_grace = args.node_monitor_grace_period;
    out.node_startup_grace = args.node_startup_grace_period;
    out.eviction_rates = EvictionRates {
        healthy: args.node_eviction_rate,
        disrupted: args.secondary_node_eviction_rate,
        unhealthy_threshold: args.unhealthy_zone_threshold,
        large_zone: args.large_cluster_size_threshold,
    };
    out.collects_garbage = args.enable_garbage_collector;
    out.autoscaling = args.autoscaler.rules()?;
    out.slices = args.slices.sizes()?;
    out.concurrent_syncs = args.syncs.by_controller()?;
    out.batch_periods = args.batches.periods();
    out.feature_gates = Arc::new(feature_gates(&args.feature_gates, |gate| FEATURE_GATES.contains(&gate))?);
    out.time_zone = TimeZone::system();
    Ok(out)
}

/// Runs the controllers until the process ends.
pub fn run(args: ControllerManagerArgs, spoken: &Spoken) -> anyhow::Result<()> {
    crate::logging::init(args.component.log_level())?;
    spoken.log();
    let registry = Registry::of_component();
    let config = config(&args, registry.clone())?;
    let connection = args.component.connection(None)?;
    let limit = args.component.rate_limit();
    let election = args.component.election.over(&LeaderElection::default(), NAME)?;
    let limited = move |client: Client| limit.as_ref().map_or(client.clone(), |limit| client.limited(limit));
    let manager = limited(client(connection.clone(), "controller-manager")?);
    let own = args.use_service_account_credentials;
    process::run(async |process| {
        let tasks = process.tasks.child("component");
        let ca_pem = connection.ca_pem.clone();
        let alone = Alone { args: &args.component, name: NAME, port: PORT, client: manager.clone(), ca_pem, election };
        alone.serve(&tasks, registry).await?;
        let factory = move |who: &str| match user::split_service_account(who).filter(|_| own) {
            Some((namespace, name)) => {
                let account = Account::new(manager.clone(), &connection, namespace, name);
                limited(Client::new(Arc::new(account), "controller-manager"))
            }
            None => manager.clone(),
        };
        alone
            .lead(process, async |ending| {
                let running =
                    Controllers::start(config, Box::new(factory), Arc::new(SystemClock), tasks.child("controllers"));
                tracing::info!(known = CONTROLLERS.len(), "controllers are running");
                let ended = ending.come().await;
                within(END_MAX, "controllers", running.shutdown()).await;
                ended
            })
            .await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_controllers() {
        let names = |list: &[&str]| names(&list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            names(&["*", "-podgc", "job"]).unwrap(),
            ["*", "-pod-garbage-collector-controller", "job-controller"]
        );
        assert_eq!(names(&["*", "service-lb-controller"]).unwrap(), ["*", "service-lb-controller"]);
        let error = names(&["*", "jobs"]).unwrap_err().to_string();
        assert_eq!(error, "\"jobs\" is not in the list of known controllers");
    }
}
