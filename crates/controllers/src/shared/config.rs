//! What the controllers are told at start: which of them run, address ranges, signing material, thresholds. Parsing the
//! command line is the binary's business; names are those of upstream's `--controllers` flag.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use jiff::tz::TimeZone;
use kelson_meta::gates::FeatureGates;
use kelson_metrics::Registry;
use kelson_pki::San;
use tokio::sync::watch;

use super::authorities::Authorities;
use super::manifest_set::ManifestSet;

/// The feature gates that change what controllers do.
pub const FEATURE_GATES: [&str; 2] = ["PodLevelResources", "StorageVersionMigrator"];

/// Signs a legacy service account token: namespace, service account, its UID, the secret's name.
pub type LegacyTokenSigner = dyn Fn(&str, &str, &str, &str) -> Result<String, String> + Send + Sync;

/// What belongs to the control plane. A certificate for it can still be approved by hand.
#[derive(Clone, Debug, Default)]
pub struct ReservedNames {
    /// What the API server is called in every cluster.
    pub control_plane: Vec<San>,
    /// Names and addresses of the machine that the API server runs on; its own node has them too.
    pub server: Vec<San>,
    /// The node on which the server itself runs, empty where there is none.
    pub server_node: String,
    /// Ranges of service addresses.
    pub service_cidrs: Vec<IpNet>,
}

/// How fast nodes are tainted, and from when on more slowly: the four flags of upstream's controller manager.
#[derive(Clone, Copy, Debug)]
pub struct EvictionRates {
    /// Nodes a second in a healthy zone (`--node-eviction-rate`).
    pub healthy: f64,
    /// Nodes a second in a large zone that is partially disrupted (`--secondary-node-eviction-rate`).
    pub disrupted: f64,
    /// The part of a zone's nodes from which on it is partially disrupted (`--unhealthy-zone-threshold`).
    pub unhealthy_threshold: f64,
    /// Up to this many nodes a zone is small, and nobody is evicted while it is partially disrupted
    /// (`--large-cluster-size-threshold`).
    pub large_zone: usize,
}

impl Default for EvictionRates {
    fn default() -> Self {
        Self { healthy: 0.1, disrupted: 0.01, unhealthy_threshold: 0.55, large_zone: 50 }
    }
}

/// What autoscalers go by where they do not say it: the `--horizontal-pod-autoscaler-…` flags of upstream's controller manager.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoscalerRules {
    /// Time between two looks at an autoscaler (`-sync-period`).
    pub period: Duration,
    /// How long a higher recommendation holds back a scale-down (`-downscale-stabilization`).
    pub down_window: Duration,
    /// CPU of a pod this young counts only while it is ready (`-cpu-initialization-period`).
    pub cpu_initialization: Duration,
    /// A pod that has not been ready this long after its start never was (`-initial-readiness-delay`).
    pub initial_readiness: Duration,
    /// Deviation from a target that changes nothing, as a part of it (`-tolerance`).
    pub tolerance: f64,
}

impl Default for AutoscalerRules {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(15),
            down_window: Duration::from_secs(300),
            cpu_initialization: Duration::from_secs(300),
            initial_readiness: Duration::from_secs(30),
            tolerance: 0.1,
        }
    }
}

/// How many endpoints go into one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceSizes {
    /// Of a service with a selector (`--max-endpoints-per-slice`).
    pub own: usize,
    /// Of what is mirrored, and how much of a subset is (`--mirroring-max-endpoints-per-subset`).
    pub mirrored: usize,
}

impl Default for SliceSizes {
    fn default() -> Self {
        Self { own: 100, mirrored: 1000 }
    }
}

/// How long endpoints and slices of a service wait after a change of a pod, so that several changes are one write; nothing: they do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchPeriods {
    /// Of Endpoints (`--endpoint-updates-batch-period`).
    pub endpoints: Duration,
    /// Of EndpointSlices (`--endpointslice-updates-batch-period`).
    pub slices: Duration,
    /// Of slices that mirror Endpoints, after a change of those (`--mirroring-endpointslice-updates-batch-period`).
    pub mirrored: Duration,
}

