//! The kubelet's typed configuration; each field names the upstream flag or `KubeletConfiguration` field it stands for.
pub mod cgroups;
pub mod ciphers;
pub mod cpuset;
pub mod file;
pub mod placement;
pub mod process;
pub mod shutdown;
pub mod thresholds;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kelson_bootstrap::Demands;
use kelson_credentials::PullOptions;
use kelson_credentials::plugin::PROCESSES_MAX;
use kelson_meta::Quantity;
use kelson_traces::TracingConfiguration;

use cgroups::{CgroupConfig, MemoryConfig, SwapBehavior};
use placement::PlacementConfig;
use process::ProcessConfig;
use shutdown::ShutdownPeriod;
use thresholds::EvictionConfig;

/// IDs of a pod with users of its own, unless it is said otherwise; what is said is a multiple of it.
pub const IDS_PER_POD: u32 = 65_536;

/// A taint to register with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterTaint {
    /// The taint's key.
    pub key: String,
    /// Value; may be empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// Where static pods are published, and how they are asked for.
#[derive(Clone, PartialEq, Eq)]
pub struct PublishedPods {
    /// Where they are (`staticPodURL`): one pod, or a list.
    pub url: String,
    /// `staticPodURLHeader`: what is sent along, which may be secret.
    pub headers: Vec<(String, String)>,
    /// `httpCheckFrequency`: how often it is looked at.
    pub every: Duration,
}

impl std::fmt::Debug for PublishedPods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("PublishedPods").field("url", &self.url).field("headers", &names).finish_non_exhaustive()
    }
}

/// Where the credential provider plugins are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialProviderFiles {
    /// `--image-credential-provider-config`: a `CredentialProviderConfig` file, or a directory of such.
    pub config: PathBuf,
    /// `--image-credential-provider-bin-dir`: the executables.
    pub bin_dir: PathBuf,
}

/// What is asked of the API server about callers, and how long its answers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReviewRules {
    /// `authentication.webhook.enabled`: whether it is asked who the bearer of a token is; if not, none is accepted.
    pub takes_tokens: bool,
    /// `authentication.webhook.cacheTTL`: how long a good token is believed.
    pub token_for: Duration,
    /// `authorization.webhook.cacheAuthorizedTTL`: how long a yes holds.
    pub allowed_for: Duration,
    /// `authorization.webhook.cacheUnauthorizedTTL`: how long a no does.
    pub denied_for: Duration,
}

impl Default for ReviewRules {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { takes_tokens: true, token_for: seconds(120), allowed_for: seconds(300), denied_for: seconds(30) }
    }
}

impl ReviewRules {
    /// How long a decision holds.
    pub fn decision(&self, allowed: bool) -> Duration {
        if allowed { self.allowed_for } else { self.denied_for }
    }
}

/// How the kubelet's own server proves itself and whom it lets in.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// `--address`, `--port`; port 0 takes any free one, which the node's status then reports. `None`: no server.
    pub listen: Option<SocketAddr>,
    /// `healthzBindAddress` and `healthzPort`: where this machine is told, in plain HTTP, that the kubelet lives; `None`: nowhere.
    pub healthz: Option<SocketAddr>,
    /// `--client-ca-file`: PEM of the authority of client certificates; empty: none is accepted.
    pub client_ca_pem: Vec<u8>,
    /// `--client-ca-file` itself, which is read again when it changes; `None`: the authority stays what it is.
    pub client_ca_file: Option<PathBuf>,
    /// What is asked of a serving certificate from the cluster beyond being good; `None`: nothing.
    pub serving_demands: Option<Demands>,
    /// `--tls-cert-file` and `--tls-private-key-file`.
    pub tls_files: Option<(PathBuf, PathBuf)>,
    /// `serverTLSBootstrap`: without files, the serving certificate is requested from the cluster, and until it is issued a
    /// self-signed one serves. Otherwise the self-signed one serves for good, which most API servers do not verify.
    pub tls_bootstrap: bool,
    /// `enableDebuggingHandlers`: whether commands, streams and logs are served.
    pub debugging_handlers: bool,
    /// `enableSystemLogHandler`: whether files of the node's logs are served.
    pub system_logs: bool,
    /// `enableSystemLogQuery`: whether the logs of its services may be asked for.
    pub system_log_query: bool,
    /// What is asked of the API server about callers, and how long its answers hold.
    pub reviews: ReviewRules,
    /// `tlsMinVersion` is `VersionTLS13`: nothing older is spoken.
    pub tls13_only: bool,
    /// `tlsCipherSuites`, by Go's names, each known: what is offered of TLS 1.2; empty: all that is there.
    pub tls_suites: Vec<String>,
    /// `--streaming-connection-idle-timeout`: an exec, attach or port-forward that carries nothing for so long is ended.
    pub streaming_idle: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: None,
            healthz: None,
            client_ca_pem: Vec::new(),
            client_ca_file: None,
            serving_demands: None,
            tls_files: None,
            tls_bootstrap: false,
            debugging_handlers: true,
            system_logs: true,
            system_log_query: false,
            reviews: ReviewRules::default(),
            tls13_only: false,
            tls_suites: Vec::new(),
            streaming_idle: Duration::from_secs(4 * 60 * 60),
        }
    }
}

