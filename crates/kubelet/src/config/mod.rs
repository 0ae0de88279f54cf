//! The kubelet's typed configuration. Each field names the flag of upstream's kubelet or the `KubeletConfiguration` field that sets it.
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

/// Default number of user and group IDs in a pod's user namespace. A configured number is a multiple of it.
pub const IDS_PER_POD: u32 = 65_536;

/// A taint that the kubelet sets when it registers the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterTaint {
    /// Key of the taint.
    pub key: String,
    /// Value of the taint; may be empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A URL that publishes static pods.
#[derive(Clone, PartialEq, Eq)]
pub struct PublishedPods {
    /// `staticPodURL`: the document is one pod or a list.
    pub url: String,
    /// `staticPodURLHeader`: request headers, whose values may be secret.
    pub headers: Vec<(String, String)>,
    /// `httpCheckFrequency`: interval of requests.
    pub every: Duration,
}

impl std::fmt::Debug for PublishedPods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("PublishedPods").field("url", &self.url).field("headers", &names).finish_non_exhaustive()
    }
}

/// Configuration of the credential provider plugins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialProviderFiles {
    /// `--image-credential-provider-config`: a `CredentialProviderConfig` file or a directory of such files.
    pub config: PathBuf,
    /// `--image-credential-provider-bin-dir`: directory of the executables.
    pub bin_dir: PathBuf,
}

/// Delegated authentication and authorization: what the kubelet asks the API server about clients, and how long answers are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReviewRules {
    /// `authentication.webhook.enabled`: whether bearer tokens are verified with TokenReview. If `false`, no token is accepted.
    pub takes_tokens: bool,
    /// `authentication.webhook.cacheTTL`: how long a valid token is cached.
    pub token_for: Duration,
    /// `authorization.webhook.cacheAuthorizedTTL`: how long an allowed request is cached.
    pub allowed_for: Duration,
    /// `authorization.webhook.cacheUnauthorizedTTL`: how long a denied request is cached.
    pub denied_for: Duration,
}

impl Default for ReviewRules {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { takes_tokens: true, token_for: seconds(120), allowed_for: seconds(300), denied_for: seconds(30) }
    }
}

impl ReviewRules {
    /// The time for which a decision is cached.
    pub fn decision(&self, allowed: bool) -> Duration {
        if allowed { self.allowed_for } else { self.denied_for }
    }
}

/// Configuration of the kubelet's HTTPS server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// `--address`, `--port`. Port 0 selects a free port, which the node's status reports. `None`: no server.
    pub listen: Option<SocketAddr>,
    /// `healthzBindAddress` and `healthzPort`: address of the `healthz` endpoint in plain HTTP. `None` disables it.
    pub healthz: Option<SocketAddr>,
    /// `--client-ca-file`: PEM of the CA of client certificates. If it is empty, no client certificate is accepted.
    pub client_ca_pem: Vec<u8>,
    /// Path of `--client-ca-file`, which is read again when it changes. `None`: the CA never changes.
    pub client_ca_file: Option<PathBuf>,
    /// Requirements of a serving certificate from the cluster, besides being valid. `None`: no further requirement.
    pub serving_demands: Option<Demands>,
    /// `--tls-cert-file` and `--tls-private-key-file`.
    pub tls_files: Option<(PathBuf, PathBuf)>,
    /// `serverTLSBootstrap`: without TLS files, the serving certificate is requested from the cluster, and a self-signed certificate serves
    /// until it is issued. If `false`, the self-signed certificate always serves; most API servers do not verify it.
    pub tls_bootstrap: bool,
    /// `enableDebuggingHandlers`: whether exec, attach, port-forward and logs are served.
    pub debugging_handlers: bool,
    /// `enableSystemLogHandler`: whether log files of the node are served.
    pub system_logs: bool,
    /// `enableSystemLogQuery`: whether logs of node services can be queried.
    pub system_log_query: bool,
    /// Delegated authentication and authorization.
    pub reviews: ReviewRules,
    /// `tlsMinVersion` is `VersionTLS13`.
    pub tls13_only: bool,
    /// `tlsCipherSuites`: known TLS 1.2 suites by Go's names; empty for all.
    pub tls_suites: Vec<String>,
    /// `--streaming-connection-idle-timeout`: exec, attach and port-forward streams without traffic end after this time.
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

