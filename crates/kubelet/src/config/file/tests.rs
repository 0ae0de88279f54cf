//! Files as users and kubeadm write them; all errors at once.
use std::net::SocketAddr;
use std::path::PathBuf;

use super::*;
use crate::config::cgroups::{CgroupDriver, EnforcedCgroups, SwapBehavior};
use crate::config::placement::{AlignmentPolicy, AlignmentScope, CpuOptions, PlacementConfig, ReservedMemory};
use crate::config::shutdown::ShutdownPeriod;
use crate::config::thresholds::Threshold;

pub(super) const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn config() -> Config {
    Config::new("n", Path::new("/var/lib/kubelet"))
}

pub(super) fn laid(text: &str) -> (Config, FileSettings) {
    let mut c = config();
    let laid = apply_to(format!("{HEAD}{text}").as_bytes(), &mut c).expect(text);
    (c, laid)
}

pub(super) fn faults(text: &str) -> Vec<String> {
    apply_to(text.as_bytes(), &mut config()).expect_err(text).0
}

#[test]
fn a_file_of_kubeadm_is_accepted() {
    let (c, laid) = laid(
        "authentication: {anonymous: {enabled: false}, webhook: {cacheTTL: 0s, enabled: true}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
imageMaximumGCAge: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: '0'}}, verbosity: 0}
memorySwap: {}
nodeStatusReportFrequency: 0s
rotateCertificates: true
staticPodPath: /etc/kubernetes/manifests
",
    );
    assert_eq!(laid.client_ca_file, Some(PathBuf::from("/etc/kubernetes/pki/ca.crt")));
    assert_eq!(laid.runtime_endpoint.as_deref(), Some("unix:///run/containerd/containerd.sock"));
    assert_eq!(laid.ignored, Vec::<String>::new(), "all of it has an effect");
    assert_eq!(c.server.healthz, Some(SocketAddr::from(([127, 0, 0, 1], 10248))));
    let cgroups = c.cgroups.as_ref().expect("they are made");
    assert_eq!((cgroups.driver, &cgroups.enforced), (CgroupDriver::Systemd, &EnforcedCgroups::default()));
    assert_eq!(c.cluster_dns, [IpAddr::from([10, 96, 0, 10])]);
    assert_eq!(c.node_status_report, config().node_status_report, "zero is the default");
    assert_eq!(c.pod_manifest_path, Some(PathBuf::from("/etc/kubernetes/manifests")));
}

#[test]
fn eviction() {
    let (c, _) = laid(
        "evictionHard: {memory.available: 5%, pid.available: '100'}\nevictionPressureTransitionPeriod: 1m\nevictionMaxPodGracePeriod: 7\n",
    );
    let mut hard: Vec<String> =
        c.eviction.thresholds.iter().map(|t| format!("{}<{}", t.signal.name(), t.value)).collect();
    hard.sort();
    assert_eq!(hard, ["memory.available<5%", "pid.available<100"]);
    assert_eq!((c.eviction.transition.as_secs(), c.eviction.max_pod_grace.as_secs()), (60, 7));
}

