//! Neighbor discovery for IPv6 on Ethernet (RFC 4861): solicitations and advertisements as whole frames, with IPv6 header
//! and ICMPv6 checksum; duplicate address detection (RFC 4862).
use std::net::Ipv6Addr;

use crate::ethernet::{self, Mac};

/// The size of an IPv6 header.
const HEADER_BYTES: usize = 40;
/// The size of a message without options: type, code, checksum, flags, target.
const MESSAGE_BYTES: usize = 24;
/// The next header number of ICMPv6.
const ICMPV6: u8 = 58;
/// The hop limit of every message: a router would have lowered it, so the sender is on this link (section 7.1).
const HOP_LIMIT: u8 = 255;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// The flags of an advertisement: the answer to a solicitation, and an address that replaces a known one.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;
/// All nodes of the link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A neighbor solicitation or advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ndp {
    /// Whether it asks for the target's hardware address; otherwise it is an advertisement.
    pub is_solicitation: bool,
    /// Whether an advertisement answers a solicitation.
    pub is_solicited: bool,
    /// IP address of the sender; unspecified in a solicitation that detects duplicate addresses.
    pub source: Ipv6Addr,
    /// IP address to which it is sent.
    pub destination: Ipv6Addr,
    /// IP address that it is about.
    pub target: Ipv6Addr,
    /// Hardware address of the sender or target, as its option says.
    pub mac: Option<Mac>,
}

impl Ndp {
    /// Returns the solicitation that asks whether a machine has `ip`, without claiming it (RFC 4862, section 5.4.2).
    pub fn probe(ip: Ipv6Addr) -> Self {
        let (source, destination) = (Ipv6Addr::UNSPECIFIED, solicited_node(ip));
        Self { is_solicitation: true, is_solicited: false, source, destination, target: ip, mac: None }
    }

    /// Returns the advertisement that announces `ip` at `mac` to all nodes (section 7.2.6).
    pub fn announcement(mac: Mac, ip: Ipv6Addr) -> Self {
        let destination = ALL_NODES;
        Self { is_solicitation: false, is_solicited: false, source: ip, destination, target: ip, mac: Some(mac) }
    }

    /// Returns the answer to this solicitation: its target is at `mac`. A machine that detects duplicate addresses has no
    /// address yet, so its answer goes to all nodes (section 7.2.4).
    pub fn reply(&self, mac: Mac) -> Self {
        let announcement = Self::announcement(mac, self.target);
        match self.source.is_unspecified() {
            true => announcement,
            false => Self { is_solicited: true, destination: self.source, ..announcement },
        }
    }

    /// Returns the Ethernet frame from `mac`, sent to `to` or to the multicast address of the destination.
    pub fn frame(&self, mac: Mac, to: Option<Mac>) -> Vec<u8> {
        let to = to.unwrap_or_else(|| multicast(self.destination));
        let message = self.message();
        let mut frame = ethernet::frame(to, mac, ethernet::IPV6, HEADER_BYTES + message.len());
        frame.extend([0x60, 0, 0, 0]);
        frame.extend((message.len() as u16).to_be_bytes());
        frame.extend([ICMPV6, HOP_LIMIT]);
        frame.extend(self.source.octets());
        frame.extend(self.destination.octets());
        frame.extend(message);
        frame
    }

    /// The ICMPv6 message with its checksum.
    fn message(&self) -> Vec<u8> {
        let (kind, flags, option) = match self.is_solicitation {
            true => (SOLICITATION, 0, SOURCE_OPTION),
            false => (ADVERTISEMENT, OVERRIDE | if self.is_solicited { SOLICITED } else { 0 }, TARGET_OPTION),
        };
        let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
        message.extend(self.target.octets());
        if let Some(mac) = self.mac {
            // The length counts eight bytes.
            message.extend([option, 1]);
            message.extend(mac.0);
        }
        let sum = checksum(self.source, self.destination, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        message
    }

    /// Parses the payload of a frame, with the checks of sections 7.1.1 and 7.1.2. `None` for every other packet.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (header, rest) = payload.split_at_checked(HEADER_BYTES)?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let message = rest.get(..length)?;
        if header[0] >> 4 != 6 || header[6..8] != [ICMPV6, HOP_LIMIT] || length < MESSAGE_BYTES || message[1] != 0 {
            return None;
        }
        let address = |bytes: &[u8]| Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?));
        let (source, destination) = (address(&header[8..24])?, address(&header[24..40])?);
        let target = address(&message[8..24])?;
        // The sum over a message with its checksum is 0.
        if checksum(source, destination, message) != 0 || target.is_multicast() {
            return None;
        }
        let (is_solicitation, option) = match message[0] {
            SOLICITATION => (true, SOURCE_OPTION),
            ADVERTISEMENT => (false, TARGET_OPTION),
            _ => return None,
        };
        let mac = option_of(&message[MESSAGE_BYTES..], option)?;
        let is_solicited = !is_solicitation && message[4] & SOLICITED != 0;
        Some(Self { is_solicitation, is_solicited, source, destination, target, mac })
    }
}