/// Configuration of a kubelet. [`Config::new`] has upstream's defaults for a node; [`file::load`] applies a `KubeletConfiguration` file and
/// flags to it. Every path, period and limit that the kubelet uses comes from here, and nothing is read from the environment or from other
/// files later. The type is plain data, so a caller can also set fields directly, as the node command and the tests do.
#[derive(Clone, Debug)]
pub struct Config {
    /// `--hostname-override`, else the host's name: name of the Node object.
    pub node_name: String,
    /// `--root-dir`: directory of pods' volumes and the kubelet's state.
    pub root_dir: PathBuf,
    /// `podLogsDir`: directory of container logs.
    pub pod_logs_dir: PathBuf,
    /// Directory of links to container logs (`/var/log/containers`). `None`: no links.
    pub container_logs_dir: Option<PathBuf>,
    /// `--cert-dir`: directory of the kubelet's certificates.
    pub cert_dir: PathBuf,
    /// `--node-ip`: addresses that the node reports. The first is `status.hostIP` and the address of host-network pods.
    pub node_ips: Vec<IpAddr>,
    /// `imageServiceEndpoint`: endpoint of the image service. `None`: the runtime's endpoint.
    pub image_endpoint: Option<String>,
    /// `--container-runtime-endpoint`, for runtime events that are not part of CRI. Empty: only CRI is used.
    pub runtime_endpoint: String,
    /// `--cluster-dns`: DNS servers of pods.
    pub cluster_dns: Vec<IpAddr>,
    /// `--cluster-domain`: DNS domain of the cluster.
    pub cluster_domain: String,
    /// `--resolv-conf`: the host's resolver configuration.
    pub resolv_conf: PathBuf,
    /// `--node-labels`: labels that the kubelet sets on its Node.
    pub node_labels: BTreeMap<String, String>,
    /// `--register-with-taints`: initial taints of the Node.
    pub register_with_taints: Vec<RegisterTaint>,
    /// `--max-pods`: maximum number of pods.
    pub max_pods: u32,
    /// `podsPerCore`: maximum number of pods per CPU. `None`: only `max_pods` limits.
    pub pods_per_core: Option<u32>,
    /// `--pod-max-pids`: maximum number of processes per pod. `None`: no limit.
    pub pod_max_pids: Option<u64>,
    /// Pods' cgroups. `None`: the kubelet creates none (`--cgroups-per-qos=false`).
    pub cgroups: Option<CgroupConfig>,
    /// Memory settings beyond the limits of pods.
    pub memory: MemoryConfig,
    /// `userNamespaces.idsPerPod`: number of IDs in each pod's user namespace.
    pub ids_per_pod: u32,
    /// `--system-reserved`, by resource.
    pub system_reserved: BTreeMap<String, Quantity>,
    /// `--kube-reserved`, by resource.
    pub kube_reserved: BTreeMap<String, Quantity>,
    /// CPU manager, memory manager and topology manager.
    pub placement: PlacementConfig,
    /// `serializeImagePulls`, `maxParallelImagePulls`, `registryPullQPS`, `registryBurst`, the progress deadline, and
    /// `imagePullCredentialsVerificationPolicy` with its list.
    pub image_pulls: PullOptions,
    /// `--image-credential-provider-config` and `--image-credential-provider-bin-dir`. `None`: no plugins.
    pub image_credential_provider: Option<CredentialProviderFiles>,
    /// `--image-credential-provider-max-processes`: maximum number of concurrent credential provider processes.
    pub credential_processes_max: usize,
    /// `providerID`: the cloud provider's ID of the machine; empty if unset.
    pub provider_id: String,
    /// `nodeStatusMaxImages`: maximum number of images in the node's status, largest first. `None`: all.
    pub status_images_max: Option<usize>,
    /// `localStorageCapacityIsolation`: whether pods' ephemeral storage is measured and limited.
    pub isolates_storage: bool,
    /// `cpuCFSQuota`: whether CPU limits are enforced.
    pub cpu_quota: bool,
    /// Settings of the kubelet's process.
    pub process: ProcessConfig,
    /// `tracing`: endpoint of the trace collector and sampling rate. `None`: no traces.
    pub tracing: Option<TracingConfiguration>,
    /// `--register-node`: whether the kubelet creates its Node. If `false`, the Node must be created by other means.
    pub register_node: bool,
    /// `--node-status-update-frequency`: interval at which the node's status is computed.
    pub node_status_update: Duration,
    /// `nodeStatusReportFrequency`: interval at which an unchanged status is written.
    pub node_status_report: Duration,
    /// `nodeLeaseDurationSeconds`: the lease is renewed after a quarter of it.
    pub lease_duration: Duration,
    /// `--container-log-max-size` in bytes.
    pub log_max_bytes: u64,
    /// `--container-log-max-files`: files per container, including the current one.
    pub log_max_files: u32,
    /// `--image-gc-high-threshold` in percent of the disk; 100 disables image garbage collection.
    pub image_gc_high_percent: u8,
    /// `--image-gc-low-threshold` in percent of the disk.
    pub image_gc_low_percent: u8,
    /// `imageMinimumGCAge`: images unused for a shorter time are never removed.
    pub image_gc_age_min: Duration,
    /// `imageMaximumGCAge`: images unused for a longer time are removed regardless of disk usage. `None`: no maximum.
    pub image_gc_age_max: Option<Duration>,
    /// `volumeStatsAggPeriod`: interval at which volume usage is measured.
    pub volume_stats_every: Duration,
    /// `containerLogMonitorInterval`: interval at which log sizes are checked.
    pub log_look_every: Duration,
    /// `containerLogMaxWorkers`: maximum number of concurrent log rotations.
    pub log_workers: usize,
    /// `crashLoopBackOff.maxContainerRestartPeriod`: maximum restart back-off (KEP-4603).
    pub restart_period_max: Duration,
    /// `--eviction-hard`, `--eviction-soft` and related fields.
    pub eviction: EvictionConfig,
    /// Grace periods by priority for graceful node shutdown; empty disables it.
    pub shutdown: Vec<ShutdownPeriod>,
    /// Names of images that are never garbage collected: sandbox images and images imported from archives, which a machine without network
    /// cannot pull again. Images that the runtime reports as pinned are kept as well.
    pub kept_images: Vec<String>,
    /// `--pod-manifest-path`: directory of static pod manifests. `None`: no static pods of files.
    pub pod_manifest_path: Option<PathBuf>,
    /// `fileCheckFrequency`: interval at which the directory is read when no change is notified.
    pub manifests_every: Duration,
    /// `staticPodURL`: URL of further static pods. `None`: no URL.
    pub published_pods: Option<PublishedPods>,
    /// `--seccomp-default`: containers without a seccomp profile get `RuntimeDefault`.
    pub seccomp_default: bool,
    /// `memorySwap.swapBehavior`: which containers may use swap.
    pub swap_behavior: SwapBehavior,
    /// `--fail-swap-on`: whether the kubelet fails to start on a machine with swap. `true` by default in upstream and for `kelson kubelet`.
    /// A node that Kelson sets up starts anyway and gives containers no swap.
    pub fail_swap_on: bool,
    /// `--allowed-unsafe-sysctls`: names or prefixes that pods may set.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Configuration of the HTTPS server.
    pub server: ServerConfig,
    /// `--rotate-certificates`: whether the client certificate is renewed.
    pub rotate_certificates: bool,
    /// Directory in which device plugins register and create their sockets; always `/var/lib/kubelet/device-plugins` in upstream.
    pub device_plugins_dir: PathBuf,
    /// Directory of the volumes of Kelson's built-in provisioner. `None`: the node has no such volumes.
    pub local_volumes_dir: Option<PathBuf>,
}

