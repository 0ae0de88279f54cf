//! The text of rules: the constant part of a table, and one chain for each distinct list of rules that a pod of this
//! node has in a direction. The cost of a packet is that of two lookups by address and of the rules of the policies
//! that select its two pods; it does not depend on the number of other pods and policies.
//!
//! A chain returns if a rule allows the connection, and drops at its end. Replies and established connections are
//! accepted before. A TCP packet in the middle of a connection that the kernel does not track is dropped: it may be the
//! answer of a connection that was deleted because no policy allows it, and would open it again from the other side.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use kelson_meta::ObjectKey;
use kelson_net::{Family, Protocol};

use crate::digest::short_digest;
use crate::pod::PodFacts;
use crate::policy::{Direction, PeerSelector, Peers, Policy, PortMatch, PortRule, Rule};
use crate::ranges::Ranges;

/// The map from the address of an isolated pod of this node to its chain for traffic to it.
pub const INGRESS_MAP: &str = "ingress";
/// The map from the address of an isolated pod of this node to its chain for traffic from it.
pub const EGRESS_MAP: &str = "egress";
/// The set of addresses of this node's isolated pods.
pub const ISOLATED_SET: &str = "isolated";
/// The set of pairs of an isolated pod's address with itself.
pub const SELF_SET: &str = "self";
/// The maximum number of counters in one rule: the kernel allows 128 expressions.
const COUNTERS_PER_RULE_MAX: usize = 16;

/// Returns containers and base chain, the lines of a table block.
pub fn base(family: Family) -> String {
    let (ip, addr) = (family.as_str(), family.address_type());
    format!(
        "  map {INGRESS_MAP} {{ type {addr} : verdict; }}
  map {EGRESS_MAP} {{ type {addr} : verdict; }}
  set {ISOLATED_SET} {{ type {addr}; }}
  set {SELF_SET} {{ type {addr} . {addr}; }}
  chain forward {{
    type filter hook forward priority -10; policy accept;
    ct state established,related accept
    {ip} saddr . {ip} daddr @{SELF_SET} accept
    ct state new {ip} saddr @{ISOLATED_SET} tcp flags & (fin | syn | rst | ack) != syn drop
    ct state new {ip} daddr @{ISOLATED_SET} tcp flags & (fin | syn | rst | ack) != syn drop
    {ip} saddr vmap @{EGRESS_MAP}
    {ip} daddr vmap @{INGRESS_MAP}
  }}
"
    )
}

/// Returns the set of the addresses of a selector's pods.
pub fn peers_set(selector: &PeerSelector) -> String {
    format!("peers-{}", selector.identity())
}

/// Returns the set of `address . port` of a selector's pods that have a port with this name.
pub fn ports_set(selector: &PeerSelector, protocol: Protocol, name: &str) -> String {
    format!("ports-{}", short_digest(&format!("{}/{protocol}/{name}", selector.identity())))
}

/// Returns the set of the addresses in a rule's blocks. The name is derived from the content, so such a set never
/// changes.
pub fn blocks_set(family: Family, ranges: &Ranges) -> String {
    let text: Vec<String> = ranges.elements(family).collect();
    format!("blocks-{}", short_digest(&text.join(",")))
}

/// Returns the counter of the connections that a policy allowed or, as one of those that apply, did not allow.
pub fn counter(policy: &ObjectKey, direction: Direction, allowed: bool) -> String {
    let text = format!("{}/{}/{}", policy.namespace, policy.name, direction.as_str());
    format!("{}-{}", if allowed { "allow" } else { "deny" }, short_digest(&text))
}

/// Returns a chain: its name, which depends only on its rules, and the rules.
pub fn chain(family: Family, direction: Direction, policies: &[&Policy], pod: &PodFacts) -> (String, String) {
    let mut text = String::new();
    for policy in policies {
        let count = format!("counter name {}", counter(&policy.key, direction, true));
        for rule in policy.rules(direction).unwrap_or_default() {
            for matches in (Context { family, direction, pod }).matches(rule) {
                let _ = writeln!(text, "    {matches}{count} return");
            }
        }
    }
    for some in policies.chunks(COUNTERS_PER_RULE_MAX) {
        let counters: Vec<String> =
            some.iter().map(|p| format!("counter name {}", counter(&p.key, direction, false))).collect();
        let _ = writeln!(text, "    {}", counters.join(" "));
    }
    text.push_str("    drop");
    let prefix = if direction == Direction::Ingress { "in" } else { "out" };
    (format!("{prefix}-{}", short_digest(&text)), text)
}

