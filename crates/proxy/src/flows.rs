//! Finds stale UDP flows: those to an endpoint that was removed, or that began before the service had one
//! (kubernetes#48370). `kelson-net` reads the kernel's table of flows.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use kelson_net::conntrack::{self, Flow};

use crate::model::{Family, Protocol};
use crate::service::PortPlan;

/// The addresses that UDP clients send to, and their endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontends {
    /// Endpoints by service address.
    pub addresses: BTreeMap<SocketAddr, BTreeSet<SocketAddr>>,
    /// Endpoints by node port, on this node's addresses.
    pub node_ports: BTreeMap<u16, BTreeSet<SocketAddr>>,
}

impl Frontends {
    /// Adds a service port, if it is UDP.
    pub fn add(&mut self, plan: &PortPlan) {
        if plan.protocol != Protocol::Udp {
            return;
        }
        let endpoints: BTreeSet<SocketAddr> =
            plan.cluster_endpoints.iter().chain(&plan.local_endpoints).copied().collect();
        for ip in plan.cluster_ips.iter().chain(&plan.external_ips).chain(&plan.load_balancer_ips) {
            self.addresses.insert(SocketAddr::new(*ip, plan.port), endpoints.clone());
        }
        if plan.node_port != 0 {
            self.node_ports.entry(plan.node_port).or_default().extend(endpoints);
        }
    }

    /// Returns what is new or changed since `old`, and removed addresses without endpoints.
    pub fn changed_since(&self, old: &Self) -> Self {
        Self {
            addresses: changed(&self.addresses, &old.addresses),
            node_ports: changed(&self.node_ports, &old.node_ports),
        }
    }

    /// Reports whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.node_ports.is_empty()
    }

    fn is_stale(&self, flow: &Flow, is_node: &dyn Fn(IpAddr) -> bool) -> bool {
        if flow.protocol != Some(kelson_net::Protocol::Udp) {
            return false;
        }
        let by_port = || self.node_ports.get(&flow.to.port()).filter(|_| is_node(flow.to.ip()));
        let allowed = self.addresses.get(&flow.to).or_else(by_port);
        allowed.is_some_and(|endpoints| !endpoints.contains(&flow.answered_by))
    }

    /// Deletes the stale flows of one family; returns their number. Blocks.
    ///
    /// # Errors
    /// An error of the kernel, for instance without connection tracking by netlink.
    pub fn flush(&self, family: Family, is_node: &dyn Fn(IpAddr) -> bool) -> io::Result<usize> {
        conntrack::delete_flows(family, &mut |flow| self.is_stale(flow, is_node))
    }
}

fn changed<K: Ord + Clone>(
    new: &BTreeMap<K, BTreeSet<SocketAddr>>,
    old: &BTreeMap<K, BTreeSet<SocketAddr>>,
) -> BTreeMap<K, BTreeSet<SocketAddr>> {
    let gone = old.keys().filter(|k| !new.contains_key(*k)).map(|k| (k.clone(), BTreeSet::new()));
    let other = new.iter().filter(|(k, v)| old.get(*k) != Some(*v)).map(|(k, v)| (k.clone(), v.clone()));
    gone.chain(other).collect()
}
