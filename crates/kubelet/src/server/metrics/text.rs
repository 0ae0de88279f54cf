//! `/metrics`, `/metrics/resource` and `/metrics/cadvisor` in the classic text format, with upstream's names.
#![allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk")]

use std::fmt::Write as _;

use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kelson_cri::proto as cri;

use super::super::answer::{Body, text, typed};
use super::super::state::ServerState;
use super::usage::{self, Usage};
use crate::node::facts;
use crate::pod;
use kelson_meta::version::GIT_VERSION;

/// The classic text format.
pub fn answer(body: String) -> Response<Body> {
    typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body)
}

/// Families of one exposition.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }
    fn sample(&mut self, name: &str, labels: &str, value: f64, at_millis: Option<i64>) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = match at_millis {
            Some(at) => writeln!(self.0, "{name}{labels} {value} {at}"),
            None => writeln!(self.0, "{name}{labels} {value}"),
        };
    }
}

fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

fn process_cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(')').map_or("", |(_, r)| r);
    let ticks: f64 = after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum();
    ticks / 100.0
}

fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0) * 1024.0
}

/// Serves `/metrics`, of the kubelet itself.
pub async fn own(state: &ServerState) -> Response<Body> {
    let pods = state.known.list().len() as f64;
    let containers = state.runtime.list_containers(None).await.unwrap_or_default();
    let up = cri::ContainerState::ContainerRunning as i32;
    let alive = containers.iter().filter(|c| c.state == up).count();
    let node = quoted(&state.config.node_name);
    let mut e = Exposition::default();
    e.family("kubernetes_build_info", "gauge", "A metric with a constant '1' value labeled by version.");
    e.sample("kubernetes_build_info", &format!("git_version={}", quoted(GIT_VERSION)), 1.0, None);
    e.family("kubelet_node_name", "gauge", "The node's name. The count is always 1.");
    e.sample("kubelet_node_name", &format!("node={node}"), 1.0, None);
    e.family("kubelet_working_pods", "gauge", "Number of pods the kubelet works on.");
    e.sample("kubelet_working_pods", "", pods, None);
    e.family("kubelet_running_containers", "gauge", "Number of containers by state.");
    e.sample("kubelet_running_containers", "container_state=\"running\"", alive as f64, None);
    e.sample("kubelet_running_containers", "container_state=\"exited\"", (containers.len() - alive) as f64, None);
    e.family("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.");
    e.sample("process_cpu_seconds_total", "", process_cpu_seconds(), None);
    e.family("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.");
    e.sample("process_resident_memory_bytes", "", resident_bytes(), None);
    state.images.encode_metrics(&mut e.0);
    answer(e.0)
}

/// `/metrics/resource`, what metrics-server reads.
pub async fn resource(state: &ServerState) -> Response<Body> {
    let (usages, failed) = match usage::all(state).await {
        Ok(u) => (u, 0.0),
        Err(e) => {
            tracing::warn!(error = %e, "usage not read");
            (Vec::new(), 1.0)
        }
    };
    let memory = facts::machine_memory();
    let node = Node {
        cpu: usage::machine_cpu_nanos() as f64 / 1e9,
        memory: (memory.total - memory.available) as f64,
        at: state.clock.now().as_millisecond(),
    };
    answer(resource_text(&usages, &node, failed))
}

struct Node {
    cpu: f64,
    memory: f64,
    at: i64,
}

fn resource_text(usages: &[Usage], node: &Node, failed: f64) -> String {
    let mut e = Exposition::default();
    let container = |u: &Usage| {
        format!("container={},namespace={},pod={}", quoted(&u.container), quoted(&u.namespace), quoted(&u.pod))
    };
    let millis = |nanos: i64| Some(nanos / 1_000_000);
    let name = "container_cpu_usage_seconds_total";
    e.family(name, "counter", "[STABLE] Cumulative cpu time consumed by the container in core-seconds");
    usages.iter().for_each(|u| e.sample(name, &container(u), u.cpu_nanos as f64 / 1e9, millis(u.at)));
    let name = "container_memory_working_set_bytes";
    e.family(name, "gauge", "[STABLE] Current working set of the container in bytes");
    usages.iter().for_each(|u| e.sample(name, &container(u), u.memory as f64, millis(u.at)));
    let name = "container_start_time_seconds";
    e.family(name, "gauge", "[STABLE] Start time of the container since unix epoch in seconds");
    usages.iter().for_each(|u| e.sample(name, &container(u), u.started_at as f64 / 1e9, None));
    let name = "node_cpu_usage_seconds_total";
    e.family(name, "counter", "[STABLE] Cumulative cpu time consumed by the node in core-seconds");
    e.sample(name, "", node.cpu, Some(node.at));
    let name = "node_memory_working_set_bytes";
    e.family(name, "gauge", "[STABLE] Current working set of the node in bytes");
    e.sample(name, "", node.memory, Some(node.at));
    let mut pods: std::collections::BTreeMap<(&str, &str), (u64, u64, i64)> = std::collections::BTreeMap::new();
    for u in usages {
        let sum = pods.entry((&u.namespace, &u.pod)).or_default();
        (sum.0, sum.1, sum.2) = (sum.0 + u.cpu_nanos, sum.1 + u.memory, sum.2.max(u.at));
    }
    let of = |(namespace, pod): &(&str, &str)| format!("namespace={},pod={}", quoted(namespace), quoted(pod));
    let name = "pod_cpu_usage_seconds_total";
    e.family(name, "counter", "[STABLE] Cumulative cpu time consumed by the pod in core-seconds");
    pods.iter().for_each(|(p, s)| e.sample(name, &of(p), s.0 as f64 / 1e9, millis(s.2)));
    let name = "pod_memory_working_set_bytes";
    e.family(name, "gauge", "[STABLE] Current working set of the pod in bytes");
    pods.iter().for_each(|(p, s)| e.sample(name, &of(p), s.1 as f64, millis(s.2)));
    e.family(
        "resource_scrape_error",
        "gauge",
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
    );
    e.sample("resource_scrape_error", "", failed, None);
    e.0
}

