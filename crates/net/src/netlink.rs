//! Links, addresses and routes through rtnetlink: a few calls, whose errors name the operation. Each [`Links`] is for
//! the network namespace of the thread that opened it.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of `aside`; as a CNI plugin a process of its own")]

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;

use futures::TryStreamExt;
use ipnet::IpNet;
use kelson_tasks::{Scoped, scoped};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{InfoData, InfoVeth, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteScope, RouteType};
use rtnetlink::{
    Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth, LinkVxlan, RouteMessageBuilder,
};

use crate::error::NetError;

/// A network link.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub index: u32,
    pub name: String,
    pub mtu: u32,
    /// The index of the bridge it belongs to.
    pub controller: Option<u32>,
    pub mac: Vec<u8>,
    pub up: bool,
    /// The parameters of a VXLAN device.
    pub vxlan: Option<VxlanLink>,
}

impl Link {
    pub fn is_vxlan(&self) -> bool {
        self.vxlan.is_some()
    }
}

/// The parameters of a VXLAN device, which cannot be changed after its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VxlanLink {
    pub vni: u32,
    pub port: u16,
    pub local: Option<Ipv4Addr>,
}

/// A route of the main table.
#[derive(Debug)]
pub(crate) struct Route {
    pub to: IpNet,
    pub gateway: Option<IpAddr>,
    pub out: Option<u32>,
    message: RouteMessage,
}

/// A neighbour entry of a link: the hardware address of an IP, or the node that a hardware address is behind.
#[derive(Debug)]
pub(crate) struct Neighbour {
    pub ip: IpAddr,
    pub mac: Vec<u8>,
    message: NeighbourMessage,
}

/// Both ends of a pod's veth pair.
pub(crate) struct VethPair<'a> {
    pub host_name: &'a str,
    pub pod_name: &'a str,
    pub pod_mac: Vec<u8>,
    pub pod_netns: RawFd,
    pub bridge: u32,
    pub mtu: u32,
}

/// A netlink connection to one network namespace.
pub(crate) struct Links {
    handle: Handle,
    /// The task that transfers messages; it ends with the connection.
    _connection: Scoped<()>,
}

