//! What hollow nodes say: of themselves, and of pods on them. Fields and reasons are a kubelet's.
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::config::{Config, address};
use crate::view::{Container, Pod, Resources};

/// The port of the kubelet's API, on which nothing listens.
const PORT: u16 = 10250;

/// A node as it registers.
pub fn node(config: &Config, number: usize, now: &str) -> Value {
    let (name, arch) = (config.name(number), architecture());
    let mut labels = json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": arch,
        "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": arch, "kelson.io/hollow": "true"});
    for (key, value) in &config.labels {
        labels[key] = json!(value);
    }
    let amounts = json!({"cpu": config.cpu, "memory": config.memory, "pods": config.pods.to_string(),
        "ephemeral-storage": "100Gi"});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
    "status": {
        "capacity": amounts, "allocatable": amounts,
        "conditions": node_conditions(now, now),
        "addresses": [{"type": "InternalIP", "address": address(number)}, {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": PORT}},
        "nodeInfo": {"machineID": name, "systemUUID": name, "bootID": name, "kernelVersion": "hollow",
            "osImage": "hollow", "containerRuntimeVersion": "hollow://0", "operatingSystem": "linux",
            "architecture": arch, "kubeletVersion": kelson_meta::version::GIT_VERSION, "kubeProxyVersion": ""},
    }})
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A healthy node's conditions, heard of at `now`.
pub fn node_conditions(since: &str, now: &str) -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": now,
            "lastTransitionTime": since})
    };
    json!([
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ])
}

/// The progress of a pod's containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// All run and are ready.
    Running,
    /// All have ended, by themselves.
    Succeeded,
    /// All were ended, since the pod is deleted.
    Ended,
}

/// A pod's status as its kubelet would write it. `since` is when it began.
pub fn pod(pod: &Pod, stage: Stage, host: IpAddr, ip: IpAddr, since: &str, now: &str) -> Value {
    let runs = stage == Stage::Running;
    let (ready, reason) = match stage {
        Stage::Running => ("True", ""),
        Stage::Succeeded => ("False", "PodCompleted"),
        Stage::Ended => ("False", "PodFailed"),
    };
    let condition = |kind: &str, status: &str, reason: &str, at: &str| {
        let mut c = json!({"type": kind, "status": status, "lastTransitionTime": at, "lastProbeTime": null});
        if !reason.is_empty() {
            c["reason"] = json!(reason);
        }
        c
    };
    let state = |ends_alone: bool| {
        let ended = |code: i32, reason: &str, at: &str| json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": since, "finishedAt": at}});
        match stage {
            _ if ends_alone => ended(0, "Completed", since),
            Stage::Running => json!({"running": {"startedAt": since}}),
            Stage::Succeeded => ended(0, "Completed", now),
            Stage::Ended => ended(137, "Error", now),
        }
    };
    let status = |c: &Container, ends_alone: bool| {
        let running = runs && !ends_alone;
        let mut status = json!({"name": c.name, "image": c.image, "imageID": format!("hollow://{}", c.image), "restartCount": 0,
            "containerID": format!("hollow://{}-{}", pod.metadata.uid, c.name),
            "ready": running || (ends_alone && stage != Stage::Ended), "started": running, "state": state(ends_alone)});
        // A client that resizes a pod waits for these fields.
        if c.resources != Resources::default() {
            status["resources"] = json!(c.resources);
            status["allocatedResources"] = json!(c.resources.requests);
        }
        status
    };
    let containers: Vec<_> = pod.spec.containers.0.iter().map(|c| status(c, false)).collect();
    let init: Vec<_> = pod.spec.init_containers.0.iter().map(|c| status(c, c.restart_policy != "Always")).collect();
    let phase = match stage {
        Stage::Running => "Running",
        Stage::Succeeded => "Succeeded",
        Stage::Ended => "Failed",
    };
    let sandbox = if runs { "True" } else { "False" };
    let changed = if runs { since } else { now };
    let mut out = json!({
        "phase": phase, "startTime": since, "hostIP": host, "hostIPs": [{"ip": host}], "podIP": ip, "podIPs": [{"ip": ip}],
        "conditions": [
            condition("PodReadyToStartContainers", sandbox, "", changed),
            condition("Initialized", "True", if stage == Stage::Succeeded { reason } else { "" }, since),
            condition("Ready", ready, reason, changed),
            condition("ContainersReady", ready, reason, changed),
        ],
        "containerStatuses": containers,
    });
    if !init.is_empty() {
        out["initContainerStatuses"] = json!(init);
    }
    out
}
