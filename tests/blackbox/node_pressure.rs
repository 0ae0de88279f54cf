//! A node under pressure: its conditions, admission and eviction of pods, and reserved resources.
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Kubectl, Needs::OwnNode, Outcome, Process, Subject, Test, eventually};
use serde_json::Value;

use crate::hosts::images;
use crate::pods::{ready, script};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "node::reserves_the_configured_resources", needs: OwnNode, run: reserved },
        Test { name: "node::short_of_memory", needs: OwnNode, run: short_of_memory },
        Test { name: "node::short_of_processes", needs: OwnNode, run: short_of_processes },
        Test { name: "node::huge_pages", needs: OwnNode, run: huge_pages },
    ]
}

const LIMIT: Duration = Duration::from_secs(120);

/// Starts a separate server whose kubelet has this configuration.
pub fn with(configuration: &str) -> anyhow::Result<(Process, tempfile::TempDir)> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("kubelet.yaml");
    std::fs::write(
        &file,
        format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{configuration}"),
    )?;
    let server = Process::start(&["--kubelet-config", &file.display().to_string()], &images())?;
    let k = server.kubectl();
    eventually("a node", LIMIT, || k.ok(&["wait", "node", "--all", "--for=condition=Ready", "--timeout=5s"]))?;
    eventually("the account of pods", LIMIT, || k.ok(&["get", "serviceaccount", "default"]))?;
    Ok((server, dir))
}

fn condition(k: &Kubectl, kind: &str, status: &str) -> Outcome {
    eventually(&format!("{kind} is {status}"), LIMIT, || {
        let now = k.ok(&[
            "get",
            "nodes",
            "-o",
            &format!("jsonpath={{.items[0].status.conditions[?(@.type==\"{kind}\")].status}}"),
        ])?;
        ensure!(now == status, "{now}");
        Ok(())
    })
}

fn ends_as(k: &Kubectl, pod: &str, reason: &str) -> anyhow::Result<Value> {
    eventually(&format!("{pod} ends as {reason}"), LIMIT, || {
        let status = k.json(&["get", "pod", pod])?["status"].clone();
        ensure!(status["phase"] == "Failed" && status["reason"] == reason, "{status}");
        Ok(status)
    })
}

/// Creates a pod that is already assigned to the node.
fn placed(k: &Kubectl, name: &str, text: &str, more: &str) -> anyhow::Result<String> {
    let node = k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    Ok(script(name, text, &format!("{more}  nodeName: {node}\n")))
}

fn reserved(_: &Subject) -> Outcome {
    let (server, _dir) = with(
        "systemReserved: {memory: 100Mi, cpu: 100m}
kubeReserved: {memory: 50Mi, cpu: 50m}
evictionHard: {memory.available: 60Mi, nodefs.available: 1%}
maxPods: 7
podPidsLimit: 333
",
    )?;
    let k = server.kubectl();
    let status = k.json(&["get", "nodes"])?["items"][0]["status"].clone();
    let memory = |of: &str| -> anyhow::Result<u64> {
        Ok(status[of]["memory"].as_str().context("an amount")?.trim_end_matches("Ki").parse::<u64>()?)
    };
    ensure!(memory("capacity")? - memory("allocatable")? == 210 * 1024, "{status}");
    let milli = |of: &str| -> anyhow::Result<u64> {
        let text = status[of]["cpu"].as_str().context("an amount")?;
        Ok(text.strip_suffix('m').map_or_else(|| text.parse::<u64>().map(|n| n * 1000), str::parse)?)
    };
    ensure!(milli("capacity")? - milli("allocatable")? == 150, "{status}");
    ensure!(status["allocatable"]["pods"] == "7", "{status}");
    let reads = "cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max";
    k.apply(&script("bounded", "sleep 600", ""))?;
    ready(&k, "bounded")?;
    // The limit is the pod's: a container cannot start more, whatever its own cgroup has.
    let flood = "i=0; while [ $i -lt 400 ]; do sleep 30 & i=$((i+1)); done; wait";
    let out = k.run(&["exec", "bounded", "--", "sh", "-c", &format!("{reads}; {flood}")])?;
    ensure!(out.stderr.contains("fork") || out.stdout.starts_with("333"), "{out:?}");
    // More pods than it may have.
    for n in 0..8 {
        k.apply(&placed(&k, &format!("p{n}"), "sleep 600", "")?)?;
    }
    eventually("one too many", LIMIT, || {
        let all = k.ok(&["get", "pods", "-o", "jsonpath={.items[*].status.reason}"])?;
        ensure!(all.contains("OutOfpods"), "{all}");
        Ok(())
    })?;
    server.finish(false)
}

