//! Each field of the published type is known, validated, and has its effect.
use std::net::SocketAddr;

use super::tests::{HEAD, faults, laid};
use super::*;
use crate::config::cgroups::{MemoryConfig, MemoryQos};
use crate::config::process::Pacing;
use crate::config::{PublishedPods, ReviewRules};
use kelson_traces::TracingConfiguration;
use serde_json::json;

/// Names of all fields of `KubeletConfiguration` in Kubernetes 1.36.
const PUBLISHED: &str = "enableServer staticPodPath podLogsDir syncFrequency fileCheckFrequency httpCheckFrequency staticPodURL \
    staticPodURLHeader address port readOnlyPort tlsCertFile tlsPrivateKeyFile tlsCipherSuites tlsCurvePreferences tlsMinVersion \
    rotateCertificates serverTLSBootstrap authentication authorization registryPullQPS registryBurst \
    imagePullCredentialsVerificationPolicy preloadedImagesVerificationAllowlist eventRecordQPS eventBurst enableDebuggingHandlers \
    enableContentionProfiling healthzPort healthzBindAddress oomScoreAdj clusterDomain clusterDNS streamingConnectionIdleTimeout \
    nodeStatusUpdateFrequency nodeStatusReportFrequency nodeLeaseDurationSeconds imageMinimumGCAge imageMaximumGCAge \
    imageGCHighThresholdPercent imageGCLowThresholdPercent volumeStatsAggPeriod kubeletCgroups systemCgroups cgroupRoot \
    cgroupsPerQOS cgroupDriver cpuManagerPolicy singleProcessOOMKill cpuManagerPolicyOptions cpuManagerReconcilePeriod \
    memoryManagerPolicy topologyManagerPolicy topologyManagerScope topologyManagerPolicyOptions qosReserved runtimeRequestTimeout \
    hairpinMode maxPods podCIDR podPidsLimit resolvConf runOnce cpuCFSQuota cpuCFSQuotaPeriod nodeStatusMaxImages maxOpenFiles \
    contentType kubeAPIQPS kubeAPIBurst serializeImagePulls maxParallelImagePulls evictionHard evictionSoft evictionSoftGracePeriod \
    evictionPressureTransitionPeriod evictionMaxPodGracePeriod evictionMinimumReclaim mergeDefaultEvictionSettings podsPerCore \
    enableControllerAttachDetach protectKernelDefaults makeIPTablesUtilChains iptablesMasqueradeBit iptablesDropBit featureGates \
    failSwapOn memorySwap containerLogMaxSize containerLogMaxFiles containerLogMaxWorkers containerLogMonitorInterval \
    configMapAndSecretChangeDetectionStrategy systemReserved kubeReserved reservedSystemCPUs showHiddenMetricsForVersion \
    systemReservedCgroup kubeReservedCgroup enforceNodeAllocatable allowedUnsafeSysctls volumePluginDir providerID \
    kernelMemcgNotification logging enableSystemLogHandler enableSystemLogQuery shutdownGracePeriod shutdownGracePeriodCriticalPods \
    shutdownGracePeriodByPodPriority crashLoopBackOff reservedMemory enableProfilingHandler enableDebugFlagsHandler seccompDefault \
    memoryThrottlingFactor memoryReservationPolicy registerWithTaints registerNode tracing localStorageCapacityIsolation \
    containerRuntimeEndpoint imageServiceEndpoint failCgroupV1 userNamespaces";

#[test]
fn every_published_field_is_known_and_no_other() {
    assert_eq!(PUBLISHED.split_whitespace().count(), 125);
    for field in PUBLISHED.split_whitespace() {
        laid(&format!("{field}: null\n"));
        let shout = field.to_uppercase();
        let found = faults(&format!("{HEAD}{shout}: 1\n"));
        assert_eq!(found, [format!("{shout}: Forbidden: unknown field")]);
    }
    let published: Vec<&str> = PUBLISHED.split_whitespace().collect();
    for (field, ..) in idle::IDLE {
        assert!(published.contains(field) && !reason(field).is_empty(), "{field}");
    }
}

