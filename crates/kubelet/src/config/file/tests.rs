//! Files as people and kubeadm write them, and every fault at once.
use std::path::PathBuf;

use super::*;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn config() -> Config {
    Config::new("n", Path::new("/var/lib/kubelet"))
}

fn laid(text: &str) -> (Config, Laid) {
    let mut c = config();
    let laid = lay(format!("{HEAD}{text}").as_bytes(), &mut c).expect(text);
    (c, laid)
}

fn faults(text: &str) -> Vec<String> {
    lay(text.as_bytes(), &mut config()).expect_err(text).0
}

#[test]
fn as_kubeadm_writes_it() {
    let (c, laid) = laid(
        "authentication: {anonymous: {enabled: false}, webhook: {cacheTTL: 0s, enabled: true}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
cgroupDriver: cgroupfs
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
    assert_eq!(laid.ignored, ["healthzBindAddress", "healthzPort"], "what is set and has no effect is named");
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
fn the_rest_has_its_place() {
    let (c, laid) = laid(
        "address: 127.0.0.1\nport: 12345\nmaxPods: 12\npodPidsLimit: 100\nsystemReserved: {cpu: 100m}\nkubeReserved: {cpu: 200m, memory: 1Gi}\nregisterWithTaints: [{key: k, effect: NoSchedule}]\nregisterNode: false\ncontainerLogMaxSize: 1Mi\ntlsCertFile: /c\ntlsPrivateKeyFile: /k\ncgroupsPerQOS: false\nnodeLeaseDurationSeconds: 8\n",
    );
    assert_eq!(c.server.listen.map(|a| a.to_string()).as_deref(), Some("127.0.0.1:12345"));
    assert_eq!((c.max_pods, c.pod_max_pids, c.log_max_bytes), (12, Some(100), 1 << 20));
    assert_eq!(c.reserved["cpu"], "300m");
    assert_eq!(c.register_with_taints[0].key, "k");
    assert!(!c.register_node && !laid.cgroups_per_qos && c.lease_duration == Duration::from_secs(8));
}

#[test]
fn every_fault_at_once_by_path() {
    let found = faults(
        "apiVersion: v1\nkind: Pod\nmaxParallelImagePulls: 0\nserializeImagePulls: 'yes'\nregistryBurst: -1\nimagePullCredentialsVerificationPolicy: Sometimes\nimageGCHighThresholdPercent: 101\nclusterDNS: [here]\ntlsCertFile: /c\nregisterWithTaints: [{effect: Never}]\nauthentication: {x509: {clientCA: /x}}\nauthorization: {mode: AlwaysAllow}\nnodeStatusUpdateFrequency: soon\nnoSuchField: 1\ncgroupDriver: systemd\n",
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
        "cgroupDriver: Unsupported value: \"systemd\"",
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
