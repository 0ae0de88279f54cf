//! Metrics in the classic text format at `/metrics`, `/metrics/resource` and `/metrics/cadvisor`, with upstream's names.

use std::collections::BTreeMap;

use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kelson_cri::proto as cri;
use kelson_metrics::{CONTENT_TYPE, Families, Registry};

use super::super::answer::{Body, text, typed};
use super::super::state::ServerState;
use super::above;
use super::columns::{self, CgroupSample};
use super::network::{self, Traffic};
use super::usage::{self, RunningUsage};
use crate::cgroups::usage::CgroupUsage;
use crate::node::facts;
use crate::pod;

/// Creates a response in the classic text format.
pub fn answer(body: String) -> Response<Body> {
    typed(StatusCode::OK, CONTENT_TYPE, body)
}

/// Serves `/metrics`: the kubelet's own metrics.
pub async fn own(state: &ServerState) -> Response<Body> {
    let ready = cri::PodSandboxState::SandboxReady as i32;
    // If the runtime does not respond, nothing is known to run.
    let sandboxes = state.runtime.list_pod_sandbox(None).await.unwrap_or_default();
    let containers = state.runtime.list_containers(None).await.unwrap_or_default();
    let mut states = BTreeMap::new();
    for c in &containers {
        let word = match cri::ContainerState::try_from(c.state) {
            Ok(cri::ContainerState::ContainerCreated) => "created",
            Ok(cri::ContainerState::ContainerRunning) => "running",
            Ok(cri::ContainerState::ContainerExited) => "exited",
            Ok(cri::ContainerState::ContainerUnknown) | Err(_) => "unknown",
        };
        *states.entry(word).or_insert(0) += 1;
    }
    let states: Vec<(&str, usize)> = states.into_iter().collect();
    state.metrics.set_running(sandboxes.iter().filter(|s| s.state == ready).count(), &states);
    let traced = state.traced.as_ref().map(Registry::text).unwrap_or_default();
    answer(state.metrics.registry().text() + &state.certificates.text() + &traced)
}

/// Serves `/metrics/resource` for metrics-server.
pub async fn resource(state: &ServerState) -> Response<Body> {
    let (usages, failed) = match usage::all(state).await {
        Ok(u) => (u, 0.0),
        Err(e) => {
            tracing::warn!(error = %e, "reading the usage of containers failed");
            (Vec::new(), 1.0)
        }
    };
    let memory = facts::machine_memory();
    let node = Node {
        cpu: usage::machine_cpu_nanos() as f64 / 1e9,
        memory: (memory.total - memory.available) as f64,
        swap: (memory.swap - memory.swap_free) as f64,
        at: state.clock.now().as_millisecond(),
    };
    answer(resource_text(&usages, |uid| state.cgroups.usage(Some(uid)), &node, failed))
}

struct Node {
    cpu: f64,
    memory: f64,
    swap: f64,
    at: i64,
}

fn resource_text(usages: &[RunningUsage], of_pod: impl Fn(&str) -> CgroupUsage, node: &Node, failed: f64) -> String {
    let mut f = Families::default();
    let millis = |nanos: i64| nanos / 1_000_000;
    let mut of = f.counter("container_cpu_usage_seconds_total", "Total CPU time of the container in core seconds");
    for u in usages {
        of.sample_at(&labels(u), u.cpu_nanos as f64 / 1e9, millis(u.at));
    }
    let mut of = f.gauge("container_memory_working_set_bytes", "Current working set of the container in bytes");
    for u in usages {
        of.sample_at(&labels(u), u.memory as f64, millis(u.at));
    }
    let mut of = f.gauge("container_swap_usage_bytes", "Swap usage of the container in bytes");
    for (u, n) in usages.iter().filter_map(|u| Some((u, u.swap?))) {
        of.sample_at(&labels(u), n as f64, millis(u.at));
    }
    let mut of = f.gauge("container_swap_limit_bytes", "Swap limit of the container in bytes");
    for (u, n) in usages.iter().filter_map(|u| Some((u, u.swap_available? + u.swap.unwrap_or(0)))) {
        of.sample_at(&labels(u), n as f64, millis(u.at));
    }
    let mut of = f.gauge("container_start_time_seconds", "Start time of the container since unix epoch in seconds");
    for u in usages {
        of.sample(&labels(u), u.started_at as f64 / 1e9);
    }
    f.counter("node_cpu_usage_seconds_total", "Total CPU time of the node in core seconds").sample_at(
        &[],
        node.cpu,
        node.at,
    );
    f.gauge("node_memory_working_set_bytes", "Current working set of the node in bytes").sample_at(
        &[],
        node.memory,
        node.at,
    );
    f.gauge("node_swap_usage_bytes", "Swap usage of the node in bytes").sample_at(&[], node.swap, node.at);
    pods_text(&mut f, usages, of_pod);
    f.gauge("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise")
        .sample(&[], failed);
    f.text()
}

