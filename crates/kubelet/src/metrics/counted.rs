//! Metrics of one kubelet and their registries.
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kelson_metrics::{Families, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::bounds::{START_BOUNDS, USUAL_BOUNDS};
use super::calls::Calls;
use super::lives::LifeMetrics;
use super::requests::{OpenRequest, Requests};
use super::resizes::ResizeMetrics;
use super::streams::StreamMetrics;
use crate::pod::{self, Role};

/// Metrics of the kubelet under upstream's names. There are two registries: the kubelet's own, to which other parts of the node add theirs,
/// and one for probes, which upstream serves separately.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    probe_registry: Registry,
    probes: IntCounterVec,
    calls: Calls,
    pods_started: IntCounter,
    pods_not_started: IntCounter,
    containers_started: IntCounterVec,
    containers_not_started: IntCounterVec,
    pod_start_seconds: Histogram,
    pod_work_seconds: HistogramVec,
    evictions: IntCounterVec,
    preemptions: IntCounterVec,
    running_pods: IntGauge,
    running_containers: IntGaugeVec,
    requests: Requests,
    streams: StreamMetrics,
    lives: LifeMetrics,
    resizes: ResizeMetrics,
    probe_seconds: HistogramVec,
    hook_fallbacks: IntCounter,
}

impl Metrics {
    /// Registers the metrics, including those of the process.
    pub fn new(node_name: &str) -> Self {
        let registry = Registry::of_component();
        let (r, probe_registry) = (&registry, Registry::new());
        r.gauges("kubelet_node_name", "Name of the node as a label; the value is always 1.", &["node"])
            .with_label_values(&[node_name])
            .set(1);
        Self {
            probes: probe_registry.counters(
                "prober_probe_total",
                "Attempts of liveness, readiness and startup probes by result.",
                &["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
            ),
            calls: Calls::new(r),
            requests: Requests::new(r),
            streams: StreamMetrics::new(r),
            lives: LifeMetrics::new(r),
            resizes: ResizeMetrics::new(r),
            probe_seconds: probe_registry.histograms(
                "prober_probe_duration_seconds",
                "Duration of probe attempts in seconds.",
                &["probe_type", "container", "pod", "namespace"],
                &USUAL_BOUNDS,
            ),
            pods_started: r.counter("kubelet_started_pods_total", "Attempts to start a pod (to create its sandbox)."),
            pods_not_started: r.counter(
                "kubelet_started_pods_errors_total",
                "Failed attempts to start a pod (to create its sandbox).",
            ),
            containers_started: r.counters(
                "kubelet_started_containers_total",
                "Attempts to start a container by container type.",
                &["container_type"],
            ),
            containers_not_started: r.counters(
                "kubelet_started_containers_errors_total",
                "Failed attempts to start a container by container type and reason.",
                &["container_type", "code"],
            ),
            pod_start_seconds: r.histogram(
                "kubelet_pod_start_duration_seconds",
                "Seconds from the kubelet first seeing a pod until the pod is running.",
                &START_BOUNDS,
            ),
            pod_work_seconds: r.histograms(
                "kubelet_pod_worker_duration_seconds",
                "Duration of syncing a pod in seconds by operation (create, sync).",
                &["operation_type"],
                &USUAL_BOUNDS,
            ),
            evictions: r.counters("kubelet_evictions", "Evictions of pods by eviction signal.", &["eviction_signal"]),
            preemptions: r.counters(
                "kubelet_preemptions",
                "Pods preempted for a critical pod by the insufficient resource.",
                &["preemption_signal"],
            ),
            running_pods: r.gauge("kubelet_running_pods", "Pods with a ready sandbox."),
            running_containers: r.gauges(
                "kubelet_running_containers",
                "Containers in the runtime by state.",
                &["container_state"],
            ),
            hook_fallbacks: r.counter(
                "kubelet_lifecycle_handler_http_fallbacks_total",
                "Lifecycle hooks with HTTPS that fell back to HTTP because the server does not support TLS.",
            ),
            probe_registry,
            registry,
        }
    }

    /// The registry for metrics of other parts.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Formats the probes' metrics in the classic text format (`/metrics/probes`).
    pub fn probes_text(&self) -> String {
        self.probe_registry.text()
    }

    /// Counts an attempt of a probe. `result` is `successful`, `failed` or `unknown`.
    pub fn probed(&self, pod: &Pod, container: &str, probe: &str, (result, took): (&str, Duration)) {
        self.probes.with_label_values(&probe_labels(pod, container, probe, result)).inc();
        let labels = [probe, container, pod::name(pod), pod::namespace(pod)];
        self.probe_seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Removes the probe metrics of a pod that is gone, so that the number of time series stays bounded.
    pub fn forget_probes(&self, pod: &Pod) {
        for m in pod::members(pod) {
            for probe in ["Liveness", "Readiness", "Startup"] {
                let labels = [probe, m.container.name.as_str(), pod::name(pod), pod::namespace(pod)];
                let _ = self.probe_seconds.remove_label_values(&labels);
                for result in ["successful", "failed", "unknown"] {
                    // An error means that there was no such attempt.
                    let _ = self.probes.remove_label_values(&probe_labels(pod, &m.container.name, probe, result));
                }
            }
        }
    }

    /// Metrics of starting and ending pods.
    pub fn lives(&self) -> &LifeMetrics {
        &self.lives
    }

    /// Metrics of in-place resizes.
    pub fn resizes(&self) -> &ResizeMetrics {
        &self.resizes
    }

    /// Metrics of streams.
    pub fn streams(&self) -> &StreamMetrics {
        &self.streams
    }

    /// Metrics of calls to the runtime.
    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Counts a request that is in flight. Dropping the returned value records its end.
    pub fn request(&self, method: &str, path: &'static str, long_running: bool) -> OpenRequest<'_> {
        self.requests.open(method, path, long_running)
    }

    pub(super) fn sandbox_asked_for(&self) {
        self.pods_started.inc();
    }

    /// Counts a pod whose sandbox could not be created.
    pub fn pod_failed(&self) {
        self.pods_not_started.inc();
    }

    /// Counts an attempt to start a container; `fault` is the reason of its waiting state if it failed.
    pub fn container_started(&self, role: Role, fault: Option<&str>) {
        let kind = match role {
            Role::Init | Role::Sidecar => "init_container",
            Role::App => "container",
            Role::Ephemeral => "ephemeral_container",
        };
        self.containers_started.with_label_values(&[kind]).inc();
        if let Some(code) = fault {
            self.containers_not_started.with_label_values(&[kind, code]).inc();
        }
    }

    /// Records the time from first seeing a pod until it runs.
    pub fn pod_runs(&self, after: Duration) {
        self.pod_start_seconds.observe(after.as_secs_f64());
    }

    /// Records the sync of a pod; `operation` is `create` or `sync`.
    pub fn pod_worked(&self, operation: &str, took: Duration) {
        self.pod_work_seconds.with_label_values(&[operation]).observe(took.as_secs_f64());
    }

    /// Counts an eviction; `signal` is the eviction signal, for example `memory.available`, or the exceeded limit.
    pub fn evicted(&self, signal: &str) {
        self.evictions.with_label_values(&[signal]).inc();
    }

    /// Counts a preemption for a critical pod; `signal` is the first insufficient resource, for example `memory`.
    pub fn preempted(&self, signal: &str) {
        self.preemptions.with_label_values(&[signal]).inc();
    }

    /// Counts an HTTPS lifecycle hook that fell back to HTTP.
    pub fn hook_fell_back(&self) {
        self.hook_fallbacks.inc();
    }

    /// Sets the numbers of ready sandboxes, and of containers by state.
    pub fn set_running(&self, pods: usize, containers: &[(&str, usize)]) {
        let whole = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.running_pods.set(whole(pods));
        self.running_containers.reset();
        for (state, n) in containers {
            self.running_containers.with_label_values(&[*state]).set(whole(*n));
        }
    }
}

fn probe_labels<'a>(pod: &'a Pod, container: &'a str, probe: &'a str, result: &'a str) -> [&'a str; 6] {
    [probe, result, container, pod::name(pod), pod::namespace(pod), pod::uid(pod)]
}

/// Writes the numbers of the kubelet's pods by source and state.
pub fn pods<'p>(families: &mut Families, pods: impl Iterator<Item = &'p Pod> + Clone) {
    let count = |which: &dyn Fn(&Pod) -> bool| pods.clone().filter(|p| which(p)).count() as f64;
    let mut desired = families.gauge("kubelet_desired_pods", "Pods that the kubelet should run, by source.");
    for (label, is_static) in [("", false), ("true", true)] {
        desired.sample(&[("static", label)], count(&|p| pod::is_static(p) == is_static));
    }
    let mut active = families.gauge("kubelet_active_pods", "Pods whose containers have not all terminated, by source.");
    for (label, is_static) in [("", false), ("true", true)] {
        let n = count(&|p| pod::is_static(p) == is_static && !pod::is_terminal(p));
        active.sample(&[("static", label)], n);
    }
    let ephemeral = pods.clone().map(|p| pod::members(p).filter(|m| m.role == Role::Ephemeral).count()).sum::<usize>();
    families
        .gauge("kubelet_managed_ephemeral_containers", "Ephemeral containers of the kubelet's pods.")
        .sample(&[], ephemeral as f64);
    let mut working = families.gauge("kubelet_working_pods", "Pods that the kubelet works on by lifecycle phase.");
    for lifecycle in ["sync", "terminating", "terminated"] {
        for (label, is_static) in [("", false), ("true", true)] {
            let n = count(&|p| pod::is_static(p) == is_static && self::lifecycle(p) == lifecycle);
            working.sample(&[("config", "desired"), ("lifecycle", lifecycle), ("static", label)], n);
        }
    }
}

fn lifecycle(pod: &Pod) -> &'static str {
    if pod::is_terminal(pod) {
        "terminated"
    } else if pod::is_deleted(pod) {
        "terminating"
    } else {
        "sync"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::testing::check;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn metrics_have_upstreams_names() {
        let m = Metrics::new("n1");
        m.container_started(Role::Sidecar, None);
        m.container_started(Role::App, Some("ErrImagePull"));
        m.evicted("memory.available");
        m.preempted("cpu");
        m.pod_runs(Duration::from_millis(700));
        m.set_running(2, &[("running", 3), ("exited", 1)]);
        m.set_running(1, &[("running", 2)]);
        let open = m.request("GET", "metrics", false);
        tokio::time::advance(Duration::from_millis(200)).await;
        let request = "method=\"GET\",path=\"metrics\",server_type=\"readwrite\"";
        let labels = format!("long_running=\"false\",{request}");
        check(&m.registry().text(), &[&format!("kubelet_http_inflight_requests{{{labels}}} 1")]);
        drop(open);
        check(
            &m.registry().text(),
            &[
                "kubelet_node_name{node=\"n1\"} 1",
                "kubelet_started_containers_total{container_type=\"init_container\"} 1",
                "kubelet_started_containers_errors_total{code=\"ErrImagePull\",container_type=\"container\"} 1",
                "kubelet_evictions{eviction_signal=\"memory.available\"} 1",
                "kubelet_preemptions{preemption_signal=\"cpu\"} 1",
                "kubelet_pod_start_duration_seconds_bucket{le=\"0.5\"} 0",
                "kubelet_pod_start_duration_seconds_bucket{le=\"1\"} 1",
                "kubelet_running_pods 1",
                "kubelet_running_containers{container_state=\"running\"} 2",
                &format!("kubelet_http_requests_total{{{labels}}} 1"),
                &format!("kubelet_http_inflight_requests{{{labels}}} 0"),
                &format!("kubelet_http_requests_duration_seconds_bucket{{{labels},le=\"0.1\"}} 0"),
                &format!("kubelet_http_requests_duration_seconds_bucket{{{labels},le=\"0.25\"}} 1"),
            ],
        );
        assert!(!m.registry().text().contains("exited"), "a state that no container is in is not shown");
    }

    #[test]
    fn probes_of_a_pod_are_shown_while_it_is_there() {
        let m = Metrics::new("n1");
        let of = |name: &str| -> Pod {
            let pod = json!({"metadata": {"name": name, "namespace": "n", "uid": name},
                "spec": {"containers": [{"name": "c"}]}});
            serde_json::from_value(pod).expect("a pod")
        };
        let (one, two) = (of("one"), of("two"));
        let took = Duration::from_millis(30);
        m.probed(&one, "c", "Liveness", ("successful", took));
        m.probed(&two, "c", "Readiness", ("failed", took));
        m.probed(&two, "c", "Readiness", ("failed", took));
        m.forget_probes(&one);
        let labels =
            "container=\"c\",namespace=\"n\",pod=\"two\",pod_uid=\"two\",probe_type=\"Readiness\",result=\"failed\"";
        check(&m.probes_text(), &[&format!("prober_probe_total{{{labels}}} 2")]);
        let labels = "container=\"c\",namespace=\"n\",pod=\"two\",probe_type=\"Readiness\"";
        check(&m.probes_text(), &[&format!("prober_probe_duration_seconds_bucket{{{labels},le=\"0.05\"}} 2")]);
        assert!(!m.probes_text().contains("one"));
        assert!(!m.registry().text().contains("prober_probe_total"), "they have a separate path");
    }

    #[test]
    fn pods_are_counted_by_source_and_phase() {
        let of = |metadata, phase: &str| -> Pod {
            serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).expect("a pod")
        };
        let made = [
            of(json!({}), "Running"),
            of(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), "Running"),
            of(json!({"annotations": {"kubernetes.io/config.source": "file"}}), "Failed"),
        ];
        let mut families = Families::default();
        pods(&mut families, made.iter());
        check(
            &families.text(),
            &[
                "kubelet_desired_pods{static=\"\"} 2",
                "kubelet_desired_pods{static=\"true\"} 1",
                "kubelet_active_pods{static=\"true\"} 0",
                "kubelet_working_pods{config=\"desired\",lifecycle=\"terminating\",static=\"\"} 1",
                "kubelet_working_pods{config=\"desired\",lifecycle=\"terminated\",static=\"true\"} 1",
            ],
        );
    }
}