#[test]
fn soft_thresholds_and_what_belongs_to_them() {
    let (c, laid) = laid(
        "evictionHard: {memory.available: 1Gi, containerfs.available: 5%}\nmergeDefaultEvictionSettings: true\nevictionSoft: {memory.available: 2Gi, allocatableMemory.available: 10%}\nevictionSoftGracePeriod: {memory.available: 1m30s, allocatableMemory.available: 5s}\nevictionMinimumReclaim: {memory.available: 100Mi, nodefs.available: 2%}\n",
    );
    let show = |t: &Threshold| {
        let least = t.min_reclaim.map_or(String::new(), |m| format!("+{m}"));
        format!("{}<{}{least} {}s", t.signal.name(), t.value, t.grace.as_secs())
    };
    let all: Vec<String> = c.eviction.thresholds.iter().map(show).collect();
    assert_eq!(
        all,
        [
            "memory.available<1Gi+100Mi 0s",
            "nodefs.available<10%+2% 0s",
            "nodefs.inodesFree<5% 0s",
            "imagefs.available<15% 0s",
            "imagefs.inodesFree<5% 0s",
            "allocatableMemory.available<10% 5s",
            "memory.available<2Gi+100Mi 90s",
        ]
    );
    assert_eq!(laid.ignored, ["evictionHard[containerfs.available]"]);
    for (text, wanted) in [
        ("evictionSoft: {memory.available: 1Gi}", "grace period must be specified for the soft eviction threshold"),
        ("evictionSoftGracePeriod: {memory.available: soon}", "evictionSoftGracePeriod"),
        ("evictionMinimumReclaim: {memory.available: '-1'}", "must be a quantity or a percentage"),
        ("evictionSoft: {memory.left: 1Gi}", "unsupported eviction signal memory.left"),
    ] {
        let found = faults(&format!("{HEAD}{text}\n"));
        assert!(found.len() == 1 && found[0].contains(wanted), "{found:?}");
    }
}

#[test]
fn shutdowns() {
    let (c, _) = laid("shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n");
    let period = |priority, seconds| ShutdownPeriod { priority, grace: Duration::from_secs(seconds) };
    assert_eq!(c.shutdown, [period(0, 20), period(2_000_000_000, 10)]);
    let (c, _) = laid(
        "shutdownGracePeriodByPodPriority: [{priority: 1000, shutdownGracePeriodSeconds: 5}, {priority: 0, shutdownGracePeriodSeconds: 60}]\n",
    );
    assert_eq!(c.shutdown, [period(1000, 5), period(0, 60)]);
    assert_eq!(laid("shutdownGracePeriod: 0s\n").0.shutdown, []);
    for (text, wanted) in [
        ("shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 11s", "must be <= shutdownGracePeriod"),
        ("shutdownGracePeriod: 1ms", "must be either zero or otherwise >= 1 sec"),
        ("shutdownGracePeriod: 5s\nshutdownGracePeriodByPodPriority: [{priority: 1}]", "cannot be set together"),
        ("shutdownGracePeriodByPodPriority: [{urgency: 1}]", "unknown field"),
    ] {
        let found = faults(&format!("{HEAD}{text}\n"));
        assert!(found.len() == 1 && found[0].contains(wanted), "{found:?}");
    }
}