impl Links {
    /// Opens a connection to the calling thread's namespace.
    pub fn open() -> Result<Self, NetError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetError::io("open a netlink socket"))?;
        Ok(Self { handle, _connection: scoped("netlink", connection) })
    }

    pub async fn by_name(&self, name: &str) -> Result<Option<Link>, NetError> {
        let mut found = self.handle.link().get().match_name(name).execute();
        match found.try_next().await {
            Ok(message) => Ok(message.map(Link::from)),
            Err(e) => match refuse(format!("look up interface {name}"), e) {
                NetError::Netlink { errno, .. } if errno == NODEV => Ok(None),
                other => Err(other),
            },
        }
    }

    pub async fn all(&self) -> Result<Vec<Link>, NetError> {
        let links = self.handle.link().get().execute().map_ok(Link::from);
        links.try_collect().await.map_err(|e| refuse("list interfaces", e))
    }

    pub async fn add_bridge(&self, name: &str, mac: Vec<u8>, mtu: u32) -> Result<(), NetError> {
        let message = LinkBridge::new(name).address(mac).mtu(mtu).up().build();
        let done = self.handle.link().add(message).execute().await;
        done.map_err(|e| refuse(format!("create bridge {name}"), e))
    }

    /// Creates the pair in one step: the host end up and on the bridge, the other in the pod's namespace.
    pub async fn add_veth(&self, pair: VethPair<'_>) -> Result<(), NetError> {
        let peer = LinkMessageBuilder::<LinkUnspec>::new()
            .name(pair.pod_name)
            .address(pair.pod_mac)
            .mtu(pair.mtu)
            .setns_by_fd(pair.pod_netns)
            .build();
        let message = LinkVeth::new(pair.host_name, pair.pod_name)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .mtu(pair.mtu)
            .controller(pair.bridge)
            .up()
            .build();
        let done = self.handle.link().add(message).execute().await;
        done.map_err(|e| refuse(format!("create {} with its peer {}", pair.host_name, pair.pod_name), e))
    }

    /// Restricts a bridge port to one pod: frames from another hardware address than `mac` are dropped, and frames to
    /// `mac` are sent only there. (Kernels before 5.18 do not have locked ports, and skip that.) Traffic of a pod to
    /// its own service comes back through the port.
    pub async fn set_port(&self, index: u32, mac: &[u8]) -> Result<(), NetError> {
        let entry = self.handle.neighbours().add_bridge(index, mac).state(NeighbourState::Noarp);
        let done = entry.flags(NeighbourFlags::Controller).replace().execute().await;
        done.map_err(|e| refuse("bind a hardware address to its port", e))?;
        let message = LinkBridgePort::new(index).hairpin(true).learning(false).locked(true).build();
        let done = self.handle.link().set_port(message).execute().await;
        done.map_err(|e| refuse("lock a port of the bridge", e))
    }

    pub async fn set_up(&self, index: u32) -> Result<(), NetError> {
        let message = LinkUnspec::new_with_index(index).up().build();
        let done = self.handle.link().set(message).execute().await;
        done.map_err(|e| refuse(format!("set interface {index} up"), e))
    }

    pub async fn set_mtu(&self, index: u32, mtu: u32) -> Result<(), NetError> {
        let message = LinkUnspec::new_with_index(index).mtu(mtu).build();
        let done = self.handle.link().set(message).execute().await;
        done.map_err(|e| refuse(format!("set the MTU of interface {index}"), e))
    }

    /// Deletes a link; a missing one is not an error. Returns whether it existed.
    pub async fn delete(&self, name: &str) -> Result<bool, NetError> {
        let Some(link) = self.by_name(name).await? else { return Ok(false) };
        match self.handle.link().del(link.index).execute().await {
            Ok(()) => Ok(true),
            Err(e) => match refuse(format!("delete interface {name}"), e) {
                NetError::Netlink { errno, .. } if errno == NODEV => Ok(false),
                other => Err(other),
            },
        }
    }

    /// Adds an address, unless the link has it.
    pub async fn add_address(&self, index: u32, ip: IpAddr, prefix: u8) -> Result<(), NetError> {
        let done = self.handle.address().add(index, ip, prefix).replace().execute().await;
        done.map_err(|e| refuse(format!("add address {ip}/{prefix}"), e))
    }

    /// Returns every address of the namespace with its link's index.
    pub async fn addresses(&self) -> Result<Vec<(u32, IpNet, AddressMessage)>, NetError> {
        let all: Vec<AddressMessage> =
            self.handle.address().get().execute().try_collect().await.map_err(|e| refuse("list addresses", e))?;
        Ok(all.into_iter().filter_map(|m| address_of(&m).map(|net| (m.header.index, net, m))).collect())
    }

    pub async fn delete_address(&self, message: AddressMessage) -> Result<(), NetError> {
        self.handle.address().del(message).execute().await.map_err(|e| refuse("delete an address", e))
    }

    /// Adds the route to the gateway on the link, and the default route through it.
    pub async fn add_pod_routes(&self, index: u32, gateway: IpAddr) -> Result<(), NetError> {
        let IpAddr::V4(gateway) = gateway else {
            return Err(NetError::Config(format!("gateway {gateway}: only IPv4 is supported yet")));
        };
        let to_gateway = RouteMessageBuilder::<std::net::Ipv4Addr>::new()
            .destination_prefix(gateway, 32)
            .output_interface(index)
            .scope(RouteScope::Link)
            .build();
        let default = RouteMessageBuilder::<std::net::Ipv4Addr>::new().gateway(gateway).output_interface(index).build();
        for (what, route) in [("to the gateway", to_gateway), ("by default", default)] {
            let done = self.handle.route().add(route).replace().execute().await;
            done.map_err(|e| refuse(format!("add the route {what} {gateway}"), e))?;
        }
        Ok(())
    }

    /// Creates a VXLAN device without learning.
    pub async fn add_vxlan(&self, name: &str, with: VxlanLink, mac: Vec<u8>, mtu: u32) -> Result<(), NetError> {
        let mut message = LinkVxlan::new(name, with.vni).port(with.port).learning(false);
        if let Some(local) = with.local {
            message = message.local(local);
        }
        let done = self.handle.link().add(message.address(mac).mtu(mtu).up().build()).execute().await;
        done.map_err(|e| refuse(format!("create VXLAN device {name} (network {})", with.vni), e))
    }

    /// Returns the IPv4 routes of the main table.
    pub async fn routes(&self) -> Result<Vec<Route>, NetError> {
        let query = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let all: Vec<RouteMessage> =
            self.handle.route().get(query).execute().try_collect().await.map_err(|e| refuse("list routes", e))?;
        Ok(all.into_iter().filter_map(route_of).collect())
    }

    /// Adds a route to `to` through `gateway`, which is treated as directly connected to the link.
    pub async fn add_route(&self, index: u32, to: (Ipv4Addr, u8), gateway: Ipv4Addr) -> Result<(), NetError> {
        let (net, prefix) = to;
        let route = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(net, prefix)
            .gateway(gateway)
            .output_interface(index)
            .onlink()
            .build();
        let done = self.handle.route().add(route).replace().execute().await;
        done.map_err(|e| refuse(format!("add the route to {net}/{prefix}"), e))
    }

    pub async fn delete_route(&self, route: Route) -> Result<(), NetError> {
        let what = format!("delete the route to {}", route.to);
        gone_is_fine(self.handle.route().del(route.message).execute().await, what)
    }

    /// Returns the permanent neighbours of a link: `Inet` for addresses, `Bridge` for hardware addresses behind a VXLAN
    /// device.
    pub async fn neighbours(&self, index: u32, family: AddressFamily) -> Result<Vec<Neighbour>, NetError> {
        let mut get = self.handle.neighbours().get().set_address_family(family);
        get.message_mut().header.ifindex = index;
        let all: Vec<NeighbourMessage> = get.execute().try_collect().await.map_err(|e| refuse("list neighbours", e))?;
        let of_link = all.into_iter().filter(|m| {
            let h = &m.header;
            h.ifindex == index && h.family == family && h.state == NeighbourState::Permanent
        });
        Ok(of_link.filter_map(neighbour_of).collect())
    }

    /// Sets the hardware address of `ip`.
    pub async fn add_neighbour(&self, index: u32, ip: Ipv4Addr, mac: &[u8]) -> Result<(), NetError> {
        let request = self.handle.neighbours().add(index, ip.into()).link_layer_address(mac).replace();
        request.execute().await.map_err(|e| refuse(format!("add neighbour {ip}"), e))
    }

    /// Sets the node that a hardware address is behind.
    pub async fn add_forwarding(&self, index: u32, mac: &[u8], node: Ipv4Addr) -> Result<(), NetError> {
        let request = self.handle.neighbours().add_bridge(index, mac).destination(node.into());
        let done = request.flags(NeighbourFlags::Own).replace().execute().await;
        done.map_err(|e| refuse(format!("add the route to node {node}"), e))
    }

    pub async fn delete_neighbour(&self, neighbour: Neighbour) -> Result<(), NetError> {
        let what = format!("delete neighbour {}", neighbour.ip);
        gone_is_fine(self.handle.neighbours().del(neighbour.message).execute().await, what)
    }

    /// Returns the MTU of the link of the IPv4 default route.
    pub async fn default_route_mtu(&self) -> Result<Option<u32>, NetError> {
        let query = RouteMessageBuilder::<std::net::Ipv4Addr>::new().build();
        let mut routes = self.handle.route().get(query).execute();
        let mut best: Option<(u32, u32)> = None;
        while let Some(route) = routes.try_next().await.map_err(|e| refuse("list routes", e))? {
            let to_all = route.header.destination_prefix_length == 0;
            if !to_all || route.header.table != RouteHeader::RT_TABLE_MAIN {
                continue;
            }
            let (mut metric, mut out) = (0, None);
            for attribute in &route.attributes {
                match attribute {
                    RouteAttribute::Priority(p) => metric = *p,
                    RouteAttribute::Oif(index) => out = Some(*index),
                    _ => {}
                }
            }
            if let Some(index) = out
                && best.is_none_or(|(m, _)| metric < m)
            {
                best = Some((metric, index));
            }
        }
        let Some((_, index)) = best else { return Ok(None) };
        Ok(self.all().await?.into_iter().find(|l| l.index == index).map(|l| l.mtu))
    }
}

