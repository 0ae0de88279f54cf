//! Metrics of admitting, starting and ending pods and related work, under upstream's names.
use std::time::Duration;

use k8s_openapi::api::core::v1::ContainerStatus;
use kelson_metrics::{Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::bounds::{PULL_BOUNDS, START_BOUNDS, STATUS_BOUNDS, USUAL_BOUNDS};

/// Rejection reasons with a label value; all others share one, so that the number of time series is bounded.
const REJECTIONS: &[&str] = &[
    "AppArmor",
    "Evicted",
    "InitContainerRestartPolicyForbidden",
    "InvalidNodeInfo",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodFeatureUnsupported",
    "PodLevelResourcesNotSupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
    "VolumeAttachmentLimitExceeded",
];
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Size classes of images: lower bound in bytes and label.
const SIZES: &[(u64, &str)] = &[
    (0, "0-10MB"),
    (10 * MIB, "10MB-100MB"),
    (100 * MIB, "100MB-500MB"),
    (500 * MIB, "500MB-1GB"),
    (GIB, "1GB-5GB"),
    (5 * GIB, "5GB-10GB"),
    (10 * GIB, "10GB-20GB"),
    (20 * GIB, "20GB-30GB"),
    (30 * GIB, "30GB-40GB"),
    (40 * GIB, "40GB-60GB"),
    (60 * GIB, "60GB-100GB"),
    (100 * GIB, "GT100GB"),
];

/// Why an image was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageRemoval {
    /// It was unused for longer than the maximum age.
    Age,
    /// The disk was full.
    Space,
}

/// Metrics of listing the runtime's pods.
#[derive(Debug)]
struct RelistMetrics {
    seconds: Histogram,
    interval: Histogram,
    at: Gauge,
    last: Mutex<Option<Instant>>,
}

impl RelistMetrics {
    fn new(r: &Registry) -> Self {
        Self {
            seconds: r.histogram(
                "kubelet_pleg_relist_duration_seconds",
                "Duration of listing the runtime's pods in seconds.",
                &USUAL_BOUNDS,
            ),
            interval: r.histogram(
                "kubelet_pleg_relist_interval_seconds",
                "Interval between lists of the runtime's pods in seconds.",
                &USUAL_BOUNDS,
            ),
            at: r.float_gauge(
                "kubelet_pleg_last_seen_seconds",
                "Time of the last list of the runtime's pods in seconds since the epoch.",
            ),
            last: Mutex::default(),
        }
    }

    fn relisted(&self, took: Duration, at: f64) {
        let now = Instant::now();
        self.seconds.observe(took.as_secs_f64());
        self.at.set(at);
        if let Some(before) = self.last.lock().replace(now) {
            self.interval.observe(now.duration_since(before).as_secs_f64());
        }
    }
}

/// Counters, gauges and histograms of pods' lives on the node.
#[derive(Debug)]
pub struct LifeMetrics {
    rejections: IntCounterVec,
    orphans: IntCounter,
    containers_per_pod: Histogram,
    start_seconds: HistogramVec,
    own_users: IntCounter,
    own_users_failed: IntCounter,
    image_volumes: [IntCounter; 3],
    relists: RelistMetrics,
    images_removed: IntCounterVec,
    pull_seconds: HistogramVec,
    status_seconds: Histogram,
    terminated: IntCounterVec,
    mirrors: IntGauge,
}

