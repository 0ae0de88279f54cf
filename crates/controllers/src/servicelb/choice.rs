//! Which node addresses each service of type LoadBalancer gets, and which node announces addresses of pools. Everything here
//! is pure.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use kelson_meta::ObjectKey;

use super::pools::Shortage;

/// A port with its protocol.
pub type ProtocolPort = (String, u16);

/// A node that may announce services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The node's name.
    pub name: String,
    /// Its addresses in the cluster's network.
    pub internal: Vec<IpAddr>,
    /// Its addresses outside the cluster, if it has any.
    pub external: Vec<IpAddr>,
    /// Whether it is labelled for load balancing. If any node is, only such nodes are used.
    pub enabled: bool,
    /// The pool that it belongs to.
    pub pool: Option<String>,
    /// Whether no new pod is scheduled to it, as before a drain.
    pub is_cordoned: bool,
    /// Ports of the node that something else has, and what that is.
    pub taken: BTreeMap<ProtocolPort, String>,
}

/// A service that wants addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Creation time as in the object. It precedes the key in the order, so that an older service keeps its ports.
    pub created: String,
    pub key: ObjectKey,
    /// `IPv4` and `IPv6`, in order of preference; empty allows any.
    pub families: Vec<String>,
    pub ports: Vec<ProtocolPort>,
    /// The pool of nodes that it wants.
    pub pool: Option<String>,
    /// The nodes with ready endpoints, for the external traffic policy `Local`.
    pub local: Option<BTreeSet<String>>,
}

/// A port that a node cannot give to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub node: String,
    pub port: ProtocolPort,
    /// The service or pod that has the port.
    pub holder: String,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (protocol, port) = &self.port;
        write!(f, "port {port}/{protocol} of node {} is in use by {}", self.node, self.holder)
    }
}

/// The nodes and addresses that a service gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Its addresses, sorted.
    pub addresses: Vec<IpAddr>,
    /// Why nodes were left out.
    pub conflicts: Vec<Conflict>,
    /// For addresses of pools; `None` for those of nodes.
    pub pooled: Option<Pooled>,
}

impl Assignment {
    /// Returns the node that announces the addresses, if they are of pools.
    pub fn announcer(&self) -> Option<&str> {
        self.pooled.as_ref()?.announcer.as_deref()
    }
}

/// What is said about addresses of pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pooled {
    /// The node that announces them; `None` while no node can.
    pub announcer: Option<String>,
    /// Why the service lacks an address.
    pub shortage: Option<Shortage>,
}

/// Assigns addresses to all services. A service gets a node if all its ports are free there; older services choose first.
pub fn assign(mut demands: Vec<Demand>, nodes: &[Candidate]) -> BTreeMap<ObjectKey, Assignment> {
    demands.sort_by(|a, b| (&a.created, &a.key).cmp(&(&b.created, &b.key)));
    let only_enabled = nodes.iter().any(|node| node.enabled);
    let mut given: BTreeMap<(&str, &ProtocolPort), &ObjectKey> = BTreeMap::new();
    let mut all = BTreeMap::new();
    for demand in &demands {
        let mut assignment = Assignment::default();
        let mut chosen = Vec::new();
        for node in nodes.iter().filter(|node| node.enabled || !only_enabled) {
            if demand.pool.is_some() && demand.pool != node.pool {
                continue;
            }
            let holder = |port: &ProtocolPort| {
                let other = given.get(&(node.name.as_str(), port)).map(|key| format!("service {key}"));
                other.or_else(|| node.taken.get(port).cloned())
            };
            let conflict = demand
                .ports
                .iter()
                .find_map(|port| Some(Conflict { node: node.name.clone(), port: port.clone(), holder: holder(port)? }));
            if let Some(conflict) = conflict {
                assignment.conflicts.push(conflict);
                continue;
            }
            // The ports stay reserved while a node has no endpoint, so that addresses do not move to another service and back.
            given.extend(demand.ports.iter().map(|port| ((node.name.as_str(), port), &demand.key)));
            if demand.local.as_ref().is_none_or(|local| local.contains(&node.name)) {
                chosen.push(node);
            }
        }
        assignment.addresses = addresses(&chosen, &demand.families);
        all.insert(demand.key.clone(), assignment);
    }
    all
}