/// Returns the hardware address of an option; the outer `None` for invalid options.
fn option_of(mut options: &[u8], wanted: u8) -> Option<Option<Mac>> {
    let mut found = None;
    while let [kind, length, ..] = *options {
        let (option, rest) = options.split_at_checked(usize::from(length) * 8).filter(|_| length > 0)?;
        if kind == wanted && option.len() == 8 {
            found = Mac::of(&option[2..]);
        }
        options = rest;
    }
    options.is_empty().then_some(found)
}

/// Returns the group to which solicitations for an address are sent (RFC 4291, section 2.7.1).
pub(crate) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// Returns the hardware address of a group (RFC 2464, section 7).
fn multicast(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

/// The checksum of ICMPv6 over the pseudo-header and a message (RFC 4443, section 2.3).
fn checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let mut sum = message.len() as u32 + u32::from(ICMPV6);
    for part in [&source.octets()[..], &destination.octets()[..], message] {
        for pair in part.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 0x0a]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 0x0b]);

    fn ip(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn bytes(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    #[test]
    fn a_probe_has_no_source_and_no_option() {
        let want = "3333ff000010 02000000000a 86dd 60000000 0018 3a ff
            00000000000000000000000000000000 ff0200000000000000000001ff000010
            87 00 4ccf 00000000 20010db8000000000000000000000010";
        assert_eq!(Ndp::probe(ip("2001:db8::10")).frame(OWN, None), bytes(want));
    }

    #[test]
    fn an_announcement_goes_to_all_nodes_and_overrides() {
        let want = "333300000001 02000000000a 86dd 60000000 0020 3a ff
            20010db8000000000000000000000010 ff020000000000000000000000000001
            88 00 f903 20000000 20010db8000000000000000000000010 02 01 02000000000a";
        assert_eq!(Ndp::announcement(OWN, ip("2001:db8::10")).frame(OWN, None), bytes(want));
    }

    #[test]
    fn a_reply_goes_to_the_machine_that_asked_and_is_solicited() {
        let question = Ndp {
            is_solicitation: true,
            is_solicited: false,
            source: ip("2001:db8::1"),
            destination: solicited_node(ip("2001:db8::10")),
            target: ip("2001:db8::10"),
            mac: Some(OTHER),
        };
        let frame = question.frame(OTHER, None);
        let question = Ndp::parse(&frame[ethernet::HEADER_BYTES..]).unwrap();
        let want = "02000000000b 02000000000a 86dd 60000000 0020 3a ff
            20010db8000000000000000000000010 20010db8000000000000000000000001
            88 00 8a4d 60000000 20010db8000000000000000000000010 02 01 02000000000a";
        assert_eq!(question.reply(OWN).frame(OWN, Some(OTHER)), bytes(want));
        let detection = Ndp::probe(ip("2001:db8::10"));
        assert_eq!(detection.reply(OWN), Ndp::announcement(OWN, ip("2001:db8::10")));
    }

    #[test]
    fn groups_have_the_last_bytes_of_the_address() {
        assert_eq!(solicited_node(ip("2001:db8::1:2fab:cdef")), ip("ff02::1:ffab:cdef"));
        assert_eq!(multicast(ip("ff02::1:ffab:cdef")), Mac([0x33, 0x33, 0xff, 0xab, 0xcd, 0xef]));
    }

    #[test]
    fn what_is_parsed_is_what_was_written_and_the_rest_is_ignored() {
        for packet in [Ndp::probe(ip("2001:db8::10")), Ndp::announcement(OWN, ip("fe80::1"))] {
            let frame = packet.frame(OWN, None);
            let payload = &frame[ethernet::HEADER_BYTES..];
            assert_eq!(Ndp::parse(payload), Some(packet));
            for length in 0..payload.len() {
                assert_eq!(Ndp::parse(&payload[..length]), None, "{length} bytes");
            }
            // A change of any byte but the traffic class and flow label changes the checksum or a checked field.
            for at in [0, 4, 5, 6, 7, 8, 24, 40, 41, 42, 50, payload.len() - 1] {
                let mut other = payload.to_vec();
                other[at] ^= 0x11;
                assert_eq!(Ndp::parse(&other), None, "byte {at}");
            }
        }
    }

    #[test]
    fn options_without_length_or_end_are_rejected() {
        let mac = OWN.0;
        let option = |kind: u8, length: u8| [&[kind, length][..], &mac].concat();
        assert_eq!(option_of(&option(2, 1), 2), Some(Some(OWN)));
        assert_eq!(option_of(&option(1, 1), 2), Some(None), "another option");
        assert_eq!(option_of(&[option(14, 1), option(2, 1)].concat(), 2), Some(Some(OWN)));
        assert_eq!(option_of(&option(2, 0), 2), None);
        assert_eq!(option_of(&option(2, 2), 2), None);
        assert_eq!(option_of(&[2], 2), None);
    }
}
