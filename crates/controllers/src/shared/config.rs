//! The configuration of the controllers: which of them run, address ranges, CAs and keys, thresholds. The binary parses
//! the command line; controller names are those of upstream's `--controllers` flag.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use jiff::tz::TimeZone;
use kelson_meta::gates::FeatureGates;
use kelson_metrics::Registry;
use kelson_pki::San;
use tokio::sync::watch;

use super::address_pool::AddressPool;
use super::authorities::Authorities;
use super::manifest_set::ManifestSet;

/// The feature gates that change what controllers do.
pub const FEATURE_GATES: [&str; 2] = ["PodLevelResources", "StorageVersionMigrator"];

/// Signs a legacy service account token. The arguments are the namespace, the service account, its UID and the secret's
/// name.
pub type LegacyTokenSigner = dyn Fn(&str, &str, &str, &str) -> Result<String, String> + Send + Sync;

/// Names and addresses of the control plane, for which no kubelet serving certificate is approved automatically. A user
/// can still approve such a certificate.
#[derive(Clone, Debug, Default)]
pub struct ReservedNames {
    /// Names and addresses of the API server that are the same in every cluster.
    pub control_plane: Vec<San>,
    /// Names and addresses of the machine on which the API server runs. That machine's node may have them, too.
    pub server: Vec<San>,
    /// The name of the node on the API server's machine, or empty if there is no such node.
    pub server_node: String,
    /// Ranges of service addresses.
    pub service_cidrs: Vec<IpNet>,
}

/// Eviction rates by the health of a zone, as in the four flags of upstream's controller manager.
#[derive(Clone, Copy, Debug)]
pub struct EvictionRates {
    /// Nodes per second in a healthy zone (`--node-eviction-rate`).
    pub healthy: f64,
    /// Nodes per second in a large zone that is partially disrupted (`--secondary-node-eviction-rate`).
    pub disrupted: f64,
    /// The share of unhealthy nodes at which a zone is partially disrupted, from 0 to 1 (`--unhealthy-zone-threshold`).
    pub unhealthy_threshold: f64,
    /// The maximum number of nodes of a small zone (`--large-cluster-size-threshold`). A small zone has no evictions
    /// while it is partially disrupted.
    pub large_zone: usize,
}

impl Default for EvictionRates {
    fn default() -> Self {
        Self { healthy: 0.1, disrupted: 0.01, unhealthy_threshold: 0.55, large_zone: 50 }
    }
}

/// Defaults of HorizontalPodAutoscalers: the `--horizontal-pod-autoscaler-…` flags of upstream's controller manager.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoscalerRules {
    /// The interval between syncs of one autoscaler (`-sync-period`).
    pub period: Duration,
    /// The window whose highest recommendation limits a scale-down (`-downscale-stabilization`).
    pub down_window: Duration,
    /// The time after a pod's start in which its CPU usage counts only while the pod is ready
    /// (`-cpu-initialization-period`).
    pub cpu_initialization: Duration,
    /// The time after a pod's start in which an unready pod counts as never ready (`-initial-readiness-delay`).
    pub initial_readiness: Duration,
    /// The relative deviation from the target below which an autoscaler does not scale (`-tolerance`).
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

/// The maximum number of endpoints per EndpointSlice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceSizes {
    /// Endpoints per slice of a service with a selector (`--max-endpoints-per-slice`).
    pub own: usize,
    /// Endpoints per mirrored slice, and addresses mirrored per Endpoints subset
    /// (`--mirroring-max-endpoints-per-subset`).
    pub mirrored: usize,
}

impl Default for SliceSizes {
    fn default() -> Self {
        Self { own: 100, mirrored: 1000 }
    }
}

/// The time for which changes are collected before the endpoints or slices of a service are written, so that several changes
/// become one write. Zero disables the delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchPeriods {
    /// Delay of Endpoints after a change of a pod (`--endpoint-updates-batch-period`).
    pub endpoints: Duration,
    /// Delay of EndpointSlices after a change of a pod (`--endpointslice-updates-batch-period`).
    pub slices: Duration,
    /// Delay of mirrored slices after a change of their Endpoints (`--mirroring-endpointslice-updates-batch-period`).
    pub mirrored: Duration,
}

