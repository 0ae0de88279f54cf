//! Endpoint `/configz`: the current configuration with the field names of KubeletConfiguration.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use serde_json::{Value, json};

use super::answer::{Body, json as json_body};
use super::endpoint::{Answer, Call};
use super::state::ServerState;
use crate::config::Config;

/// Serves the current configuration.
pub fn serve(state: Arc<ServerState>, _: Call) -> Answer {
    Box::pin(async move { configz(&state.config) })
}

fn configz(c: &Config) -> Response<Body> {
    json_body(&json!({"kubeletconfig": shown(c)}))
}

/// Formats whole seconds like Go.
fn seconds(span: Duration) -> String {
    format!("{}s", span.as_secs())
}

/// Builds the configuration object. Values of headers may be secret, so only their names are shown.
fn shown(c: &Config) -> Value {
    let mut all = fields(c);
    let published = c.published_pods.as_ref();
    let masked = published.iter().flat_map(|p| &p.headers).map(|(name, _)| (name.as_str(), ["<masked>"]));
    let qos = c.memory.qos;
    let more = json!({
        "staticPodURL": published.map_or("", |p| &p.url), "staticPodURLHeader": masked.collect::<BTreeMap<_, _>>(),
        "httpCheckFrequency": seconds(published.map_or(Duration::from_secs(20), |p| p.every)),
        "fileCheckFrequency": seconds(c.manifests_every),
        "tlsCertFile": c.server.tls_files.as_ref().map(|(cert, _)| cert), "tlsPrivateKeyFile": c.server.tls_files.as_ref().map(|(_, key)| key),
        "tlsCipherSuites": c.server.tls_suites, "tlsMinVersion": if c.server.tls13_only { "VersionTLS13" } else { "VersionTLS12" },
        "singleProcessOOMKill": c.memory.kills_one, "imageServiceEndpoint": c.image_endpoint.as_deref().unwrap_or_default(),
        "containerRuntimeEndpoint": c.runtime_endpoint,
        "featureGates": {"MemoryQoS": qos.is_some(), "QOSReserved": c.memory.reserved_percent.is_some()},
        "memoryThrottlingFactor": qos.map_or(0.9, |q| q.throttling),
        "memoryReservationPolicy": if qos.is_some_and(|q| q.is_tiered) { "TieredReservation" } else { "None" },
        "qosReserved": c.memory.reserved_percent.map(|n| json!({"memory": format!("{n}%")})),
        "userNamespaces": {"idsPerPod": c.ids_per_pod}});
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more.into_iter().filter(|(_, value)| !value.is_null()));
    }
    all
}

fn fields(c: &Config) -> Value {
    let hard = c.eviction.thresholds.iter().filter(|t| t.is_hard());
    let hard: BTreeMap<&str, String> = hard.map(|t| (t.signal.name(), t.value.to_string())).collect();
    let dns: Vec<String> = c.cluster_dns.iter().map(ToString::to_string).collect();
    json!({
        "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "evictionHard": hard, "evictionPressureTransitionPeriod": seconds(c.eviction.transition),
        "staticPodPath": c.pod_manifest_path,
        "clusterDNS": dns, "clusterDomain": c.cluster_domain, "maxPods": c.max_pods,
        "serializeImagePulls": c.image_pulls.serialize, "maxParallelImagePulls": c.image_pulls.parallel_max,
        "registryPullQPS": c.image_pulls.qps, "registryBurst": c.image_pulls.burst,
        "imagePullCredentialsVerificationPolicy": c.image_pulls.policy.name(), "containerLogMaxFiles": c.log_max_files,
        "containerLogMaxSize": format!("{}", kelson_meta::Quantity::binary(i64::try_from(c.log_max_bytes).unwrap_or(i64::MAX))),
        "resolvConf": c.resolv_conf, "cgroupRoot": c.cgroups.as_ref().map(|g| &g.root), "cgroupDriver": c.cgroups.as_ref().map(|g| g.driver.name()),
        "cgroupsPerQOS": c.cgroups.is_some(), "streamingConnectionIdleTimeout": seconds(c.server.streaming_idle),
        "podLogsDir": c.pod_logs_dir,
        "nodeLeaseDurationSeconds": c.lease_duration.as_secs(), "rotateCertificates": c.rotate_certificates,
        "serverTLSBootstrap": c.server.tls_bootstrap,
        "enableDebuggingHandlers": c.server.debugging_handlers, "enableSystemLogHandler": c.server.system_logs,
        "enableSystemLogQuery": c.server.system_log_query,
        "failSwapOn": c.fail_swap_on, "memorySwap": {"swapBehavior": c.swap_behavior.name()},
        "imageGCHighThresholdPercent": c.image_gc_high_percent, "imageGCLowThresholdPercent": c.image_gc_low_percent,
        "nodeStatusUpdateFrequency": seconds(c.node_status_update),
        "nodeStatusReportFrequency": seconds(c.node_status_report)})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PublishedPods;
    use crate::config::cgroups::MemoryQos;

    #[test]
    fn configz_shows_the_configuration_without_secrets() {
        let mut config = Config::new("n", std::path::Path::new("/"));
        let usual = shown(&config);
        assert_eq!(usual["tlsCipherSuites"], json!([]));
        assert_eq!((&usual["httpCheckFrequency"], &usual["memoryThrottlingFactor"]), (&json!("20s"), &json!(0.9)));
        assert!(usual.get("singleProcessOOMKill").is_none() && usual.get("qosReserved").is_none(), "{usual}");
        config.server.tls_suites = vec!["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".into()];
        config.server.tls13_only = true;
        config.memory.qos = Some(MemoryQos { throttling: 0.5, is_tiered: true });
        (config.memory.kills_one, config.memory.reserved_percent) = (Some(false), Some(40));
        let headers = vec![("Authorization".to_owned(), "Bearer secret".to_owned())];
        let every = Duration::from_secs(5);
        config.published_pods = Some(PublishedPods { url: "https://example.com".into(), headers, every });
        let said = shown(&config);
        assert_eq!(said["tlsCipherSuites"], json!(["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]));
        assert_eq!((&said["tlsMinVersion"], &said["singleProcessOOMKill"]), (&json!("VersionTLS13"), &json!(false)));
        assert_eq!(
            (&said["qosReserved"], &said["staticPodURL"]),
            (&json!({"memory": "40%"}), &json!("https://example.com"))
        );
        assert_eq!(said["memoryReservationPolicy"], "TieredReservation");
        assert_eq!(said["staticPodURLHeader"], json!({"Authorization": ["<masked>"]}));
        assert!(!said.to_string().contains("secret"));
    }
}