/// Writes the usage of pods: that of their cgroups, which have the sandbox in them, else the sums of their containers.
fn pods_text(f: &mut Families, usages: &[RunningUsage], of_pod: impl Fn(&str) -> CgroupUsage) {
    #[derive(Default)]
    struct Sum<'a> {
        uid: &'a str,
        cpu: u64,
        memory: u64,
        swap: Option<u64>,
        at: i64,
    }
    let mut pods: BTreeMap<(&str, &str), Sum<'_>> = BTreeMap::new();
    for u in usages {
        let sum = pods.entry((&u.namespace, &u.pod)).or_default();
        (sum.cpu, sum.memory, sum.at) = (sum.cpu + u.cpu_nanos, sum.memory + u.memory, sum.at.max(u.at / 1_000_000));
        sum.swap = u.swap.map_or(sum.swap, |n| Some(sum.swap.unwrap_or(0) + n));
        sum.uid = &u.uid;
    }
    for sum in pods.values_mut() {
        let whole = of_pod(sum.uid);
        (sum.cpu, sum.memory) = (whole.cpu_nanos.unwrap_or(sum.cpu), whole.working_set.unwrap_or(sum.memory));
    }
    let mut of = f.counter("pod_cpu_usage_seconds_total", "Total CPU time of the pod in core seconds");
    for ((namespace, pod), sum) in &pods {
        of.sample_at(&[("namespace", namespace), ("pod", pod)], sum.cpu as f64 / 1e9, sum.at);
    }
    let mut of = f.gauge("pod_memory_working_set_bytes", "Current working set of the pod in bytes");
    for ((namespace, pod), sum) in &pods {
        of.sample_at(&[("namespace", namespace), ("pod", pod)], sum.memory as f64, sum.at);
    }
    let mut of = f.gauge("pod_swap_usage_bytes", "Swap usage of the pod in bytes");
    for ((namespace, pod), (n, at)) in pods.iter().filter_map(|(name, sum)| Some((name, (sum.swap?, sum.at)))) {
        of.sample_at(&[("namespace", namespace), ("pod", pod)], n as f64, at);
    }
}

fn labels(u: &RunningUsage) -> [(&str, &str); 3] {
    [("container", &u.container), ("namespace", &u.namespace), ("pod", &u.pod)]
}

/// Labels that cAdvisor adds.
fn all_labels<'a>(u: &'a RunningUsage, id: &'a str) -> [(&'a str, &'a str); 6] {
    let [container, namespace, pod] = labels(u);
    [container, ("id", id), ("image", &u.image), ("name", &u.id), namespace, pod]
}

/// Serves `/metrics/cadvisor`: the metrics that dashboards use most.
pub async fn cadvisor(state: &ServerState) -> Response<Body> {
    let usages = match usage::all(state).await {
        Ok(u) => u,
        Err(e) => return text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    };
    let mut f = Families::default();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let info = facts::system_info("");
    let machine = [
        ("boot_id", info.boot_id.as_str()),
        ("machine_id", info.machine_id.as_str()),
        ("system_uuid", info.system_uuid.as_str()),
    ];
    f.gauge("machine_cpu_cores", "Logical CPUs of the machine.").sample(&machine, cores as f64);
    f.gauge("machine_memory_bytes", "Memory of the machine in bytes.")
        .sample(&machine, facts::machine_memory().total as f64);
    f.gauge("machine_swap_bytes", "Swap of the machine in bytes.")
        .sample(&machine, facts::machine_memory().swap as f64);
    f.gauge("machine_scrape_error", "1 if reading statistics of the machine failed, 0 otherwise.").sample(&[], 0.0);
    f.gauge("container_scrape_error", "1 if reading statistics of containers failed, 0 otherwise.").sample(&[], 0.0);
    let pods = state.known.list();
    let pods: Vec<&Pod> = pods.iter().map(|p| &**p).collect();
    // Path of the container's cgroup, by which some dashboards distinguish containers from pods.
    let paths: Paths = pods.iter().map(|p| (pod::uid(p).to_owned(), state.cgroups.parent(p))).collect();
    containers(&mut f, &usages, &pods, &paths);
    above::series(&mut f, &above::read(state, &pods), state.clock.now().as_millisecond());
    network::series(&mut f, &network::all(state).await as &[Traffic], &paths);
    answer(f.text())
}

