//! `/configz`: the configuration in force, with the names of KubeletConfiguration.
use std::sync::Arc;

use http::Response;
use serde_json::json;

use super::answer::{Body, json as json_body};
use super::endpoint::{Answer, Call};
use super::state::ServerState;
use crate::config::Config;

/// The configuration in force.
pub fn serve(state: Arc<ServerState>, _: Call) -> Answer {
    Box::pin(async move { configz(&state.config) })
}

fn configz(c: &Config) -> Response<Body> {
    let hard = c.eviction.thresholds.iter().filter(|t| t.is_hard());
    let hard: std::collections::BTreeMap<&str, String> = hard.map(|t| (t.signal.name(), t.value.to_string())).collect();
    let dns: Vec<String> = c.cluster_dns.iter().map(ToString::to_string).collect();
    json_body(&json!({"kubeletconfig": {
        "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "evictionHard": hard, "evictionPressureTransitionPeriod": format!("{}s", c.eviction.transition.as_secs()),
        "staticPodPath": c.pod_manifest_path,
        "clusterDNS": dns, "clusterDomain": c.cluster_domain, "maxPods": c.max_pods,
        "serializeImagePulls": c.image_pulls.serialize, "maxParallelImagePulls": c.image_pulls.parallel_max,
        "registryPullQPS": c.image_pulls.qps, "registryBurst": c.image_pulls.burst,
        "imagePullCredentialsVerificationPolicy": c.image_pulls.policy.name(), "containerLogMaxFiles": c.log_max_files,
        "containerLogMaxSize": format!("{}", kelson_meta::Quantity::binary(i64::try_from(c.log_max_bytes).unwrap_or(i64::MAX))),
        "resolvConf": c.resolv_conf, "cgroupRoot": c.cgroups.as_ref().map(|g| &g.root), "cgroupDriver": c.cgroups.as_ref().map(|g| g.driver.name()),
        "cgroupsPerQOS": c.cgroups.is_some(), "streamingConnectionIdleTimeout": format!("{}s", c.server.streaming_idle.as_secs()),
        "podLogsDir": c.pod_logs_dir,
        "nodeLeaseDurationSeconds": c.lease_duration.as_secs(), "rotateCertificates": c.rotate_certificates,
        "serverTLSBootstrap": c.server.tls_bootstrap,
        "enableDebuggingHandlers": c.server.debugging_handlers, "enableSystemLogHandler": c.server.system_logs,
        "enableSystemLogQuery": c.server.system_log_query,
        "failSwapOn": c.fail_swap_on, "memorySwap": {"swapBehavior": c.swap_behavior.name()},
        "imageGCHighThresholdPercent": c.image_gc_high_percent, "imageGCLowThresholdPercent": c.image_gc_low_percent,
        "nodeStatusUpdateFrequency": format!("{}s", c.node_status_update.as_secs()),
        "nodeStatusReportFrequency": format!("{}s", c.node_status_report.as_secs())}}))
}