#[test]
fn a_field_of_the_wrong_type_is_rejected() {
    for field in PUBLISHED.split_whitespace() {
        // No field is a list of lists, so this value has the wrong type everywhere.
        let found = faults(&format!("{HEAD}{field}: [[]]\n"));
        assert!(found.iter().any(|f| f.starts_with(field) && f.contains("must be")), "{field}: {found:?}");
    }
}

#[test]
fn fields_with_default_values_are_not_reported() {
    let (_, found) = laid(
        "hairpinMode: promiscuous-bridge\ncontentType: application/vnd.kubernetes.protobuf\nsyncFrequency: 60s\n\
         enableControllerAttachDetach: true\nenableProfilingHandler: false\niptablesDropBit: 15\ncpuCFSQuotaPeriod: 100ms\n\
         featureGates: {MemoryQoS: true, NodeSwap: false}\nhttpCheckFrequency: 20s\nmemoryThrottlingFactor: 0.9\n\
         logging: {flushFrequency: 0, verbosity: 0, options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: '0'}}}\n",
    );
    assert_eq!(found.ignored, Vec::<String>::new());
    let (_, found) = laid(
        "hairpinMode: none\nsyncFrequency: 10s\nfeatureGates: {NodeSwap: true, MemoryQoS: false}\nstaticPodURLHeader: {a: [b]}\n\
         tlsCipherSuites: [TLS_AES_128_GCM_SHA256, TLS_RSA_WITH_AES_128_CBC_SHA]\nmemoryThrottlingFactor: 0.8\n\
         qosReserved: {memory: 50%}\nhttpCheckFrequency: 5s\n\
         logging: {vmodule: [{filePattern: a, verbosity: 1}], options: {text: {splitStream: true}}}\n",
    );
    let mut all = [
        "featureGates",
        "hairpinMode",
        "syncFrequency",
        "tlsCipherSuites[1]",
        "memoryThrottlingFactor",
        "qosReserved",
        "httpCheckFrequency",
        "staticPodURLHeader",
        "logging.vmodule",
        "logging.options",
    ];
    all.sort_unstable();
    let mut ignored = found.ignored.clone();
    ignored.sort();
    assert_eq!(ignored, all);
    assert!(ignored.iter().all(|field| !reason(field).is_empty()));
}

#[test]
fn memory_beyond_limits() {
    let usual = laid("maxPods: 1\n").0;
    assert_eq!((usual.memory, usual.ids_per_pod), (MemoryConfig::default(), 65_536));
    let (c, found) = laid(
        "featureGates: {MemoryQoS: true, QOSReserved: true}\nmemoryThrottlingFactor: 0.5\nsingleProcessOOMKill: false\n\
         memoryReservationPolicy: TieredReservation\nqosReserved: {memory: 50%}\nuserNamespaces: {idsPerPod: 131072}\n",
    );
    let qos = Some(MemoryQos { throttling: 0.5, is_tiered: true });
    assert_eq!(c.memory, MemoryConfig { kills_one: Some(false), qos, reserved_percent: Some(50) });
    assert_eq!((c.ids_per_pod, found.ignored), (131_072, vec![]));
    let (c, _) = laid("featureGates: {MemoryQoS: true}\n");
    assert_eq!(c.memory.qos, Some(MemoryQos { throttling: 0.9, is_tiered: false }));
    let (c, _) = laid("qosReserved: {memory: 50%}\nmemoryThrottlingFactor: 0.5\n");
    assert_eq!(c.memory, MemoryConfig::default(), "both belong to gates");
}

#[test]
fn static_pods_of_a_url_and_images_of_another_socket() {
    let (c, found) = laid(
        "staticPodURL: https://example.com/pods\nstaticPodURLHeader: {X-Site: [a, b]}\nhttpCheckFrequency: 5s\n\
         imageServiceEndpoint: unix:///run/images.sock\n",
    );
    let headers = [("X-Site", "a"), ("X-Site", "b")].map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let wanted = PublishedPods { url: "https://example.com/pods".into(), headers, every: Duration::from_secs(5) };
    assert_eq!(c.published_pods, Some(wanted));
    assert_eq!((c.image_endpoint.as_deref(), found.ignored), (Some("unix:///run/images.sock"), vec![]));
    let found =
        faults(&format!("{HEAD}staticPodURL: http://h\nstaticPodURLHeader: {{Authorization: [\"s\u{e9}cret\\n\"]}}\n"));
    assert!(found.iter().all(|fault| !fault.contains("cret")), "{found:?}");
}

