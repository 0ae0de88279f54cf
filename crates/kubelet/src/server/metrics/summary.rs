//! Endpoint `/stats/summary` (`stats/v1alpha1`): usage of the node and its pods as one JSON object.
use std::collections::BTreeMap;

use http::{Response, StatusCode};
use jiff::Timestamp;
use kelson_cri::proto as cri;
use kelson_meta::format_seconds;
use serde_json::{Value, json};

use super::super::answer::{Body, text, typed};
use super::super::state::ServerState;
use super::usage::{self, RunningUsage};
use super::{machine, network};
use crate::cgroups::pressure::ResourcePressures;
use crate::cgroups::usage::CgroupUsage;
use crate::node::facts::{self, Memory};
use crate::runtime::snapshot::timestamp;
use crate::volumes::usage::VolumeUsage;

/// Builds the response; with `cpu_and_memory` only these two resources.
pub async fn answer(state: &ServerState, cpu_and_memory: bool) -> Response<Body> {
    let usages = match usage::all(state).await {
        Ok(u) => u,
        Err(e) => return text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    };
    let now = state.clock.now();
    let time = format_seconds(now);
    let runtime_fs = state.runtime.image_fs_info().await.unwrap_or_default();
    let file_system = |f: Option<cri::FilesystemUsage>| {
        let f = f?;
        let mut fs = file_system(std::path::Path::new(&f.fs_id?.mountpoint), now)?;
        fs["usedBytes"] = json!(f.used_bytes.map_or(0, |v| v.value));
        if let Some(inodes) = f.inodes_used {
            fs["inodesUsed"] = json!(inodes.value);
        }
        Some(fs)
    };
    let images = file_system(runtime_fs.image_filesystems.into_iter().next());
    // If the runtime has no separate container file system, it is the image file system.
    let containers = file_system(runtime_fs.container_filesystems.into_iter().next()).or_else(|| images.clone());
    let root = self::file_system(&state.config.root_dir, now);
    let mut node = node(&state.config.node_name, facts::machine_memory(), machine::memory(), now);
    (node["fs"], node["runtime"]) = (json!(root), json!({"imageFs": images, "containerFs": containers}));
    node["systemContainers"] = system_containers(state, &time);
    rate(state, &mut node, "");
    if let Some(network) = machine::network(&time) {
        node["network"] = network;
    }
    press(&mut node, &state.cgroups.machine_pressure(), &time);
    let traffic = network::all(state).await;
    let on_disk = Disks { root, containers };
    let pods = pods(&usages, |uid| state.cgroups.processes(uid)).into_iter();
    let mut pods: Vec<Value> = pods.map(|pod| complete(state, pod, &traffic, &on_disk, &time)).collect();
    state.rates.sweep();
    if cpu_and_memory {
        keep(&mut node, &["nodeName", "startTime", "cpu", "memory", "swap", "systemContainers"]);
        pods.iter_mut().for_each(|pod| keep(pod, &["podRef", "startTime", "containers", "cpu", "memory", "swap"]));
        let containers = pods.iter_mut().filter_map(|pod| pod["containers"].as_array_mut()).flatten();
        containers.for_each(|c| keep(c, &["name", "startTime", "cpu", "memory", "swap"]));
    }
    let body = json!({"node": node, "pods": pods});
    typed(StatusCode::OK, "application/json", body.to_string())
}

/// File systems of the kubelet's root directory and of containers' writable layers.
struct Disks {
    root: Option<Value>,
    containers: Option<Value>,
}

/// Keeps only these members.
fn keep(of: &mut Value, names: &[&str]) {
    if let Some(of) = of.as_object_mut() {
        of.retain(|name, _| names.contains(&name.as_str()));
    }
}

/// Adds the CPU usage rate to `of`, if the runtime did not report it.
fn rate(state: &ServerState, of: &mut Value, name: &str) {
    let Some(nanos) = of["cpu"]["usageCoreNanoSeconds"].as_u64() else { return };
    let rate = state.rates.of(name, nanos);
    if of["cpu"]["usageNanoCores"].is_null()
        && let Some(rate) = rate
    {
        of["cpu"]["usageNanoCores"] = json!(rate);
    }
}