const NODEV: i32 = rustix::io::Errno::NODEV.raw_os_error();
/// The errors of deleting something that does not exist: ESRCH for routes, ENOENT for neighbours.
const GONE: [i32; 2] = [rustix::io::Errno::SRCH.raw_os_error(), rustix::io::Errno::NOENT.raw_os_error()];

fn gone_is_fine(done: Result<(), rtnetlink::Error>, what: String) -> Result<(), NetError> {
    match done.map_err(|e| refuse(what, e)) {
        Err(NetError::Netlink { errno, .. }) if GONE.contains(&errno) => Ok(()),
        other => other,
    }
}

fn route_of(message: RouteMessage) -> Option<Route> {
    if message.header.kind != RouteType::Unicast {
        return None;
    }
    let address = |a: &RouteAddress| match a {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        _ => None,
    };
    let (mut to, mut gateway, mut out) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), None, None);
    let mut table = u32::from(message.header.table);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(a) => to = address(a)?,
            RouteAttribute::Gateway(a) => gateway = address(a),
            RouteAttribute::Oif(index) => out = Some(*index),
            RouteAttribute::Table(t) => table = *t,
            _ => {}
        }
    }
    if table != u32::from(RouteHeader::RT_TABLE_MAIN) {
        return None;
    }
    let to = IpNet::new(to, message.header.destination_prefix_length).ok()?;
    Some(Route { to, gateway, out, message })
}

