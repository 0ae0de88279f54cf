//! ARP packets for IPv4 on Ethernet (RFC 826): replies, and the probes and announcements of RFC 5227.
use std::net::Ipv4Addr;

use crate::ethernet::{self, Mac};

/// The size of a packet without the Ethernet header.
const PACKET_BYTES: usize = 28;
/// Hardware type Ethernet, protocol type IPv4, and the sizes of both addresses.
const KINDS: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Whether it asks for the target's hardware address; otherwise it is a reply.
    pub is_request: bool,
    /// Hardware address of the sender.
    pub sender_mac: Mac,
    /// IP address of the sender; unspecified in a probe.
    pub sender_ip: Ipv4Addr,
    /// Hardware address of the target; zero where it is asked for.
    pub target_mac: Mac,
    /// IP address that the packet is about.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// Returns the packet that asks whether a machine has `ip`, without claiming it (RFC 5227, section 2.1.1).
    pub fn probe(mac: Mac, ip: Ipv4Addr) -> Self {
        let (sender_ip, target_mac) = (Ipv4Addr::UNSPECIFIED, Mac::ZERO);
        Self { is_request: true, sender_mac: mac, sender_ip, target_mac, target_ip: ip }
    }

    /// Returns the packets that announce `ip` at `mac`: a request (RFC 5227, section 2.3), and a reply, because
    /// some machines update their caches only when they receive a reply.
    pub fn announcements(mac: Mac, ip: Ipv4Addr) -> [Self; 2] {
        let request = Self { is_request: true, sender_mac: mac, sender_ip: ip, target_mac: Mac::ZERO, target_ip: ip };
        [request, Self { is_request: false, target_mac: Mac::BROADCAST, ..request }]
    }

    /// Returns the reply to this request: its target is at `mac`.
    pub fn reply(&self, mac: Mac) -> Self {
        Self {
            is_request: false,
            sender_mac: mac,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
        }
    }

    /// Returns the Ethernet frame: a reply goes to its target, everything else to all machines.
    pub fn frame(&self) -> Vec<u8> {
        let to = if self.is_request { Mac::BROADCAST } else { self.target_mac };
        let mut frame = ethernet::frame(to, self.sender_mac, ethernet::ARP, PACKET_BYTES);
        frame.extend(KINDS);
        frame.extend(if self.is_request { REQUEST } else { REPLY }.to_be_bytes());
        frame.extend(self.sender_mac.0);
        frame.extend(self.sender_ip.octets());
        frame.extend(self.target_mac.0);
        frame.extend(self.target_ip.octets());
        frame
    }

    /// Parses the payload of a frame. `None` for what is no request or reply about IPv4 on Ethernet.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        // Frames are padded to the minimum length of Ethernet.
        let packet = payload.get(..PACKET_BYTES)?;
        if packet[..6] != KINDS {
            return None;
        }
        let is_request = match u16::from_be_bytes([packet[6], packet[7]]) {
            REQUEST => true,
            REPLY => false,
            _ => return None,
        };
        let mac = |at: usize| Some(Mac(packet[at..at + 6].try_into().ok()?));
        let ip = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).ok()?));
        Some(Self { is_request, sender_mac: mac(8)?, sender_ip: ip(14)?, target_mac: mac(18)?, target_ip: ip(24)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 0x0a]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 0x0b]);
    const IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);

    fn bytes(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    #[test]
    fn a_probe_claims_nothing() {
        let want = "ffffffffffff 02000000000a 0806 0001 0800 06 04 0001
            02000000000a 00000000 000000000000 c000020a";
        assert_eq!(Arp::probe(OWN, IP).frame(), bytes(want));
    }

    #[test]
    fn an_announcement_is_a_request_and_a_reply_to_all() {
        let [request, reply] = Arp::announcements(OWN, IP).map(|packet| packet.frame());
        let want = "ffffffffffff 02000000000a 0806 0001 0800 06 04 0001
            02000000000a c000020a 000000000000 c000020a";
        assert_eq!(request, bytes(want));
        let want = "ffffffffffff 02000000000a 0806 0001 0800 06 04 0002
            02000000000a c000020a ffffffffffff c000020a";
        assert_eq!(reply, bytes(want));
    }

    #[test]
    fn a_reply_goes_to_the_machine_that_asked() {
        let mut question = bytes(
            "ffffffffffff 02000000000b 0806 0001 0800 06 04 0001
             02000000000b c0000201 000000000000 c000020a",
        );
        // The padding of a short frame.
        question.resize(60, 0);
        let (source, kind, payload) = ethernet::parse(&question).unwrap();
        assert_eq!((source, kind), (OTHER, ethernet::ARP));
        let question = Arp::parse(payload).unwrap();
        let want = "02000000000b 02000000000a 0806 0001 0800 06 04 0002
            02000000000a c000020a 02000000000b c0000201";
        assert_eq!(question.reply(OWN).frame(), bytes(want));
    }

    #[test]
    fn what_is_parsed_is_what_was_written_and_the_rest_is_ignored() {
        for packet in [Arp::probe(OWN, IP), Arp::announcements(OWN, IP)[1]] {
            let frame = packet.frame();
            let payload = &frame[ethernet::HEADER_BYTES..];
            assert_eq!(Arp::parse(payload), Some(packet));
            for length in 0..payload.len() {
                assert_eq!(Arp::parse(&payload[..length]), None, "{length} bytes");
            }
            // Another hardware, protocol, size of addresses or operation (RARP).
            for (at, value) in [(1, 6), (2, 9), (4, 8), (5, 16), (7, 3), (7, 0)] {
                let mut other = payload.to_vec();
                other[at] = value;
                assert_eq!(Arp::parse(&other), None, "byte {at}");
            }
        }
    }
}