/// Returns the node that announces the addresses of each service, by services and the node that does it now. A node keeps
/// its services while it can announce them; others get the node with the fewest. A cordoned node announces a service only if
/// no other node can.
pub fn announcers(mut demands: Vec<(Demand, Option<String>)>, nodes: &[Candidate]) -> BTreeMap<ObjectKey, String> {
    demands.sort_by(|(a, _), (b, _)| (&a.created, &a.key).cmp(&(&b.created, &b.key)));
    let only_enabled = nodes.iter().any(|node| node.enabled);
    let mut load: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut chosen, mut open) = (BTreeMap::new(), Vec::new());
    for (demand, current) in &demands {
        let can = |node: &&Candidate| {
            (node.enabled || !only_enabled)
                && (demand.pool.is_none() || demand.pool == node.pool)
                && demand.local.as_ref().is_none_or(|local| local.contains(&node.name))
        };
        let mut able: Vec<&Candidate> = nodes.iter().filter(can).collect();
        if able.iter().any(|node| !node.is_cordoned) {
            able.retain(|node| !node.is_cordoned);
        }
        match able.iter().find(|node| Some(&node.name) == current.as_ref()) {
            Some(node) => {
                *load.entry(&node.name).or_default() += 1;
                chosen.insert(demand.key.clone(), node.name.clone());
            }
            None => open.push((&demand.key, able)),
        }
    }
    for (key, able) in open {
        let count = |node: &Candidate| load.get(node.name.as_str()).copied().unwrap_or_default();
        // Nodes are sorted by name, and the first of several with the fewest is used.
        if let Some(node) = able.into_iter().min_by_key(|node| count(node)) {
            *load.entry(&node.name).or_default() += 1;
            chosen.insert(key.clone(), node.name.clone());
        }
    }
    chosen
}

