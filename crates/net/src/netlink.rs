//! Links, addresses and routes through rtnetlink: a few calls with errors that say what was being done. Each
//! [`Links`] speaks to the network namespace of the thread that opened it.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use futures::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteHeader, RouteScope};
use rtnetlink::{Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::NetError;

/// What is known of one link.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub index: u32,
    pub name: String,
    pub mtu: u32,
    /// Index of the bridge it belongs to.
    pub controller: Option<u32>,
    pub mac: Vec<u8>,
    pub up: bool,
}

/// Both ends of a pod's cable.
pub(crate) struct VethPair<'a> {
    pub host_name: &'a str,
    pub pod_name: &'a str,
    pub pod_mac: Vec<u8>,
    pub pod_netns: RawFd,
    pub bridge: u32,
    pub mtu: u32,
}

/// A netlink conversation with one network namespace.
pub(crate) struct Links {
    handle: Handle,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Links {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Links {
    /// Opens a conversation with the calling thread's namespace.
    pub fn open() -> Result<Self, NetError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetError::io("open a netlink socket"))?;
        Ok(Self { handle, task: tokio::spawn(connection) })
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

    pub async fn set_hairpin(&self, index: u32) -> Result<(), NetError> {
        let message = LinkBridgePort::new(index).hairpin(true).build();
        let done = self.handle.link().set_port(message).execute().await;
        done.map_err(|e| refuse("set hairpin mode", e))
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

    /// Deletes a link; one that is already gone is no error. Returns whether it was there.
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

    /// Adds an address, or does nothing when the link has it.
    pub async fn add_address(&self, index: u32, ip: IpAddr, prefix: u8) -> Result<(), NetError> {
        let done = self.handle.address().add(index, ip, prefix).replace().execute().await;
        done.map_err(|e| refuse(format!("add address {ip}/{prefix}"), e))
    }

    /// Every address of the namespace with its link's index.
    pub async fn addresses(&self) -> Result<Vec<(u32, IpNet, AddressMessage)>, NetError> {
        let all: Vec<AddressMessage> =
            self.handle.address().get().execute().try_collect().await.map_err(|e| refuse("list addresses", e))?;
        Ok(all.into_iter().filter_map(|m| address_of(&m).map(|net| (m.header.index, net, m))).collect())
    }

    pub async fn delete_address(&self, message: AddressMessage) -> Result<(), NetError> {
        self.handle.address().del(message).execute().await.map_err(|e| refuse("delete an address", e))
    }

    /// The route to the gateway on the link itself, and the default route through it.
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

    /// The MTU of the link that the IPv4 default route leaves by.
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

impl From<LinkMessage> for Link {
    fn from(message: LinkMessage) -> Self {
        let mut link = Link {
            index: message.header.index,
            name: String::new(),
            mtu: 0,
            controller: None,
            mac: Vec::new(),
            up: message.header.flags.contains(LinkFlags::Up),
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::Controller(index) => link.controller = Some(index),
                LinkAttribute::Address(mac) => link.mac = mac,
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

/// Runs `work` to its end on a small runtime of its own, in the calling thread's namespace.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, NetError>>) -> Result<T, NetError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    runtime.map_err(NetError::io("start an event loop"))?.block_on(work)
}

/// Runs `work` on a thread of its own inside `netns`; the thread ends with it, so no other work ever sees that
/// namespace.
pub(crate) fn in_netns<T: Send>(
    netns: BorrowedFd<'_>,
    work: impl FnOnce() -> Result<T, NetError> + Send,
) -> Result<T, NetError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))
                .map_err(|e| NetError::io("enter the pod's network namespace")(e.into()))?;
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// An open network namespace.
pub(crate) struct Netns(std::fs::File);

impl Netns {
    pub fn open(path: &str) -> Result<Self, NetError> {
        let file = std::fs::File::open(path).map_err(NetError::io(format!("open network namespace {path}")))?;
        Ok(Self(file))
    }

    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T, NetError> + Send) -> Result<T, NetError> {
        in_netns(self.0.as_fd(), work)
    }
}
