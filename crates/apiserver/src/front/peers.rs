//! Limits of connections per peer. Connections cost memory and descriptors before their client is authenticated. So no single
//! address may take all of them, and a share is reserved for this machine and for the cluster's nodes.
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use kelson_store::{Resource, Store};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

/// The time for which the nodes' addresses are cached.
const NODES_TTL: Duration = Duration::from_secs(10);

/// Maximum numbers of open connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// All peers together.
    pub total: usize,
    /// The part of `total` that is reserved for loopback and for nodes.
    pub reserved: usize,
    /// One address; an IPv6 network of 64 bits counts as one address.
    pub per_address: usize,
    /// The address of one node, behind which many pods may be.
    pub per_node: usize,
}

impl Limits {
    /// Half of the descriptors that the process may open, at most 10,000.
    pub fn from_process() -> Self {
        let descriptors = kelson_platform::process::open_files_max();
        Self::from_descriptors(descriptors.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX)))
    }

    fn from_descriptors(descriptors: usize) -> Self {
        let total = (descriptors / 2).clamp(64, 10_000);
        Self {
            total,
            reserved: total / 4,
            per_address: (total / 20).clamp(32, 500),
            per_node: (total / 5).clamp(32, 2_000),
        }
    }
}

/// The open connections by peer.
pub struct Peers {
    limits: Limits,
    open: Mutex<Open>,
    nodes: Mutex<Option<(Instant, HashSet<IpAddr>)>>,
    store: Store,
}

#[derive(Default)]
struct Open {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// An open connection; it counts until it is dropped.
pub struct OpenConnection {
    peers: Arc<Peers>,
    address: IpAddr,
}

impl Peers {
    /// Starts without connections. The nodes' addresses are read from `store`.
    pub fn new(limits: Limits, store: Store) -> Arc<Self> {
        Arc::new(Self { limits, open: Mutex::default(), nodes: Mutex::default(), store })
    }

    /// Admits a connection; `None` if its peer has reached a limit.
    pub fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<OpenConnection> {
        let peer = peer.to_canonical();
        let address = counted_as(peer);
        let limits = self.limits;
        let fits = |total_max: usize, own_max: usize| {
            let open = self.open.lock();
            open.total < total_max && open.by_address.get(&address).copied().unwrap_or(0) < own_max
        };
        let admitted = match peer.is_loopback() {
            true => fits(limits.total, limits.total),
            // Nodes are looked up only when the other limits are reached.
            false => {
                fits(limits.total - limits.reserved, limits.per_address)
                    || fits(limits.total, limits.per_node) && self.is_node(peer)
            }
        };
        admitted.then(|| {
            let mut open = self.open.lock();
            open.total += 1;
            *open.by_address.entry(address).or_default() += 1;
            OpenConnection { peers: Arc::clone(self), address }
        })
    }

    fn is_node(&self, peer: IpAddr) -> bool {
        let mut nodes = self.nodes.lock();
        let known = match nodes.take() {
            Some((at, known)) if at.elapsed() < NODES_TTL => (at, known),
            _ => (Instant::now(), node_addresses(&self.store)),
        };
        nodes.insert(known).1.contains(&peer)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut open = self.peers.open.lock();
        open.total -= 1;
        if let Some(count) = open.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&self.address);
            }
        }
    }
}

/// The address under which a peer is counted. A host usually has a whole IPv6 network of 64 bits, so that counts as one.
fn counted_as(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(a) => {
            let [a, b, c, d, ..] = a.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[derive(Deserialize)]
struct NodeView {
    #[serde(default)]
    status: StatusView,
}

#[derive(Deserialize, Default)]
struct StatusView {
    #[serde(default)]
    addresses: Option<Vec<AddressView>>,
}

#[derive(Deserialize)]
struct AddressView {
    address: String,
}

/// The addresses in the nodes' status. A node that claims a wrong address gains the reserve only for connections from that address.
fn node_addresses(store: &Store) -> HashSet<IpAddr> {
    let nodes = store.list(Resource::new("", "nodes"), None, None, None);
    let addresses = nodes.iter().filter_map(|record| kelson_meta::from_json::<NodeView>(&record.bytes()).ok());
    let addresses = addresses.flat_map(|node| node.status.addresses.unwrap_or_default());
    addresses.filter_map(|a| a.address.parse::<IpAddr>().ok()).map(|ip| ip.to_canonical()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { total: 20, reserved: 5, per_address: 10, per_node: 12 };

    fn peers() -> Arc<Peers> {
        let peers = Peers::new(LIMITS, Store::in_memory(kelson_store::StoreOptions::default()));
        let node = "10.0.0.5".parse().unwrap();
        *peers.nodes.lock() = Some((Instant::now(), HashSet::from([node])));
        peers
    }

    fn fill(peers: &Arc<Peers>, address: &str) -> Vec<OpenConnection> {
        let address: IpAddr = address.parse().unwrap();
        std::iter::from_fn(|| peers.admit(address)).collect()
    }

    #[test]
    fn one_address_cannot_take_all_connections() {
        let peers = peers();
        let one = fill(&peers, "192.0.2.1");
        let another = fill(&peers, "::ffff:192.0.2.2");
        assert_eq!((one.len(), another.len(), fill(&peers, "192.0.2.3").len()), (10, 5, 0));
        let node = fill(&peers, "10.0.0.5");
        assert_eq!(node.len(), 5, "the reserve");
        assert!(fill(&peers, "127.0.0.1").is_empty(), "the total is reached");
        drop(one);
        assert_eq!(fill(&peers, "10.0.0.5").len(), 7, "a node has more, but not all");
        drop((another, node));
        let open = peers.open.lock();
        assert_eq!((open.total, open.by_address.len()), (0, 0));
    }

    #[test]
    fn a_network_of_64_bits_is_one_peer() {
        let peers = peers();
        let held: Vec<_> = (0..30).filter_map(|i| peers.admit(format!("2001:db8::{i:x}").parse().unwrap())).collect();
        assert_eq!(held.len(), LIMITS.per_address);
        assert!(peers.admit("2001:db8:0:1::1".parse().unwrap()).is_some());
    }

    #[test]
    fn descriptors_are_left_for_the_rest_of_the_process() {
        for descriptors in [0, 1024, 4096, 1 << 20, usize::MAX] {
            let limits = Limits::from_descriptors(descriptors);
            assert!(limits.total <= (descriptors / 2).max(64) && limits.total <= 10_000, "{limits:?}");
            assert!(
                limits.reserved < limits.total && limits.per_address <= limits.total - limits.reserved,
                "{limits:?}"
            );
        }
    }
}