fn short_of_memory(_: &Subject) -> Outcome {
    // More than the machine has: the node is under pressure from its first check on.
    let (server, _dir) =
        with("evictionHard: {memory.available: 99%, nodefs.available: 1%}\nevictionPressureTransitionPeriod: 5s\n")?;
    let k = server.kubectl();
    condition(&k, "MemoryPressure", "True")?;
    let taints = eventually("its taint", LIMIT, || {
        let taints = k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].spec.taints}"])?;
        ensure!(taints.contains("node.kubernetes.io/memory-pressure"), "{taints}");
        Ok(taints)
    })?;
    ensure!(taints.contains("NoSchedule"), "{taints}");
    k.apply(&placed(&k, "best-effort", "sleep 600", "")?)?;
    let status = ends_as(&k, "best-effort", "Evicted")?;
    ensure!(status["message"].as_str().is_some_and(|m| m.contains("MemoryPressure")), "{status}");
    // A pod that requested memory is admitted, and evicted when it uses more than it requested.
    k.apply(&placed(
        &k,
        "burstable",
        "head -c 60m /dev/zero | tail | sleep 600",
        "    resources: {requests: {memory: 1Mi}}\n",
    )?)?;
    let status = ends_as(&k, "burstable", "Evicted")?;
    ensure!(
        status["message"].as_str().is_some_and(|m| m.starts_with("The node was low on resource: memory.")),
        "{status}"
    );
    let disrupted = status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|c| c["type"] == "DisruptionTarget" && c["reason"] == "TerminationByKubelet" && c["status"] == "True");
    ensure!(disrupted, "{status}");
    let events = k.ok(&["events"])?;
    ensure!(events.contains("Evicted") && events.contains("EvictionThresholdMet"), "{events}");
    server.finish(false)
}

fn short_of_processes(_: &Subject) -> Outcome {
    let (server, _dir) = with(
        "evictionHard: {pid.available: 99.99%, memory.available: 10Mi, nodefs.available: 1%}\nevictionPressureTransitionPeriod: 5s\n",
    )?;
    let k = server.kubectl();
    condition(&k, "PIDPressure", "True")?;
    condition(&k, "MemoryPressure", "False")?;
    k.apply(&placed(&k, "many", "for i in 1 2 3 4 5 6 7 8; do sleep 600 & done; wait", "")?)?;
    let status = ends_as(&k, "many", "Evicted")?;
    let message = status["message"].as_str().unwrap_or_default();
    ensure!(message.contains("PIDPressure") || message.contains("low on resource: pids"), "{status}");
    server.finish(false)
}

const HUGE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

fn huge_pages(_: &Subject) -> Outcome {
    let before = std::fs::read_to_string(HUGE).context("the kernel has no huge pages of 2 MiB")?;
    std::fs::write(HUGE, "8")?;
    let there = std::fs::read_to_string(HUGE)?;
    let outcome = (|| {
        ensure!(there.trim() == "8", "the kernel found {} pages", there.trim());
        let (server, _dir) = with("")?;
        let k = server.kubectl();
        let capacity = k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].status.allocatable.hugepages-2Mi}"])?;
        ensure!(capacity == "16Mi", "{capacity}");
        k.apply(&script(
            "huge",
            "grep ' /huge ' /proc/mounts | cut -d' ' -f3; cat /sys/fs/cgroup/hugetlb*/hugetlb.2MB.limit_in_bytes /sys/fs/cgroup/hugetlb.2MB.max 2>/dev/null; sleep 600",
            "    resources: {limits: {hugepages-2Mi: 4Mi, memory: 32Mi, cpu: 100m}}
    volumeMounts: [{name: h, mountPath: /huge}]
  volumes: [{name: h, emptyDir: {medium: HugePages}}]
",
        ))?;
        ready(&k, "huge")?;
        eventually("its mount and its bound", LIMIT, || {
            let log = k.ok(&["logs", "huge"])?;
            ensure!(log.lines().next() == Some("hugetlbfs"), "{log}");
            ensure!(log.lines().nth(1).is_none_or(|n| n == "4194304"), "{log}");
            Ok(())
        })?;
        server.finish(false)
    })();
    std::fs::write(HUGE, before.trim())?;
    outcome
}