impl LifeMetrics {
    /// Registers the metrics in `r`.
    pub fn new(r: &Registry) -> Self {
        let image_volumes = [
            ("requested_total", "Image volumes requested by containers."),
            ("mounted_succeed_total", "Image volumes that were mounted."),
            ("mounted_errors_total", "Image volumes that failed to mount."),
        ];
        Self {
            rejections: r.counters(
                "kubelet_admission_rejections_total",
                "Pods rejected by admission of the node, by reason.",
                &["reason"],
            ),
            orphans: r.counter(
                "kubelet_orphaned_runtime_pods_total",
                "Pods in the runtime that the API did not know and that the kubelet ended.",
            ),
            containers_per_pod: r.histogram(
                "kubelet_containers_per_pod_count",
                "Number of containers of admitted pods.",
                &[1.0, 2.0, 4.0, 8.0, 16.0],
            ),
            start_seconds: r.histograms(
                "kubelet_pod_start_total_duration_seconds",
                "Seconds from the creation of a pod until it is running, including image pulls and init containers.",
                &[],
                &START_BOUNDS,
            ),
            own_users: r.counter(
                "kubelet_started_user_namespaced_pods_total",
                "Attempts to start a pod with a user namespace.",
            ),
            own_users_failed: r.counter(
                "kubelet_started_user_namespaced_pods_errors_total",
                "Failed attempts to start a pod with a user namespace.",
            ),
            image_volumes: image_volumes.map(|(name, help)| r.counter(&format!("kubelet_image_volume_{name}"), help)),
            relists: RelistMetrics::new(r),
            images_removed: r.counters(
                "kubelet_image_garbage_collected_total",
                "Images removed by garbage collection by reason (age or space).",
                &["reason"],
            ),
            pull_seconds: r.histograms(
                "kubelet_image_pull_duration_seconds",
                "Duration of image pulls in seconds by size of the image.",
                &["image_size_in_bytes"],
                &PULL_BOUNDS,
            ),
            terminated: r.counters(
                "kubelet_terminated_containers_total",
                "Terminated containers by type, exit code and reason.",
                &["container_type", "exit_code", "reason"],
            ),
            mirrors: r.gauge("kubelet_mirror_pods", "Mirror pods in the API."),
            status_seconds: r.histogram(
                "kubelet_pod_status_sync_duration_seconds",
                "Seconds from a change of a pod's status until it is written to the API.",
                &STATUS_BOUNDS,
            ),
        }
    }

    /// Counts a rejected pod.
    pub fn rejected(&self, reason: &str) {
        let label = match reason {
            known if REJECTIONS.contains(&known) => known,
            lacking if lacking.starts_with("OutOf") => "OutOfExtendedResources",
            _ => "Other",
        };
        self.rejections.with_label_values(&[label]).inc();
    }

    /// Counts the containers of one type that terminated between two statuses of a pod; each termination counts once.
    pub fn ended(&self, kind: &str, before: Option<&[ContainerStatus]>, now: Option<&[ContainerStatus]>) {
        let end = |s: &ContainerStatus| s.state.as_ref().and_then(|s| s.terminated.clone());
        for s in now.unwrap_or_default() {
            let had_ended = before.unwrap_or_default().iter().any(|b| b.name == s.name && end(b).is_some());
            if let Some(end) = end(s).filter(|_| !had_ended) {
                let (code, reason) = (end.exit_code.to_string(), end.reason.unwrap_or_default());
                self.terminated.with_label_values(&[kind, &code, &reason]).inc();
            }
        }
    }

