//! Connection tracking: lists the flows that the kernel tracks and deletes some of them. Otherwise UDP flows to a
//! removed endpoint continue for as long as the client sends (kubernetes#48370), and a connection that a new policy
//! forbids stays open. Implements ctnetlink directly.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use crate::family::Family;
use crate::ports::Protocol;

/// The size of a netlink read; the kernel sends at most 32 KiB of a dump.
const BUFFER_BYTES: usize = 64 << 10;
/// The kernel answers immediately; this limits the wait for a lost answer.
const ANSWER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
/// The maximum number of flows deleted in one call; the others are found by the next one.
const DELETIONS_MAX: usize = 100_000;

/// A tracked flow.
#[derive(Debug, PartialEq, Eq)]
pub struct Flow {
    /// The transport protocol; `None` for one without ports, such as ICMP.
    pub protocol: Option<Protocol>,
    /// The source of the first packet, as it was sent.
    pub from: SocketAddr,
    /// The destination of the first packet, as it was sent.
    pub to: SocketAddr,
    /// The source of answers: the destination after translation.
    pub answered_by: SocketAddr,
    /// `CTA_TUPLE_ORIG` and `CTA_ZONE` as received, which identify the flow to the kernel.
    identity: Vec<u8>,
}

/// Deletes the flows of one family for which `is_stale` is true, and returns their number. Blocks.
///
/// # Errors
/// An error of the kernel, for instance without connection tracking by netlink.
pub fn delete_flows(family: Family, is_stale: &mut dyn FnMut(&Flow) -> bool) -> io::Result<usize> {
    let socket = open()?;
    let address_family = match family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    let nf_family = u8::try_from(address_family.as_raw()).unwrap_or_default();
    send(&socket, &message(wire::CT_GET, wire::REQUEST | wire::DUMP, nf_family, &[]))?;
    let mut stale = Vec::new();
    receive(&socket, |payload| {
        if let Some(flow) = parse(payload).filter(|flow| is_stale(flow)) {
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

/// Constants of netlink, nfnetlink and ctnetlink (`linux/netlink.h`, `linux/netfilter/nfnetlink_conntrack.h`).
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
    pub const PROTO_TCP: u8 = 6;
    pub const PROTO_UDP: u8 = 17;
    pub const PROTO_SCTP: u8 = 132;
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
    // Sequence and port: there is one request at a time, and the kernel fills in the port.
    bytes.extend([0; 8]);
    bytes.extend([family, 0, 0, 0]);
    bytes.extend_from_slice(attributes);
    bytes
}

/// Reads until the end of a dump or an acknowledgement, and passes on what follows each nfnetlink header.
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

/// Returns type, body and the rest.
fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk::<4>()?) as usize;
    let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
    let body = bytes.get(wire::HEADER_BYTES..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Returns type and value of each attribute; attributes are padded.
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

/// Reads a flow from the attributes of an entry; `None` for an entry without addresses.
fn parse(payload: &[u8]) -> Option<Flow> {
    let (mut original, mut reply, mut identity) = (None, None, Vec::new());
    for (kind, value, whole) in attributes(payload) {
        match kind {
            wire::CTA_TUPLE_ORIG => {
                original = tuple(value);
                identity.extend_from_slice(whole);
            }
            wire::CTA_TUPLE_REPLY => reply = tuple(value),
            wire::CTA_ZONE => identity.extend_from_slice(whole),
            _ => {}
        }
    }
    let (original, reply) = (original?, reply?);
    Some(Flow {
        protocol: original.protocol,
        from: original.source,
        to: original.destination,
        answered_by: reply.source,
        identity,
    })
}

/// One direction of a flow.
struct Tuple {
    protocol: Option<Protocol>,
    source: SocketAddr,
    destination: SocketAddr,
}

fn tuple(bytes: &[u8]) -> Option<Tuple> {
    let (mut source, mut destination, mut ports, mut protocol) = (None, None, (0, 0), None);
    let port = |v: &[u8]| v.first_chunk::<2>().map_or(0, |p| u16::from_be_bytes(*p));
    for (kind, value, _) in attributes(bytes) {
        for (inner, v, _) in attributes(value) {
            match (kind, inner) {
                (wire::CTA_TUPLE_IP, wire::CTA_IP_V4_SRC | wire::CTA_IP_V6_SRC) => source = address(v),
                (wire::CTA_TUPLE_IP, wire::CTA_IP_V4_DST | wire::CTA_IP_V6_DST) => destination = address(v),
                (wire::CTA_TUPLE_PROTO, wire::CTA_PROTO_NUM) => protocol = transport(v),
                (wire::CTA_TUPLE_PROTO, wire::CTA_PROTO_SRC_PORT) => ports.0 = port(v),
                (wire::CTA_TUPLE_PROTO, wire::CTA_PROTO_DST_PORT) => ports.1 = port(v),
                _ => {}
            }
        }
    }
    let (source, destination) = (SocketAddr::new(source?, ports.0), SocketAddr::new(destination?, ports.1));
    Some(Tuple { protocol, source, destination })
}

fn transport(number: &[u8]) -> Option<Protocol> {
    match *number.first()? {
        wire::PROTO_TCP => Some(Protocol::Tcp),
        wire::PROTO_UDP => Some(Protocol::Udp),
        wire::PROTO_SCTP => Some(Protocol::Sctp),
        _ => None,
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|b| Ipv4Addr::from(*b).into()),
        16 => bytes.first_chunk::<16>().map(|b| Ipv6Addr::from(*b).into()),
        _ => None,
    }
}