/// Pods' cgroups, by UID.
type Paths = BTreeMap<String, String>;

type Column = (&'static str, &'static str, fn(&RunningUsage) -> Option<f64>);

/// Metrics of every container: name, help, value.
const COLUMNS: &[Column] = &[
    ("container_memory_working_set_bytes", "Current working set in bytes.", |u| Some(u.memory as f64)),
    ("container_memory_usage_bytes", "Memory charged to the container in bytes.", |u| u.memory_usage.map(|n| n as f64)),
    ("container_memory_rss", "Resident memory in bytes.", |u| u.rss.map(|n| n as f64)),
    ("container_memory_swap", "Swap usage in bytes.", |u| u.swap.map(|n| n as f64)),
    ("container_fs_usage_bytes", "Size of the container's writable layer in bytes.", |u| Some(u.disk as f64)),
    ("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", |u| {
        Some(u.started_at as f64 / 1e9)
    }),
    ("container_last_seen", "Time of the reading in seconds since the epoch.", |u| Some(u.at as f64 / 1e9)),
];

fn containers(f: &mut Families, usages: &[RunningUsage], pods: &[&Pod], paths: &Paths) {
    let id = |u: &RunningUsage| format!("{}/{}", paths.get(&u.uid).map_or("", String::as_str), u.id);
    let ids: Vec<String> = usages.iter().map(id).collect();
    let all = || usages.iter().zip(ids.iter().map(String::as_str));
    let mut of = f.counter("container_cpu_usage_seconds_total", "Total CPU time in seconds.");
    for (u, id) in all() {
        let labels: Vec<(&str, &str)> = all_labels(u, id).into_iter().chain([("cpu", "total")]).collect();
        of.sample_at(&labels, u.cpu_nanos as f64 / 1e9, u.at / 1_000_000);
    }
    let samples: Vec<CgroupSample<'_>> = all()
        .map(|(u, id)| CgroupSample {
            labels: all_labels(u, id).into(),
            usage: &u.cgroup,
            pressure: &u.pressure,
            io: &u.io,
            processes: u.processes,
            at: u.at / 1_000_000,
        })
        .collect();
    columns::series(f, &samples);
    for (name, help, value) in COLUMNS {
        let mut of = f.gauge(name, help);
        for ((u, id), v) in all().filter_map(|at| Some((at, value(at.0)?))) {
            of.sample(&all_labels(u, id), v);
        }
    }
    let limit = |u: &RunningUsage, resource: &str| {
        let pod = pods.iter().find(|p| pod::uid(p) == u.uid)?;
        pod::limit(&pod::member(pod, &u.container)?.container, resource)
    };
    let mut of = f.gauge("container_spec_memory_limit_bytes", "Memory limit of the container in bytes.");
    for (u, id) in all() {
        of.sample(&all_labels(u, id), limit(u, "memory").map_or(0.0, |q| q.value() as f64));
    }
    let mut of = f.gauge("container_spec_cpu_quota", "CPU quota of the container in microseconds.");
    for ((u, id), q) in all().filter_map(|at| Some((at, limit(at.0, "cpu")?))) {
        of.sample(&all_labels(u, id), crate::cgroups::resources::quota(q.milli_value()) as f64);
    }
    let mut of = f.gauge("container_spec_cpu_period", "CPU period of the container in microseconds.");
    for (u, id) in all().filter(|at| limit(at.0, "cpu").is_some()) {
        of.sample(&all_labels(u, id), crate::cgroups::resources::PERIOD as f64);
    }
    let mut of = f.gauge("container_spec_cpu_shares", "CPU shares of the container.");
    for (u, id) in all() {
        let member = pods.iter().find(|p| pod::uid(p) == u.uid).and_then(|p| pod::member(p, &u.container));
        let asked = member.and_then(|m| pod::request(&m.container, "cpu")).map_or(0, |q| q.milli_value());
        of.sample(&all_labels(u, id), crate::cgroups::resources::shares(asked) as f64);
    }
    for (u, id) in all() {
        columns::page_faults(f, &all_labels(u, id), u.faults);
    }
}