/// Completes a pod's usage with statistics that are not of its containers.
fn complete(state: &ServerState, mut pod: Value, traffic: &[network::Traffic], disks: &Disks, time: &str) -> Value {
    let text = |at: &str| pod["podRef"][at].as_str().unwrap_or_default().to_owned();
    let (uid, namespace, name) = (text("uid"), text("namespace"), text("name"));
    if let Some(network) = network::summary(&uid, traffic, time) {
        pod["network"] = network;
    }
    press(&mut pod, &state.cgroups.pressure(&uid), time);
    let of_pod = state.volumes.of(&uid);
    if !of_pod.is_empty() {
        pod["volume"] = of_pod.iter().map(volume).collect();
    }
    // The pod's cgroup includes the sandbox and has the pod's limit.
    let whole = state.cgroups.usage(Some(&uid));
    memory(&mut pod, &whole);
    let of_cgroup = whole.cpu_nanos.and_then(|nanos| state.rates.of(&uid, nanos));
    cpu(&mut pod, whole.cpu_nanos, of_cgroup);
    let logs = state.config.dirs().pod_logs(&namespace, &name, &uid);
    let (mut used, mut inodes) = (0, 0);
    for container in pod["containers"].as_array_mut().into_iter().flatten() {
        let name = container["name"].as_str().unwrap_or_default().to_owned();
        rate(state, container, &format!("{uid}/{name}"));
        let (bytes, files) = crate::volumes::usage::content(&logs.join(&name));
        (used, inodes) = (used + bytes, inodes + files);
        container["logs"] = on(disks.root.as_ref(), json!({"time": time, "usedBytes": bytes, "inodesUsed": files}));
        container["rootfs"] = on(disks.containers.as_ref(), container["rootfs"].take());
        used += container["rootfs"]["usedBytes"].as_u64().unwrap_or(0);
        inodes += container["rootfs"]["inodesUsed"].as_u64().unwrap_or(0);
    }
    // Volumes in the pod's directory count as its ephemeral storage.
    let own = of_pod.iter().filter(|v| v.is_own);
    let (used, inodes) = own.fold((used, inodes), |(b, i), v| (b + v.room.used, i + v.room.inodes_used));
    let storage = json!({"time": time, "usedBytes": used, "inodesUsed": inodes});
    pod["ephemeral-storage"] = on(disks.root.as_ref(), storage);
    if whole.cpu_nanos.is_none() {
        rate(state, &mut pod, &uid);
    }
    pod
}

/// Combines statistics of a file system with the usage of one part.
fn on(file_system: Option<&Value>, used: Value) -> Value {
    let mut out = file_system.cloned().unwrap_or_else(|| json!({}));
    for field in ["usedBytes", "inodesUsed"] {
        out[field] = used[field].clone();
    }
    out["time"] = used["time"].clone();
    out
}

/// CPU time and rate of a cgroup, as far as they are known; until its second reading the rate stays the sum of its containers.
fn cpu(of: &mut Value, nanos: Option<u64>, rate: Option<u64>) {
    for (field, value) in [("usageCoreNanoSeconds", nanos), ("usageNanoCores", rate)] {
        if let Some(value) = value {
            of["cpu"][field] = json!(value);
        }
    }
}

/// Memory statistics of a cgroup, as far as the kernel reports them.
fn memory(of: &mut Value, usage: &CgroupUsage) {
    let given = [
        ("availableBytes", usage.available()),
        ("usageBytes", usage.memory),
        ("workingSetBytes", usage.working_set),
        ("rssBytes", usage.rss),
        ("pageFaults", usage.faults.0),
        ("majorPageFaults", usage.faults.1),
    ];
    for (field, value) in given {
        if let Some(value) = value {
            of["memory"][field] = json!(value);
        }
    }
}

