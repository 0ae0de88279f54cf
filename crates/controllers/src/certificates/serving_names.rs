//! The names and addresses for which a kubelet serving certificate is approved automatically. A node's status is not
//! sufficient proof, as a node could claim to be the API server, a service or another node.
use std::net::IpAddr;

use kelson_pki::{CertificateRequest, San};

use crate::shared::config::ReservedNames;
use crate::views::NodeView;

/// Returns the first requested name or address that the node may not have, with the reason.
pub fn refused<'a>(
    request: &CertificateRequest,
    node: &NodeView,
    others: impl Iterator<Item = &'a NodeView> + Clone,
    reserved: &ReservedNames,
) -> Option<String> {
    request.sans.iter().find_map(|san| {
        let why = why_refused(san, node, others.clone(), reserved)?;
        Some(match san {
            San::Dns(name) => format!("{name} {why}"),
            San::Ip(ip) => format!("{ip} {why}"),
            other => format!("{other:?} {why}"),
        })
    })
}

fn why_refused<'a>(
    san: &San,
    node: &NodeView,
    mut others: impl Iterator<Item = &'a NodeView>,
    reserved: &ReservedNames,
) -> Option<&'static str> {
    let is_own = match san {
        San::Dns(name) => declares(node, san) || *name == node.metadata.name,
        San::Ip(_) => declares(node, san),
        _ => false,
    };
    if !is_own {
        return Some("is not a name or address of the node");
    }
    let on_server = node.metadata.name == reserved.server_node;
    // A machine without a route has no other address, and many small ones have no other name.
    let alone = on_server
        && match san {
            San::Ip(ip) => ip.to_canonical().is_loopback(),
            San::Dns(name) => name.eq_ignore_ascii_case("localhost"),
            _ => false,
        };
    let is_in = |names: &[San]| names.iter().any(|name| same(name, san));
    if is_in(&reserved.control_plane) && !alone || is_in(&reserved.server) && !on_server {
        return Some("belongs to the API server");
    }
    if let San::Ip(ip) = san {
        let ip = ip.to_canonical();
        if reserved.service_cidrs.iter().any(|range| range.contains(&ip)) {
            return Some("is in a service address range");
        }
        if is_special(ip) && !alone {
            return Some("is not reachable from other machines");
        }
    }
    let taken = |other: &NodeView| {
        other.metadata.name != node.metadata.name
            && (declares(other, san) || matches!(san, San::Dns(name) if *name == other.metadata.name))
    };
    others.any(taken).then_some("is also declared by another node")
}

/// Whether a node's status lists the name or address.
fn declares(node: &NodeView, san: &San) -> bool {
    node.status.addresses.iter().any(|a| match san {
        San::Dns(name) => !a.r#type.ends_with("IP") && a.address.eq_ignore_ascii_case(name),
        San::Ip(ip) => {
            a.r#type.ends_with("IP")
                && a.address.parse::<IpAddr>().is_ok_and(|own| own.to_canonical() == ip.to_canonical())
        }
        _ => false,
    })
}

fn same(a: &San, b: &San) -> bool {
    match (a, b) {
        (San::Dns(a), San::Dns(b)) => a.trim_end_matches('.').eq_ignore_ascii_case(b.trim_end_matches('.')),
        (San::Ip(a), San::Ip(b)) => a.to_canonical() == b.to_canonical(),
        _ => a == b,
    }
}

