//! Decodes a NetworkPolicy: the pods it selects, its directions, and the peers and ports of its rules. Decoded once;
//! [`crate::judge`] and [`crate::render`] use this form.

use std::fmt::Write as _;
use std::sync::Arc;

use ipnet::IpNet;
use kelson_meta::{LabelSelector, LabelSelectorSpec, ObjectKey};
use kelson_net::{Family, Protocol};

use crate::digest::short_digest;
use crate::pod::PodFacts;
use crate::ranges::Ranges;
use crate::view::{NetworkPolicy, Peer, Port, PortRef};

/// The direction of traffic as seen by a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Traffic to the pod.
    Ingress,
    /// Traffic from the pod.
    Egress,
}

impl Direction {
    /// Both directions, in the order of the API.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// Returns the value in `policyTypes`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Egress => "Egress",
        }
    }
}

/// A decoded NetworkPolicy.
#[derive(Debug)]
pub struct Policy {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The pods of the namespace that it applies to.
    pub selects: LabelSelector,
    /// Rules of `ingress`; `None` when the policy does not apply to that direction.
    pub ingress: Option<Vec<Rule>>,
    /// Rules of `egress`; `None` when the policy does not apply to that direction.
    pub egress: Option<Vec<Rule>>,
    /// Parts that have no effect, each as field path and reason.
    pub faults: Vec<String>,
}

impl Policy {
    /// Returns the rules of a direction; `None` when the policy does not isolate pods in that direction.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    /// Returns the parts that have no effect on a pod network with these address families, each as field path and
    /// reason.
    pub fn ineffective(&self, families: &[Family]) -> Vec<String> {
        let mut parts = self.faults.clone();
        for (direction, field) in [(Direction::Ingress, "ingress"), (Direction::Egress, "egress")] {
            for (i, rule) in self.rules(direction).unwrap_or_default().iter().enumerate() {
                let Peers::Listed { blocks, .. } = &rule.peers else { continue };
                let foreign = blocks.iter().filter(|(net, _)| !families.contains(&Family::of(&net.addr())));
                parts.extend(foreign.map(|(net, _)| {
                    format!(
                        "spec.{field}[{i}]: ipBlock {net} is of an address family that the pod network does not have"
                    )
                }));
            }
        }
        parts
    }

    /// Reports whether the policy applies to a pod with these labels in its namespace.
    pub fn selects(&self, pod: &PodFacts) -> bool {
        pod.namespace == self.key.namespace && self.selects.matches(&pod.labels)
    }
}

/// One rule of a policy: it allows what matches a peer and a port.
#[derive(Debug)]
pub struct Rule {
    /// The peers that are allowed.
    pub peers: Peers,
    /// The destination ports that are allowed; empty allows all, of every protocol.
    pub ports: Vec<PortRule>,
}

/// The peers that a rule allows.
#[derive(Debug)]
pub enum Peers {
    /// Every address, for a rule without peers.
    Any,
    /// Pods of one of the selectors, and addresses in one of the blocks.
    Listed {
        /// Selectors of pods by namespace and label.
        selectors: Vec<Arc<PeerSelector>>,
        /// `ipBlock` entries with their exceptions.
        blocks: Vec<(IpNet, Vec<IpNet>)>,
    },
}

impl Peers {
    /// Returns the addresses of a family in the rule's blocks.
    pub fn ranges(&self, family: Family) -> Ranges {
        match self {
            Self::Any => Ranges::default(),
            Self::Listed { blocks, .. } => Ranges::of_blocks(family, blocks),
        }
    }
}

/// Selects pods by namespace and label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerSelector {
    /// The namespaces of the selected pods.
    pub namespaces: NamespaceScope,
    /// The labels of pods.
    pub pods: LabelSelector,
}

/// The namespaces of a peer's pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NamespaceScope {
    /// The policy's own namespace.
    Named(String),
    /// Those with matching labels.
    Matching(LabelSelector),
    /// All of them, for ports that a rule names without selecting pods.
    Every,
}

