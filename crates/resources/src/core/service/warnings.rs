//! Warnings about a Service: fields that have no effect, and deprecated ones.
use std::net::{IpAddr, Ipv6Addr};

use serde_json::Value;

use crate::addresses::parse_cidr;
use crate::tree::{items, text};

const OLD_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const HINTS: &str = "service.kubernetes.io/topology-mode";

/// Returns the warnings, in upstream's order.
pub(super) fn of(service: &Value) -> Vec<String> {
    let spec = &service["spec"];
    let (kind, balancer) = (text(&spec["type"]), text(&spec["loadBalancerIP"]));
    let is_headless = kind == "ClusterIP" && text(&spec["clusterIP"]) == "None";
    let external: Vec<&str> = items(&spec["externalIPs"]).iter().map(text).collect();
    let has_external = !external.is_empty();
    let mut out = Vec::new();
    if service["metadata"]["annotations"].get(OLD_HINTS).is_some() {
        out.push(format!("annotation {OLD_HINTS} is deprecated, please use {HINTS} instead"));
    }
    let cluster = items(&spec["clusterIPs"]).iter().map(text).filter(|ip| *ip != "None");
    out.extend(cluster.enumerate().filter_map(|(i, ip)| address(&format!("spec.clusterIPs[{i}]"), ip)));
    if is_headless {
        let ignored = [
            ("loadBalancerIP", !balancer.is_empty()),
            ("externalIPs", has_external),
            ("SessionAffinity", text(&spec["sessionAffinity"]) != "None"),
        ];
        let given = ignored.iter().filter(|(_, given)| *given);
        out.extend(given.map(|(field, _)| format!("spec.{field} is ignored for headless services")));
    }
    out.extend(external.iter().enumerate().filter_map(|(i, ip)| address(&format!("spec.externalIPs[{i}]"), ip)));
    if has_external && !is_headless && kind != "ExternalName" {
        out.push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".to_owned());
    }
    out.extend(address("spec.loadBalancerIP", balancer));
    for (i, block) in items(&spec["loadBalancerSourceRanges"]).iter().map(text).enumerate() {
        out.extend(cidr(&format!("spec.loadBalancerSourceRanges[{i}]"), block));
    }
    if kind == "ExternalName" && has_external {
        out.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if kind != "ExternalName" && !text(&spec["externalName"]).is_empty() {
        out.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if text(&spec["trafficDistribution"]) == "PreferClose" {
        out.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".to_owned());
    }
    out
}

/// Returns a warning about an address that is valid, but not in canonical form.
fn address(path: &str, written: &str) -> Option<String> {
    let IpAddr::V6(ip) = written.parse().ok()? else { return None };
    match ip.to_ipv4_mapped() {
        Some(v4) => Some(format!("{path}: non-standard IP address {written:?} is invalid: use {:?}", v4.to_string())),
        None => (ip.to_string() != written).then(|| {
            format!("{path}: IPv6 address {written:?} should be in RFC 5952 canonical format ({:?})", ip.to_string())
        }),
    }
}

/// Returns a warning about a CIDR that is valid, but not in canonical form.
fn cidr(path: &str, written: &str) -> Vec<String> {
    let Some((given, given_bits)) = parse_cidr(written.trim()) else { return Vec::new() };
    let mapped = match given {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().filter(|_| given_bits >= MAPPED_BITS),
        IpAddr::V4(_) => None,
    };
    let (ip, bits) = mapped.map_or((given, given_bits), |v4| (v4.into(), given_bits - MAPPED_BITS));
    let block = format!("{}/{bits}", first_of(ip, bits));
    let mut out = Vec::new();
    if first_of(ip, bits) != ip {
        let single = format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 });
        out.push(format!(
            "{path}: CIDR value {written:?} is ambiguous in this context (should be {block:?} or {single:?}?)"
        ));
    }
    if mapped.is_some() {
        out.push(format!("{path}: non-standard CIDR value {written:?} is invalid: use {block:?}"));
    }
    if out.is_empty() && ip.is_ipv6() && format!("{ip}/{bits}") != written {
        let canonical = format!("{ip}/{bits}");
        out.push(format!("{path}: IPv6 CIDR value {written:?} should be in RFC 5952 canonical format ({canonical:?})"));
    }
    out
}

/// The number of bits before the IPv4 address in an IPv4-mapped IPv6 address.
const MAPPED_BITS: u8 = 96;

fn first_of(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            std::net::Ipv4Addr::from(u32::from(v4) & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            Ipv6Addr::from(u128::from(v6) & mask).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_warned_of() {
        let check = |spec: Value, want: &[&str]| {
            assert_eq!(of(&json!({"metadata": {}, "spec": spec})), want, "{spec}");
        };
        check(json!({"type": "ClusterIP", "loadBalancerIP": "1.2.3.4", "sessionAffinity": "None"}), &[]);
        check(
            json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "loadBalancerIP": "1.2.3.4",
                "externalIPs": ["::ffff:1.2.3.4"], "sessionAffinity": "ClientIP"}),
            &[
                "spec.loadBalancerIP is ignored for headless services",
                "spec.externalIPs is ignored for headless services",
                "spec.SessionAffinity is ignored for headless services",
                "spec.externalIPs[0]: non-standard IP address \"::ffff:1.2.3.4\" is invalid: use \"1.2.3.4\"",
            ],
        );
        check(
            json!({"type": "ClusterIP", "clusterIP": "FD00:0::1", "clusterIPs": ["FD00:0::1"], "externalIPs": ["1.2.3.4"], "externalName": "x"}),
            &[
                "spec.clusterIPs[0]: IPv6 address \"FD00:0::1\" should be in RFC 5952 canonical format (\"fd00::1\")",
                "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
                "spec.externalName is ignored when spec.type is not \"ExternalName\"",
            ],
        );
        check(
            json!({"type": "LoadBalancer", "trafficDistribution": "PreferClose",
                "loadBalancerSourceRanges": ["10.1.2.3/8", "10.0.0.0/8", "fd00::1/64", "FD00::/64", "::ffff:1.2.3.0/120", "0.0.0.0/0"]}),
            &[
                "spec.loadBalancerSourceRanges[0]: CIDR value \"10.1.2.3/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.1.2.3/32\"?)",
                "spec.loadBalancerSourceRanges[2]: CIDR value \"fd00::1/64\" is ambiguous in this context (should be \"fd00::/64\" or \"fd00::1/128\"?)",
                "spec.loadBalancerSourceRanges[3]: IPv6 CIDR value \"FD00::/64\" should be in RFC 5952 canonical format (\"fd00::/64\")",
                "spec.loadBalancerSourceRanges[4]: non-standard CIDR value \"::ffff:1.2.3.0/120\" is invalid: use \"1.2.3.0/24\"",
                "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
            ],
        );
        check(
            json!({"type": "ExternalName", "externalName": "x", "externalIPs": ["1.2.3.4"]}),
            &["spec.externalIPs is ignored when spec.type is \"ExternalName\""],
        );
    }
}
