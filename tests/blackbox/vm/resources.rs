//! Limits that change or are exceeded: in-place resize, out of memory, eviction.
use anyhow::{Context as _, ensure};
use kelson_blackbox::{Outcome, eventually};
use serde_json::json;

use super::cgroups::Cgroups;
use super::guest::Guest;
use super::{IMAGE, PATIENCE, kubelet, pod};

/// CPU and memory of a Burstable pod, up and down again, without a restart. The static CPU manager rejects that of a Guaranteed pod.
pub fn resize(guest: &mut Guest) -> Outcome {
    let burstable = "{requests: {cpu: 20m, memory: 16Mi}, limits: {cpu: 100m, memory: 32Mi}}";
    let guaranteed = "{limits: {cpu: 100m, memory: 16Mi}}";
    let pods = [pod("resized", &[("main", burstable)], ""), pod("guaranteed", &[("main", guaranteed)], "")].concat();
    guest.apply(&pods, &["resized", "guaranteed"])?;
    let k = guest.kubectl();
    let resize = |name: &str, requests: [&str; 2], limits: [&str; 2]| {
        let [requests, limits] = [requests, limits].map(|[cpu, memory]| json!({"cpu": cpu, "memory": memory}));
        let containers = json!([{"name": "main", "resources": {"requests": requests, "limits": limits}}]);
        let patch = json!({"spec": {"containers": containers}}).to_string();
        k.ok(&["patch", "pod", name, "--subresource", "resize", "-p", &patch])
    };
    resize("guaranteed", ["200m", "16Mi"], ["200m", "16Mi"])?;
    eventually("a rejected resize", PATIENCE, || {
        let pod = k.json(&["get", "pod", "guaranteed"])?;
        let conditions = pod["status"]["conditions"].as_array().context("conditions")?;
        let pending = conditions.iter().find(|c| c["type"] == "PodResizePending").context("no PodResizePending")?;
        ensure!(pending["reason"] == "Infeasible", "{pending}");
        Ok(())
    })?;
    for (cpu, memory, quota, bytes) in
        [("200m", "64Mi", "20000 100000", 64 << 20), ("50m", "48Mi", "5000 100000", 48 << 20)]
    {
        resize("resized", ["20m", "16Mi"], [cpu, memory])?;
        eventually("the new limits", PATIENCE, || {
            let pod = k.json(&["get", "pod", "resized"])?;
            let cgroups = Cgroups::read(guest)?;
            for (row, path) in cgroups.of_pod(&pod, "cgroupfs")? {
                if row == "resized/pause" {
                    continue;
                }
                let found = (cgroups.value(&path, "cpu.max"), cgroups.value(&path, "memory.max"));
                ensure!(found == (quota, bytes.to_string().as_str()), "{row}: {found:?}");
            }
            let status = &pod["status"]["containerStatuses"][0];
            ensure!(status["restartCount"] == 0 && status["resources"]["limits"]["cpu"] == cpu, "{status}");
            Ok(())
        })?;
    }
    Ok(())
}

/// The main process, and a child of it: both end the container, since its cgroup is one OOM group.
pub fn oom(guest: &mut Guest) -> Outcome {
    let hog = "head -c 64m /dev/zero | tail >/dev/null";
    for (name, script) in [("own", format!("exec {hog}")), ("child", format!("({hog}); sleep 3600"))] {
        guest.apply(
            &format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: Never\n  containers:\n  - {{name: main, image: \"{IMAGE}\", command: [sh, -c, {}], resources: {{limits: {{cpu: 500m, memory: 24Mi}}}}}}\n",
                serde_json::Value::from(script)
            ),
            &[],
        )?;
    }
    let k = guest.kubectl();
    // A shell may report the death of its pipeline's last program as its own; only the group makes both of them OOMKilled.
    for name in ["own", "child"] {
        eventually(&format!("{name} is out of memory"), PATIENCE, || {
            let ended = k.json(&["get", "pod", name])?["status"]["containerStatuses"][0]["state"]["terminated"].clone();
            ensure!(ended["reason"] == "OOMKilled" && ended["exitCode"] == 137, "{ended}");
            Ok(())
        })?;
    }
    Ok(())
}

/// A pod that uses more than it requested is evicted when the guest's memory falls below the threshold; one that uses less stays.
pub fn eviction(guest: &mut Guest) -> Outcome {
    // The threshold is set near what is free, since filling a gigabyte takes minutes under emulation.
    let available = super::number(&guest.sh("awk '/MemAvailable/ {print int($2/1024)}' /proc/meminfo")?)?;
    let threshold = available.saturating_sub(250);
    let text = kubelet("systemd").replace("memory.available: 50Mi", &format!("memory.available: {threshold}Mi"));
    guest.reconfigure(&text, "")?;
    guest.apply(&pod("modest", &[("main", "{requests: {memory: 32Mi}}")], ""), &["modest"])?;
    let hog = "mkdir /m; mount -t tmpfs -o size=600m none /m; head -c 500m /dev/zero >/m/f; sleep 3600";
    guest.apply(
        &format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: hog}}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - {{name: main, image: \"{IMAGE}\", command: [sh, -c, {}], securityContext: {{privileged: true}}, resources: {{requests: {{memory: 1Mi}}}}}}\n",
            serde_json::Value::from(hog)
        ),
        &[],
    )?;
    let k = guest.kubectl();
    eventually("the hog is evicted", PATIENCE, || {
        let status = k.json(&["get", "pod", "hog"])?["status"].clone();
        ensure!(status["phase"] == "Failed" && status["reason"] == "Evicted", "{status}");
        let message = status["message"].as_str().context("a message")?;
        ensure!(message.starts_with("The node was low on resource: memory."), "{message}");
        Ok(())
    })?;
    let stays = k.ok(&["get", "pod", "modest", "-o", "jsonpath={.status.phase}"])?;
    ensure!(stays == "Running", "{stays}");
    guest.reconfigure(&kubelet("systemd"), "")
}
