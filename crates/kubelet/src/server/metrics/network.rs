//! Network traffic of pods: bytes and errors from the runtime's sandbox statistics, packets from the kernel.
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files, no disk")]

use std::collections::BTreeMap;

use kelson_cri::proto as cri;
use kelson_metrics::Families;
use serde_json::{Value, json};

use super::super::state::ServerState;
use crate::runtime::labels;

/// Counters of one interface of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub uid: String,
    /// The runtime's ID of the sandbox.
    pub sandbox: String,
    /// Name of the interface, such as `eth0`.
    pub interface: String,
    /// Time of the reading in nanoseconds since the epoch.
    pub at: i64,
    /// Received and sent bytes.
    pub bytes: [u64; 2],
    /// Errors of receiving and sending.
    pub errors: [u64; 2],
    /// Received and sent packets, and those that were dropped; `None` if the kernel's file cannot be read.
    pub packets: Option<PacketCounts>,
}

/// Packets of an interface: received and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Packets in total.
    pub all: [u64; 2],
    /// Packets that were dropped for want of room.
    pub dropped: [u64; 2],
}

/// Finds the packets of an interface in the text of `/proc/PID/net/dev`.
fn packets(dev: &str, interface: &str) -> Option<PacketCounts> {
    let line = dev.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|n| n.parse().ok()).collect();
    // Receive has bytes, packets, errors, drops and four others; then transmit begins with the same.
    let pair = |at: usize| Some([*fields.get(at)?, *fields.get(at + 8)?]);
    Some(PacketCounts { all: pair(1)?, dropped: pair(3)? })
}

/// The kernel's counters of the interfaces that the process of a pod's sandbox sees. On cgroup v1 it is not looked for.
fn interfaces(state: &ServerState, uid: &str, sandbox: &str) -> Option<String> {
    let processes = state.cgroups.container_directory(uid, sandbox)?.join("cgroup.procs");
    let processes = std::fs::read_to_string(processes).ok()?;
    std::fs::read_to_string(format!("/proc/{}/net/dev", processes.lines().next()?)).ok()
}

/// Reads the traffic of all pods with a network namespace; empty if the runtime does not report it.
pub async fn all(state: &ServerState) -> Vec<Traffic> {
    let stats = state.runtime.list_pod_sandbox_stats(None).await.unwrap_or_default();
    let mut all: Vec<Traffic> = stats.into_iter().flat_map(of_sandbox).collect();
    for traffic in &mut all {
        let dev = interfaces(state, &traffic.uid, &traffic.sandbox);
        traffic.packets = dev.and_then(|dev| packets(&dev, &traffic.interface));
    }
    all
}

fn of_sandbox(stats: cri::PodSandboxStats) -> Vec<Traffic> {
    let (Some(a), Some(network)) = (stats.attributes, stats.linux.and_then(|l| l.network)) else { return Vec::new() };
    let get = |k: &str| a.labels.get(k).cloned().unwrap_or_default();
    let value = |v: Option<cri::UInt64Value>| v.map_or(0, |v| v.value);
    let of = |i: cri::NetworkInterfaceUsage| Traffic {
        namespace: get(labels::POD_NAMESPACE),
        pod: get(labels::POD_NAME),
        uid: get(labels::POD_UID),
        sandbox: a.id.clone(),
        interface: i.name,
        at: network.timestamp,
        bytes: [value(i.rx_bytes), value(i.tx_bytes)],
        errors: [value(i.rx_errors), value(i.tx_errors)],
        packets: None,
    };
    network.default_interface.into_iter().chain(network.interfaces).map(of).collect()
}

type TrafficColumn = (&'static str, &'static str, fn(&Traffic) -> Option<u64>);

const COLUMNS: &[TrafficColumn] = &[
    ("container_network_receive_bytes_total", "Bytes received by the pod.", |t| Some(t.bytes[0])),
    ("container_network_receive_errors_total", "Receive errors of the pod.", |t| Some(t.errors[0])),
    ("container_network_transmit_bytes_total", "Bytes sent by the pod.", |t| Some(t.bytes[1])),
    ("container_network_transmit_errors_total", "Transmit errors of the pod.", |t| Some(t.errors[1])),
    ("container_network_receive_packets_total", "Packets received by the pod.", |t| Some(t.packets?.all[0])),
    ("container_network_transmit_packets_total", "Packets sent by the pod.", |t| Some(t.packets?.all[1])),
    ("container_network_receive_packets_dropped_total", "Packets to the pod that were dropped.", |t| {
        Some(t.packets?.dropped[0])
    }),
    ("container_network_transmit_packets_dropped_total", "Packets of the pod that were dropped.", |t| {
        Some(t.packets?.dropped[1])
    }),
];