fn neighbour_of(message: NeighbourMessage) -> Option<Neighbour> {
    let (mut ip, mut mac) = (None, Vec::new());
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(a)) => ip = Some(IpAddr::V4(*a)),
            NeighbourAttribute::LinkLayerAddress(a) => mac = a.clone(),
            _ => {}
        }
    }
    Some(Neighbour { ip: ip?, mac, message })
}

fn vxlan_of(info: &[LinkInfo]) -> Option<VxlanLink> {
    let data = info.iter().find_map(|i| match i {
        LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
        _ => None,
    })?;
    let mut vxlan = VxlanLink::default();
    for item in data {
        match item {
            InfoVxlan::Id(vni) => vxlan.vni = *vni,
            InfoVxlan::Port(port) => vxlan.port = *port,
            InfoVxlan::Local(ip) => vxlan.local = Some(*ip),
            _ => {}
        }
    }
    Some(vxlan)
}

impl From<LinkMessage> for Link {
    fn from(message: LinkMessage) -> Self {
        let mut link = Link {
            index: message.header.index,
            name: String::new(),
            mtu: 0,
            controller: None,
            mac: Vec::new(),
            up: message.header.flags.contains(LinkFlags::Up),
            vxlan: None,
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::Controller(index) => link.controller = Some(index),
                LinkAttribute::Address(mac) => link.mac = mac,
                LinkAttribute::LinkInfo(info) => link.vxlan = vxlan_of(&info),
                _ => {}
            }
        }
        link
    }
}

fn address_of(message: &AddressMessage) -> Option<IpNet> {
    if !matches!(message.header.family, AddressFamily::Inet | AddressFamily::Inet6) {
        return None;
    }
    let mut local = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => local = local.or(Some(*ip)),
            _ => {}
        }
    }
    IpNet::new(local?, message.header.prefix_len).ok()
}

fn refuse(what: impl Into<String>, error: rtnetlink::Error) -> NetError {
    let what = what.into();
    match error {
        rtnetlink::Error::NetlinkError(message) => {
            let io = message.to_io();
            NetError::Netlink { what, errno: io.raw_os_error().unwrap_or(0).abs(), message: io.to_string() }
        }
        other => NetError::Netlink { what, message: other.to_string(), errno: 0 },
    }
}
