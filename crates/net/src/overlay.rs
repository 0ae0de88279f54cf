//! The connection to the pods of other nodes: one VXLAN device without learning, whose entries are set explicitly.
//! Everything about a node follows from its pod CIDR and its address: the far end of the tunnel has the first address
//! of the pod CIDR and the hardware address derived from it, so that nodes need not announce anything. The list of
//! nodes is passed in.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use rtnetlink::packet_route::AddressFamily;

use crate::config::{NetworkConfig, OverlayConfig, mac_of};
use crate::error::NetError;
use crate::netlink::{Links, VxlanLink};

/// Another node, for packets to its pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Its pod CIDR, which is routed through the tunnel to the node's address.
    pub subnet: Ipv4Net,
    /// The node's own address.
    pub node_ip: Ipv4Addr,
}

impl Peer {
    /// Returns the address of the far end of the tunnel.
    fn endpoint(&self) -> Ipv4Addr {
        self.subnet.network()
    }
    fn mac(&self) -> Vec<u8> {
        mac_of(self.endpoint().into())
    }
}

/// Creates or repairs the device with its address; [`connect`] sets its peers.
pub(crate) async fn ensure_device(links: &Links, config: &NetworkConfig) -> Result<(), NetError> {
    let Some(overlay) = config.overlay else { return Ok(()) };
    let (name, endpoint) = (config.vxlan(), config.subnet().network());
    let wanted = parameters(links, overlay).await?;
    let mac = mac_of(endpoint);
    let mut device = links.by_name(&name).await?;
    if device.as_ref().is_some_and(|d| d.vxlan != Some(wanted) || d.mac != mac) {
        links.delete(&name).await?;
        device = None;
    }
    let device = match device {
        Some(device) => device,
        None => {
            links.add_vxlan(&name, wanted, mac, config.mtu).await?;
            let made = links.by_name(&name).await?;
            made.ok_or_else(|| NetError::Check(format!("device {name} disappeared after its creation")))?
        }
    };
    if device.mtu != config.mtu {
        links.set_mtu(device.index, config.mtu).await?;
    }
    if !device.up {
        links.set_up(device.index).await?;
    }
    // Packets of the host to pods of other nodes, masqueraded or not, have this address as their source, so that
    // answers return.
    links.add_address(device.index, endpoint, 32).await
}

/// A node behind NAT has an address that is not on its interfaces: then the kernel chooses.
async fn parameters(links: &Links, overlay: OverlayConfig) -> Result<VxlanLink, NetError> {
    let node_ip = IpAddr::V4(overlay.node_ip);
    let has = links.addresses().await?.iter().any(|(_, net, _)| net.addr() == node_ip);
    let local = (has && !node_ip.is_loopback()).then_some(overlay.node_ip);
    Ok(VxlanLink { vni: overlay.vni, port: overlay.port, local })
}

/// Makes routes, neighbours and forwarding entries of the device exactly those of `peers`.
pub(crate) async fn connect(config: &NetworkConfig, peers: &[Peer]) -> Result<(), NetError> {
    if config.overlay.is_none() {
        return Ok(());
    }
    let links = Links::open()?;
    let device = links.by_name(&config.vxlan()).await?;
    let index = device.ok_or_else(|| NetError::Check(format!("device {} is missing", config.vxlan())))?.index;
    // In this order a packet with a route also finds the other entries; they are removed in the opposite order.
    let forwarding: BTreeMap<Vec<u8>, Ipv4Addr> = peers.iter().map(|p| (p.mac(), p.node_ip)).collect();
    let neighbours: BTreeMap<Ipv4Addr, Vec<u8>> = peers.iter().map(|p| (p.endpoint(), p.mac())).collect();
    let routes: BTreeMap<IpNet, Ipv4Addr> = peers.iter().map(|p| (p.subnet.into(), p.endpoint())).collect();
    let (there_routes, there_neighbours, there_forwarding) = (
        links.routes().await?.into_iter().filter(|r| r.out == Some(index)).collect::<Vec<_>>(),
        links.neighbours(index, AddressFamily::Inet).await?,
        links.neighbours(index, AddressFamily::Bridge).await?,
    );
    for (mac, node) in &forwarding {
        if !there_forwarding.iter().any(|n| n.mac == *mac && n.ip == IpAddr::V4(*node)) {
            links.add_forwarding(index, mac, *node).await?;
        }
    }
    for (ip, mac) in &neighbours {
        if !there_neighbours.iter().any(|n| n.ip == IpAddr::V4(*ip) && n.mac == *mac) {
            links.add_neighbour(index, *ip, mac).await?;
        }
    }
    for (to, gateway) in &routes {
        let IpNet::V4(net) = to else { continue };
        if !there_routes.iter().any(|r| r.to == *to && r.gateway == Some(IpAddr::V4(*gateway))) {
            links.add_route(index, (net.network(), net.prefix_len()), *gateway).await?;
        }
    }
    for route in there_routes {
        if !routes.contains_key(&route.to) {
            links.delete_route(route).await?;
        }
    }
    for neighbour in there_neighbours {
        if !matches!(neighbour.ip, IpAddr::V4(ip) if neighbours.contains_key(&ip)) {
            links.delete_neighbour(neighbour).await?;
        }
    }
    for entry in there_forwarding {
        if forwarding.get(&entry.mac).map(|node| IpAddr::V4(*node)) != Some(entry.ip) {
            links.delete_neighbour(entry).await?;
        }
    }
    Ok(())
}