    /// Sets the number of mirror pods.
    pub fn mirrored(&self, count: usize) {
        self.mirrors.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Records the number of containers of an admitted pod.
    pub fn came(&self, containers: usize) {
        self.containers_per_pod.observe(containers as f64);
    }

    /// Records the time from the creation of a pod until it runs.
    pub fn runs(&self, since_made: Duration) {
        self.start_seconds.with_label_values::<&str>(&[]).observe(since_made.as_secs_f64());
    }

    /// Counts a pod that the API did not know and that is ended.
    pub fn orphaned(&self) {
        self.orphans.inc();
    }

    /// Counts an attempt to start a pod with a user namespace.
    pub fn with_own_users(&self, made: bool) {
        self.own_users.inc();
        if !made {
            self.own_users_failed.inc();
        }
    }

    /// Counts the image volumes of a container that was created or failed.
    pub fn image_volumes(&self, count: usize, mounted: bool) {
        let [requested, succeeded, failed] = &self.image_volumes;
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        requested.inc_by(count);
        if mounted { succeeded } else { failed }.inc_by(count);
    }

    /// Records a list of the runtime's pods at `at`, in seconds since the epoch.
    pub fn relisted(&self, took: Duration, at: f64) {
        self.relists.relisted(took, at);
    }

    /// Counts a removed image.
    pub fn image_removed(&self, why: ImageRemoval) {
        let reason = match why {
            ImageRemoval::Age => "age",
            ImageRemoval::Space => "space",
        };
        self.images_removed.with_label_values(&[reason]).inc();
    }

    /// Records the pull of an image of this size.
    pub fn pulled(&self, bytes: u64, took: Duration) {
        let size = SIZES.iter().rfind(|(from, _)| bytes >= *from).map_or("", |(_, name)| *name);
        self.pull_seconds.with_label_values(&[size]).observe(took.as_secs_f64());
    }

    /// Records the time from a change of a pod's status until it was written.
    pub fn status_written(&self, after: Duration) {
        self.status_seconds.observe(after.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn life_metrics_have_upstreams_names() {
        let r = Registry::new();
        let m = LifeMetrics::new(&r);
        for reason in ["OutOfcpu", "OutOfexample.com/gpu", "whatever they say"] {
            m.rejected(reason);
        }
        m.came(3);
        m.runs(Duration::from_secs(2));
        m.orphaned();
        m.with_own_users(true);
        m.with_own_users(false);
        m.image_volumes(2, true);
        m.image_volumes(1, false);
        m.relisted(Duration::from_millis(20), 7.0);
        tokio::time::advance(Duration::from_secs(1)).await;
        m.relisted(Duration::from_millis(20), 8.0);
        m.image_removed(ImageRemoval::Space);
        m.pulled(10 * MIB, Duration::from_secs(3));
        m.pulled(200 * GIB, Duration::from_secs(3));
        m.status_written(Duration::from_millis(20));
        m.mirrored(2);
        let of = |states: serde_json::Value| -> Vec<ContainerStatus> {
            let states = states.as_object().expect("states").clone().into_iter();
            let one = |(name, state)| {
                json!({"name": name, "state": state, "image": "", "imageID": "", "ready": false,
                "restartCount": 0})
            };
            states.map(|s| serde_json::from_value(one(s)).expect("a status")).collect()
        };
        let ended = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
        let before = of(json!({"a": {"running": {}}, "b": ended}));
        let now = of(json!({"a": ended, "b": ended, "c": ended, "d": {"running": {}}}));
        m.ended("container", Some(&before), Some(&now));
        m.ended("container", Some(&now), Some(&now));
        m.ended("init_container", None, None);
        let text = r.text();
        for line in [
            "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"3\",reason=\"Error\"} 2",
            "kubelet_mirror_pods 2",
            "kubelet_admission_rejections_total{reason=\"OutOfcpu\"} 1",
            "kubelet_admission_rejections_total{reason=\"OutOfExtendedResources\"} 1",
            "kubelet_admission_rejections_total{reason=\"Other\"} 1",
            "kubelet_containers_per_pod_count_bucket{le=\"2\"} 0",
            "kubelet_containers_per_pod_count_bucket{le=\"4\"} 1",
            "kubelet_pod_start_total_duration_seconds_bucket{le=\"2\"} 1",
            "kubelet_orphaned_runtime_pods_total 1",
            "kubelet_started_user_namespaced_pods_total 2",
            "kubelet_started_user_namespaced_pods_errors_total 1",
            "kubelet_image_volume_requested_total 3",
            "kubelet_image_volume_mounted_succeed_total 2",
            "kubelet_image_volume_mounted_errors_total 1",
            "kubelet_pleg_relist_duration_seconds_count 2",
            "kubelet_pleg_relist_interval_seconds_sum 1",
            "kubelet_pleg_last_seen_seconds 8",
            "kubelet_image_garbage_collected_total{reason=\"space\"} 1",
            "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"10MB-100MB\"} 1",
            "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"GT100GB\"} 1",
            "kubelet_pod_status_sync_duration_seconds_bucket{le=\"0.05\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
