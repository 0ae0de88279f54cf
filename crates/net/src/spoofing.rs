//! Rules against spoofing: a pod can only use its own addresses. The hardware address of a pod follows from its IP
//! ([`mac_of`]), and its bridge port is locked to it; so it remains to check that the sender addresses within a frame
//! follow from the frame's hardware address. That takes the same few rules for any number of pods: bytes are compared
//! by a set of all pairs of equal bytes, since nftables cannot compare two fields.
//!
//! Otherwise a container with NET_RAW could answer ARP requests for another pod, or send with its address, past every
//! rule that uses addresses. A pod that forwards for others must masquerade, as the node does for pods.
//!
//! [`mac_of`]: crate::config::mac_of

use std::fmt::Write as _;

use ipnet::IpNet;

use crate::config::{NetworkConfig, mac_of};

/// The offset of a frame's source hardware address, in bits.
const SENDER: usize = 48;
/// The number of bits of a hardware address before the IP.
const MARK: usize = 16;
/// The offset of an IPv4 packet's source, in bits.
const SOURCE: usize = 96;
/// The offset of the sender's hardware address and IP in an ARP packet, in bits.
const ARP_SENDER: usize = 64;
const ARP_SOURCE: usize = 112;

/// Returns the script for the table, which replaces an existing one. The table has a separate family, so that kernels
/// without netfilter for bridges still get all other rules.
pub(crate) fn table_script(config: &NetworkConfig) -> String {
    let (table, ports, subnet) = (config.table(), config.veth_prefix(), config.subnet());
    let pairs: Vec<String> = (0..=u8::MAX).map(|byte| format!("{byte} . {byte}")).collect();
    let whole = usize::from(subnet.prefix_len()) / 8;
    let start = start_of_macs(&subnet, whole);
    // Bits that the prefix of the range does not determine.
    let differs = |mac: (&str, usize), ip: usize| {
        (whole..4).fold(String::new(), |mut rules, byte| {
            let (base, mac, ip) = (mac.0, mac.1 + MARK + 8 * byte, ip + 8 * byte);
            let _ = writeln!(rules, "    @{base},{mac},8 . @nh,{ip},8 != @same drop");
            rules
        })
    };
    let bits = MARK + 8 * whole;
    format!(
        "add table bridge {table}
delete table bridge {table}
table bridge {table} {{
  set same {{
    typeof @ll,{SENDER},8 . @nh,{SOURCE},8
    elements = {{ {pairs} }}
  }}
  chain from-pods {{
    type filter hook prerouting priority -300; policy accept;
    iifname != \"{ports}*\" accept
    @ll,{SENDER},{bits} != {start} drop
    ether type ip jump packets
    ether type arp jump answers
    ether type 8021q drop
  }}
  chain packets {{
    ip saddr != {subnet} drop
{packets}  }}
  chain answers {{
    arp operation request arp saddr ip 0.0.0.0 accept
    arp saddr ip != {subnet} drop
    @nh,{ARP_SENDER},{bits} != {start} drop
{answers}{bodies}  }}
}}
",
        pairs = pairs.join(", "),
        packets = differs(("ll", SENDER), SOURCE),
        answers = differs(("ll", SENDER), ARP_SOURCE),
        bodies = differs(("nh", ARP_SENDER), ARP_SOURCE),
    )
}

/// Returns the script that removes the table; a missing one is not an error.
pub(crate) fn delete_script(table: &str) -> String {
    format!("add table bridge {table}\ndelete table bridge {table}\n")
}

/// Returns the common prefix of a range's hardware addresses as a number: the mark and the bytes that are equal in the
/// whole range.
fn start_of_macs(subnet: &IpNet, whole: usize) -> String {
    mac_of(subnet.network()).iter().take(MARK / 8 + whole).fold("0x".to_owned(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(subnet: &str, start: &str, lines: &[&str], lookups: usize) {
        let config = NetworkConfig {
            id: "00c0ffee".to_owned(),
            data_dir: "/x".into(),
            subnets: vec![subnet.parse().unwrap()],
            cluster_cidrs: vec!["10.0.0.0/8".parse().unwrap()],
            mtu: 0,
            overlay: None,
        };
        let script = table_script(&config);
        for line in lines.iter().copied().chain([start]) {
            assert!(script.lines().any(|l| l.trim() == line), "no line {line:?}:\n{script}");
        }
        assert_eq!(script.matches("!= @same drop").count(), lookups, "{script}");
    }

    #[test]
    fn only_the_bytes_that_differ_within_a_range_are_looked_up() {
        check(
            "10.42.3.0/24",
            "@ll,48,40 != 0x0a580a2a03 drop",
            &[
                "@ll,88,8 . @nh,120,8 != @same drop",
                "@ll,88,8 . @nh,136,8 != @same drop",
                "@nh,104,8 . @nh,136,8 != @same drop",
                "ip saddr != 10.42.3.0/24 drop",
            ],
            3,
        );
        check("10.42.3.128/25", "@ll,48,40 != 0x0a580a2a03 drop", &["ip saddr != 10.42.3.128/25 drop"], 3);
        check(
            "10.40.0.0/13",
            "@ll,48,24 != 0x0a580a drop",
            &["@ll,72,8 . @nh,104,8 != @same drop", "@ll,88,8 . @nh,120,8 != @same drop"],
            9,
        );
    }
}
