//! Follows the other nodes in the API and updates the overlay. `overlay` has the format of the kernel's entries.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use kelson_client::{Client, Informer, InformerConfig, InformerHandle, ResourceType, slim_object};
use kelson_meta::{Backoff, ObjectMeta};
use kelson_tasks::Tasks;
use serde::Deserialize;
use tokio::sync::Notify;

use crate::config::NetworkConfig;
use crate::network::Network;
use crate::overlay::Peer;

/// The interval at which the kernel's entries are checked.
const CHECK: Duration = Duration::from_secs(300);
/// The back-off after errors.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// The fields of a Node that are read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeView {
    metadata: ObjectMeta,
    #[serde(deserialize_with = "kelson_meta::null_default")]
    spec: Spec,
    #[serde(deserialize_with = "kelson_meta::null_default")]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "podCIDRs", deserialize_with = "kelson_meta::null_default")]
    pod_cidrs: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "kelson_meta::null_default")]
    addresses: Vec<Address>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Address {
    r#type: String,
    address: String,
}

slim_object!(NodeView, ResourceType::cluster("", "v1", "nodes", "Node"));

impl NodeView {
    fn subnet(&self) -> Option<Ipv4Net> {
        self.spec.pod_cidrs.iter().find_map(|c| c.parse().ok())
    }
    fn internal_ip(&self) -> Option<Ipv4Addr> {
        let internal = self.status.addresses.iter().filter(|a| a.r#type == "InternalIP");
        internal.filter_map(|a| a.address.parse().ok()).next()
    }
    /// Reports whether a change from `old` matters here; heartbeats do not.
    fn differs(&self, old: &Self) -> bool {
        self.subnet() != old.subnet() || self.internal_ip() != old.internal_ip()
    }
}

/// Returns the nodes to connect to: not this one; not one with the same address, whose pods are on this host; and none
/// with pods outside the cluster's range, whatever its object contains.
fn peers_of<'a>(nodes: impl Iterator<Item = &'a NodeView>, own_name: &str, config: &NetworkConfig) -> Vec<Peer> {
    let own_ip = config.overlay.map(|o| o.node_ip);
    // The older node comes first, so that a new one that claims the range of another does not get its traffic.
    let mut nodes: Vec<&NodeView> = nodes.filter(|n| n.metadata.name != own_name).collect();
    nodes.sort_by_key(|n| (n.subnet(), &n.metadata.creation_timestamp, &n.metadata.name));
    let mut peers: Vec<Peer> = nodes
        .into_iter()
        .filter_map(|n| Some(Peer { subnet: n.subnet()?, node_ip: n.internal_ip()? }))
        .filter(|p| Some(p.node_ip) != own_ip && !p.node_ip.is_loopback() && !p.node_ip.is_unspecified())
        .filter(|p| config.cluster_cidrs.iter().any(|c| c.contains(&IpNet::V4(p.subnet))))
        .filter(|p| !config.subnet().contains(&IpAddr::V4(p.subnet.network())))
        .collect();
    // Two nodes with the same range are an error elsewhere; the older one is used.
    peers.dedup_by_key(|p| p.subnet);
    peers
}

/// Updates the overlay of a node with the cluster's nodes until dropped; existing entries stay.
pub struct PeerWatch {
    tasks: Tasks,
}