/// `/metrics/cadvisor`, the series that dashboards need most.
pub async fn cadvisor(state: &ServerState) -> Response<Body> {
    let usages = match usage::all(state).await {
        Ok(u) => u,
        Err(e) => return text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    };
    let mut e = Exposition::default();
    e.family("machine_cpu_cores", "gauge", "Number of logical CPU cores.");
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    e.sample("machine_cpu_cores", "", cores as f64, None);
    e.family("machine_memory_bytes", "gauge", "Amount of memory installed on the machine.");
    e.sample("machine_memory_bytes", "", facts::machine_memory().total as f64, None);
    let pods = state.known.list();
    let pods: Vec<&Pod> = pods.iter().map(|p| &**p).collect();
    cadvisor_text(&mut e, &usages, &pods);
    answer(e.0)
}

type Column = (&'static str, &'static str, &'static str, fn(&Usage) -> Option<f64>);

/// Series of every container: name, kind, help, value.
const COLUMNS: &[Column] = &[
    ("container_memory_working_set_bytes", "gauge", "Current working set in bytes.", |u| Some(u.memory as f64)),
    (
        "container_memory_usage_bytes",
        "gauge",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |u| u.memory_usage.map(|n| n as f64),
    ),
    ("container_memory_rss", "gauge", "Size of RSS in bytes.", |u| u.rss.map(|n| n as f64)),
    (
        "container_fs_usage_bytes",
        "gauge",
        "Number of bytes that are consumed by the container on this filesystem.",
        |u| Some(u.disk as f64),
    ),
    ("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds.", |u| {
        Some(u.started_at as f64 / 1e9)
    }),
    ("container_last_seen", "gauge", "Last time a container was seen by the exporter", |u| Some(u.at as f64 / 1e9)),
];

fn cadvisor_text(e: &mut Exposition, usages: &[Usage], pods: &[&Pod]) {
    let labels = |u: &Usage| {
        let (container, image, namespace) = (quoted(&u.container), quoted(&u.image), quoted(&u.namespace));
        let (id, pod) = (quoted(&u.id), quoted(&u.pod));
        format!("container={container},image={image},name={id},namespace={namespace},pod={pod}")
    };
    let name = "container_cpu_usage_seconds_total";
    e.family(name, "counter", "Cumulative cpu time consumed in seconds.");
    usages.iter().for_each(|u| {
        e.sample(name, &format!("{},cpu=\"total\"", labels(u)), u.cpu_nanos as f64 / 1e9, Some(u.at / 1_000_000));
    });
    for (name, kind, help, value) in COLUMNS {
        e.family(name, kind, help);
        usages.iter().filter_map(|u| Some((u, value(u)?))).for_each(|(u, v)| e.sample(name, &labels(u), v, None));
    }
    let limit = |u: &Usage, resource: &str| {
        let pod = pods.iter().find(|p| pod::uid(p) == u.uid)?;
        pod::limit(&pod::member(pod, &u.container)?.container, resource)
    };
    let name = "container_spec_memory_limit_bytes";
    e.family(name, "gauge", "Memory limit for the container.");
    usages.iter().for_each(|u| e.sample(name, &labels(u), limit(u, "memory").map_or(0.0, |q| q.value() as f64), None));
    let name = "container_spec_cpu_quota";
    e.family(name, "gauge", "CPU quota of the container.");
    for (u, q) in usages.iter().filter_map(|u| Some((u, limit(u, "cpu")?))) {
        e.sample(name, &labels(u), crate::cgroups::resources::quota(q.milli_value()) as f64, None);
    }
}

#[cfg(test)]
mod tests {
    use super::super::usage::tests::sample;
    use super::*;

    #[test]
    fn resource_series() {
        let node = Node { cpu: 1.5, memory: 9.0, at: 3000 };
        let text = resource_text(&[sample(), Usage { container: "d".into(), ..sample() }], &node, 0.0);
        for line in [
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 0.25 2000",
            "container_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=\"p\"} 4096 2000",
            "container_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 1.5",
            "node_cpu_usage_seconds_total 1.5 3000",
            "pod_cpu_usage_seconds_total{namespace=\"n\",pod=\"p\"} 0.5 2000",
            "pod_memory_working_set_bytes{namespace=\"n\",pod=\"p\"} 8192 2000",
            "resource_scrape_error 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn cadvisor_series() {
        let mut e = Exposition::default();
        cadvisor_text(&mut e, &[sample()], &[]);
        let labels = "container=\"c\",image=\"x:1\",name=\"i\",namespace=\"n\",pod=\"p\"";
        for line in [
            format!("container_cpu_usage_seconds_total{{{labels},cpu=\"total\"}} 0.25 2000"),
            format!("container_memory_rss{{{labels}}} 1024"),
            format!("container_spec_memory_limit_bytes{{{labels}}} 0"),
        ] {
            assert!(e.0.lines().any(|l| l == line), "{line} in\n{}", e.0);
        }
        assert_eq!(quoted("a\"b\\"), "\"a\\\"b\\\\\"");
    }
}