#[cfg(test)]
mod tests {
    use super::super::usage::tests::sample;
    use super::*;
    use crate::cgroups::pressure::{ResourcePressures, Stall, StallPair};
    use crate::cgroups::usage::Throttled;

    #[test]
    fn resource_series() {
        let node = Node { cpu: 1.5, memory: 9.0, swap: 3.0, at: 3000 };
        let other = RunningUsage { container: "d".into(), swap: Some(5), swap_available: Some(1), ..sample() };
        let all = [sample(), other];
        let text = resource_text(&all, |_| CgroupUsage::default(), &node, 0.0);
        for line in [
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 0.25 2000",
            "container_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=\"p\"} 4096 2000",
            "container_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 1.5",
            "node_cpu_usage_seconds_total 1.5 3000",
            "container_swap_usage_bytes{container=\"d\",namespace=\"n\",pod=\"p\"} 5 2000",
            "container_swap_limit_bytes{container=\"d\",namespace=\"n\",pod=\"p\"} 6 2000",
            "pod_swap_usage_bytes{namespace=\"n\",pod=\"p\"} 5 2000",
            "node_swap_usage_bytes 3 3000",
            "pod_cpu_usage_seconds_total{namespace=\"n\",pod=\"p\"} 0.5 2000",
            "pod_memory_working_set_bytes{namespace=\"n\",pod=\"p\"} 8192 2000",
            "resource_scrape_error 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        let whole = CgroupUsage { cpu_nanos: Some(750_000_000), working_set: Some(9000), ..CgroupUsage::default() };
        let text = resource_text(&all, |uid| if uid == "u" { whole } else { CgroupUsage::default() }, &node, 0.0);
        for line in [
            "pod_cpu_usage_seconds_total{namespace=\"n\",pod=\"p\"} 0.75 2000",
            "pod_memory_working_set_bytes{namespace=\"n\",pod=\"p\"} 9000 2000",
        ] {
            assert!(text.lines().any(|l| l == line), "the sandbox counts: {line} in\n{text}");
        }
    }

    #[test]
    fn cadvisor_series() {
        let mut f = Families::default();
        let paths = [("u".to_owned(), "/kubepods/podu".to_owned())].into();
        let waited = Stall { total: 1_500_000, averages: [0.0; 3] };
        let pressure = ResourcePressures {
            io: Some(StallPair { some: waited, full: Stall::default() }),
            ..ResourcePressures::default()
        };
        let throttled = Some(Throttled { periods: 9, throttled_periods: 4, nanos: 1_500_000_000 });
        let cgroup = CgroupUsage { throttled, cache: Some(33), oom_kills: Some(2), ..CgroupUsage::default() };
        let faulty = RunningUsage { swap: Some(9), faults: (Some(3), None), pressure, cgroup, ..sample() };
        containers(&mut f, &[faulty], &[], &paths);
        let text = f.text();
        let labels = "container=\"c\",id=\"/kubepods/podu/i\",image=\"x:1\",name=\"i\",namespace=\"n\",pod=\"p\"";
        for line in [
            format!("container_cpu_usage_seconds_total{{{labels},cpu=\"total\"}} 0.25 2000"),
            format!("container_memory_rss{{{labels}}} 1024"),
            format!("container_spec_memory_limit_bytes{{{labels}}} 0"),
            format!("container_spec_cpu_shares{{{labels}}} 2"),
            format!("container_memory_swap{{{labels}}} 9"),
            format!("container_memory_cache{{{labels}}} 33"),
            format!("container_cpu_cfs_periods_total{{{labels}}} 9 2000"),
            format!("container_cpu_cfs_throttled_periods_total{{{labels}}} 4 2000"),
            format!("container_cpu_cfs_throttled_seconds_total{{{labels}}} 1.5 2000"),
            format!("container_oom_events_total{{{labels}}} 2 2000"),
            format!("container_pressure_io_waiting_seconds_total{{{labels}}} 1.5 2000"),
            format!("container_pressure_io_stalled_seconds_total{{{labels}}} 0 2000"),
            format!("container_memory_failures_total{{{labels},failure_type=\"pgfault\",scope=\"container\"}} 3"),
            format!("container_memory_failures_total{{{labels},failure_type=\"pgfault\",scope=\"hierarchy\"}} 3"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