/// The settings of all controllers. [`Config::default`] has the defaults of upstream's kube-controller-manager.
///
/// A caller changes single fields of the default and passes the value to
/// [`Controllers::start`](crate::Controllers::start). Fields that a controller reads only at its start are fixed from
/// then on; only the CAs can be rotated later. Each start needs its own
/// [`metrics`](Self::metrics) registry.
#[derive(Clone)]
pub struct Config {
    /// Controllers to run, as in `--controllers`: `*` enables those that are on by default, `foo` enables foo, `-foo`
    /// disables foo. Only names in [`CONTROLLERS`](crate::CONTROLLERS) are valid;
    /// [`canonical_name`](crate::canonical_name) translates older names.
    pub controllers: Vec<String>,
    /// Pod address ranges from which each node gets a pod CIDR. If empty, the node IPAM controller does not run.
    pub cluster_cidrs: Vec<IpNet>,
    /// The service address range, which no pod CIDR overlaps.
    pub service_cidr: Option<IpNet>,
    /// Prefix length of a node's IPv4 pod CIDR (upstream: 24).
    pub node_cidr_mask_size_v4: u8,
    /// Prefix length of a node's IPv6 pod CIDR (upstream: 64).
    pub node_cidr_mask_size_v6: u8,
    /// The CAs to sign with and to publish. A new value applies at once, but whether there is a bundle and a signer at
    /// all is decided at start.
    pub authorities: watch::Receiver<Authorities>,
    /// Names for which no kubelet serving certificate is approved automatically.
    pub reserved_names: ReservedNames,
    /// The node on the machine of the control plane, which gets the label of that role; empty: none.
    pub control_plane_node: String,
    /// The maximum lifetime of signed certificates (upstream: one year).
    pub signing_duration: Duration,
    /// Signs legacy service account tokens. With `None`, token secrets get no token.
    pub legacy_tokens: Option<Arc<LegacyTokenSigner>>,
    /// The time without use after which an auto-generated legacy token is invalidated, and again until it is deleted
    /// (`--legacy-service-account-token-clean-up-period`; upstream: one year).
    pub legacy_token_clean_up_period: Duration,
    /// The number of terminated pods to keep before the oldest are deleted (upstream: 12,500). 0 keeps all.
    pub terminated_pod_threshold: usize,
    /// The time without a heartbeat after which a node is unreachable.
    pub node_monitor_grace: Duration,
    /// The same for a node that never posted a status (upstream: one minute).
    pub node_startup_grace: Duration,
    /// Rates at which pods of nodes that are not ready are evicted.
    pub eviction_rates: EvictionRates,
    /// Defaults of HorizontalPodAutoscalers.
    pub autoscaling: AutoscalerRules,
    /// The maximum number of endpoints per EndpointSlice.
    pub slices: SliceSizes,
    /// Delays before endpoints and slices are written.
    pub batch_periods: BatchPeriods,
    /// Concurrent syncs by controller name (`--concurrent-…-syncs`). A controller that is not in the map uses its own
    /// default. Queues with a single worker by design, such as the volume binder's, ignore this.
    pub concurrent_syncs: BTreeMap<&'static str, usize>,
    /// Whether `service-lb-controller` gives addresses to services. Otherwise it only takes back what it gave before.
    pub service_load_balancer: bool,
    /// Addresses for services of type LoadBalancer, which one node each announces; empty gives them the addresses of nodes.
    pub load_balancer_pools: Vec<AddressPool>,
    /// Manifests that `manifests-controller` keeps applied; a new value is applied at once.
    pub manifests: watch::Receiver<Arc<ManifestSet>>,
    /// Whether the garbage collector runs (`--enable-garbage-collector`).
    pub collects_garbage: bool,
    /// The feature gates (`--feature-gates`). Those in [`FEATURE_GATES`](crate::FEATURE_GATES) have an effect.
    pub feature_gates: Arc<FeatureGates>,
    /// The time zone of cron schedules that name none.
    pub time_zone: TimeZone,
    /// The registry for the controllers' metrics. Use a new one for each start, since a metric can be registered only
    /// once.
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
            service_load_balancer: true,
            load_balancer_pools: Vec::new(),
            manifests: watch::channel(Arc::default()).1,
            collects_garbage: true,
            feature_gates: Arc::default(),
            time_zone: TimeZone::UTC,
            metrics: Registry::new(),
        }
    }
}

impl Config {
    /// Whether the controller `name` runs. The first entry that names it counts, as upstream.
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
