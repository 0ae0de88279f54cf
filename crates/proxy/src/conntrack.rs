//! Forgets tracked UDP flows that lead to an endpoint that is gone, or that began before the service had one: without a
//! connection nothing else would end them, and what the client sends would be lost for as long as it
//! keeps sending (kubernetes#48370). Speaks ctnetlink itself: list the flows, judge each, delete the stale.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use crate::model::{Family, Protocol};
use crate::service::PortPlan;

/// One netlink read; the kernel fills at most 32 KiB of a dump.
const BUFFER_BYTES: usize = 64 << 10;
/// The kernel answers at once; this is against waiting for an answer that was lost.
const ANSWER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
/// Flows deleted in one go; the rest are found the next time.
const DELETIONS_MAX: usize = 100_000;

/// Where UDP clients send to, and where it may end up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontends {
    /// By service address.
    pub addresses: BTreeMap<SocketAddr, BTreeSet<SocketAddr>>,
    /// By node port, on the addresses that are this node's.
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

    /// Keeps what is new or changed against `old`, and adds what is gone, with no endpoints.
    pub fn changed_since(&self, old: &Self) -> Self {
        Self {
            addresses: changed(&self.addresses, &old.addresses),
            node_ports: changed(&self.node_ports, &old.node_ports),
        }
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.node_ports.is_empty()
    }

    fn is_stale(&self, flow: &Flow, is_node: &dyn Fn(IpAddr) -> bool) -> bool {
        let by_port = || self.node_ports.get(&flow.to.port()).filter(|_| is_node(flow.to.ip()));
        let allowed = self.addresses.get(&flow.to).or_else(by_port);
        allowed.is_some_and(|endpoints| !endpoints.contains(&flow.answered_by))
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

/// One tracked UDP flow.
#[derive(Debug, PartialEq, Eq)]
struct Flow {
    /// Where the client sent to.
    to: SocketAddr,
    /// Who answers: the endpoint, after translation.
    answered_by: SocketAddr,
    /// `CTA_TUPLE_ORIG` and `CTA_ZONE` as received: what names the flow to the kernel.
    identity: Vec<u8>,
}

/// Deletes the stale flows of one family; returns how many. Blocks.
///
/// # Errors
/// The kernel's, such as no connection tracking by netlink.
pub fn flush(family: Family, frontends: &Frontends, is_node: &dyn Fn(IpAddr) -> bool) -> io::Result<usize> {
    let socket = open()?;
    let address_family = match family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    let nf_family = u8::try_from(address_family.as_raw()).unwrap_or_default();
    send(&socket, &message(wire::CT_GET, wire::REQUEST | wire::DUMP, nf_family, &[]))?;
    let mut stale = Vec::new();
    receive(&socket, |payload| {
        if let Some(flow) = parse(payload).filter(|f| frontends.is_stale(f, is_node)) {
            stale.push(flow.identity);
        }
    })?;
    let mut deleted = 0;
    for identity in stale.iter().take(DELETIONS_MAX) {
        send(&socket, &message(wire::CT_DELETE, wire::REQUEST | wire::ACK, nf_family, identity))?;
        match receive(&socket, |_| {}) {
            Ok(()) => deleted += 1,
            // It ended by itself in between.
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::NOENT.raw_os_error()) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(deleted)
}

/// Numbers of netlink, nfnetlink and ctnetlink (`linux/netlink.h`, `linux/netfilter/nfnetlink_conntrack.h`).
mod wire {
    pub const HEADER_BYTES: usize = 16;
    pub const NFGEN_BYTES: usize = 4;
    pub const REQUEST: u16 = 0x1;
    pub const ACK: u16 = 0x4;
    pub const DUMP: u16 = 0x300;
    pub const TYPE_ERROR: u16 = 2;
    pub const TYPE_DONE: u16 = 3;
    pub const CT_GET: u16 = (1 << 8) | 1;
    pub const CT_DELETE: u16 = (1 << 8) | 2;
    pub const TYPE_MASK: u16 = 0x3fff;
    pub const CTA_TUPLE_ORIG: u16 = 1;
    pub const CTA_TUPLE_REPLY: u16 = 2;
    pub const CTA_ZONE: u16 = 18;
    pub const CTA_TUPLE_IP: u16 = 1;
    pub const CTA_TUPLE_PROTO: u16 = 2;
    pub const CTA_IP_V4_SRC: u16 = 1;
    pub const CTA_IP_V4_DST: u16 = 2;
    pub const CTA_IP_V6_SRC: u16 = 3;
    pub const CTA_IP_V6_DST: u16 = 4;
    pub const CTA_PROTO_NUM: u16 = 1;
    pub const CTA_PROTO_SRC_PORT: u16 = 2;
    pub const CTA_PROTO_DST_PORT: u16 = 3;
    pub const PROTO_UDP: u8 = 17;
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::NETFILTER))?;
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    Ok(socket)
}

fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let kernel = netlink::SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(socket, bytes, SendFlags::empty(), &kernel)?;
    Ok(())
}

fn message(kind: u16, flags: u16, family: u8, attributes: &[u8]) -> Vec<u8> {
    let length = wire::HEADER_BYTES + wire::NFGEN_BYTES + attributes.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // Sequence and port: one request at a time, the kernel fills the port.
    bytes.extend([0; 8]);
    bytes.extend([family, 0, 0, 0]);
    bytes.extend_from_slice(attributes);
    bytes
}

/// Reads until the end of a dump or an acknowledgement, handing on what follows each nfnetlink header.
fn receive(socket: &OwnedFd, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0u8; BUFFER_BYTES];
    loop {
        let (count, _) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..count];
        while let Some((kind, body, next)) = split_message(rest) {
            match kind {
                wire::TYPE_DONE => return Ok(()),
                wire::TYPE_ERROR => {
                    let code = body.first_chunk::<4>().map_or(0, |c| i32::from_ne_bytes(*c));
                    return if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) };
                }
                _ => each(body.get(wire::NFGEN_BYTES..).unwrap_or_default()),
            }
            rest = next;
        }
    }
}

/// Type, body and what follows.
fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk::<4>()?) as usize;
    let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
    let body = bytes.get(wire::HEADER_BYTES..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Type, value, the whole attribute padded.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]));
        let kind = u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]) & wire::TYPE_MASK;
        let value = bytes.get(4..length)?;
        let end = length.next_multiple_of(4).min(bytes.len());
        let (whole, rest) = bytes.split_at(end);
        bytes = rest;
        Some((kind, value, whole))
    })
}

/// A UDP flow from the attributes of one entry; `None` for anything else.
fn parse(payload: &[u8]) -> Option<Flow> {
    let (mut to, mut answered_by, mut identity) = (None, None, Vec::new());
    for (kind, value, whole) in attributes(payload) {
        match kind {
            wire::CTA_TUPLE_ORIG => {
                to = tuple(value).map(|(_, destination)| destination);
                identity.extend_from_slice(whole);
            }
            wire::CTA_TUPLE_REPLY => answered_by = tuple(value).map(|(source, _)| source),
            wire::CTA_ZONE => identity.extend_from_slice(whole),
            _ => {}
        }
    }
    Some(Flow { to: to?, answered_by: answered_by?, identity })
}

/// Source and destination of a UDP tuple.
fn tuple(bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (mut source, mut destination, mut ports, mut udp) = (None, None, (0, 0), false);
    let port = |v: &[u8]| v.first_chunk::<2>().map_or(0, |p| u16::from_be_bytes(*p));
    for (kind, value, _) in attributes(bytes) {
        for (inner, v, _) in attributes(value) {
            match (kind, inner) {
                (wire::CTA_TUPLE_IP, wire::CTA_IP_V4_SRC | wire::CTA_IP_V6_SRC) => source = address(v),
                (wire::CTA_TUPLE_IP, wire::CTA_IP_V4_DST | wire::CTA_IP_V6_DST) => destination = address(v),
                (wire::CTA_TUPLE_PROTO, wire::CTA_PROTO_NUM) => udp = v.first() == Some(&wire::PROTO_UDP),
                (wire::CTA_TUPLE_PROTO, wire::CTA_PROTO_SRC_PORT) => ports.0 = port(v),
                (wire::CTA_TUPLE_PROTO, wire::CTA_PROTO_DST_PORT) => ports.1 = port(v),
                _ => {}
            }
        }
    }
    udp.then_some((SocketAddr::new(source?, ports.0), SocketAddr::new(destination?, ports.1)))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|b| Ipv4Addr::from(*b).into()),
        16 => bytes.first_chunk::<16>().map(|b| Ipv6Addr::from(*b).into()),
        _ => None,
    }
}
