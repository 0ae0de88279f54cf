//! Network traffic of pods, from the runtime's sandbox statistics.
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
}

/// Reads the traffic of all pods with a network namespace; empty if the runtime does not report it.
pub async fn all(state: &ServerState) -> Vec<Traffic> {
    let stats = state.runtime.list_pod_sandbox_stats(None).await.unwrap_or_default();
    stats.into_iter().flat_map(of_sandbox).collect()
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
    };
    network.default_interface.into_iter().chain(network.interfaces).map(of).collect()
}

type TrafficColumn = (&'static str, &'static str, fn(&Traffic) -> u64);

const COLUMNS: &[TrafficColumn] = &[
    ("container_network_receive_bytes_total", "Bytes received by the pod.", |t| t.bytes[0]),
    ("container_network_receive_errors_total", "Receive errors of the pod.", |t| t.errors[0]),
    ("container_network_transmit_bytes_total", "Bytes sent by the pod.", |t| t.bytes[1]),
    ("container_network_transmit_errors_total", "Transmit errors of the pod.", |t| t.errors[1]),
];

/// Writes the metrics that dashboards use. The network belongs to the pod, so the container label is empty.
pub fn series(f: &mut Families, all: &[Traffic]) {
    for (name, help, value) in COLUMNS {
        let mut of = f.counter(name, help);
        for t in all {
            let labels = [
                ("container", ""),
                ("image", ""),
                ("interface", t.interface.as_str()),
                ("name", t.sandbox.as_str()),
                ("namespace", t.namespace.as_str()),
                ("pod", t.pod.as_str()),
            ];
            of.sample_at(&labels, value(t) as f64, t.at / 1_000_000);
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
        let all = traffic();
        let mut f = Families::default();
        series(&mut f, &all);
        let text = f.text();
        let labels = "container=\"\",image=\"\",interface=\"eth0\",name=\"s\",namespace=\"n\",pod=\"p\"";
        for line in [
            format!("container_network_receive_bytes_total{{{labels}}} 5 2000"),
            format!("container_network_transmit_errors_total{{{labels}}} 1 2000"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        let shown = summary("u", &all, "now").expect("it has a network");
        assert_eq!((&shown["rxBytes"], &shown["interfaces"][0]["txErrors"]), (&json!(5), &json!(1)));
        assert_eq!(summary("other", &all, "now"), None);
        assert!(of_sandbox(cri::PodSandboxStats::default()).is_empty());
    }
}