impl PeerSelector {
    /// Creates a selector of every pod of the cluster.
    pub fn every_pod() -> Self {
        Self { namespaces: NamespaceScope::Every, pods: LabelSelector::everything() }
    }

    /// Returns a name that is equal for equal selectors and differs for others.
    pub fn identity(&self) -> String {
        let mut text = String::new();
        let _ = match &self.namespaces {
            NamespaceScope::Named(name) => write!(text, "n:{name}"),
            NamespaceScope::Matching(selector) => write!(text, "m:{}:{selector}", selector.nothing),
            NamespaceScope::Every => write!(text, "e"),
        };
        let _ = write!(text, "/{}:{}", self.pods.nothing, self.pods);
        short_digest(&text)
    }
}

/// An allowed destination port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRule {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The ports of the protocol.
    pub port: PortMatch,
}

/// Ports of a protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PortMatch {
    /// Every port of the protocol.
    All,
    /// First and last port.
    Range(u16, u16),
    /// The port that the destination pod has under this name.
    Named(String),
}

impl Policy {
    /// Decodes a policy. Invalid parts allow nothing and are listed in `faults`: the API server rejects them, so they
    /// can only come from an older store.
    pub fn new(object: &NetworkPolicy) -> Self {
        let (spec, mut faults) = (&object.spec, Vec::new());
        let namespace = &object.metadata.namespace;
        let has = |direction: Direction, default: bool| match spec.policy_types.as_slice() {
            [] => default,
            types => types.iter().any(|t| t == direction.as_str()),
        };
        let mut decode = |peers: &[Peer], ports: &[Port], path: String| {
            let peers = decode_peers(peers, namespace, &path, &mut faults);
            Rule { peers, ports: decode_ports(ports, &path, &mut faults) }
        };
        let ingress = has(Direction::Ingress, true).then(|| {
            let rules = spec.ingress.iter().enumerate();
            rules.map(|(i, r)| decode(&r.from, &r.ports, format!("spec.ingress[{i}]"))).collect()
        });
        let egress = has(Direction::Egress, !spec.egress.is_empty()).then(|| {
            let rules = spec.egress.iter().enumerate();
            rules.map(|(i, r)| decode(&r.to, &r.ports, format!("spec.egress[{i}]"))).collect()
        });
        let selects = selector(&spec.pod_selector, "spec.podSelector", &mut faults);
        Self { key: object.metadata.key(), selects, ingress, egress, faults }
    }
}

fn selector(spec: &LabelSelectorSpec, path: &str, faults: &mut Vec<String>) -> LabelSelector {
    spec.selector().unwrap_or_else(|e| {
        faults.push(format!("{path}: {e}"));
        LabelSelector::nothing()
    })
}

fn decode_peers(peers: &[Peer], namespace: &str, path: &str, faults: &mut Vec<String>) -> Peers {
    if peers.is_empty() {
        return Peers::Any;
    }
    let (mut selectors, mut blocks) = (Vec::new(), Vec::new());
    for (i, peer) in peers.iter().enumerate() {
        let path = format!("{path}.peers[{i}]");
        if let Some(block) = &peer.ip_block {
            let parsed = |net: &String| net.parse::<IpNet>().map(|net| net.trunc());
            let except: Result<Vec<IpNet>, _> = block.except.iter().map(parsed).collect();
            match (parsed(&block.cidr), except) {
                (Ok(net), Ok(except)) => blocks.push((net, except)),
                _ => faults.push(format!("{path}.ipBlock: not a CIDR")),
            }
            continue;
        }
        let namespaces = match &peer.namespace_selector {
            Some(spec) => NamespaceScope::Matching(selector(spec, &format!("{path}.namespaceSelector"), faults)),
            None => NamespaceScope::Named(namespace.to_owned()),
        };
        let pods = match (&peer.pod_selector, &peer.namespace_selector) {
            (Some(spec), _) => selector(spec, &format!("{path}.podSelector"), faults),
            (None, Some(_)) => LabelSelector::everything(),
            (None, None) => {
                faults.push(format!("{path}: selects nothing"));
                continue;
            }
        };
        selectors.push(Arc::new(PeerSelector { namespaces, pods }));
    }
    Peers::Listed { selectors, blocks }
}

