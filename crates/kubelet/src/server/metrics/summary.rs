//! `/stats/summary` (`stats/v1alpha1`): the node and its pods as one JSON object.
use std::collections::BTreeMap;

use http::{Response, StatusCode};
use jiff::Timestamp;
use kelson_meta::format_seconds;
use serde_json::{Value, json};

use super::super::answer::{Body, text, typed};
use super::super::state::ServerState;
use super::network;
use super::usage::{self, RunningUsage};
use crate::cgroups::pressure::ResourcePressures;
use crate::node::facts::{self, Memory};
use crate::runtime::snapshot::timestamp;
use crate::volumes::usage::VolumeUsage;

/// The node and its pods.
pub async fn answer(state: &ServerState) -> Response<Body> {
    let usages = match usage::all(state).await {
        Ok(u) => u,
        Err(e) => return text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    };
    let now = state.clock.now();
    let runtime_fs = state.runtime.image_fs_info().await.ok();
    let runtime_fs = runtime_fs.and_then(|f| f.image_filesystems.into_iter().next());
    let images = runtime_fs.and_then(|f| {
        let mut fs = file_system(std::path::Path::new(&f.fs_id?.mountpoint), now)?;
        fs["usedBytes"] = json!(f.used_bytes.map_or(0, |v| v.value));
        Some(fs)
    });
    let file_systems = [file_system(&state.config.root_dir, now), images];
    let mut node = node(&state.config.node_name, facts::machine_memory(), file_systems, now);
    let pids = |uid: &str| state.cgroups.processes(uid);
    let traffic = network::all(state).await;
    let time = format_seconds(now);
    press(&mut node, &state.cgroups.machine_pressure(), &time);
    let mut pods = pods(&usages, pids);
    for pod in &mut pods {
        let network = pod["podRef"]["uid"].as_str().and_then(|uid| network::summary(uid, &traffic, &time));
        if let Some(network) = network {
            pod["network"] = network;
        }
        let uid = pod["podRef"]["uid"].as_str().unwrap_or_default().to_owned();
        press(pod, &state.cgroups.pressure(&uid), &time);
        let of_pod = state.volumes.of(&uid);
        if !of_pod.is_empty() {
            pod["volume"] = of_pod.iter().map(volume).collect();
        }
    }
    let body = json!({"node": node, "pods": pods});
    typed(StatusCode::OK, "application/json", body.to_string())
}

/// Adds what was waited for, as far as it is known.
fn press(of: &mut Value, pressures: &ResourcePressures, time: &str) {
    for (part, pressure) in [("cpu", pressures.cpu), ("memory", pressures.memory), ("io", pressures.io)] {
        let Some(pressure) = pressure else { continue };
        if of[part].is_null() {
            of[part] = json!({"time": time});
        }
        of[part]["psi"] = pressure.json();
    }
}

/// What is on disk, and how much more may be.
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

fn node(name: &str, memory: Memory, [fs, images]: [Option<Value>; 2], now: Timestamp) -> Value {
    let time = format_seconds(now);
    let boot = Timestamp::from_second(usage::boot_seconds()).unwrap_or(now);
    let used = memory.total - memory.available;
    let mut out = json!({"nodeName": name, "startTime": format_seconds(boot),
        "cpu": {"time": time, "usageCoreNanoSeconds": usage::machine_cpu_nanos()},
        "memory": {"time": time, "availableBytes": memory.available, "workingSetBytes": used, "usageBytes": used},
        "swap": {"time": time, "swapUsageBytes": memory.swap - memory.swap_free, "swapAvailableBytes": memory.swap_free},
        "fs": fs, "runtime": {"imageFs": images}});
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
        ("cpu", "usageNanoCores", u.cpu_now),
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
            "ephemeral-storage": {"time": time, "usedBytes": sum(|u| u.disk)},
        });
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
    use crate::volumes::usage::Room;

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
        assert!(p["containers"][0]["memory"].get("pageFaults").is_none());
        let now = Timestamp::from_second(5).expect("time");
        let room = Room { capacity: 9, available: 4, used: 5, inodes: 3, inodes_free: 1, inodes_used: 2 };
        let of = |claim| volume(&VolumeUsage { name: "v".into(), claim, at: now, room });
        assert_eq!(of(Some(("n".into(), "c".into())))["pvcRef"], json!({"name": "c", "namespace": "n"}));
        assert_eq!(
            of(None),
            json!({"name": "v", "time": "1970-01-01T00:00:05Z", "capacityBytes": 9, "availableBytes": 4, "usedBytes": 5,
                "inodes": 3, "inodesFree": 1, "inodesUsed": 2})
        );
        let n = node("n", Memory { total: 10, available: 4, swap: 5, swap_free: 3 }, [None, None], now);
        assert_eq!((n["memory"]["workingSetBytes"].clone(), n["nodeName"].clone()), (json!(6), json!("n")));
        let swap = json!({"time": "1970-01-01T00:00:05Z", "swapUsageBytes": 2, "swapAvailableBytes": 3});
        assert_eq!(n["swap"], swap);
    }

    #[test]
    fn swap_and_waiting_are_shown_where_they_are_known() {
        let stall = Stall { total: 7, averages: [0.0; 3] };
        let waited = Some(StallPair { some: stall, full: Stall::default() });
        let pressure = ResourcePressures { cpu: waited, memory: None, io: waited };
        let told = RunningUsage { swap: Some(5), swap_available: Some(1), pressure, ..sample() };
        let boundless = RunningUsage { swap: Some(2), ..told.clone() };
        let shown = pods(&[told.clone(), RunningUsage { swap_available: None, ..boundless }], |_| None);
        let c = &shown[0]["containers"][0];
        assert_eq!((&c["cpu"]["psi"]["some"]["total"], &c["io"]["psi"]["full"]["total"]), (&json!(7), &json!(0)));
        assert!(c["memory"].get("psi").is_none() && c["io"]["time"].is_string());
        assert_eq!((&c["swap"]["swapUsageBytes"], &c["swap"]["swapAvailableBytes"]), (&json!(5), &json!(1)));
        let swap = &shown[0]["swap"];
        assert_eq!(swap["swapUsageBytes"], 7);
        assert!(swap.get("swapAvailableBytes").is_none(), "one of them is not bounded");
        let silent = pods(&[sample()], |_| None);
        assert!(silent[0].get("swap").is_none() && silent[0]["containers"][0].get("io").is_none());
        assert_eq!(pods(&[told.clone(), told], |_| None)[0]["swap"]["swapAvailableBytes"], 2);
    }
}