#[test]
fn unknown_placement_policies_are_rejected() {
    let (config, found) = laid(
        "cpuManagerPolicy: static\ncpuManagerReconcilePeriod: 3s\nreservedSystemCPUs: 0-1\nkubeReserved: {cpu: 300m}\n\
         cpuManagerPolicyOptions: {full-pcpus-only: 'true', strict-cpu-reservation: '1'}\n\
         memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 1, limits: {memory: 1Gi}}]\n\
         topologyManagerPolicy: best-effort\ntopologyManagerScope: pod\n\
         topologyManagerPolicyOptions: {prefer-closest-numa-nodes: 'true', max-allowable-numa-nodes: '9'}\n",
    );
    assert_eq!(found.ignored, Vec::<String>::new());
    assert_eq!(config.reserved()["cpu"].to_string(), "2", "those by number stand for all");
    let wanted = PlacementConfig {
        has_own_cpus: true,
        cpu_options: CpuOptions { whole_cores: true, strict_reservation: true, ..CpuOptions::default() },
        reconcile_every: Duration::from_secs(3),
        reserved_cpus: "0-1".parse().expect("a set"),
        has_own_memory: true,
        reserved_memory: vec![ReservedMemory {
            node: 1,
            amounts: [("memory".to_owned(), Quantity::binary(1 << 30))].into(),
        }],
        alignment: AlignmentPolicy::BestEffort,
        scope: AlignmentScope::Pod,
        prefers_closest: true,
        nodes_max: 9,
    };
    assert_eq!(config.placement, wanted);
    assert_eq!(
        laid("memoryManagerPolicy: ''\ncpuManagerReconcilePeriod: 0s\n").0.placement,
        PlacementConfig::default()
    );
    let alpha = "featureGates: {CPUManagerPolicyAlphaOptions: true}\ncpuManagerPolicy: static\n";
    assert!(
        laid(&format!("{alpha}cpuManagerPolicyOptions: {{align-by-socket: 'true'}}\n"))
            .0
            .placement
            .cpu_options
            .by_socket
    );
    for (text, wanted) in [
        ("cpuManagerPolicy: Static", "\"none\", \"static\""),
        ("memoryManagerPolicy: static", "\"None\", \"Static\""),
        ("topologyManagerPolicy: single-numa", "\"single-numa-node\""),
        ("topologyManagerScope: node", "\"container\", \"pod\""),
        ("cpuManagerPolicyOptions: {full-pcpus-only: 'true'}", "the none policy takes no options"),
        ("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full: 'true'}", "unknown CPU Manager Policy option"),
        ("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: 'yes'}", "must be true or false"),
        (
            "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {align-by-socket: 'true'}",
            "Alpha-level Options not enabled",
        ),
        ("topologyManagerPolicyOptions: {max-allowable-numa-nodes: '7'}", "8 at least"),
        ("reservedSystemCPUs: 3-1", "invalid range"),
        ("reservedMemory: [{numaNode: 0, limits: {memory: '0'}}]", "may not be zero"),
        ("reservedMemory: [{numaNode: 0, limits: {disk: 1Gi}}]", "hugepages-<HugePageSize>"),
        ("reservedMemory: [{limits: {memory: 1Gi}}, {limits: {memory: 2Gi}}]", "Duplicate value"),
    ] {
        let found = faults(&format!("{HEAD}{text}\n"));
        assert!(found.len() == 1 && found[0].contains(wanted), "{found:?}");
    }
}

#[test]
fn reservations_are_enforced_where_that_is_asked_for() {
    let enforced = |text: &str| laid(text).0.cgroups.expect("they are made").enforced;
    assert_eq!(enforced(""), EnforcedCgroups { pods: true, system: None, kube: None });
    assert_eq!(enforced("enforceNodeAllocatable: [none]\n"), EnforcedCgroups { pods: false, system: None, kube: None });
    let both = "enforceNodeAllocatable: [pods, system-reserved, kube-reserved-compressible]\nsystemReservedCgroup: /system\nkubeReservedCgroup: /kube\n";
    let wanted =
        EnforcedCgroups { pods: true, system: Some(("/system".into(), false)), kube: Some(("/kube".into(), true)) };
    assert_eq!(enforced(both), wanted);
    let found = faults(&format!("{HEAD}enforceNodeAllocatable: [kube-reserved]\n"));
    assert!(found.len() == 1 && found[0].contains("kubeReservedCgroup must be set too"), "{found:?}");
    assert_eq!(faults(&format!("{HEAD}enforceNodeAllocatable: [everything]\n")).len(), 1);
}

#[test]
fn image_pulls() {
    let (c, _) = laid(
        "maxParallelImagePulls: 3\nregistryPullQPS: 0\nregistryBurst: 20\nimagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [r.io/team/*]\n",
    );
    let p = &c.image_pulls;
    assert_eq!((p.serialize, p.parallel_max, p.qps, p.burst), (false, Some(3), 0.0, 20));
    assert!(!p.policy.verifies("r.io/team/app:1", true) && p.policy.verifies("r.io/other:1", false));
    let (c, _) = laid("");
    assert_eq!(c.image_pulls, kelson_credentials::PullOptions::default());
    assert!(c.image_pulls.serialize && c.image_pulls.policy == Policy::NeverVerifyPreloadedImages);
    let (c, _) = laid("serializeImagePulls: false\n");
    assert_eq!((c.image_pulls.serialize, c.image_pulls.parallel_max), (false, None));
}