struct Context<'a> {
    family: Family,
    direction: Direction,
    pod: &'a PodFacts,
}

impl Context<'_> {
    /// Returns the match of each nft rule that one rule of a policy becomes; each ends with a space unless empty.
    fn matches(&self, rule: &Rule) -> Vec<String> {
        if self.direction == Direction::Egress {
            return self.egress(rule);
        }
        let ports = self.numbers(&rule.ports, |name, protocol| {
            let own = self.pod.ports.iter().filter(|p| p.name == name && p.protocol == protocol);
            own.map(|p| (p.number, p.number)).collect()
        });
        product(&self.peers(&rule.peers), &ports)
    }

    /// Named ports of destinations differ between pods, so they are pairs of address and port.
    fn egress(&self, rule: &Rule) -> Vec<String> {
        let named: Vec<(&str, Protocol)> = rule
            .ports
            .iter()
            .filter_map(|p| match &p.port {
                PortMatch::Named(name) => Some((name.as_str(), p.protocol)),
                _ => None,
            })
            .collect();
        let mut all = product(&self.peers(&rule.peers), &self.numbers(&rule.ports, |_, _| Vec::new()));
        let ip = self.family.as_str();
        for (name, protocol) in named {
            let pair = |selector: &PeerSelector| {
                format!("meta l4proto {protocol} {ip} daddr . th dport @{} ", ports_set(selector, protocol, name))
            };
            match &rule.peers {
                Peers::Any => all.push(pair(&PeerSelector::every_pod())),
                Peers::Listed { selectors, .. } => {
                    all.extend(selectors.iter().map(|s| pair(s)));
                    all.extend(
                        self.blocks(&rule.peers).map(|block| format!("{block}{}", pair(&PeerSelector::every_pod()))),
                    );
                }
            }
        }
        all
    }

    fn other(&self) -> String {
        let side = if self.direction == Direction::Ingress { "saddr" } else { "daddr" };
        format!("{} {side}", self.family.as_str())
    }

    fn blocks(&self, peers: &Peers) -> Option<String> {
        let ranges = peers.ranges(self.family);
        (!ranges.is_empty()).then(|| format!("{} @{} ", self.other(), blocks_set(self.family, &ranges)))
    }

    fn peers(&self, peers: &Peers) -> Vec<String> {
        let Peers::Listed { selectors, .. } = peers else { return vec![String::new()] };
        let sets: BTreeSet<String> = selectors.iter().map(|s| peers_set(s)).collect();
        sets.iter().map(|set| format!("{} @{set} ", self.other())).chain(self.blocks(peers)).collect()
    }

    /// Returns the matches on destination ports; empty when the rule names none that exists.
    fn numbers(&self, ports: &[PortRule], named: impl Fn(&str, Protocol) -> Vec<(u16, u16)>) -> Vec<String> {
        if ports.is_empty() {
            return vec![String::new()];
        }
        let mut ranges: BTreeMap<Protocol, Vec<(u16, u16)>> = BTreeMap::new();
        for rule in ports {
            let of = ranges.entry(rule.protocol).or_default();
            match &rule.port {
                PortMatch::All => of.push((0, u16::MAX)),
                PortMatch::Range(first, last) if first <= last => of.push((*first, *last)),
                PortMatch::Range(..) => {}
                PortMatch::Named(name) => of.extend(named(name, rule.protocol)),
            }
        }
        let line = |(protocol, ranges): (Protocol, Vec<(u16, u16)>)| match joined(ranges).as_slice() {
            [] => None,
            [(0, u16::MAX)] => Some(format!("meta l4proto {protocol} ")),
            some => {
                let text = |(first, last): &(u16, u16)| {
                    if first == last { first.to_string() } else { format!("{first}-{last}") }
                };
                Some(format!("{protocol} dport {{ {} }} ", some.iter().map(text).collect::<Vec<_>>().join(", ")))
            }
        };
        ranges.into_iter().filter_map(line).collect()
    }
}

fn product(left: &[String], right: &[String]) -> Vec<String> {
    left.iter().flat_map(|l| right.iter().map(move |r| format!("{l}{r}"))).collect()
}

/// Joins ranges of ports that overlap, which nft rejects in a set.
fn joined(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.sort_unstable();
    let mut out: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match out.last_mut() {
            Some(end) if first <= end.1.saturating_add(1) => end.1 = end.1.max(last),
            _ => out.push((first, last)),
        }
    }
    out
}
