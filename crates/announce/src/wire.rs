//! The sockets of one interface: frames of ARP and NDP in and out, and the multicast groups in which solicitations arrive.
use std::io;
use std::net::Ipv6Addr;

use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use socket2::{SockFilter, SockRef};
use tokio::net::UdpSocket;

use crate::error::AnnounceError;
use crate::ethernet::{self, Mac};
use crate::links::Link;

/// The maximum size of a frame that is read; frames of ARP and NDP are much smaller, and the rest of one is dropped.
const FRAME_MAX_BYTES: usize = 2048;

/// One interface, as its frames.
pub trait Wire: Send + Sync + 'static {
    /// Returns the hardware address of the interface.
    fn mac(&self) -> Mac;
    /// Sends a frame.
    fn send(&self, frame: &[u8]) -> impl Future<Output = io::Result<()>> + Send;
    /// Waits for a frame. Dropping the future loses none.
    fn receive(&self) -> impl Future<Output = io::Result<Vec<u8>>> + Send;
    /// Joins a multicast group.
    fn join(&self, group: Ipv6Addr) -> io::Result<()>;
    /// Leaves a multicast group.
    fn leave(&self, group: Ipv6Addr) -> io::Result<()>;
}

/// The sockets of an interface of this machine.
pub struct PacketWire {
    mac: Mac,
    index: u32,
    /// Packet sockets: the runtime reads and writes their frames like datagrams.
    arp: UdpSocket,
    ndp: UdpSocket,
    /// Is a member of the groups; nothing is read from it.
    groups: std::os::fd::OwnedFd,
}

impl PacketWire {
    /// Opens the sockets in the network namespace of this thread. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// The process may not use packet sockets, or the interface is gone.
    pub fn open(link: &Link) -> Result<Self, AnnounceError> {
        let open = || -> io::Result<Self> {
            let groups = rustix::net::socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .or_else(|_| {
                    // A kernel without IPv6 has no groups to join.
                    rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                })?;
            let arp = packet_socket(link.index, ethernet::ARP, None)?;
            let ndp = packet_socket(link.index, ethernet::IPV6, Some(&NEIGHBOR_MESSAGES))?;
            Ok(Self { mac: link.mac, index: link.index, arp, ndp, groups })
        };
        open().map_err(AnnounceError::io(format!("open packet sockets on {}", link.name)))
    }
}

impl Wire for PacketWire {
    fn mac(&self) -> Mac {
        self.mac
    }

    async fn send(&self, frame: &[u8]) -> io::Result<()> {
        let is_arp = ethernet::parse(frame).is_some_and(|(_, kind, _)| kind == ethernet::ARP);
        let socket = if is_arp { &self.arp } else { &self.ndp };
        socket.send(frame).await.map(drop)
    }

    async fn receive(&self) -> io::Result<Vec<u8>> {
        let (mut of_arp, mut of_ndp) = ([0; FRAME_MAX_BYTES], [0; FRAME_MAX_BYTES]);
        tokio::select! {
            length = self.arp.recv(&mut of_arp) => Ok(of_arp[..length?].to_vec()),
            length = self.ndp.recv(&mut of_ndp) => Ok(of_ndp[..length?].to_vec()),
        }
    }

    fn join(&self, group: Ipv6Addr) -> io::Result<()> {
        Ok(sockopt::set_ipv6_add_membership(&self.groups, &group, self.index)?)
    }

    fn leave(&self, group: Ipv6Addr) -> io::Result<()> {
        Ok(sockopt::set_ipv6_drop_membership(&self.groups, &group, self.index)?)
    }
}

/// Accepts ICMPv6 directly after the IPv6 header, of the types 135 and 136 (`linux/filter.h`: the operations are `ldb [k]`,
/// `jeq k` with jumps for true and false, and `ret k`), so that other IPv6 traffic does not wake this process.
const NEIGHBOR_MESSAGES: [SockFilter; 7] = [
    SockFilter::new(0x30, 0, 0, 20),
    SockFilter::new(0x15, 0, 4, 58),
    SockFilter::new(0x30, 0, 0, 54),
    SockFilter::new(0x15, 1, 0, 135),
    SockFilter::new(0x15, 0, 1, 136),
    SockFilter::new(0x06, 0, 0, FRAME_MAX_BYTES as u32),
    SockFilter::new(0x06, 0, 0, 0),
];

/// Opens a socket for the frames of one interface with this EtherType.
fn packet_socket(index: u32, kind: u16, filter: Option<&[SockFilter]>) -> io::Result<UdpSocket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol it receives nothing until it is bound, when the filter is in place.
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    if let Some(filter) = filter {
        SockRef::from(&socket).attach_filter(filter)?;
    }
    rustix::net::bind(&socket, &PacketAddress::new(index, kind))?;
    UdpSocket::from_std(socket.into())
}

/// `sockaddr_ll` (`linux/if_packet.h`), of which only these fields are used for binding.
#[repr(C)]
struct PacketAddress {
    family: u16,
    /// The EtherType in network byte order.
    protocol: u16,
    index: u32,
    hardware_type: u16,
    packet_type: u8,
    length: u8,
    address: [u8; 8],
}

impl PacketAddress {
    fn new(index: u32, kind: u16) -> Self {
        let family = AddressFamily::PACKET.as_raw();
        Self { family, protocol: kind.to_be(), index, hardware_type: 0, packet_type: 0, length: 0, address: [0; 8] }
    }
}

// SAFETY: the pointer is to a `sockaddr_ll` of this length, which is borrowed for the call.
#[allow(unsafe_code, reason = "rustix has no type for the addresses of packet sockets")]
unsafe impl SocketAddrArg for PacketAddress {
    unsafe fn with_sockaddr<R>(&self, f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R) -> R {
        f(std::ptr::from_ref(self).cast(), size_of::<Self>() as SocketAddrLen)
    }
}