#[test]
fn other_fields() {
    let (c, laid) = laid(
        "address: 127.0.0.1\nport: 12345\nmaxPods: 12\npodPidsLimit: 100\nsystemReserved: {cpu: 100m}\nkubeReserved: {cpu: 200m, memory: 1Gi}\nregisterWithTaints: [{key: k, effect: NoSchedule}]\nregisterNode: false\ncontainerLogMaxSize: 1Mi\ntlsCertFile: /c\ntlsPrivateKeyFile: /k\ncgroupsPerQOS: false\nnodeLeaseDurationSeconds: 8\n",
    );
    assert_eq!(c.server.listen.map(|a| a.to_string()).as_deref(), Some("127.0.0.1:12345"));
    assert_eq!((c.max_pods, c.pod_max_pids, c.log_max_bytes), (12, Some(100), 1 << 20));
    assert_eq!(c.reserved()["cpu"].to_string(), "300m");
    assert_eq!(c.kube_reserved["memory"].to_string(), "1Gi");
    let (more, _) = super::tests::laid(
        "imageMinimumGCAge: 1m\nimageMaximumGCAge: 24h\ncrashLoopBackOff: {maxContainerRestartPeriod: 2s}\nstreamingConnectionIdleTimeout: 5m\npodsPerCore: 3\ncontainerLogMonitorInterval: 3s\nvolumeStatsAggPeriod: 7s\n",
    );
    assert_eq!((more.image_gc_age_min.as_secs(), more.image_gc_age_max.map(|t| t.as_secs())), (60, Some(86_400)));
    assert_eq!((more.restart_period_max.as_secs(), more.server.streaming_idle.as_secs()), (2, 300));
    assert_eq!((more.pods_per_core, more.log_look_every.as_secs()), (Some(3), 3));
    assert_eq!(more.volume_stats_every.as_secs(), 7);
    for text in ["imageMaximumGCAge: 1m", "crashLoopBackOff: {maxContainerRestartPeriod: 301s}"] {
        assert_eq!(faults(&format!("{HEAD}{text}\n")).len(), 1, "{text}");
    }
    assert_eq!(c.register_with_taints[0].key, "k");
    assert!(!c.register_node && !laid.cgroups_per_qos && c.lease_duration == Duration::from_secs(8));
}

#[test]
fn every_fault_at_once_by_path() {
    let found = faults(
        "apiVersion: v1\nkind: Pod\nmaxParallelImagePulls: 0\nserializeImagePulls: 'yes'\nregistryBurst: -1\nimagePullCredentialsVerificationPolicy: Sometimes\nimageGCHighThresholdPercent: 101\nclusterDNS: [here]\ntlsCertFile: /c\nregisterWithTaints: [{effect: Never}]\nauthentication: {x509: {clientCA: /x}}\nauthorization: {mode: AlwaysAllow}\nnodeStatusUpdateFrequency: soon\nnoSuchField: 1\ncgroupDriver: cgroupsfs\n",
    );
    for path in [
        "apiVersion: Unsupported value: \"v1\"",
        "kind: Unsupported value: \"Pod\"",
        "maxParallelImagePulls: Invalid value: 0",
        "serializeImagePulls: Invalid value: must be a boolean, not a string",
        "registryBurst: Invalid value: -1",
        "imagePullCredentialsVerificationPolicy: Invalid value: \"Sometimes\": unknown image pull credential verification policy",
        "imageGCHighThresholdPercent: Invalid value: 101",
        "clusterDNS[0]: Invalid value: \"here\"",
        "tlsPrivateKeyFile: Required value",
        "registerWithTaints[0].key: Required value",
        "registerWithTaints[0].effect: Unsupported value: \"Never\"",
        "authentication.x509.clientCA: Forbidden: unknown field",
        "authorization.mode: Unsupported value: \"AlwaysAllow\"",
        "nodeStatusUpdateFrequency: Invalid value: \"soon\"",
        "noSuchField: Forbidden: unknown field",
        "cgroupDriver: Unsupported value: \"cgroupsfs\"",
    ] {
        assert!(found.iter().any(|f| f.starts_with(path)), "{path} in {found:#?}");
    }
    assert_eq!(found.len(), 16, "{found:#?}");
    assert_eq!(
        faults(&format!("{HEAD}serializeImagePulls: true\nmaxParallelImagePulls: 2\n")),
        ["maxParallelImagePulls: Invalid value: 2: cannot be larger than 1 unless serializeImagePulls is set to false"]
    );
    assert_eq!(faults(&format!("{HEAD}preloadedImagesVerificationAllowlist: [r.io/a]\n")).len(), 1);
    assert!(faults("[]").iter().any(|f| f.contains("must be an object")));
    assert!(faults(": :").iter().all(|f| f.starts_with("error decoding config")));
}

