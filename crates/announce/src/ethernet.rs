//! Hardware addresses, and the header of an Ethernet frame.
use std::fmt;

/// The size of the header: destination, source, EtherType.
pub(crate) const HEADER_BYTES: usize = 14;
/// EtherType of ARP (RFC 826).
pub(crate) const ARP: u16 = 0x0806;
/// EtherType of IPv6 (RFC 2464).
pub(crate) const IPV6: u16 = 0x86dd;

/// A hardware address of Ethernet (EUI-48).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All machines of the network.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// The value of an address that a frame does not say.
    pub const ZERO: Self = Self([0; 6]);

    /// Parses the six bytes of a link's address; `None` for links that are no Ethernet.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let mac = Self(bytes.try_into().ok()?);
        (mac != Self::ZERO && mac.0[0] & 1 == 0).then_some(mac)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Returns a frame with its header and room for `payload` more bytes.
pub(crate) fn frame(destination: Mac, source: Mac, kind: u16, payload: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_BYTES + payload);
    frame.extend(destination.0);
    frame.extend(source.0);
    frame.extend(kind.to_be_bytes());
    frame
}

/// Returns source, EtherType and payload of a frame; `None` if it is too short.
pub(crate) fn parse(frame: &[u8]) -> Option<(Mac, u16, &[u8])> {
    let (header, payload) = frame.split_at_checked(HEADER_BYTES)?;
    let source = Mac(header[6..12].try_into().ok()?);
    Some((source, u16::from_be_bytes([header[12], header[13]]), payload))
}