/// Settings of all controllers; [`Config::default`] gives upstream's defaults.
#[derive(Clone)]
pub struct Config {
    /// Names as of `--controllers`: `*` is all that are on by default, `foo` switches one on, `-foo` off. Those of
    /// [`CONTROLLERS`](crate::CONTROLLERS) alone: [`canonical_name`](crate::canonical_name) knows others.
    pub controllers: Vec<String>,
    /// Pod ranges to give each node a part of; empty: nodes get none from here.
    pub cluster_cidrs: Vec<IpNet>,
    /// Service range; a node's part never overlaps it.
    pub service_cidr: Option<IpNet>,
    /// Prefix length of a node's part, IPv4 (upstream: 24).
    pub node_cidr_mask_size_v4: u8,
    /// Prefix length of a node's part, IPv6 (upstream: 64).
    pub node_cidr_mask_size_v6: u8,
    /// What is signed with and handed out; a new value is taken up at once. Whether there is a bundle and a signer at all
    /// counts at start.
    pub authorities: watch::Receiver<Authorities>,
    /// What no kubelet's serving certificate is approved for.
    pub reserved_names: ReservedNames,
    /// The node on the machine of the control plane, which gets the label of that role; empty: none.
    pub control_plane_node: String,
    /// Longest lifetime signed (upstream: one year).
    pub signing_duration: Duration,
    /// Signs legacy service account tokens; `None`: such secrets are not filled in.
    pub legacy_tokens: Option<Arc<LegacyTokenSigner>>,
    /// How long a token that was made for an account may lie unused until it is not accepted any more, and then until it is
    /// deleted (`--legacy-service-account-token-clean-up-period`; upstream: one year).
    pub legacy_token_clean_up_period: Duration,
    /// Terminated pods kept before the oldest go (upstream: 12,500); 0: all are kept.
    pub terminated_pod_threshold: usize,
    /// How long a node may be silent before it counts as unreachable.
    pub node_monitor_grace: Duration,
    /// The same for a node that has never said anything (upstream: one minute).
    pub node_startup_grace: Duration,
    /// How fast nodes that are not ready lose their pods.
    pub eviction_rates: EvictionRates,
    /// What autoscalers go by.
    pub autoscaling: AutoscalerRules,
    /// How many endpoints go into one slice.
    pub slices: SliceSizes,
    /// How long they wait for more changes.
    pub batch_periods: BatchPeriods,
    /// By the name of a controller: how many keys it works on at once (`--concurrent-…-syncs`); of others, as many as suits them.
    /// Queues that are one by design, such as the binder's of volumes, stay that.
    pub concurrent_syncs: BTreeMap<&'static str, usize>,
    /// Manifests that `manifests-controller` keeps applied; a new value is applied at once.
    pub manifests: watch::Receiver<Arc<ManifestSet>>,
    /// Whether garbage is collected (`--enable-garbage-collector`).
    pub collects_garbage: bool,
    /// `--feature-gates`; those in [`FEATURE_GATES`](crate::FEATURE_GATES) are asked.
    pub feature_gates: Arc<FeatureGates>,
    /// Of schedules that name no time zone.
    pub time_zone: TimeZone,
    /// Where controllers count what they do: for one start of them, as a metric is registered only once.
    pub metrics: Registry,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            controllers: vec!["*".to_owned()],
            cluster_cidrs: Vec::new(),
            service_cidr: None,
            node_cidr_mask_size_v4: 24,
            node_cidr_mask_size_v6: 64,
            authorities: Authorities::default().fixed(),
            reserved_names: ReservedNames::default(),
            control_plane_node: String::new(),
            signing_duration: Duration::from_secs(365 * 24 * 3600),
            legacy_tokens: None,
            legacy_token_clean_up_period: Duration::from_secs(365 * 24 * 3600),
            terminated_pod_threshold: 12_500,
            node_monitor_grace: Duration::from_secs(50),
            node_startup_grace: Duration::from_secs(60),
            eviction_rates: EvictionRates::default(),
            autoscaling: AutoscalerRules::default(),
            slices: SliceSizes::default(),
            batch_periods: BatchPeriods::default(),
            concurrent_syncs: BTreeMap::new(),
            manifests: watch::channel(Arc::default()).1,
            collects_garbage: true,
            feature_gates: Arc::default(),
            time_zone: TimeZone::UTC,
            metrics: Registry::new(),
        }
    }
}

impl Config {
    /// Whether the controller `name` runs; the first mention counts, as upstream.
    pub fn enables(&self, name: &str, on_by_default: bool) -> bool {
        for entry in &self.controllers {
            if entry == name {
                return true;
            }
            if entry.strip_prefix('-') == Some(name) {
                return false;
            }
        }
        on_by_default && self.controllers.iter().any(|e| e == "*")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_run() {
        let c =
            |list: &[&str]| Config { controllers: list.iter().map(|s| (*s).to_owned()).collect(), ..Config::default() };
        let rows: &[(&[&str], &str, bool, bool)] = &[
            (&["*"], "a", true, true),
            (&["*"], "a", false, false),
            (&["*", "-a"], "a", true, false),
            (&["*", "a"], "a", false, true),
            (&["a"], "b", true, false),
            (&["a"], "a", true, true),
            (&[], "a", true, false),
        ];
        for (list, name, default, want) in rows {
            assert_eq!(c(list).enables(name, *default), *want, "{list:?} {name}");
        }
    }
}