#[test]
fn server_and_swap_fields() {
    let (c, _) = laid("clusterDomain: x\n");
    assert!(c.server.debugging_handlers && c.server.system_logs && !c.server.system_log_query);
    let (c, laid) = laid(
        "enableDebuggingHandlers: false\nenableSystemLogQuery: true\nfailSwapOn: true\nmemorySwap: {swapBehavior: LimitedSwap}\n",
    );
    assert!(!c.server.debugging_handlers && c.server.system_log_query && c.fail_swap_on);
    assert_eq!((c.swap_behavior, laid.ignored), (SwapBehavior::LimitedSwap, Vec::<String>::new()));
    let (c, _) = self::laid("healthzPort: 0\n");
    assert_eq!(c.server.healthz, None);
    let (c, _) = self::laid("healthzBindAddress: 192.0.2.1\n");
    assert_eq!(c.server.healthz, Some(SocketAddr::from(([192, 0, 2, 1], 10248))));
    for (document, at) in [
        ("healthzBindAddress: here\n", "healthzBindAddress"),
        ("enableSystemLogQuery: true\nenableSystemLogHandler: false\n", "enableSystemLogQuery"),
        ("memorySwap: {swapBehavior: UnlimitedSwap}\n", "memorySwap.swapBehavior"),
    ] {
        let faults = faults(&format!("{HEAD}{document}"));
        assert!(faults.len() == 1 && faults[0].starts_with(at), "{faults:?}");
    }
}

#[test]
fn a_misspelt_field_at_any_level_is_refused() {
    let document = serde_json::json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"cacheTTL": "0s", "enabled": true},
            "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"}},
        "authorization": {"mode": "Webhook", "webhook": {"cacheAuthorizedTTL": "0s", "cacheUnauthorizedTTL": "0s"}},
        "crashLoopBackOff": {"maxContainerRestartPeriod": "10s"},
        "logging": {"format": "text", "flushFrequency": 0, "verbosity": 0,
            "options": {"json": {"infoBufferSize": "0"}, "text": {"infoBufferSize": "0"}}},
        "memorySwap": {"swapBehavior": "NoSwap"},
        "tracing": {"samplingRatePerMillion": 1},
        "registerWithTaints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
        "shutdownGracePeriodByPodPriority": [{"priority": 1, "shutdownGracePeriodSeconds": 2}],
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
        "memoryManagerPolicy": "Static", "systemReserved": {"memory": "1Gi"}, "evictionHard": {"memory.available": "0"}});
    // Names of map keys are free.
    let names = ["systemReserved", "evictionHard", "limits"];
    let read = |document: &serde_json::Value| {
        apply_to(document.to_string().as_bytes(), &mut config()).map(drop).map_err(|faults| faults.0.join(" "))
    };
    assert_eq!(read(&document), Ok(()));
    for (at, misspelt) in kelson_codec::strict::misspelt(&document) {
        if !names.iter().any(|name| at.contains(name)) {
            let why = read(&misspelt).expect_err(&at);
            assert!(why.contains("misspelt"), "{at}: {why}");
        }
    }
}
