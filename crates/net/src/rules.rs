//! The nftables table of the pod network, as text for `nft -f -`: masquerading, host ports, and guards. One script is
//! one transaction. Services are in the proxy's table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::config::NetworkConfig;
use crate::ipam::Allocation;

/// After the proxy's rules (priority -100), so that a service's port has precedence over a host port.
const PRIORITY_HOST_PORTS: i32 = -95;

/// Maps and sets of the table whose elements change with pods.
pub(crate) const CHANGING: [&str; 3] = ["hostports", "hostports-by-ip", "hairpin"];

/// Returns the script for the whole table, which replaces an existing one.
pub(crate) fn table_script(config: &NetworkConfig, allocations: &BTreeMap<IpAddr, Allocation>) -> String {
    let (table, bridge, subnet) = (config.table(), config.bridge(), config.subnet());
    let mut keep: Vec<String> = config.cluster_cidrs.iter().filter(is_v4).map(IpNet::to_string).collect();
    keep.push(subnet.to_string());
    keep.push("224.0.0.0/4".to_owned());
    keep.dedup();
    let keep = without_contained(&keep);
    format!(
        "add table ip {table}
delete table ip {table}
table ip {table} {{
  map hostports {{
    type inet_proto . inet_service : ipv4_addr . inet_service
  }}
  map hostports-by-ip {{
    type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
  }}
  set hairpin {{
    type ipv4_addr . ipv4_addr
  }}
  chain hostports {{
    dnat ip to ip daddr . meta l4proto . th dport map @hostports-by-ip
    dnat ip to meta l4proto . th dport map @hostports
  }}
  chain prerouting {{
    type nat hook prerouting priority {PRIORITY_HOST_PORTS}; policy accept;
    fib daddr type local jump hostports
  }}
  chain output {{
    type nat hook output priority {PRIORITY_HOST_PORTS}; policy accept;
    fib daddr type local jump hostports
  }}
  chain postrouting {{
    type nat hook postrouting priority 100; policy accept;
    ct status dnat ip saddr . ip daddr @hairpin masquerade
    oifname \"{bridge}\" ip saddr 127.0.0.0/8 masquerade
    ip saddr {subnet} ip daddr != {{ {keep} }} masquerade
  }}
  chain guard {{
    type filter hook prerouting priority -300; policy accept;
    iifname \"{bridge}\" ip daddr 127.0.0.0/8 drop
  }}
  chain redirects {{
    type filter hook output priority 0; policy accept;
    oifname \"{bridge}\" icmp type redirect drop
  }}
}}
{}",
        host_ports_script(config, allocations)
    )
}

/// Returns the script for the host ports only, from the allocations.
pub(crate) fn host_ports_script(config: &NetworkConfig, allocations: &BTreeMap<IpAddr, Allocation>) -> String {
    let table = config.table();
    let mut script =
        format!("flush map ip {table} hostports\nflush map ip {table} hostports-by-ip\nflush set ip {table} hairpin\n");
    for (ip, allocation) in allocations.iter().filter(|(ip, a)| ip.is_ipv4() && !a.ports.is_empty()) {
        let _ = writeln!(script, "add element ip {table} hairpin {{ {ip} . {ip} }}");
        for port in &allocation.ports {
            let (protocol, from, to) = (port.protocol, port.host_port, port.container_port);
            let _ = if port.host_ip.is_unspecified() {
                writeln!(script, "add element ip {table} hostports {{ {protocol} . {from} : {ip} . {to} }}")
            } else {
                let host = port.host_ip;
                writeln!(
                    script,
                    "add element ip {table} hostports-by-ip {{ {host} . {protocol} . {from} : {ip} . {to} }}"
                )
            };
        }
    }
    script
}

/// Returns the script that removes the table; a missing one is not an error.
pub(crate) fn delete_script(table: &str) -> String {
    format!("add table ip {table}\ndelete table ip {table}\n")
}

fn is_v4(net: &&IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}

/// Removes ranges inside others, which nft rejects in a set.
fn without_contained(nets: &[String]) -> String {
    let parsed: Vec<IpNet> = nets.iter().filter_map(|n| n.parse().ok()).collect();
    let mut kept: Vec<IpNet> = Vec::new();
    for net in &parsed {
        if !parsed.iter().any(|other| other != net && other.contains(net)) && !kept.contains(net) {
            kept.push(*net);
        }
    }
    kept.iter().map(IpNet::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{PortMapping, Protocol};

    fn config() -> NetworkConfig {
        NetworkConfig {
            id: "00c0ffee".to_owned(),
            data_dir: "/x".into(),
            subnets: vec!["10.42.3.0/24".parse().unwrap()],
            cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
            mtu: 0,
            overlay: None,
        }
    }

    #[test]
    fn host_ports_become_elements() {
        let port = |host_ip: &str, host_port, protocol| PortMapping {
            host_port,
            container_port: 80,
            protocol,
            host_ip: host_ip.parse().unwrap(),
        };
        let allocation = Allocation {
            container: "c".into(),
            ifname: "eth0".into(),
            ports: vec![port("0.0.0.0", 8080, Protocol::Tcp), port("192.0.2.2", 53, Protocol::Udp)],
        };
        let script = host_ports_script(&config(), &BTreeMap::from([("10.42.3.9".parse().unwrap(), allocation)]));
        for line in [
            "add element ip kelson-00c0ffee hairpin { 10.42.3.9 . 10.42.3.9 }",
            "add element ip kelson-00c0ffee hostports { tcp . 8080 : 10.42.3.9 . 80 }",
            "add element ip kelson-00c0ffee hostports-by-ip { 192.0.2.2 . udp . 53 : 10.42.3.9 . 80 }",
        ] {
            assert!(script.lines().any(|l| l == line), "{script}");
        }
    }

    #[test]
    fn the_cluster_is_never_masqueraded() {
        let script = table_script(&config(), &BTreeMap::new());
        let rule = "ip saddr 10.42.3.0/24 ip daddr != { 10.42.0.0/16, 224.0.0.0/4 } masquerade";
        assert!(script.contains(rule), "{script}");
    }
}