impl Config {
    /// Returns upstream's defaults for a node of this name, with all of the kubelet's files below `dir`.
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

    /// Sum of `--system-reserved` and `--kube-reserved`, by resource.
    pub fn reserved(&self) -> BTreeMap<String, Quantity> {
        let mut sum = self.system_reserved.clone();
        for (resource, amount) in &self.kube_reserved {
            let so_far = sum.entry(resource.clone()).or_default();
            *so_far = so_far.plus(*amount);
        }
        sum
    }

    /// Replaces the reserved amount of CPU by the number of CPUs in `reservedSystemCPUs`, if these are set.
    pub fn settle_reserved_cpus(&mut self) {
        let by_number = self.placement.reserved_cpus.len();
        if by_number > 0 {
            let amount = Quantity::from_i64(i64::try_from(by_number).unwrap_or(i64::MAX));
            self.system_reserved.insert("cpu".to_owned(), amount);
            self.kube_reserved.remove("cpu");
        }
    }

    /// Returns the directories of pods and logs.
    pub fn dirs(&self) -> PodDirs {
        let log_links = self.container_logs_dir.clone();
        PodDirs { root: self.root_dir.clone(), logs: self.pod_logs_dir.clone(), log_links }
    }
}

/// Paths of pods' directories and logs.
#[derive(Clone, Debug)]
pub struct PodDirs {
    root: PathBuf,
    logs: PathBuf,
    log_links: Option<PathBuf>,
}

impl PodDirs {
    /// Parent of all pods' directories.
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }
    /// Directory of one pod.
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }
    /// Staging path of a CSI volume (`NodeStageVolume`). `volume` is the hash of the volume handle.
    pub fn staging(&self, driver: &str, volume: &str) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi").join(driver).join(volume).join("globalmount")
    }
    /// Directory in which plugins create their registration sockets.
    pub fn plugins_registry(&self) -> PathBuf {
        self.root.join("plugins_registry")
    }
    /// Socket of the PodResources API.
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.root.join("pod-resources/kubelet.sock")
    }
    /// Directory of links to container logs for log collectors; `None` without links.
    pub fn log_links(&self) -> Option<&Path> {
        self.log_links.as_deref()
    }
    /// Directory of one pod's logs.
    pub fn pod_logs(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.logs.join(format!("{namespace}_{name}_{uid}"))
    }
}
