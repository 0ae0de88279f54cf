//! The allowed clients and their limits. The server listens on a node's address, which may be reachable from the
//! internet. It responds only to the cluster's pods, services and nodes.
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use kelson_client::{Change, Client, Informer, InformerConfig, InformerHandle, ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use parking_lot::{Mutex, RwLock};
use serde::Deserialize;

/// The fields of a Node with its addresses.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// The metadata of the node.
    pub metadata: ObjectMeta,
    status: NodeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    #[serde(deserialize_with = "null_default")]
    addresses: Vec<NodeAddress>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeAddress {
    address: String,
}

slim_object!(Node, ResourceType::cluster("", "v1", "nodes", "Node"));

/// The source addresses that are answered.
#[derive(Debug, Default)]
pub struct Sources {
    /// The ranges of pods and services.
    ranges: Vec<IpNet>,
    nodes: RwLock<HashMap<String, Vec<IpAddr>>>,
}

impl Sources {
    /// Allows these ranges and this machine. Nodes are added later.
    pub fn new(ranges: Vec<IpNet>) -> Self {
        Self { ranges, nodes: RwLock::default() }
    }

    /// Sets a node's addresses. Without addresses the node is removed. Host names are ignored.
    pub fn put_node(&self, name: &str, addresses: impl IntoIterator<Item = IpAddr>) {
        let addresses: Vec<IpAddr> = addresses.into_iter().map(|ip| ip.to_canonical()).collect();
        let mut nodes = self.nodes.write();
        if addresses.is_empty() {
            nodes.remove(name);
        } else {
            nodes.insert(name.to_owned(), addresses);
        }
    }

    /// Returns whether queries from this address are answered.
    pub fn allows(&self, source: IpAddr) -> bool {
        let source = source.to_canonical();
        source.is_loopback()
            || self.ranges.iter().any(|range| range.contains(&source))
            || self.nodes.read().values().any(|addresses| addresses.contains(&source))
    }

    /// Keeps the addresses of nodes up to date until the handle is dropped.
    pub fn watch(self: &Arc<Self>, client: &Client) -> InformerHandle<Node> {
        let to = Arc::clone(self);
        let change = move |change: &Change<Node>| {
            let node = change.object();
            let addresses = node.status.addresses.iter().filter_map(|a| a.address.parse().ok());
            match change {
                Change::Deleted(_) => to.put_node(&node.metadata.name, []),
                _ => to.put_node(&node.metadata.name, addresses),
            }
        };
        Informer::<Node>::new(client.clone(), InformerConfig::default()).on_change(change).start()
    }
}

/// Counts the work in progress for each source, so that one pod cannot use the whole capacity.
#[derive(Debug, Clone)]
pub struct Shares {
    most: usize,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One work item of a source. It ends when this value is dropped.
#[derive(Debug)]
pub struct Share {
    source: IpAddr,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Shares {
    /// Allows at most `most` items at once for each source. Memory is bounded by the work in progress.
    pub fn new(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    /// Admits one more work item of this source, or returns `None` if it has reached its limit.
    pub fn take(&self, source: IpAddr) -> Option<Share> {
        let mut taken = self.taken.lock();
        let count = taken.entry(source).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Share { source, taken: Arc::clone(&self.taken) })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        if let Some(count) = taken.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pods_services_and_nodes_are_answered() {
        let sources = Sources::new(vec!["10.42.0.0/16".parse().unwrap(), "10.43.0.0/16".parse().unwrap()]);
        sources.put_node("a", ["192.0.2.7".parse().unwrap()]);
        let check = |ip: &str, expected: bool| assert_eq!(sources.allows(ip.parse().unwrap()), expected, "{ip}");
        check("10.42.3.9", true);
        check("::ffff:10.42.3.9", true);
        check("10.43.0.10", true);
        check("127.0.0.1", true);
        check("192.0.2.7", true);
        check("192.0.2.8", false);
        check("8.8.8.8", false);
        check("2001:db8::1", false);
        sources.put_node("a", []);
        check("192.0.2.7", false);
    }

    #[test]
    fn one_source_has_one_share() {
        let shares = Shares::new(2);
        let (a, b): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let held: Vec<_> = (0..2).filter_map(|_| shares.take(a)).collect();
        assert_eq!((held.len(), shares.take(a).is_none(), shares.take(b).is_some()), (2, true, true));
        drop(held);
        assert!(shares.take(a).is_some());
        assert!(shares.taken.lock().is_empty(), "nothing is remembered of sources that are done");
    }
}