/// Usage of the node's components and of all pods together (upstream: `GetSystemContainersStats`).
fn system_containers(state: &ServerState, time: &str) -> Value {
    let boot = usage::boot_seconds();
    let process = |name: &str, id: &str| {
        let used = machine::process(id)?;
        let start = Timestamp::from_second(boot.saturating_add_unsigned(used.started_s)).ok()?;
        Some(json!({"name": name, "startTime": format_seconds(start),
            "cpu": {"time": time, "usageCoreNanoSeconds": used.cpu_nanos},
            "memory": {"time": time, "usageBytes": used.resident, "workingSetBytes": used.resident, "rssBytes": used.rss,
                "pageFaults": used.faults.0, "majorPageFaults": used.faults.1}}))
    };
    let runtime = machine::listener(&state.config.runtime_endpoint);
    let mut all: Vec<Value> = process("kubelet", "self").into_iter().collect();
    all.extend(runtime.and_then(|id| process("runtime", &id)));
    let pods = state.cgroups.usage(None);
    if let Some(nanos) = pods.cpu_nanos {
        let start = Timestamp::from_second(boot).unwrap_or_default();
        let mut of_pods = json!({"name": "pods", "startTime": format_seconds(start),
            "cpu": {"time": time, "usageCoreNanoSeconds": nanos}, "memory": {"time": time}});
        memory(&mut of_pods, &pods);
        press(&mut of_pods, &state.cgroups.pods_pressure(), time);
        all.push(of_pods);
    }
    for one in &mut all {
        let name = format!("/{}", one["name"].as_str().unwrap_or_default());
        rate(state, one, &name);
    }
    json!(all)
}

/// Adds pressure stall information, if known.
fn press(of: &mut Value, pressures: &ResourcePressures, time: &str) {
    for (part, pressure) in [("cpu", pressures.cpu), ("memory", pressures.memory), ("io", pressures.io)] {
        let Some(pressure) = pressure else { continue };
        if of[part].is_null() {
            of[part] = json!({"time": time});
        }
        of[part]["psi"] = pressure.json();
    }
}

/// Swap usage and available swap.
fn swap(usage: u64, available: Option<u64>, time: &str) -> Value {
    let mut out = json!({"time": time, "swapUsageBytes": usage});
    if let Some(available) = available {
        out["swapAvailableBytes"] = json!(available);
    }
    out
}

fn volume(v: &VolumeUsage) -> Value {
    let r = &v.room;
    let mut out = json!({"name": v.name, "time": format_seconds(v.at), "capacityBytes": r.capacity,
        "availableBytes": r.available, "usedBytes": r.used, "inodes": r.inodes, "inodesFree": r.inodes_free,
        "inodesUsed": r.inodes_used});
    if let Some((namespace, name)) = &v.claim {
        out["pvcRef"] = json!({"name": name, "namespace": namespace});
    }
    out
}

fn file_system(path: &std::path::Path, now: Timestamp) -> Option<Value> {
    let s = rustix::fs::statvfs(path).ok()?;
    let (capacity, free) = (s.f_blocks * s.f_frsize, s.f_bfree * s.f_frsize);
    Some(json!({"time": format_seconds(now), "capacityBytes": capacity, "availableBytes": s.f_bavail * s.f_frsize,
        "usedBytes": capacity - free, "inodes": s.f_files, "inodesFree": s.f_ffree,
        "inodesUsed": s.f_files.saturating_sub(s.f_ffree)}))
}

fn node(name: &str, memory: Memory, more: machine::MachineMemory, now: Timestamp) -> Value {
    let time = format_seconds(now);
    let boot = Timestamp::from_second(usage::boot_seconds()).unwrap_or(now);
    let used = memory.total - memory.available;
    let mut out = json!({"nodeName": name, "startTime": format_seconds(boot),
        "cpu": {"time": time, "usageCoreNanoSeconds": usage::machine_cpu_nanos()},
        "memory": {"time": time, "availableBytes": memory.available, "workingSetBytes": used, "usageBytes": more.usage,
            "rssBytes": more.rss, "pageFaults": more.faults.0, "majorPageFaults": more.faults.1},
        "swap": {"time": time, "swapUsageBytes": memory.swap - memory.swap_free, "swapAvailableBytes": memory.swap_free}});
    if let Some((processes, max)) = facts::processes() {
        out["rlimit"] = json!({"time": time, "maxpid": max, "curproc": processes});
    }
    out
}