fn decode_ports(ports: &[Port], path: &str, faults: &mut Vec<String>) -> Vec<PortRule> {
    let mut decoded = Vec::with_capacity(ports.len());
    for (i, port) in ports.iter().enumerate() {
        let protocol = port.protocol.unwrap_or(Protocol::Tcp);
        let matched = match (&port.port, port.end_port) {
            (None, None) => PortMatch::All,
            (Some(PortRef::Number(first)), end) => PortMatch::Range(*first, end.unwrap_or(*first)),
            (Some(PortRef::Name(name)), None) => PortMatch::Named(name.clone()),
            _ => {
                faults.push(format!("{path}.ports[{i}].endPort: requires a numeric port"));
                // An empty range: the entry allows nothing, and the rule does not become one for every port.
                PortMatch::Range(1, 0)
            }
        };
        decoded.push(PortRule { protocol, port: matched });
    }
    decoded
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(spec: serde_json::Value) -> Policy {
        let object = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec});
        Policy::new(&serde_json::from_value(object).expect("decodes"))
    }

    #[test]
    fn directions_follow_policy_types_and_their_default() {
        for (spec, ingress, egress) in [
            (json!({}), true, false),
            (json!({"podSelector": {}, "ingress": [], "egress": null}), true, false),
            (json!({"egress": [{}]}), true, true),
            (json!({"policyTypes": ["Egress"]}), false, true),
            (json!({"policyTypes": ["Ingress"], "egress": [{}]}), true, false),
            (json!({"policyTypes": ["Ingress", "Egress"]}), true, true),
        ] {
            let p = policy(spec.clone());
            assert_eq!((p.ingress.is_some(), p.egress.is_some()), (ingress, egress), "{spec}");
        }
    }

    #[test]
    fn an_absent_selector_differs_from_an_empty_one() {
        let p = policy(json!({"ingress": [{"from": [
            {"podSelector": {}}, {"namespaceSelector": {}}, {"podSelector": {}, "namespaceSelector": {}}, {}]}]}));
        let Some(Peers::Listed { selectors, .. }) = p.ingress.as_deref().map(|r| &r[0].peers) else { panic!("{p:?}") };
        let own = NamespaceScope::Named("n".into());
        let every = NamespaceScope::Matching(LabelSelector::everything());
        let scopes: Vec<_> = selectors.iter().map(|s| s.namespaces.clone()).collect();
        assert_eq!(scopes, [own, every.clone(), every]);
        assert_eq!(p.faults, ["spec.ingress[0].peers[3]: selects nothing"]);
        assert_eq!(selectors[1].identity(), selectors[2].identity());
        assert_ne!(selectors[0].identity(), selectors[1].identity());
    }

    #[test]
    fn blocks_of_an_address_family_that_pods_lack_are_named() {
        let blocks =
            json!([{"ipBlock": {"cidr": "192.0.2.0/24"}}, {"ipBlock": {"cidr": "fd00::/8", "except": ["fd00::/16"]}}]);
        let p = policy(json!({"ingress": [{}, {"from": blocks}]}));
        let expected = "spec.ingress[1]: ipBlock fd00::/8 is of an address family that the pod network does not have";
        assert_eq!(p.ineffective(&[Family::V4]), [expected]);
        assert!(p.ineffective(&Family::ALL).is_empty());
    }

    #[test]
    fn what_cannot_be_understood_allows_nothing() {
        let p = policy(json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]},
            "ingress": [{"from": [{"ipBlock": {"cidr": "x"}}], "ports": [{"port": "web", "endPort": 9}]}]}));
        assert!(p.selects.nothing);
        let rule = &p.ingress.as_deref().unwrap()[0];
        assert!(
            matches!(&rule.peers, Peers::Listed { selectors, blocks } if selectors.is_empty() && blocks.is_empty())
        );
        assert_eq!(rule.ports[0].port, PortMatch::Range(1, 0));
        assert_eq!(p.faults.len(), 3, "{:?}", p.faults);
    }
}