/// What the kubelet runs with.
#[derive(Clone, Debug)]
pub struct Config {
    /// `--hostname-override`, else the host's name: the Node object's name.
    pub node_name: String,
    /// `--root-dir`: pods' volumes and the kubelet's state.
    pub root_dir: PathBuf,
    /// `podLogsDir`: container log files.
    pub pod_logs_dir: PathBuf,
    /// Where a link to each container's log is made; `None`: nowhere.
    pub container_logs_dir: Option<PathBuf>,
    /// `--cert-dir`.
    pub cert_dir: PathBuf,
    /// `--node-ip`: addresses the node reports; the first is what host-network pods and `status.hostIP` show.
    pub node_ips: Vec<IpAddr>,
    /// `imageServiceEndpoint`: whom images are asked of; `None`: the runtime that runs them.
    pub image_endpoint: Option<String>,
    /// `--container-runtime-endpoint`, to hear the runtime's events beside CRI. Empty: only CRI is used.
    pub runtime_endpoint: String,
    /// `--cluster-dns`.
    pub cluster_dns: Vec<IpAddr>,
    /// `--cluster-domain`.
    pub cluster_domain: String,
    /// `--resolv-conf`.
    pub resolv_conf: PathBuf,
    /// `--node-labels`.
    pub node_labels: BTreeMap<String, String>,
    /// `--register-with-taints`.
    pub register_with_taints: Vec<RegisterTaint>,
    /// `--max-pods`.
    pub max_pods: u32,
    /// `podsPerCore`: takes no more than so many for each processor; `None`: `max_pods` alone counts.
    pub pods_per_core: Option<u32>,
    /// `--pod-max-pids`; `None`: no limit.
    pub pod_max_pids: Option<u64>,
    /// Pods' cgroups; `None`: pods have none of their own (`--cgroups-per-qos=false`).
    pub cgroups: Option<CgroupConfig>,
    /// How memory is shared out beyond the limits of pods.
    pub memory: MemoryConfig,
    /// `userNamespaces.idsPerPod`: as many IDs has each pod with users of its own.
    pub ids_per_pod: u32,
    /// `--system-reserved`, by resource.
    pub system_reserved: BTreeMap<String, Quantity>,
    /// `--kube-reserved`, by resource.
    pub kube_reserved: BTreeMap<String, Quantity>,
    /// Which processors and parts of memory containers get to themselves.
    pub placement: PlacementConfig,
    /// `serializeImagePulls`, `maxParallelImagePulls`, `registryPullQPS`, `registryBurst`, the progress deadline, and
    /// `imagePullCredentialsVerificationPolicy` with its list.
    pub image_pulls: PullOptions,
    /// `--image-credential-provider-config` and `--image-credential-provider-bin-dir`; `None`: no plugins.
    pub image_credential_provider: Option<CredentialProviderFiles>,
    /// Processes of credential provider plugins at once (`--image-credential-provider-max-processes`).
    pub credential_processes_max: usize,
    /// `providerID`: how the machine is known to who provides it; empty: it is not said.
    pub provider_id: String,
    /// `nodeStatusMaxImages`: as many images the node lists, the largest first; `None`: all.
    pub status_images_max: Option<usize>,
    /// `localStorageCapacityIsolation`: whether what pods take of the node's disk is counted and bounded.
    pub isolates_storage: bool,
    /// `cpuCFSQuota`: whether limits of processors hold.
    pub cpu_quota: bool,
    /// The kubelet as a process.
    pub process: ProcessConfig,
    /// `tracing`: the collector of spans, and how much is recorded; `None`: nobody traces.
    pub tracing: Option<TracingConfiguration>,
    /// `--register-node`: whether the Node object is made; if not, it must be made by other means.
    pub register_node: bool,
    /// `--node-status-update-frequency`: how often the node's status is looked at.
    pub node_status_update: Duration,
    /// `nodeStatusReportFrequency`: how often an unchanged status is written.
    pub node_status_report: Duration,
    /// `nodeLeaseDurationSeconds`; renewed at a quarter of it.
    pub lease_duration: Duration,
    /// `--container-log-max-size` in whole bytes.
    pub log_max_bytes: u64,
    /// `--container-log-max-files`.
    pub log_max_files: u32,
    /// `--image-gc-high-threshold`, percent; 100 turns image collection off.
    pub image_gc_high_percent: u8,
    /// `--image-gc-low-threshold`, a percentage of the disk.
    pub image_gc_low_percent: u8,
    /// `imageMinimumGCAge`: images unused for less are never removed.
    pub image_gc_age_min: Duration,
    /// `imageMaximumGCAge`: images unused for longer are removed however full the disk is; `None`: they are not.
    pub image_gc_age_max: Option<Duration>,
    /// `volumeStatsAggPeriod`: how often it is measured how full volumes are.
    pub volume_stats_every: Duration,
    /// `containerLogMonitorInterval`: how often the sizes of logs are looked at.
    pub log_look_every: Duration,
    /// `containerLogMaxWorkers`: as many logs are rotated at once.
    pub log_workers: usize,
    /// `crashLoopBackOff.maxContainerRestartPeriod`: the longest that a container waits to be started again (KEP-4603).
    pub restart_period_max: Duration,
    /// `--eviction-hard`, `--eviction-soft` and what belongs to them.
    pub eviction: EvictionConfig,
    /// How long pods get when the node is shut down, by priority; empty: nothing waits for them.
    pub shutdown: Vec<ShutdownPeriod>,
    /// Images that are never collected, by name: the sandboxes' own and those that came as archives, which a machine
    /// without network has no other way to get again. Runtimes that know pinned images mark more.
    pub kept_images: Vec<String>,
    /// `--pod-manifest-path`: a directory of static pods' manifests; `None`: none.
    pub pod_manifest_path: Option<PathBuf>,
    /// `fileCheckFrequency`: how often it is looked at where no change is heard of.
    pub manifests_every: Duration,
    /// `staticPodURL`: where more static pods are published; `None`: nowhere.
    pub published_pods: Option<PublishedPods>,
    /// `--enforce-node-allocatable` aside: `--seccomp-default`.
    pub seccomp_default: bool,
    /// `memorySwap.swapBehavior`: what containers may have of the machine's swap.
    pub swap_behavior: SwapBehavior,
    /// `--fail-swap-on`: whether a machine with swap is refused. Upstream's kubelet does unless it is told otherwise, and so does
    /// `kelson kubelet`; a node that Kelson sets up itself runs, and gives containers none.
    pub fail_swap_on: bool,
    /// `--allowed-unsafe-sysctls`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// The kubelet's own HTTPS server.
    pub server: ServerConfig,
    /// `--rotate-certificates`.
    pub rotate_certificates: bool,
    /// Where device plugins register and have their sockets; upstream's never lies elsewhere than at
    /// `/var/lib/kubelet/device-plugins`.
    pub device_plugins_dir: PathBuf,
    /// Where this node keeps the directories of Kelson's built-in provisioner; `None`: it keeps none.
    pub local_volumes_dir: Option<PathBuf>,
}