/// Whether the address is loopback, link-local, multicast or unspecified.
fn is_special(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(a) => a.is_link_local() || a.is_broadcast(),
        IpAddr::V6(a) => a.segments()[0] & 0xffc0 == 0xfe80,
    };
    link_local || ip.is_loopback() || ip.is_multicast() || ip.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_pki::{Key, create_request};
    use serde_json::json;

    fn node(name: &str, addresses: &[(&str, &str)]) -> NodeView {
        let addresses: Vec<_> = addresses.iter().map(|(t, a)| json!({"type": t, "address": a})).collect();
        serde_json::from_value(json!({"metadata": {"name": name}, "status": {"addresses": addresses}})).unwrap()
    }

    fn dns(name: &str) -> San {
        San::Dns(name.into())
    }

    fn ip(text: &str) -> San {
        San::Ip(text.parse().unwrap())
    }

    fn check(node: &NodeView, others: &[NodeView], sans: &[San], expected: Option<&str>) {
        let reserved = ReservedNames {
            control_plane: vec![dns("kubernetes.default.svc"), dns("localhost"), ip("10.43.0.1"), ip("127.0.0.1")],
            server: vec![dns("server"), ip("10.0.0.1")],
            server_node: "server".into(),
            service_cidrs: vec!["10.43.0.0/16".parse().unwrap()],
        };
        let key = Key::generate().unwrap();
        let user = format!("system:node:{}", node.metadata.name);
        let pem = create_request(&key, &user, &["system:nodes".into()], sans).unwrap();
        let request = CertificateRequest::parse(&pem).unwrap();
        assert_eq!(refused(&request, node, others.iter(), &reserved).as_deref(), expected, "{sans:?}");
    }

    #[test]
    fn the_nodes_own_names_alone() {
        let n1 = node("n1", &[("InternalIP", "10.0.0.5"), ("Hostname", "n1"), ("InternalDNS", "n1.local")]);
        check(&n1, &[], &[ip("10.0.0.5"), dns("n1"), dns("N1.local")], None);
        check(&n1, &[], &[ip("10.0.0.6")], Some("10.0.0.6 is not a name or address of the node"));
        check(&n1, &[], &[dns("web")], Some("web is not a name or address of the node"));
        check(
            &n1,
            &[],
            &[ip("10.0.0.5"), San::Email("n1".into())],
            Some("Email(\"n1\") is not a name or address of the node"),
        );
    }

    #[test]
    fn nothing_of_the_control_plane_whatever_the_node_says_of_itself() {
        for (kind, address) in [
            ("InternalIP", "10.43.0.1"),
            ("InternalIP", "10.0.0.1"),
            ("InternalIP", "127.0.0.1"),
            ("InternalIP", "::ffff:127.0.0.1"),
            ("InternalIP", "::1"),
            ("InternalIP", "10.43.7.7"),
            ("InternalIP", "169.254.169.254"),
            ("InternalIP", "0.0.0.0"),
            ("InternalIP", "224.0.0.1"),
            ("Hostname", "kubernetes.default.svc"),
            ("Hostname", "LOCALHOST"),
            ("Hostname", "server"),
        ] {
            let rogue = node("rogue", &[(kind, address)]);
            let san = if kind == "Hostname" { dns(address) } else { ip(address) };
            let key = Key::generate().unwrap();
            let pem = create_request(&key, "system:node:rogue", &["system:nodes".into()], &[san]).unwrap();
            let request = CertificateRequest::parse(&pem).unwrap();
            let reserved = ReservedNames {
                control_plane: vec![dns("kubernetes.default.svc"), dns("localhost")],
                server: vec![dns("server"), ip("10.0.0.1")],
                server_node: "server".into(),
                service_cidrs: vec!["10.43.0.0/16".parse().unwrap()],
            };
            assert!(refused(&request, &rogue, std::iter::empty(), &reserved).is_some(), "{address}");
        }
        // The holder of a bootstrap token may choose the node's name.
        check(&node("localhost", &[]), &[], &[dns("localhost")], Some("localhost belongs to the API server"));
    }

    #[test]
    fn the_servers_own_node_shares_its_names() {
        let own = node("server", &[("InternalIP", "10.0.0.1"), ("Hostname", "server")]);
        check(&own, &[], &[ip("10.0.0.1"), dns("server")], None);
        let alone = node("server", &[("InternalIP", "127.0.0.1"), ("InternalIP", "10.43.0.1")]);
        check(&alone, &[], &[ip("127.0.0.1")], None);
        check(&alone, &[], &[ip("10.43.0.1")], Some("10.43.0.1 belongs to the API server"));
        let named = node("server", &[("Hostname", "localhost")]);
        check(&named, &[], &[dns("localhost")], None);
    }

    #[test]
    fn what_two_nodes_declare_is_neithers() {
        let (n1, n2) = (node("n1", &[("InternalIP", "10.0.0.5")]), node("n2", &[("ExternalIP", "10.0.0.5")]));
        let both = [n1.clone(), n2.clone()];
        for own in [&n1, &n2] {
            check(own, &both, &[ip("10.0.0.5")], Some("10.0.0.5 is also declared by another node"));
        }
        let rogue = node("rogue", &[("Hostname", "n1")]);
        check(&rogue, &both, &[dns("n1")], Some("n1 is also declared by another node"));
    }
}