fn container(u: &RunningUsage) -> Value {
    let time = format_seconds(timestamp(u.at));
    let mut out = json!({"name": u.container, "startTime": format_seconds(timestamp(u.started_at)),
        "cpu": {"time": time, "usageCoreNanoSeconds": u.cpu_nanos},
        "memory": {"time": time, "workingSetBytes": u.memory},
        "rootfs": {"time": time, "usedBytes": u.disk}});
    let given = [
        ("cpu", "usageNanoCores", u.cpu_now.filter(|n| *n > 0)),
        ("memory", "availableBytes", u.available),
        ("memory", "usageBytes", u.memory_usage),
        ("memory", "rssBytes", u.rss),
        ("memory", "pageFaults", u.faults.0),
        ("memory", "majorPageFaults", u.faults.1),
        ("rootfs", "inodesUsed", u.inodes),
    ];
    for (part, field, value) in given {
        if let Some(v) = value {
            out[part][field] = json!(v);
        }
    }
    if let Some(usage) = u.swap {
        out["swap"] = swap(usage, u.swap_available, &time);
    }
    press(&mut out, &u.pressure, &time);
    out
}

fn pods(usages: &[RunningUsage], processes: impl Fn(&str) -> Option<u64>) -> Vec<Value> {
    let mut by_pod: BTreeMap<&str, Vec<&RunningUsage>> = BTreeMap::new();
    usages.iter().for_each(|u| by_pod.entry(&u.uid).or_default().push(u));
    let one = |(uid, all): (&str, Vec<&RunningUsage>)| {
        let first = all.first()?;
        let time = format_seconds(timestamp(all.iter().map(|u| u.at).max().unwrap_or(0)));
        let start = format_seconds(timestamp(all.iter().map(|u| u.started_at).min().unwrap_or(0)));
        let sum = |of: fn(&RunningUsage) -> u64| all.iter().map(|u| of(u)).sum::<u64>();
        let mut pod = json!({
            "podRef": {"name": first.pod, "namespace": first.namespace, "uid": uid},
            "startTime": start,
            "containers": all.iter().map(|u| container(u)).collect::<Vec<_>>(),
            "cpu": {"time": time, "usageCoreNanoSeconds": sum(|u| u.cpu_nanos)},
            "memory": {"time": time, "workingSetBytes": sum(|u| u.memory)},
        });
        let whole = |of: fn(&RunningUsage) -> Option<u64>| all.iter().map(|u| of(u)).sum::<Option<u64>>();
        let sums = [
            ("cpu", "usageNanoCores", whole(|u| u.cpu_now.filter(|n| *n > 0))),
            ("memory", "usageBytes", whole(|u| u.memory_usage)),
            ("memory", "rssBytes", whole(|u| u.rss)),
            ("memory", "pageFaults", whole(|u| u.faults.0)),
            ("memory", "majorPageFaults", whole(|u| u.faults.1)),
        ];
        for (part, field, value) in sums {
            if let Some(value) = value {
                pod[part][field] = json!(value);
            }
        }
        if all.iter().any(|u| u.swap.is_some()) {
            let available = all.iter().map(|u| u.swap_available).sum();
            pod["swap"] = swap(sum(|u| u.swap.unwrap_or(0)), available, &time);
        }
        if let Some(n) = processes(uid) {
            pod["process_stats"] = json!({"process_count": n});
        }
        Some(pod)
    };
    by_pod.into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::usage::tests::sample;
    use super::*;
    use crate::cgroups::pressure::{Stall, StallPair};
    use crate::volumes::usage::VolumeSpace;

    #[test]
    fn a_pod_sums_its_containers() {
        let all = pods(&[sample(), RunningUsage { container: "d".into(), ..sample() }], |_| Some(3));
        assert_eq!(all.len(), 1);
        let p = &all[0];
        assert_eq!(p["podRef"], json!({"name":"p","namespace":"n","uid":"u"}));
        assert_eq!(
            (&p["memory"]["workingSetBytes"], &p["cpu"]["usageCoreNanoSeconds"]),
            (&json!(8192), &json!(500_000_000))
        );
        assert_eq!(p["containers"][1]["name"], "d");
        assert_eq!(p["containers"][0]["startTime"], "1970-01-01T00:00:01Z");
        assert_eq!(p["containers"][0]["memory"]["rssBytes"], 1024);
        assert_eq!(p["process_stats"]["process_count"], 3);
        let sums = (&p["memory"]["usageBytes"], &p["memory"]["rssBytes"], &p["cpu"]["usageNanoCores"]);
        assert_eq!(sums, (&json!(16384), &json!(2048), &json!(14)));
        assert!(p["containers"][0]["memory"].get("pageFaults").is_none());
        let now = Timestamp::from_second(5).expect("time");
        let room = VolumeSpace { capacity: 9, available: 4, used: 5, inodes: 3, inodes_free: 1, inodes_used: 2 };
        let of = |claim| volume(&VolumeUsage { name: "v".into(), claim, at: now, room, is_own: false });
        assert_eq!(of(Some(("n".into(), "c".into())))["pvcRef"], json!({"name": "c", "namespace": "n"}));
        assert_eq!(
            of(None),
            json!({"name": "v", "time": "1970-01-01T00:00:05Z", "capacityBytes": 9, "availableBytes": 4, "usedBytes": 5,
                "inodes": 3, "inodesFree": 1, "inodesUsed": 2})
        );
        let more = machine::MachineMemory { usage: 8, rss: 2, faults: (1, 0) };
        let n = node("n", Memory { total: 10, available: 4, swap: 5, swap_free: 3 }, more, now);
        let memory = json!({"time": "1970-01-01T00:00:05Z", "availableBytes": 4, "workingSetBytes": 6, "usageBytes": 8,
            "rssBytes": 2, "pageFaults": 1, "majorPageFaults": 0});
        assert_eq!((&n["memory"], &n["nodeName"]), (&memory, &json!("n")));
        let swap = json!({"time": "1970-01-01T00:00:05Z", "swapUsageBytes": 2, "swapAvailableBytes": 3});
        assert_eq!(n["swap"], swap);
    }

    #[test]
    fn cpu_of_a_pods_cgroup_includes_its_sandbox() {
        let mut pod = json!({"cpu": {"time": "now", "usageCoreNanoSeconds": 5, "usageNanoCores": 2}});
        cpu(&mut pod, None, None);
        assert_eq!(pod["cpu"], json!({"time": "now", "usageCoreNanoSeconds": 5, "usageNanoCores": 2}), "not known");
        cpu(&mut pod, Some(8), None);
        assert_eq!(pod["cpu"], json!({"time": "now", "usageCoreNanoSeconds": 8, "usageNanoCores": 2}), "the first");
        cpu(&mut pod, Some(9), Some(3));
        assert_eq!(pod["cpu"], json!({"time": "now", "usageCoreNanoSeconds": 9, "usageNanoCores": 3}));
    }

    #[test]
    fn swap_and_pressure_are_shown_if_known() {
        let stall = Stall { total: 7, averages: [0.0; 3] };
        let waited = Some(StallPair { some: stall, full: Stall::default() });
        let pressure = ResourcePressures { cpu: waited, memory: None, io: waited };
        let reported = RunningUsage { swap: Some(5), swap_available: Some(1), pressure, ..sample() };
        let boundless = RunningUsage { swap: Some(2), ..reported.clone() };
        let shown = pods(&[reported.clone(), RunningUsage { swap_available: None, ..boundless }], |_| None);
        let c = &shown[0]["containers"][0];
        assert_eq!((&c["cpu"]["psi"]["some"]["total"], &c["io"]["psi"]["full"]["total"]), (&json!(7), &json!(0)));
        assert!(c["memory"].get("psi").is_none() && c["io"]["time"].is_string());
        assert_eq!((&c["swap"]["swapUsageBytes"], &c["swap"]["swapAvailableBytes"]), (&json!(5), &json!(1)));
        let swap = &shown[0]["swap"];
        assert_eq!(swap["swapUsageBytes"], 7);
        assert!(swap.get("swapAvailableBytes").is_none(), "one of them is not bounded");
        let silent = pods(&[sample()], |_| None);
        assert!(silent[0].get("swap").is_none() && silent[0]["containers"][0].get("io").is_none());
        assert_eq!(pods(&[reported.clone(), reported], |_| None)[0]["swap"]["swapAvailableBytes"], 2);
    }
}