#[test]
fn logging_fields() {
    assert_eq!(laid("maxPods: 1\n").1.logging, LoggingSettings::default());
    let (_, found) = laid("logging: {format: json, verbosity: 5, flushFrequency: 5s}\n");
    assert_eq!(found.logging, LoggingSettings { verbosity: Some(5), format: Some(LogFormat::Json) });
    assert_eq!(found.ignored, Vec::<String>::new(), "every line is written at once");
    let (_, found) = laid("logging: {format: text, flushFrequency: 5000000000, vmodule: null}\n");
    assert_eq!(found.logging, LoggingSettings { verbosity: None, format: Some(LogFormat::Text) });
}

#[test]
fn tls_cipher_suites_are_configured_by_name() {
    let (c, found) = laid("tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]\n");
    assert_eq!(c.server.tls_suites, ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"]);
    assert_eq!(found.ignored, Vec::<String>::new());
    let found = faults(&format!("{HEAD}tlsCipherSuites: [TLS_AES_128_GCM_SHA256, TLS_NEW]\n"));
    let why = "Cipher suite not supported or doesn't exist";
    assert_eq!(found, [format!("tlsCipherSuites[1]: Invalid value: \"TLS_NEW\": {why}")]);
}

#[test]
fn process_fields() {
    let (c, found) = laid(
        "oomScoreAdj: -999\nmaxOpenFiles: 4096\nkubeAPIQPS: 20\neventRecordQPS: 5\neventBurst: 7\nruntimeRequestTimeout: 3m\n\
         protectKernelDefaults: true\nfailCgroupV1: true\nrunOnce: false\n",
    );
    let p = &c.process;
    assert_eq!((p.oom_score, p.open_files, p.runtime_request.as_secs()), (Some(-999), Some(4096), 180));
    assert_eq!(p.api, Some(Pacing { per_second: 20.0, burst: 100 }));
    assert_eq!(p.events, Some(Pacing { per_second: 5.0, burst: 7 }));
    assert!(p.protects_kernel && p.refuses_cgroup_v1 && found.ignored.is_empty());
    let (c, _) = laid("kubeAPIQPS: 0\nkubeAPIBurst: 3\neventRecordQPS: 0\n");
    assert_eq!(c.process.api, Some(Pacing { per_second: 5.0, burst: 3 }), "as client-go takes zero");
    assert_eq!(c.process.events, None, "no limit");
    let (c, _) = laid("kubeAPIBurst: 0\neventBurst: 0\nmaxOpenFiles: 0\n");
    assert_eq!(c.process, crate::config::process::ProcessConfig::default(), "what kubeadm writes says nothing");
}

#[test]
fn reported_fields() {
    let (c, found) = laid(
        "providerID: cloud://7\nnodeStatusMaxImages: -1\nlocalStorageCapacityIsolation: false\ncpuCFSQuota: false\n\
         fileCheckFrequency: 5s\ncontainerLogMaxWorkers: 4\ntlsMinVersion: VersionTLS13\nnodeStatusUpdateFrequency: 4s\n\
         authentication: {webhook: {enabled: false, cacheTTL: 1m}}\n\
         authorization: {webhook: {cacheAuthorizedTTL: 2m, cacheUnauthorizedTTL: 3s}}\n",
    );
    assert_eq!((c.provider_id.as_str(), c.status_images_max, c.log_workers), ("cloud://7", None, 4));
    assert!(!c.isolates_storage && !c.cpu_quota && c.server.tls13_only && found.ignored.is_empty(), "{found:?}");
    assert_eq!((c.manifests_every.as_secs(), c.node_status_report.as_secs()), (5, 4));
    let seconds = Duration::from_secs;
    let wanted =
        ReviewRules { takes_tokens: false, token_for: seconds(60), allowed_for: seconds(120), denied_for: seconds(3) };
    assert_eq!(c.server.reviews, wanted);
    let (c, _) = laid("nodeStatusUpdateFrequency: 4s\nnodeStatusReportFrequency: 1m\ntlsMinVersion: VersionTLS12\n");
    assert_eq!((c.node_status_report.as_secs(), c.server.tls13_only), (60, false));
}

#[test]
fn tracing_fields() {
    assert_eq!(laid("maxPods: 1\n").0.tracing, None);
    assert_eq!(laid("tracing: {}\n").0.tracing, Some(TracingConfiguration::default()));
    let (c, found) = laid("tracing: {endpoint: 'collector:4317', samplingRatePerMillion: 100}\n");
    let tracing = c.tracing.expect("tracing is configured");
    assert_eq!(tracing.endpoint.as_deref(), Some("collector:4317"));
    assert!(tracing.sampling_rate_per_million == Some(100) && found.ignored.is_empty());
}

#[test]
fn upstreams_validation_errors() {
    for (text, wanted) in [
        ("oomScoreAdj: 1001", "oomScoreAdj: Invalid value: 1001"),
        ("kubeAPIQPS: -1", "kubeAPIQPS: Invalid value: -1"),
        ("eventBurst: -1", "eventBurst: Invalid value: -1"),
        ("maxOpenFiles: -1", "maxOpenFiles: Invalid value: -1"),
        ("nodeStatusMaxImages: -2", "nodeStatusMaxImages: Invalid value: -2"),
        ("containerLogMaxWorkers: 0", "containerLogMaxWorkers: Invalid value: 0"),
        ("containerLogMonitorInterval: 2s", "containerLogMonitorInterval: Invalid value"),
        ("runOnce: true", "runOnce: Invalid value: true: Runonce mode has been deprecated"),
        ("tlsMinVersion: TLS1.2", "tlsMinVersion: Unsupported value: \"TLS1.2\""),
        ("iptablesDropBit: 32", "iptablesDropBit: Invalid value: 32"),
        ("iptablesMasqueradeBit: -1", "iptablesMasqueradeBit: Invalid value: -1"),
        ("hairpinMode: on-demand", "hairpinMode: Unsupported value"),
        ("configMapAndSecretChangeDetectionStrategy: Poll", "configMapAndSecretChangeDetectionStrategy: Unsupported"),
        ("memoryThrottlingFactor: 1.1", "memoryThrottlingFactor: Invalid value: 1.1"),
        ("memoryReservationPolicy: All", "memoryReservationPolicy: Unsupported value"),
        ("memoryReservationPolicy: TieredReservation", "memoryReservationPolicy: Invalid value"),
        ("systemCgroups: /system", "cgroupRoot: Required value"),
        ("cpuCFSQuotaPeriod: 10ms", "requires feature gate CustomCPUCFSQuotaPeriod"),
        ("featureGates: {CustomCPUCFSQuotaPeriod: true}\ncpuCFSQuotaPeriod: 2s", "must be between 1ms and 1sec"),
        ("featureGates: {NodeSwap: 'yes'}", "featureGates[NodeSwap]: Invalid value"),
        ("userNamespaces: {idsPerPod: 65537}", "userNamespaces.idsPerPod: Invalid value: 65537"),
        ("userNamespaces: {idsPerPod: 4294967296}", "userNamespaces.idsPerPod: Invalid value: 4294967296"),
        ("userNamespaces: {ids: 1}", "userNamespaces.ids: Forbidden: unknown field"),
        ("qosReserved: {cpu: 50%}", "cannot reserve \"cpu\" resource"),
        ("qosReserved: {memory: 101%}", "must be a percentage between 0% and 100%"),
        ("qosReserved: {memory: '50'}", "must be a percentage between 0% and 100%"),
        ("staticPodURL: example.com/pods", "must be a URL with scheme http or https"),
        ("staticPodURL: http://h\nstaticPodURLHeader: {'a b': [c]}", "must be a valid HTTP header name"),
        ("staticPodURL: http://h\nstaticPodURLHeader: {a: b}", "staticPodURLHeader[a]: Invalid value: must be a list"),
        ("logging: {format: xml}", "logging.format: Invalid value: \"xml\": Unsupported log format"),
        ("logging: {verbosity: -1}", "logging.verbosity: Invalid value: -1"),
        ("logging: {flushFrequency: -1}", "logging.flushFrequency: Invalid value: -1: Must be greater than zero"),
        ("logging: {format: json, vmodule: [{filePattern: a}]}", "logging.vmodule: Forbidden: Only supported for text"),
        ("logging: {vmodule: [{}]}", "logging.vmodule[0].filePattern: Required value"),
        ("logging: {level: 1}", "logging.level: Forbidden: unknown field"),
        (
            "tracing: {samplingRatePerMillion: -1}",
            "tracing.samplingRatePerMillion: Invalid value: -1: sampling rate must be positive",
        ),
        ("tracing: {samplingRatePerMillion: 1000001}", "less than or equal to one million"),
        ("tracing: {endpoint: 'http://collector:4317'}", "tracing.endpoint: Invalid value"),
        ("tracing: {collector: x}", "tracing.collector: Forbidden: unknown field"),
        ("podLogsDir: logs", "podLogsDir: Invalid value: \"logs\": must be an absolute path"),
        ("podLogsDir: /var//log", "must be normalized"),
        ("podLogsDir: /var/log/../pods", "must be normalized"),
        ("podLogsDir: /var/log/pöds", "must contain ASCII characters only"),
        (
            "registerWithTaints: [{key: k, effect: NoSchedule, timeAdded: '2026-01-01T00:00:00Z'}]",
            "timeAdded: Forbidden",
        ),
        ("enforceNodeAllocatable: [pods, pods]", "enforceNodeAllocatable[1]: Duplicate value"),
        ("enforceNodeAllocatable: [none, pods]", "may not contain additional enforcements"),
        ("cgroupsPerQOS: false\nenforceNodeAllocatable: [pods]", "cgroupsPerQOS must be set to true"),
        (
            "kubeReservedCgroup: /k\nenforceNodeAllocatable: [kube-reserved, kube-reserved-compressible]",
            "cannot be specified together with \"kube-reserved\"",
        ),
    ] {
        let found = faults(&format!("{HEAD}{text}\n"));
        assert!(found.len() == 1 && found[0].contains(wanted), "{text}: {found:?}");
    }
}

#[test]
fn flags_go_before_the_file() {
    let dir = tempfile::tempdir().expect("tempdir");
    let file = dir.path().join("kubelet.yaml");
    std::fs::write(&file, format!("{HEAD}maxPods: 7\nevictionHard: {{pid.available: '5'}}\nhealthzPort: 1\n"))
        .expect("written");
    let flags = [
        ("evictionHard", json!({"memory.available": "1Gi"})),
        ("authentication.webhook.cacheTTL", json!("9s")),
        ("healthzPort", json!(2)),
    ];
    let mut config = Config::new("n", Path::new("/"));
    load(Some(&file), &flags, &mut config).expect("valid");
    assert_eq!((config.max_pods, config.server.reviews.token_for.as_secs()), (7, 9));
    assert_eq!(config.server.healthz, Some(SocketAddr::from(([127, 0, 0, 1], 2))));
    let hard: Vec<String> = config.eviction.thresholds.iter().map(|t| t.signal.name().to_owned()).collect();
    assert_eq!(hard, ["memory.available"], "a flag that is a map replaces the whole field");
    let mut config = Config::new("n", Path::new("/"));
    load(None, &flags, &mut config).expect("valid");
    assert_eq!(config.server.reviews.token_for.as_secs(), 9);
    std::fs::write(&file, format!("{HEAD}authentication: [1]\n")).expect("written");
    assert!(load(Some(&file), &flags, &mut config).is_err_and(|e| e.0.iter().any(|f| f.contains("must be an object"))));
}