/// The external addresses of the nodes, or their internal ones if none of them has an external one.
fn addresses(nodes: &[&Candidate], families: &[String]) -> Vec<IpAddr> {
    let is_wanted = |ip: &&IpAddr| {
        let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        families.is_empty() || families.iter().any(|wanted| wanted == family)
    };
    let of = |pick: fn(&Candidate) -> &Vec<IpAddr>| {
        nodes.iter().flat_map(|node| pick(node)).filter(is_wanted).copied().collect::<BTreeSet<_>>()
    };
    let external = of(|node| &node.external);
    let all = if external.is_empty() { of(|node| &node.internal) } else { external };
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ip: &str) -> Candidate {
        Candidate { name: name.into(), internal: vec![ip.parse().expect("an address")], ..Candidate::default() }
    }

    fn demand(name: &str, created: u32, ports: &[u16]) -> Demand {
        Demand {
            created: format!("2026-01-01T00:00:{created:02}Z"),
            key: ObjectKey::new("n", name),
            families: vec!["IPv4".into()],
            ports: ports.iter().map(|port| ("TCP".to_owned(), *port)).collect(),
            pool: None,
            local: None,
        }
    }

    /// Returns each service's addresses and conflicts as a string.
    fn shown(demands: Vec<Demand>, nodes: &[Candidate]) -> Vec<String> {
        let show = |(key, a): (ObjectKey, Assignment)| {
            let addresses: Vec<String> = a.addresses.iter().map(ToString::to_string).collect();
            let conflicts: Vec<String> = a.conflicts.iter().map(ToString::to_string).collect();
            format!("{}: {} {}", key.name, addresses.join(","), conflicts.join("; ")).trim_end().to_owned()
        };
        assign(demands, nodes).into_iter().map(show).collect()
    }

    #[test]
    fn every_node_announces_a_service() {
        let nodes = [node("a", "10.0.0.1"), node("b", "10.0.0.2")];
        assert_eq!(shown(vec![demand("web", 0, &[80, 443])], &nodes), ["web: 10.0.0.1,10.0.0.2"]);
        assert_eq!(shown(vec![demand("web", 0, &[80])], &[]), ["web:"]);
    }

    #[test]
    fn the_older_service_has_the_port() {
        let nodes = [node("a", "10.0.0.1")];
        let both = vec![demand("new", 9, &[80, 81]), demand("old", 1, &[80])];
        assert_eq!(shown(both, &nodes), ["new:  port 80/TCP of node a is in use by service n/old", "old: 10.0.0.1"]);
        let mut udp = demand("udp", 2, &[80]);
        udp.ports[0].0 = "UDP".into();
        assert_eq!(shown(vec![demand("tcp", 1, &[80]), udp], &nodes), ["tcp: 10.0.0.1", "udp: 10.0.0.1"]);
        let same = vec![demand("b", 1, &[80]), demand("a", 1, &[80])];
        assert_eq!(shown(same, &nodes)[0], "a: 10.0.0.1", "names decide between services of one second");
    }

    #[test]
    fn ports_of_the_node_itself_are_not_given_away() {
        let mut one = node("a", "10.0.0.1");
        one.taken.insert(("TCP".into(), 10250), "the kubelet".into());
        let nodes = [one, node("b", "10.0.0.2")];
        assert_eq!(
            shown(vec![demand("web", 0, &[10250])], &nodes),
            ["web: 10.0.0.2 port 10250/TCP of node a is in use by the kubelet"]
        );
    }

    #[test]
    fn labels_choose_nodes_and_pools() {
        let mut nodes = [node("a", "10.0.0.1"), node("b", "10.0.0.2"), node("c", "10.0.0.3")];
        nodes[0].enabled = true;
        nodes[1].enabled = true;
        nodes[1].pool = Some("edge".into());
        let mut edge = demand("edge", 1, &[81]);
        edge.pool = Some("edge".into());
        let mut none = demand("none", 1, &[82]);
        none.pool = Some("other".into());
        assert_eq!(
            shown(vec![demand("any", 0, &[80]), edge, none], &nodes),
            ["any: 10.0.0.1,10.0.0.2", "edge: 10.0.0.2", "none:"]
        );
    }

    #[test]
    fn local_traffic_goes_to_nodes_with_endpoints_and_keeps_their_ports() {
        let nodes = [node("a", "10.0.0.1"), node("b", "10.0.0.2")];
        let mut local = demand("local", 0, &[80]);
        local.local = Some(BTreeSet::from(["b".to_owned()]));
        let shown = shown(vec![local, demand("other", 1, &[80])], &nodes);
        assert_eq!(shown[0], "local: 10.0.0.2");
        assert!(shown[1].starts_with("other:  port 80/TCP of node a"), "{shown:?}");
    }

    #[test]
    fn a_service_is_announced_by_one_node_that_can() {
        let mut nodes = [node("a", "10.0.0.1"), node("b", "10.0.0.2"), node("c", "10.0.0.3")];
        let shown = |demands: Vec<(Demand, Option<&str>)>, nodes: &[Candidate]| -> Vec<String> {
            let demands = demands.into_iter().map(|(demand, node)| (demand, node.map(String::from))).collect();
            announcers(demands, nodes).into_iter().map(|(key, node)| format!("{} {node}", key.name)).collect()
        };
        let new = |names: &[&'static str]| names.iter().map(|name| (demand(name, 1, &[80]), None)).collect::<Vec<_>>();
        assert_eq!(shown(new(&["w", "x", "y", "z"]), &nodes), ["w a", "x b", "y c", "z a"], "spread");
        let kept = vec![(demand("w", 1, &[80]), Some("b")), (demand("x", 2, &[80]), None)];
        assert_eq!(shown(kept.clone(), &nodes), ["w b", "x a"], "nothing moves without need");
        assert_eq!(shown(kept.clone(), &nodes[..1]), ["w a", "x a"], "its node is gone");
        nodes[1].is_cordoned = true;
        assert_eq!(shown(kept.clone(), &nodes), ["w a", "x c"], "its node is cordoned");
        assert_eq!(shown(kept, &nodes[1..2]), ["w b", "x b"], "no other node is there");
        nodes[1].is_cordoned = false;
        let mut local = demand("local", 1, &[80]);
        local.local = Some(BTreeSet::from(["c".to_owned()]));
        assert_eq!(shown(vec![(local.clone(), Some("a"))], &nodes), ["local c"]);
        local.local = Some(BTreeSet::new());
        assert_eq!(shown(vec![(local, Some("a"))], &nodes), [""; 0]);
        nodes[2].enabled = true;
        assert_eq!(shown(vec![(demand("w", 1, &[80]), Some("a"))], &nodes), ["w c"], "only labelled nodes");
        assert_eq!(shown(new(&["w"]), &[]), [""; 0]);
    }

    #[test]
    fn external_addresses_and_families() {
        let mut a = node("a", "10.0.0.1");
        a.internal.push("fd00::1".parse().expect("an address"));
        let mut dual = demand("web", 0, &[80]);
        assert_eq!(shown(vec![dual.clone()], &[a.clone()]), ["web: 10.0.0.1"]);
        dual.families.push("IPv6".into());
        assert_eq!(shown(vec![dual], &[a.clone()]), ["web: 10.0.0.1,fd00::1"]);
        a.external.push("192.0.2.1".parse().expect("an address"));
        let nodes = [a, node("b", "10.0.0.2")];
        assert_eq!(shown(vec![demand("web", 0, &[80])], &nodes), ["web: 192.0.2.1"]);
    }
}
