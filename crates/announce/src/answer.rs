//! What a frame means for the addresses of this machine: a question to answer, or another machine with the same address.
use std::net::IpAddr;

use crate::arp::Arp;
use crate::ethernet::{self, Mac};
use crate::ndp::Ndp;

/// A frame of ARP or NDP.
enum Packet {
    Arp(Arp),
    Ndp(Ndp),
}

/// What a frame of another machine means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceivedFrame {
    /// A question about one of our addresses, and the frame that answers it.
    Question(Vec<u8>),
    /// The question of a machine that would use one of our addresses if it were free.
    Probe {
        /// The address that it asks for.
        ip: IpAddr,
        /// The hardware address of the other machine.
        mac: Mac,
        /// The frame that answers it.
        answer: Vec<u8>,
    },
    /// Another machine uses one of our addresses.
    Conflict {
        /// The address that both machines use.
        ip: IpAddr,
        /// The hardware address of the other machine.
        mac: Mac,
    },
}

/// Returns the hardware address of the sender and the packet; `None` for other protocols and for our own frames.
fn packet(frame: &[u8], own: Mac) -> Option<(Mac, Packet)> {
    let (source, kind, payload) = ethernet::parse(frame)?;
    let (sender, packet) = match kind {
        ethernet::ARP => {
            let arp = Arp::parse(payload)?;
            (arp.sender_mac, Packet::Arp(arp))
        }
        ethernet::IPV6 => {
            let ndp = Ndp::parse(payload)?;
            (ndp.mac.unwrap_or(source), Packet::Ndp(ndp))
        }
        _ => return None,
    };
    // A network may send our own frames back.
    (source != own && sender != own).then_some((sender, packet))
}

/// Returns what a frame means for the machine at `own`, whose addresses are those for which `is_ours` is true.
pub fn hear(frame: &[u8], own: Mac, is_ours: impl Fn(IpAddr) -> bool) -> Option<ReceivedFrame> {
    let (mac, packet) = packet(frame, own)?;
    match packet {
        Packet::Arp(arp) if is_ours(arp.sender_ip.into()) => {
            Some(ReceivedFrame::Conflict { ip: arp.sender_ip.into(), mac })
        }
        Packet::Arp(arp) if arp.is_request && is_ours(arp.target_ip.into()) => {
            let (ip, answer) = (arp.target_ip.into(), arp.reply(own).frame());
            Some(match arp.sender_ip.is_unspecified() {
                true => ReceivedFrame::Probe { ip, mac, answer },
                false => ReceivedFrame::Question(answer),
            })
        }
        Packet::Ndp(ndp) if is_ours(ndp.target.into()) => match ndp.is_solicitation {
            true if ndp.source.is_unspecified() => {
                Some(ReceivedFrame::Probe { ip: ndp.target.into(), mac, answer: ndp.reply(own).frame(own, None) })
            }
            true => Some(ReceivedFrame::Question(ndp.reply(own).frame(own, Some(mac)))),
            false => Some(ReceivedFrame::Conflict { ip: ndp.target.into(), mac }),
        },
        _ => None,
    }
}

/// Returns the machine that uses `ip`, or probes it at the same time, if a frame shows one (RFC 5227, section 2.1.1; RFC
/// 4862, section 5.4.3).
pub fn user_of(frame: &[u8], own: Mac, ip: IpAddr) -> Option<Mac> {
    let (mac, packet) = packet(frame, own)?;
    let is_used = match packet {
        Packet::Arp(arp) => {
            let is_probe = arp.is_request && arp.sender_ip.is_unspecified() && ip == arp.target_ip;
            ip == arp.sender_ip || is_probe
        }
        Packet::Ndp(ndp) => ip == ndp.target && (!ndp.is_solicitation || ndp.source.is_unspecified()),
    };
    is_used.then_some(mac)
}

