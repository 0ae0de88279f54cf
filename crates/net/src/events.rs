//! Changes of nftables by other programs, as the kernel reports them: each change of a table, a chain, a rule, a set or
//! its elements in this network namespace (`NFNLGRP_NFTABLES`). Changes by this program's runs of `nft` are left out.

use std::io;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink};
use tokio::net::UdpSocket;

use crate::nft;

/// The multicast group of nftables, as a bit (`linux/netfilter/nfnetlink.h`: `NFNLGRP_NFTABLES` is 7).
const GROUP: u32 = 1 << 6;
/// The subsystem of nftables in the upper byte of a message's type (`NFNL_SUBSYS_NFTABLES`).
const SUBSYSTEM: u16 = 10;
/// The size of `nlmsghdr` and of `nfgenmsg` in bytes.
const HEADER_BYTES: usize = 16;
const NFGEN_BYTES: usize = 4;
/// The attribute with the table's name, in messages of tables, chains, rules and sets (`NFTA_TABLE_NAME` and others).
const TABLE_ATTRIBUTE: u16 = 1;
/// The mask that removes the flags of an attribute's type (`NLA_TYPE_MASK`).
const ATTRIBUTE_MASK: u16 = 0x3fff;
/// The size of one read of events.
const BUFFER_BYTES: usize = 32 * 1024;
/// The size of the kernel's buffer for this socket: it has room for a transaction of some thousand rules, which would
/// otherwise be reported as lost changes.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;

/// A change of the ruleset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RulesetChange {
    /// A table, or something in it, was added.
    Added {
        /// The table's name, without its family.
        table: String,
    },
    /// A table, or something in it, was removed.
    Removed {
        /// The table's name, without its family.
        table: String,
    },
    /// Elements of a set or map were added or removed.
    Elements {
        /// The table's name, without its family.
        table: String,
    },
    /// Changes were lost because they came faster than they were read: anything may be different.
    Lost,
}

/// The stream of changes of nftables.
#[derive(Debug)]
pub struct RulesetEvents {
    /// A netlink socket: the runtime reads datagrams from it like from a UDP socket.
    socket: UdpSocket,
}

impl RulesetEvents {
    /// Subscribes in the network namespace of this thread.
    ///
    /// # Errors
    /// The kernel has no nftables, or does not allow this process to listen.
    pub fn subscribe() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::NETFILTER))?;
        // Without the permission to do so, lost changes are reported as such.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER_BYTES);
        rustix::net::bind(&socket, &netlink::SocketAddrNetlink::new(0, GROUP))?;
        Ok(Self { socket: UdpSocket::from_std(socket.into())? })
    }

    /// Waits for changes and returns those that came together; dropping the future loses none.
    ///
    /// # Errors
    /// The socket failed.
    pub async fn next(&mut self) -> io::Result<Vec<RulesetChange>> {
        let mut buffer = vec![0u8; BUFFER_BYTES];
        loop {
            let changes = match self.socket.recv(&mut buffer).await {
                Ok(count) => changes(&buffer[..count], nft::is_own),
                // The kernel's buffer for this socket was full.
                Err(e) if e.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
                    vec![RulesetChange::Lost]
                }
                Err(e) => return Err(e),
            };
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }
}

/// Returns the changes in one read; an invalid message ends it. A process that uses netlink has its process ID as its
/// port, unless it has several sockets.
fn changes(mut bytes: &[u8], is_own: impl Fn(u32) -> bool) -> Vec<RulesetChange> {
    let mut all = Vec::new();
    while let Some((kind, port, body, next)) = message(bytes) {
        bytes = next;
        if is_own(port) {
            continue;
        }
        let Some(table) = table(body) else { continue };
        // NEWTABLE, NEWCHAIN, NEWRULE, NEWSET; DELTABLE, DELCHAIN, DELRULE, DELSET; NEWSETELEM, DELSETELEM.
        all.extend(match (kind >> 8, kind & 0xff) {
            (SUBSYSTEM, 0 | 3 | 6 | 9) => Some(RulesetChange::Added { table }),
            (SUBSYSTEM, 2 | 5 | 8 | 11) => Some(RulesetChange::Removed { table }),
            (SUBSYSTEM, 12 | 14) => Some(RulesetChange::Elements { table }),
            _ => None,
        });
    }
    all
}

/// Returns type, the sender's port, body and the rest.
fn message(bytes: &[u8]) -> Option<(u16, u32, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk::<4>()?) as usize;
    let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
    let port = u32::from_ne_bytes(*bytes.get(12..)?.first_chunk::<4>()?);
    let body = bytes.get(HEADER_BYTES..length)?;
    Some((kind, port, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Returns the table that a message is about.
fn table(body: &[u8]) -> Option<String> {
    let mut rest = body.get(NFGEN_BYTES..)?;
    while let Some(head) = rest.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & ATTRIBUTE_MASK;
        let value = rest.get(4..length)?;
        if kind == TABLE_ATTRIBUTE {
            let name = value.split(|b| *b == 0).next().unwrap_or_default();
            return Some(String::from_utf8_lossy(name).into_owned());
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = 77;

    fn bytes_of(kind: u16, port: u32, attributes: &[(u16, &str)]) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 0];
        for (kind, text) in attributes {
            let length = u16::try_from(5 + text.len()).unwrap();
            body.extend(length.to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(text.bytes().chain([0]));
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let length = u32::try_from(HEADER_BYTES + body.len()).unwrap();
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 6], &port.to_ne_bytes(), &body].concat()
    }

    #[test]
    fn tables_of_messages_are_read_and_nonsense_is_not() {
        let of = |kind: u16| SUBSYSTEM << 8 | kind;
        let (added, removed) =
            (|t: &str| RulesetChange::Added { table: t.into() }, |t: &str| RulesetChange::Removed { table: t.into() });
        let stream = [
            bytes_of(of(2), 5, &[(1, "kelson-1")]),
            bytes_of(of(3), 5, &[(3, "chain"), (1 | 0x8000, "filter")]),
            bytes_of(of(2), OWN, &[(1, "kelson-2")]),
            bytes_of(of(14), 5, &[(1, "elements")]),
            bytes_of(of(15), 5, &[(1, "generation")]),
            bytes_of(3 << 8 | 2, 5, &[(1, "another subsystem")]),
            bytes_of(of(8), 5, &[(2, "chain"), (1, "x")]),
            bytes_of(of(14), OWN, &[(1, "own elements")]),
        ]
        .concat();
        let changes = |bytes: &[u8]| changes(bytes, |port| port == OWN);
        let elements = RulesetChange::Elements { table: "elements".into() };
        assert_eq!(changes(&stream), [removed("kelson-1"), added("filter"), elements, removed("x")]);
        for cut in 0..stream.len() {
            // A truncated stream neither panics nor yields a wrong table.
            assert!(changes(&stream[..cut]).len() <= 4);
        }
        assert_eq!(changes(&[0; 64]), []);
        assert_eq!(changes(&[0xff; 64]), []);
    }
}