impl Config {
    /// Upstream's defaults for a node of this name, with everything of the kubelet's below `dir`.
    pub fn new(node_name: impl Into<String>, dir: &Path) -> Self {
        Self {
            node_name: node_name.into(),
            root_dir: dir.to_owned(),
            pod_logs_dir: dir.join("pod-logs"),
            container_logs_dir: None,
            cert_dir: dir.join("pki"),
            node_ips: Vec::new(),
            image_endpoint: None,
            runtime_endpoint: String::new(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            node_labels: BTreeMap::new(),
            register_with_taints: Vec::new(),
            max_pods: 110,
            pod_max_pids: None,
            pods_per_core: None,
            cgroups: None,
            memory: MemoryConfig::default(),
            ids_per_pod: IDS_PER_POD,
            system_reserved: BTreeMap::new(),
            kube_reserved: BTreeMap::new(),
            placement: PlacementConfig::default(),
            image_pulls: PullOptions::default(),
            image_credential_provider: None,
            credential_processes_max: PROCESSES_MAX,
            provider_id: String::new(),
            status_images_max: Some(50),
            isolates_storage: true,
            cpu_quota: true,
            process: ProcessConfig::default(),
            tracing: None,
            register_node: true,
            node_status_update: Duration::from_secs(10),
            node_status_report: Duration::from_secs(300),
            lease_duration: Duration::from_secs(40),
            log_max_bytes: 10 << 20,
            log_max_files: 5,
            image_gc_high_percent: 85,
            image_gc_low_percent: 80,
            image_gc_age_min: Duration::from_secs(120),
            image_gc_age_max: None,
            volume_stats_every: Duration::from_secs(60),
            log_look_every: Duration::from_secs(10),
            log_workers: 1,
            restart_period_max: Duration::from_secs(300),
            eviction: EvictionConfig::default(),
            shutdown: Vec::new(),
            kept_images: Vec::new(),
            pod_manifest_path: None,
            manifests_every: Duration::from_secs(20),
            published_pods: None,
            seccomp_default: false,
            swap_behavior: SwapBehavior::NoSwap,
            fail_swap_on: false,
            allowed_unsafe_sysctls: Vec::new(),
            server: ServerConfig::default(),
            rotate_certificates: true,
            device_plugins_dir: dir.join("device-plugins"),
            local_volumes_dir: None,
        }
    }

    /// `--system-reserved` and `--kube-reserved` together, by resource.
    pub fn reserved(&self) -> BTreeMap<String, Quantity> {
        let mut sum = self.system_reserved.clone();
        for (resource, amount) in &self.kube_reserved {
            let so_far = sum.entry(resource.clone()).or_default();
            *so_far = so_far.plus(*amount);
        }
        sum
    }

    /// Processors that are reserved by number stand for all that is reserved of them (`reservedSystemCPUs`).
    pub fn settle_reserved_cpus(&mut self) {
        let by_number = self.placement.reserved_cpus.len();
        if by_number > 0 {
            let amount = Quantity::from_i64(i64::try_from(by_number).unwrap_or(i64::MAX));
            self.system_reserved.insert("cpu".to_owned(), amount);
            self.kube_reserved.remove("cpu");
        }
    }

    /// Where pods' directories and logs lie.
    pub fn dirs(&self) -> PodDirs {
        let log_links = self.container_logs_dir.clone();
        PodDirs { root: self.root_dir.clone(), logs: self.pod_logs_dir.clone(), log_links }
    }
}

/// Where pods' directories and logs lie.
#[derive(Clone, Debug)]
pub struct PodDirs {
    root: PathBuf,
    logs: PathBuf,
    log_links: Option<PathBuf>,
}

impl PodDirs {
    /// The directory of all pods' directories.
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }
    /// The directory of one pod.
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }
    /// Where a driver makes one of its volumes ready for the node; `volume` is the sum of what the driver calls it.
    pub fn staging(&self, driver: &str, volume: &str) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi").join(driver).join(volume).join("globalmount")
    }
    /// Where plugins put the sockets by which they register.
    pub fn plugins_registry(&self) -> PathBuf {
        self.root.join("plugins_registry")
    }
    /// The socket at which others on the node ask what pods have.
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.root.join("pod-resources/kubelet.sock")
    }
    /// Where the links are by which collectors find containers' logs; `None` where there are none.
    pub fn log_links(&self) -> Option<&Path> {
        self.log_links.as_deref()
    }
    /// The directory of one pod's logs.
    pub fn pod_logs(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.logs.join(format!("{namespace}_{name}_{uid}"))
    }
}
