//! Numbers: `/stats/summary` for metrics-server and friends, and the text formats for scrapers.
use std::fmt::Write as _;

use http::{Response, StatusCode};
use kelson_cri::proto as cri;
use kelson_meta::format_seconds;
use serde_json::{Value, json};

use super::Shared;
use super::routes::{Body, text, typed};
use crate::config::KUBELET_VERSION;
use crate::node::facts;
use crate::pods::actions::timestamp;
use crate::runtime::labels;

/// The classic text format.
pub fn text_answer(body: String) -> Response<Body> {
    typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body)
}

fn process_cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(')').map_or("", |(_, r)| r);
    let ticks: f64 = after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum();
    ticks / 100.0
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// `/metrics`.
pub async fn own(shared: &Shared) -> Response<Body> {
    let pods = shared.known.list().len();
    let running = shared.ctx.runtime.list_containers(None).await.unwrap_or_default();
    let up = cri::ContainerState::ContainerRunning as i32;
    let (alive, dead) =
        (running.iter().filter(|c| c.state == up).count(), running.iter().filter(|c| c.state != up).count());
    let mut out = String::new();
    let name = &shared.ctx.config.node_name;
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "# HELP kubernetes_build_info A metric with a constant '1' value labeled by version.\n# TYPE kubernetes_build_info gauge\nkubernetes_build_info{{git_version=\"{KUBELET_VERSION}\"}} 1\n\
         # HELP kubelet_node_name The node's name. The count is always 1.\n# TYPE kubelet_node_name gauge\nkubelet_node_name{{node=\"{name}\"}} 1\n\
         # HELP kubelet_working_pods Number of pods the kubelet works on.\n# TYPE kubelet_working_pods gauge\nkubelet_working_pods {pods}\n\
         # HELP kubelet_running_containers Number of containers by state.\n# TYPE kubelet_running_containers gauge\nkubelet_running_containers{{container_state=\"running\"}} {alive}\nkubelet_running_containers{{container_state=\"exited\"}} {dead}\n\
         # HELP process_cpu_seconds_total Total user and system CPU time spent in seconds.\n# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total {}\n\
         # HELP process_resident_memory_bytes Resident memory size in bytes.\n# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {}\n",
        process_cpu_seconds(),
        resident_bytes(),
    );
    shared.ctx.images.encode_metrics(&mut out);
    text_answer(out)
}

struct Usage {
    namespace: String,
    pod: String,
    uid: String,
    container: String,
    at: i64,
    cpu_nanos: u64,
    cpu_now: Option<u64>,
    memory: u64,
    rss: Option<u64>,
    disk: u64,
}

async fn usages(shared: &Shared) -> Result<Vec<Usage>, String> {
    let stats = shared.ctx.runtime.list_container_stats(None).await.map_err(|e| e.to_string())?;
    let one = |s: cri::ContainerStats| {
        let a = s.attributes?;
        let get = |k: &str| a.labels.get(k).cloned().unwrap_or_default();
        let value = |v: Option<cri::UInt64Value>| v.map(|v| v.value);
        let (cpu, memory) = (s.cpu.unwrap_or_default(), s.memory.unwrap_or_default());
        Some(Usage {
            namespace: get(labels::POD_NAMESPACE),
            pod: get(labels::POD_NAME),
            uid: get(labels::POD_UID),
            container: get(labels::CONTAINER_NAME),
            at: cpu.timestamp,
            cpu_nanos: value(cpu.usage_core_nano_seconds).unwrap_or(0),
            cpu_now: value(cpu.usage_nano_cores),
            memory: value(memory.working_set_bytes).unwrap_or(0),
            rss: value(memory.rss_bytes).filter(|r| *r > 0),
            disk: s.writable_layer.and_then(|w| value(w.used_bytes)).unwrap_or(0),
        })
    };
    // A container that ended has no usage.
    Ok(stats.into_iter().filter_map(one).filter(|u| u.at > 0).collect())
}

/// CPU time of the machine since boot, nanoseconds.
fn machine_cpu_nanos() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // All but idle and waiting for input or output; in hundredths of a second.
    let busy: u64 = fields.iter().enumerate().filter(|(i, _)| !matches!(i, 3 | 4)).map(|(_, n)| n).sum();
    busy * 10_000_000
}

