//! What a node says of itself: `kelson check`, and the statistics of its pods.
use anyhow::{Context as _, ensure};
use kelson_blackbox::{Outcome, eventually};
use serde_json::Value;

use super::guest::Guest;
use super::{IMAGE, PATIENCE, pod};

/// The directories of the guest that the program needs in a container, which has no C library.
const CONTAINER: &str = "  volumes: [{name: u, hostPath: {path: /usr}}, {name: p, hostPath: {path: /payload}}]\n";

/// Debian has what a node needs, and a container of busybox has not: both are named, and neither is a failure of the command.
pub fn check(guest: &mut Guest) -> Outcome {
    let (code, found) = checked(&guest.sh("kelson check -o json; echo $?")?)?;
    for (probe, text) in
        [("cgroups", "version 2"), ("features", "AppArmor"), ("features", "PSI"), ("programs", "containerd")]
    {
        let is_named = found.iter().any(|f| f["probe"] == probe && f["level"] == "ok" && says(f).contains(text));
        ensure!(is_named, "{probe}: {text}: {found:#?}");
    }
    ensure!(code == 0 && found.iter().all(|f| f["level"] != "error"), "{found:#?}");
    for f in found.iter().filter(|f| f["level"] == "warning") {
        println!("  check: {}", says(f));
    }
    let container = format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: inside}}\nspec:\n  terminationGracePeriodSeconds: 1\n{CONTAINER}  containers:\n  - {{name: main, image: \"{IMAGE}\", command: [sleep, \"3600\"], volumeMounts: [{{name: u, mountPath: /usr}}, {{name: u, mountPath: /lib, subPath: lib}}, {{name: u, mountPath: /lib64, subPath: lib64}}, {{name: p, mountPath: /payload}}]}}\n"
    );
    guest.apply(&container, &["inside"])?;
    let run = "PATH=/bin:/sbin /payload/kelson check -o json; echo $?";
    let (code, found) = checked(&guest.kubectl().ok(&["exec", "inside", "--", "sh", "-c", run])?)?;
    let errors: Vec<&Value> = found.iter().filter(|f| f["level"] == "error").collect();
    ensure!(code == 1 && errors.iter().any(|f| f["probe"] == "capabilities"), "{errors:#?}");
    for f in &errors {
        ensure!(["meaning", "action"].iter().all(|field| f[field].is_string()), "what it means and what to do: {f}");
        println!("  check in a container: {}", says(f));
    }
    Ok(())
}

fn says(finding: &Value) -> &str {
    finding["found"].as_str().unwrap_or_default()
}

/// Splits the exit code and the findings.
fn checked(output: &str) -> anyhow::Result<(i32, Vec<Value>)> {
    let (report, code) = output.trim_end().rsplit_once('\n').context("a report and an exit code")?;
    let report: Value = serde_json::from_str(report).with_context(|| report.to_owned())?;
    Ok((code.parse()?, report["findings"].as_array().context("findings")?.clone()))
}

/// Series of cAdvisor for the machine, a class, a pod and a container.
const SERIES: [&str; 9] = [
    "container_memory_working_set_bytes{container=\"\",id=\"/\",",
    "container_cpu_usage_seconds_total{container=\"\",id=\"/\",",
    "container_memory_rss{container=\"main\",",
    "container_cpu_cfs_throttled_periods_total{container=\"main\",",
    "container_oom_events_total{container=\"main\",",
    "container_processes{container=\"main\",",
    "container_fs_writes_bytes_total{",
    "container_pressure_memory_waiting_seconds_total{container=\"main\",",
    "container_spec_memory_limit_bytes{container=\"main\",",
];

/// The summary and the metrics have what cgroup v2 gives: use of memory and CPU, pressure, throttling, OOM events.
pub fn statistics(guest: &mut Guest) -> Outcome {
    guest.apply(&pod("measured", &[("main", "{limits: {cpu: 100m, memory: 32Mi}}")], ""), &["measured"])?;
    let k = guest.kubectl();
    let get = |path: &str| k.ok(&["get", "--raw", &format!("/api/v1/nodes/guest/proxy{path}")]);
    eventually("a complete summary", PATIENCE, || {
        let all: Value = serde_json::from_str(&get("/stats/summary")?)?;
        let pod = all["pods"].as_array().and_then(|pods| pods.iter().find(|p| p["podRef"]["name"] == "measured"));
        let pod = pod.context("the pod")?;
        for (of, name) in [(&all["node"], "node"), (pod, "pod"), (&pod["containers"][0], "container")] {
            for field in [
                "/memory/workingSetBytes",
                "/memory/usageBytes",
                "/memory/rssBytes",
                "/memory/pageFaults",
                "/memory/availableBytes",
                "/cpu/usageCoreNanoSeconds",
                "/cpu/usageNanoCores",
            ] {
                ensure!(of.pointer(field).is_some_and(Value::is_u64), "{name} {field}: {of}");
            }
            for resource in ["cpu", "memory", "io"] {
                ensure!(
                    of.pointer(&format!("/{resource}/psi/some/total")).is_some_and(Value::is_u64),
                    "{name} {resource}: {of}"
                );
            }
        }
        let free = pod["memory"]["availableBytes"].as_u64().unwrap_or_default();
        ensure!((16 << 20..=32 << 20).contains(&free), "of 32 MiB there are free: {free}");
        let parts: Vec<&str> = all["node"]["systemContainers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|p| p["name"].as_str())
            .collect();
        ensure!(["kubelet", "pods"].iter().all(|part| parts.contains(part)), "{parts:?}");
        Ok(())
    })?;
    let metrics = get("/metrics/cadvisor")?;
    for series in SERIES {
        ensure!(metrics.lines().any(|line| line.starts_with(series)), "{series} is not in\n{metrics}");
    }
    for class in ["kubepods\"", "kubepods/besteffort\"", "kubepods/burstable\""] {
        let is_there =
            metrics.lines().any(|line| line.starts_with("container_memory_usage_bytes") && line.contains(class));
        ensure!(is_there, "{class} is not in\n{metrics}");
    }
    Ok(())
}
