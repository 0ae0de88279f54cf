//! The first packet of an SCTP association, encoded and decoded by hand: kernels without SCTP also forward and filter
//! it.

use std::net::UdpSocket;

use rustix::net::{AddressFamily, SocketType, ipproto};

/// The size of the common header in bytes: ports, verification tag, checksum.
const HEADER_BYTES: usize = 12;
/// The offset of the initiate tag in an INIT chunk.
const TAG_AT: usize = HEADER_BYTES + 4;

/// Opens a raw socket for SCTP in this thread's network namespace. It reads packets with their IPv4 headers.
pub fn socket() -> UdpSocket {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::SCTP)).unwrap();
    UdpSocket::from(socket)
}

/// Returns an INIT with a tag, to a port (RFC 9260, 3.3.2). The source port is derived from the tag, so that each
/// packet begins a flow.
pub fn init(tag: u32, port: u16) -> Vec<u8> {
    let source = 1024 + u16::try_from(tag % 60_000).unwrap();
    let mut packet = Vec::new();
    packet.extend(source.to_be_bytes());
    packet.extend(port.to_be_bytes());
    // The verification tag of an INIT is zero, and the checksum is computed with a zero checksum.
    packet.extend([0; 8]);
    // Type INIT, no flags, 20 bytes.
    packet.extend([1, 0, 0, 20]);
    packet.extend(tag.to_be_bytes());
    // Receiver window, streams out and in, first TSN.
    packet.extend(65_536_u32.to_be_bytes());
    packet.extend([0, 1, 0, 1]);
    packet.extend(1_u32.to_be_bytes());
    let sum = crc32c(&packet).to_le_bytes();
    packet[8..HEADER_BYTES].copy_from_slice(&sum);
    packet
}

/// Returns the tag of an INIT in an IPv4 packet.
pub fn tag(packet: &[u8]) -> Option<u32> {
    let header = usize::from(packet.first()? & 0xf) * 4;
    let tag = packet.get(header + TAG_AT..)?.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*tag))
}

/// Computes Castagnoli's CRC, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

#[test]
fn the_checksum_is_castagnolis() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}