impl Drop for PeerWatch {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

impl PeerWatch {
    /// Starts watching; restarts after a panic. `client` must be allowed to list and watch nodes.
    pub fn start(network: Network, node_name: &str, client: Client, tasks: &Tasks) -> Self {
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        let nodes = Informer::<NodeView>::new(client, InformerConfig::default()).on_change(move |change| {
            let matters = match change {
                kelson_client::Change::Updated { old, new } => new.differs(old),
                _ => true,
            };
            if matters {
                wake.notify_one();
            }
        });
        let name = node_name.to_owned();
        let (tasks, nodes) = (tasks.child("peers"), Arc::new(nodes.start()));
        tasks.supervise("peers", move || keep(network.clone(), name.clone(), Arc::clone(&nodes), Arc::clone(&changed)));
        Self { tasks }
    }
}

async fn keep(network: Network, name: String, nodes: Arc<InformerHandle<NodeView>>, changed: Arc<Notify>) {
    // Nothing is removed while the list of nodes is not known.
    nodes.synced().await;
    let (mut known, mut pause) = (None, RETRY.base);
    loop {
        let all = nodes.list();
        let peers = peers_of(all.iter().map(AsRef::as_ref), &name, network.config());
        drop(all);
        let wait = match network.connect(peers.clone()).await {
            Ok(()) => {
                if known.as_ref() != Some(&peers) {
                    tracing::info!(nodes = peers.len(), "overlay to other nodes is up to date");
                    known = Some(peers);
                }
                pause = RETRY.base;
                CHECK
            }
            Err(e) => {
                tracing::warn!(error = %e, retry_in = ?pause, "updating the overlay to other nodes failed; retrying");
                let wait = pause;
                pause = RETRY.after(Some(pause));
                wait
            }
        };
        tokio::select! { () = changed.notified() => {} () = tokio::time::sleep(wait) => {} }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OverlayConfig;
    use serde_json::json;

    fn node(name: &str, cidr: &str, ip: &str) -> NodeView {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
            "status": {"addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": ip}]}}))
        .unwrap()
    }

    #[test]
    fn who_is_a_peer() {
        let config = NetworkConfig {
            id: "00c0ffee".to_owned(),
            data_dir: "/x".into(),
            subnets: vec!["10.42.0.0/24".parse().unwrap()],
            cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
            mtu: 0,
            overlay: Some(OverlayConfig { vni: 7, port: 8472, node_ip: "192.0.2.1".parse().unwrap() }),
        };
        let empty = |v| serde_json::from_value::<NodeView>(v).unwrap();
        let nodes = [
            node("self", "10.42.0.0/24", "192.0.2.1"),
            node("b", "10.42.2.0/24", "192.0.2.2"),
            node("a", "10.42.1.0/24", "198.51.100.9"),
            node("same-host", "10.42.3.0/24", "192.0.2.1"),
            node("rogue", "0.0.0.0/0", "192.0.2.66"),
            node("thief", "10.42.0.0/24", "192.0.2.67"),
            node("six", "fd00::/64", "192.0.2.68"),
            node("twin", "10.42.2.0/24", "192.0.2.3"),
            node("lost", "10.42.4.0/24", "127.0.0.1"),
            empty(json!({"metadata": {"name": "new"}, "spec": {"podCIDRs": null}, "status": null})),
        ];
        let got: Vec<String> =
            peers_of(nodes.iter(), "self", &config).iter().map(|p| format!("{} {}", p.subnet, p.node_ip)).collect();
        assert_eq!(got, ["10.42.1.0/24 198.51.100.9", "10.42.2.0/24 192.0.2.2"]);
    }

    #[test]
    fn a_new_node_does_not_take_over_the_range_of_another() {
        let config = NetworkConfig {
            id: "00c0ffee".to_owned(),
            data_dir: "/x".into(),
            subnets: vec!["10.42.0.0/24".parse().unwrap()],
            cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
            mtu: 0,
            overlay: Some(OverlayConfig { vni: 7, port: 8472, node_ip: "192.0.2.1".parse().unwrap() }),
        };
        let born = |name: &str, ip: &str, at: &str| {
            serde_json::from_value::<NodeView>(json!({
                "metadata": {"name": name, "creationTimestamp": at}, "spec": {"podCIDRs": ["10.42.2.0/24"]},
                "status": {"addresses": [{"type": "InternalIP", "address": ip}]}}))
            .unwrap()
        };
        let nodes =
            [born("a-thief", "192.0.2.2", "2026-11-02T00:00:00Z"), born("owner", "192.0.2.9", "2026-11-01T00:00:00Z")];
        let got = peers_of(nodes.iter(), "self", &config);
        assert_eq!(got.iter().map(|p| p.node_ip.to_string()).collect::<Vec<_>>(), ["192.0.2.9"]);
    }

    #[test]
    fn heartbeats_do_not_matter() {
        let (a, b) = (node("a", "10.42.1.0/24", "192.0.2.2"), node("a", "10.42.1.0/24", "192.0.2.2"));
        assert!(!a.differs(&b));
        assert!(a.differs(&node("a", "10.42.1.0/24", "192.0.2.3")));
    }
}