/// Writes the metrics that dashboards use. `paths` has the cgroups of pods by UID. The network belongs to the pod, so the container label is empty.
pub fn series(f: &mut Families, all: &[Traffic], paths: &BTreeMap<String, String>) {
    for (name, help, value) in COLUMNS {
        let mut of = f.counter(name, help);
        for (t, value) in all.iter().filter_map(|t| Some((t, value(t)?))) {
            let id = format!("{}/{}", paths.get(&t.uid).map_or("", String::as_str), t.sandbox);
            let labels = [
                ("container", ""),
                ("id", id.as_str()),
                ("image", ""),
                ("interface", t.interface.as_str()),
                ("name", t.sandbox.as_str()),
                ("namespace", t.namespace.as_str()),
                ("pod", t.pod.as_str()),
            ];
            of.sample_at(&labels, value as f64, t.at / 1_000_000);
        }
    }
}

/// The field `network` of a pod's summary; `None` for a pod on the host network.
pub fn summary(uid: &str, all: &[Traffic], time: &str) -> Option<Value> {
    let one = |t: &Traffic| {
        json!({"name": t.interface, "rxBytes": t.bytes[0], "rxErrors": t.errors[0],
            "txBytes": t.bytes[1], "txErrors": t.errors[1]})
    };
    let mine: Vec<Value> = all.iter().filter(|t| t.uid == uid).map(one).collect();
    let mut out = mine.first()?.clone();
    out["time"] = json!(time);
    out["interfaces"] = json!(mine);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEV: &str = "Inter-|   Receive  |  Transmit\n face |bytes packets\n    lo: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n  eth0: 10 11 12 13 14 15 16 17 20 21 22 23 24 25 26 27\n";

    fn traffic() -> Vec<Traffic> {
        let value = |value| Some(cri::UInt64Value { value });
        let interface = cri::NetworkInterfaceUsage {
            name: "eth0".into(),
            rx_bytes: value(5),
            tx_bytes: value(6),
            tx_errors: value(1),
            ..Default::default()
        };
        let network =
            cri::NetworkUsage { timestamp: 2_000_000_000, default_interface: Some(interface), ..Default::default() };
        let names = [(labels::POD_NAME, "p"), (labels::POD_NAMESPACE, "n"), (labels::POD_UID, "u")];
        let attributes = cri::PodSandboxAttributes {
            id: "s".into(),
            labels: names.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            ..Default::default()
        };
        of_sandbox(cri::PodSandboxStats {
            attributes: Some(attributes),
            linux: Some(cri::LinuxPodSandboxStats { network: Some(network), ..Default::default() }),
            ..Default::default()
        })
    }

    #[test]
    fn network_metrics_and_summary() {
        let mut all = traffic();
        all[0].packets = packets(DEV, "eth0");
        let mut f = Families::default();
        series(&mut f, &all, &[("u".to_owned(), "/kubepods/podu".to_owned())].into());
        let text = f.text();
        let labels =
            "container=\"\",id=\"/kubepods/podu/s\",image=\"\",interface=\"eth0\",name=\"s\",namespace=\"n\",pod=\"p\"";
        for line in [
            format!("container_network_receive_bytes_total{{{labels}}} 5 2000"),
            format!("container_network_transmit_errors_total{{{labels}}} 1 2000"),
            format!("container_network_receive_packets_total{{{labels}}} 11 2000"),
            format!("container_network_transmit_packets_total{{{labels}}} 21 2000"),
            format!("container_network_receive_packets_dropped_total{{{labels}}} 13 2000"),
            format!("container_network_transmit_packets_dropped_total{{{labels}}} 23 2000"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        assert_eq!((packets(DEV, "eth"), packets("eth0: 1 2", "eth0")), (None, None));
        let shown = summary("u", &all, "now").expect("it has a network");
        assert_eq!((&shown["rxBytes"], &shown["interfaces"][0]["txErrors"]), (&json!(5), &json!(1)));
        assert_eq!(summary("other", &all, "now"), None);
        assert!(of_sandbox(cri::PodSandboxStats::default()).is_empty());
    }
}
