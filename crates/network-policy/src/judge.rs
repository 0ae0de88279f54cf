//! Evaluates the NetworkPolicy API directly for one connection: whether it is allowed, and by which policy and rule.
//! The rules in the kernel must agree with it; `explain` and the deletion of forbidden connections use it.

use std::net::IpAddr;

use kelson_meta::ObjectKey;
use kelson_net::Protocol;

use crate::cluster::Cluster;
use crate::pod::PodFacts;
use crate::policy::{Direction, NamespaceScope, PeerSelector, Peers, Policy, PortMatch, PortRule, Rule};

/// A connection, by its real source and destination (after service addresses were translated).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The address that opens it.
    pub source: IpAddr,
    /// The address it is opened to.
    pub destination: IpAddr,
    /// Protocol and destination port; `None` for protocols without ports, such as ICMP.
    pub port: Option<(Protocol, u16)>,
}

/// The decision for one side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No policy applies to the pod in this direction.
    NotIsolated,
    /// A rule allows it.
    Allowed {
        /// The first policy, by name, with a matching rule.
        policy: ObjectKey,
        /// The index of the rule in `ingress` or `egress`.
        rule: usize,
    },
    /// Policies apply to the pod, and none allows it.
    Denied {
        /// The policies that apply, by name.
        policies: Vec<ObjectKey>,
    },
}

impl Verdict {
    /// Reports whether the connection may pass this side.
    pub fn passes(&self) -> bool {
        !matches!(self, Self::Denied { .. })
    }
}

impl Cluster {
    /// Evaluates one side of a connection: egress at its source, ingress at its destination. A pod can always reach
    /// itself; an address that is not a pod's is not restricted.
    pub fn judge(&self, direction: Direction, connection: &Connection) -> Verdict {
        let (own, other) = match direction {
            Direction::Ingress => (connection.destination, connection.source),
            Direction::Egress => (connection.source, connection.destination),
        };
        if own == other {
            return Verdict::NotIsolated;
        }
        // While an address moves between pods, the isolated pod counts.
        let isolated = self.pods_at(own).map(|pod| (pod, self.applying(pod, direction)));
        let Some((pod, applying)) = isolated.into_iter().find(|(_, policies)| !policies.is_empty()) else {
            return Verdict::NotIsolated;
        };
        for policy in &applying {
            let rules = policy.rules(direction).unwrap_or_default();
            if let Some(rule) = rules.iter().position(|rule| self.allows(rule, (direction, pod), connection)) {
                return Verdict::Allowed { policy: policy.key.clone(), rule };
            }
        }
        Verdict::Denied { policies: applying.iter().map(|p| p.key.clone()).collect() }
    }

    /// Returns the policies that isolate a pod in a direction.
    fn applying<'a>(&'a self, pod: &'a PodFacts, direction: Direction) -> Vec<&'a Policy> {
        self.policies_of(pod).filter(|p| p.rules(direction).is_some()).map(|p| &**p).collect()
    }

    /// Reports whether a rule of the side `own` allows a connection. A port's name is that of the destination pod's
    /// port.
    fn allows(&self, rule: &Rule, own: (Direction, &PodFacts), connection: &Connection) -> bool {
        let other = if own.0 == Direction::Ingress { connection.source } else { connection.destination };
        let has_peer = || match &rule.peers {
            Peers::Any => true,
            peers => in_blocks(peers, other) || self.pods_at(other).any(|pod| self.is_peer(peers, pod)),
        };
        if rule.ports.is_empty() {
            return has_peer();
        }
        let Some((protocol, port)) = connection.port else { return false };
        let matches = |allowed: &PortRule| match &allowed.port {
            _ if allowed.protocol != protocol => false,
            PortMatch::All => has_peer(),
            PortMatch::Range(first, last) => (*first..=*last).contains(&port) && has_peer(),
            PortMatch::Named(name) if own.0 == Direction::Ingress => own.1.has_port(name, protocol, port) && has_peer(),
            PortMatch::Named(name) => self.pods_at(other).filter(|pod| pod.has_port(name, protocol, port)).any(|pod| {
                matches!(rule.peers, Peers::Any) || in_blocks(&rule.peers, other) || self.is_peer(&rule.peers, pod)
            }),
        };
        rule.ports.iter().any(matches)
    }

    fn is_peer(&self, peers: &Peers, pod: &PodFacts) -> bool {
        let Peers::Listed { selectors, .. } = peers else { return true };
        selectors.iter().any(|selector| self.selects(selector, pod))
    }

    /// Reports whether a selector selects a pod as a peer. Pods on the host's network are never selected: their address
    /// is the node's.
    pub(crate) fn selects(&self, selector: &PeerSelector, pod: &PodFacts) -> bool {
        let in_scope = match &selector.namespaces {
            NamespaceScope::Named(name) => *name == pod.namespace,
            NamespaceScope::Matching(labels) => self.namespace_matches(labels, &pod.namespace),
            NamespaceScope::Every => true,
        };
        in_scope && selector.pods.matches(&pod.labels)
    }
}

fn in_blocks(peers: &Peers, ip: IpAddr) -> bool {
    let Peers::Listed { blocks, .. } = peers else { return false };
    blocks.iter().any(|(net, except)| net.contains(&ip) && !except.iter().any(|e| e.contains(&ip)))
}