/// `/metrics/resource`, what metrics-server reads.
pub async fn resource(shared: &Shared) -> Response<Body> {
    let usages = match usages(shared).await {
        Ok(u) => u,
        Err(e) => return text(StatusCode::INTERNAL_SERVER_ERROR, e),
    };
    let memory = facts::machine_memory();
    let now = shared.ctx.clock.now().as_millisecond();
    let mut cpu = String::new();
    let mut mem = String::new();
    for u in &usages {
        let labels = format!("container=\"{}\",namespace=\"{}\",pod=\"{}\"", u.container, u.namespace, u.pod);
        let at = u.at / 1_000_000;
        let _ = writeln!(cpu, "container_cpu_usage_seconds_total{{{labels}}} {} {at}", u.cpu_nanos as f64 / 1e9);
        let _ = writeln!(mem, "container_memory_working_set_bytes{{{labels}}} {} {at}", u.memory);
    }
    let body = format!(
        "# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds\n# TYPE container_cpu_usage_seconds_total counter\n{cpu}\
         # HELP container_memory_working_set_bytes [STABLE] Current working set of the container in bytes\n# TYPE container_memory_working_set_bytes gauge\n{mem}\
         # HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds\n# TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total {} {now}\n\
         # HELP node_memory_working_set_bytes [STABLE] Current working set of the node in bytes\n# TYPE node_memory_working_set_bytes gauge\nnode_memory_working_set_bytes {} {now}\n\
         # HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise\n# TYPE resource_scrape_error gauge\nresource_scrape_error 0\n",
        machine_cpu_nanos() as f64 / 1e9,
        memory.total - memory.available,
    );
    text_answer(body)
}

/// `/metrics/cadvisor`, the few series that dashboards need most.
pub async fn cadvisor(shared: &Shared) -> Response<Body> {
    let usages = match usages(shared).await {
        Ok(u) => u,
        Err(e) => return text(StatusCode::INTERNAL_SERVER_ERROR, e),
    };
    let mut out = String::from("# TYPE container_cpu_usage_seconds_total counter\n");
    let labels = |u: &Usage| format!("container=\"{}\",namespace=\"{}\",pod=\"{}\"", u.container, u.namespace, u.pod);
    for u in &usages {
        let _ = writeln!(
            out,
            "container_cpu_usage_seconds_total{{{},cpu=\"total\"}} {}",
            labels(u),
            u.cpu_nanos as f64 / 1e9
        );
    }
    out.push_str("# TYPE container_memory_working_set_bytes gauge\n");
    for u in &usages {
        let _ = writeln!(out, "container_memory_working_set_bytes{{{}}} {}", labels(u), u.memory);
    }
    out.push_str("# TYPE container_fs_usage_bytes gauge\n");
    for u in &usages {
        let _ = writeln!(out, "container_fs_usage_bytes{{{}}} {}", labels(u), u.disk);
    }
    text_answer(out)
}

/// `/stats/summary`.
pub async fn summary(shared: &Shared) -> Response<Body> {
    let usages = match usages(shared).await {
        Ok(u) => u,
        Err(e) => return text(StatusCode::INTERNAL_SERVER_ERROR, e),
    };
    let now = format_seconds(shared.ctx.clock.now());
    let memory = facts::machine_memory();
    let mut pods: std::collections::BTreeMap<String, Value> = std::collections::BTreeMap::new();
    for u in &usages {
        let time = format_seconds(timestamp(u.at));
        let pod = pods.entry(u.uid.clone()).or_insert_with(|| {
            json!({"podRef": {"name": u.pod, "namespace": u.namespace, "uid": u.uid}, "startTime": Value::Null, "containers": []})
        });
        let mut container = json!({"name": u.container, "startTime": Value::Null,
            "cpu": {"time": time, "usageCoreNanoSeconds": u.cpu_nanos},
            "memory": {"time": time, "workingSetBytes": u.memory},
            "rootfs": {"time": time, "usedBytes": u.disk}});
        if let Some(n) = u.cpu_now {
            container["cpu"]["usageNanoCores"] = json!(n);
        }
        if let Some(rss) = u.rss {
            container["memory"]["rssBytes"] = json!(rss);
        }
        if let Some(list) = pod["containers"].as_array_mut() {
            list.push(container);
        }
    }
    let pods: Vec<Value> = pods.into_values().collect();
    let fs = crate::images::gc::Usage::of(&shared.ctx.config.root_dir);
    let fs = fs.map(|u| {
        json!({"time": now, "capacityBytes": u.capacity, "availableBytes": u.available,
        "usedBytes": u.capacity.saturating_sub(u.available)})
    });
    let body = json!({"node": {"nodeName": shared.ctx.config.node_name, "startTime": now,
        "cpu": {"time": now, "usageCoreNanoSeconds": machine_cpu_nanos()},
        "memory": {"time": now, "availableBytes": memory.available,
            "workingSetBytes": memory.total - memory.available, "usageBytes": memory.total - memory.available},
        "fs": fs}, "pods": pods});
    typed(StatusCode::OK, "application/json", body.to_string())
}