/// Returns the frames that announce `ip` at `mac`.
pub fn announcements(mac: Mac, ip: IpAddr) -> Vec<Vec<u8>> {
    match ip {
        IpAddr::V4(ip) => Arp::announcements(mac, ip).iter().map(Arp::frame).collect(),
        IpAddr::V6(ip) => vec![Ndp::announcement(mac, ip).frame(mac, None)],
    }
}

/// Returns the frame that asks whether another machine has `ip`.
pub fn probe(mac: Mac, ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => Arp::probe(mac, ip).frame(),
        IpAddr::V6(ip) => Ndp::probe(ip).frame(mac, None),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 0x0a]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 0x0b]);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn heard(frame: &[u8], ours: &[&str]) -> Option<ReceivedFrame> {
        hear(frame, OWN, |one| ours.iter().any(|own| ip(own) == one))
    }

    fn request(sender_ip: &str, target_ip: &str) -> Arp {
        let v4 = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        Arp { sender_ip: v4(sender_ip), ..Arp::probe(OTHER, v4(target_ip)) }
    }

    #[test]
    fn questions_about_our_addresses_are_answered() {
        let question = request("192.0.2.1", "192.0.2.10");
        let answer = ReceivedFrame::Question(question.reply(OWN).frame());
        assert_eq!(heard(&question.frame(), &["192.0.2.10"]), Some(answer));
        assert_eq!(heard(&question.frame(), &["192.0.2.11"]), None);
        let probed = request("0.0.0.0", "192.0.2.10");
        let probe = |address: &str, answer: Vec<u8>| ReceivedFrame::Probe { ip: ip(address), mac: OTHER, answer };
        let answer = probe("192.0.2.10", probed.reply(OWN).frame());
        assert_eq!(heard(&probed.frame(), &["192.0.2.10"]), Some(answer));
        let IpAddr::V6(v6) = ip("2001:db8::10") else { unreachable!() };
        let asked = Ndp { source: "fe80::1".parse().unwrap(), mac: Some(OTHER), ..Ndp::probe(v6) };
        let answer = ReceivedFrame::Question(asked.reply(OWN).frame(OWN, Some(OTHER)));
        assert_eq!(heard(&asked.frame(OTHER, None), &["2001:db8::10"]), Some(answer));
        let answer = probe("2001:db8::10", Ndp::announcement(OWN, v6).frame(OWN, None));
        assert_eq!(heard(&Ndp::probe(v6).frame(OTHER, None), &["2001:db8::10"]), Some(answer));
    }

    #[test]
    fn another_machine_with_our_address_is_a_conflict() {
        for address in ["192.0.2.10", "2001:db8::10"] {
            let conflict = ReceivedFrame::Conflict { ip: ip(address), mac: OTHER };
            for frame in announcements(OTHER, ip(address)) {
                assert_eq!(heard(&frame, &[address]), Some(conflict.clone()), "{address}");
                assert_eq!(user_of(&frame, OWN, ip(address)), Some(OTHER), "{address}");
            }
            for frame in announcements(OWN, ip(address)) {
                assert_eq!(heard(&frame, &[address]), None, "our own frame, sent back");
            }
        }
    }

    #[test]
    fn who_probes_at_the_same_time_is_a_user_and_who_asks_is_not() {
        for address in ["192.0.2.10", "2001:db8::10"] {
            assert_eq!(user_of(&probe(OTHER, ip(address)), OWN, ip(address)), Some(OTHER));
            assert_eq!(user_of(&probe(OWN, ip(address)), OWN, ip(address)), None);
            assert_eq!(user_of(&probe(OTHER, ip(address)), OWN, ip("192.0.2.99")), None);
        }
        assert_eq!(user_of(&request("192.0.2.1", "192.0.2.10").frame(), OWN, ip("192.0.2.10")), None);
    }

    #[test]
    fn other_traffic_is_ignored() {
        let mut frame = request("192.0.2.1", "192.0.2.10").frame();
        frame[12..14].copy_from_slice(&[8, 0]);
        assert_eq!(heard(&frame, &["192.0.2.10"]), None);
        assert_eq!(heard(&[], &["192.0.2.10"]), None);
    }
}
