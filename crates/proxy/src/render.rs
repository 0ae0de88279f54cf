//! The rules: the constant part of a table, and the items of one service's ports. Text for `nft`; nothing is run here.
//! The path of a packet:
//!
//! - `nat-prerouting`, `nat-output` (priority -100): one look-up by address, protocol and port, one by node port; a chain
//!   picks an endpoint. The cost does not depend on the number of services.
//!   Most services have a cluster address alone. They share the chains `spread-PROTOCOL-COUNT`, which look a random endpoint up in
//!   one map. The others have a chain each. After a change of a rule or of a verdict the kernel validates every rule that a
//!   packet can reach, so that its cost grows with the number of chains; after a change of an address in a map it does not.
//! - `filter-prerouting`, `filter-output-pre-dnat` (-110): source ranges of load balancers.
//! - `filter-input`, `filter-forward`, `filter-output` (0): packets for a service port without endpoints are rejected
//!   or dropped.
//! - `nat-postrouting` (95, before the pod network's 100): packets that are marked, and those sent back to their
//!   source, get the node's address.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use kelson_net::table::{Fragment, Item};
use sha2::{Digest as _, Sha256};

use crate::container::Container;
use crate::model::{Family, Protocol, TrafficPolicy};
use crate::service::{PortPlan, without_contained};

/// The mark for masquerading; the same as kube-proxy's and kubelet's.
const MASQUERADE_MARK: &str = "0x4000";
/// Up to this number endpoints are chosen by one rule each. nft keeps every anonymous map in a list that it searches
/// for each new one, so ten thousand small maps would take half a minute; a few rules cost nothing.
const RULES_PER_CHAIN_MAX: usize = 16;
/// The maximum number of clients per endpoint with session affinity, as a set in the kernel.
const AFFINITY_CLIENTS_MAX: u32 = 65_536;
/// The maximum length of a chain's or set's name; the kernel's limit is 256.
const NAME_BYTES_MAX: usize = 128;

/// The inputs of the rules besides the services.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Traffic from other sources to a cluster address is masqueraded. Empty: no traffic is.
    pub cluster_cidrs: Vec<IpNet>,
    /// The node's primary addresses, at most one per family.
    pub node_ips: Vec<IpAddr>,
    /// The ranges of the node's addresses on which node ports are served; empty means `node_ips`.
    pub nodeport_addresses: Vec<IpNet>,
}

impl Options {
    fn cidrs(&self, family: Family) -> Vec<IpNet> {
        let of: Vec<IpNet> =
            self.cluster_cidrs.iter().filter(|n| Family::of(&n.addr()) == family).map(IpNet::trunc).collect();
        without_contained(&of)
    }

    /// Returns the match on addresses with node ports; `None` when the family has none.
    fn nodeport_match(&self, family: Family) -> Option<String> {
        let ip = family.as_str();
        if self.nodeport_addresses.is_empty() {
            let own: Vec<String> =
                self.node_ips.iter().filter(|a| Family::of(a) == family).map(IpAddr::to_string).collect();
            return (!own.is_empty()).then(|| format!("{ip} daddr {{ {} }}", own.join(", ")));
        }
        let nets: Vec<IpNet> =
            self.nodeport_addresses.iter().filter(|n| Family::of(&n.addr()) == family).map(IpNet::trunc).collect();
        let nets = without_contained(&nets);
        // There are no packets from outside to a loopback address, and those from inside cannot be routed out.
        let loopback = if family == Family::V4 { "127.0.0.0/8" } else { "::1" };
        match nets.as_slice() {
            [] => None,
            [all] if all.prefix_len() == 0 => Some(format!("{ip} daddr != {loopback} fib daddr type local")),
            _ => Some(format!("{ip} daddr {{ {} }} {ip} daddr != {loopback} fib daddr type local", join(&nets))),
        }
    }
}

fn join(nets: &[IpNet]) -> String {
    nets.iter().map(IpNet::to_string).collect::<Vec<_>>().join(", ")
}

/// The sets and maps of a table, empty.
fn containers(ip: &str, addr: &str) -> String {
    let mut text = String::new();
    // No named type is that of a random number. Which of them it is below does not matter here.
    let endpoints =
        format!("typeof {ip} daddr . meta l4proto . th dport . numgen random mod 2 : {ip} daddr . th dport");
    let by_address = format!("type {addr} . inet_proto . inet_service : verdict");
    for (container, kind, spec) in [
        (Container::ClusterIps, "set", format!("type {addr}")),
        (Container::Hairpin, "set", format!("type {addr} . {addr}")),
        (Container::ServiceIps, "map", by_address.clone()),
        (Container::ServiceNodePorts, "map", "type inet_proto . inet_service : verdict".to_owned()),
        (Container::NoEndpointServices, "map", by_address.clone()),
        (Container::NoEndpointNodePorts, "map", "type inet_proto . inet_service : verdict".to_owned()),
        (Container::FirewallIps, "map", by_address),
        (Container::Endpoints, "map", endpoints),
    ] {
        let _ = writeln!(text, "  {kind} {} {{ {spec}; }}", container.name());
    }
    text
}

/// Returns containers and base chains, the content of a table block.
pub fn base(family: Family, options: &Options) -> String {
    let (ip, addr) = (family.as_str(), family.address_type());
    let mut text = containers(ip, addr);
    let cidrs = options.cidrs(family);
    let outside = if cidrs.is_empty() {
        String::new()
    } else {
        let cidrs = join(&cidrs);
        format!("    {ip} daddr @cluster-ips {ip} saddr != {{ {cidrs} }} jump mark-for-masquerade\n")
    };
    let (node_ports, no_node_ports) = options.nodeport_match(family).map_or_else(Default::default, |m| {
        (
            format!("    {m} meta l4proto . th dport vmap @service-nodeports\n"),
            format!("    ct state new {m} meta l4proto . th dport vmap @no-endpoint-nodeports\n"),
        )
    });
    let target = format!("{ip} daddr . meta l4proto . th dport vmap");
    let spread = spread_chains(ip);
    let refused = format!(
        "    ct state new {target} @no-endpoint-services\n    ct state new {ip} daddr @cluster-ips goto reject-chain\n"
    );
    let _ = write!(
        text,
        "  chain mark-for-masquerade {{
    meta mark set meta mark or {MASQUERADE_MARK}
  }}
  chain reject-chain {{
    meta l4proto tcp reject with tcp reset
    reject
  }}
{spread}  chain services {{
{outside}    {target} @service-ips
{node_ports}  }}
  chain nat-prerouting {{
    type nat hook prerouting priority -100; policy accept;
    jump services
  }}
  chain nat-output {{
    type nat hook output priority -100; policy accept;
    jump services
  }}
  chain nat-postrouting {{
    type nat hook postrouting priority 95; policy accept;
    ct status dnat {ip} saddr . {ip} daddr @hairpin masquerade fully-random
    meta mark & {MASQUERADE_MARK} == 0 return
    meta mark set meta mark xor {MASQUERADE_MARK}
    masquerade fully-random
  }}
  chain filter-prerouting {{
    type filter hook prerouting priority -110; policy accept;
    ct state new {target} @firewall-ips
  }}
  chain filter-output-pre-dnat {{
    type filter hook output priority -110; policy accept;
    ct state new {target} @firewall-ips
  }}
  chain filter-input {{
    type filter hook input priority 0; policy accept;
{no_node_ports}    ct state new {target} @no-endpoint-services
  }}
  chain filter-forward {{
    type filter hook forward priority 0; policy accept;
{refused}  }}
  chain filter-output {{
    type filter hook output priority 0; policy accept;
{refused}  }}
"
    );
    text
}

/// The chains that services with a cluster address alone share.
fn spread_chains(ip: &str) -> String {
    let mut text = String::new();
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        for count in 1..=RULES_PER_CHAIN_MAX {
            let (chain, protocol) = (spread_chain(protocol, count), protocol.as_str());
            let endpoint = format!("{ip} daddr . meta l4proto . th dport . numgen random mod {count} map @endpoints");
            let _ = writeln!(text, "  chain {chain} {{\n    meta l4proto {protocol} dnat {ip} to {endpoint}\n  }}");
        }
    }
    text
}

/// The chain that picks one of so many endpoints.
fn spread_chain(protocol: Protocol, count: usize) -> String {
    format!("spread-{}-{count}", protocol.as_str())
}

/// Renders the part of a table for one service.
pub fn fragment(family: Family, plans: &[PortPlan], options: &Options) -> Fragment {
    let mut fragment = Fragment::new();
    for plan in plans {
        Port { family, plan, options, id: identity(plan) }.render(&mut fragment);
    }
    fragment
}

/// Returns `HASH-NAMESPACE/NAME/PROTOCOL/PORT`, which is readable, and unique after truncation.
fn identity(plan: &PortPlan) -> String {
    let port = if plan.name.is_empty() { plan.port.to_string() } else { plan.name.clone() };
    let full = format!("{}/{}/{}/{port}", plan.key.namespace, plan.key.name, plan.protocol.as_str());
    format!("{}-{full}", hash(&full))
}

fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(4).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn cut(mut name: String) -> String {
    // Names of objects are ASCII, so every byte is a boundary.
    name.truncate(NAME_BYTES_MAX);
    name
}

struct Port<'a> {
    family: Family,
    plan: &'a PortPlan,
    options: &'a Options,
    id: String,
}

impl Port<'_> {
    fn chain(&self, role: &str) -> String {
        cut(format!("{role}-{}", self.id))
    }

    fn policy_chain(&self, policy: TrafficPolicy) -> String {
        self.chain(match policy {
            TrafficPolicy::Cluster => "service",
            TrafficPolicy::Local => "local",
        })
    }

    /// Returns the chain or set of one endpoint of this port.
    fn endpoint(&self, role: &str, at: &SocketAddr) -> String {
        let ip = at.ip().to_string().replace(':', ".");
        let full = format!("{}__{ip}/{}", self.id, at.port());
        let timeout = self.plan.affinity_seconds.unwrap_or_default();
        cut(format!("{role}-{}-{timeout}-{full}", hash(&full)))
    }

    fn render(&self, out: &mut Fragment) {
        let plan = self.plan;
        for ip in &plan.cluster_ips {
            put(out, Container::ClusterIps.element(ip.to_string()), "");
        }
        for ip in &plan.hairpin {
            put(out, Container::Hairpin.element(format!("{ip} . {ip}")), "");
        }
        for (policy, used) in [(TrafficPolicy::Cluster, plan.uses_cluster()), (TrafficPolicy::Local, plan.uses_local())]
        {
            let endpoints = plan.endpoints(policy);
            if used && !endpoints.is_empty() && !self.is_shared() {
                let rules = self.spread(endpoints);
                put(out, Item::Chain(self.policy_chain(policy)), &rules.join("\n"));
                self.affinity(endpoints, out);
            }
        }
        let refusal = if plan.has_any_endpoint { "drop" } else { "goto reject-chain" };
        for ip in &plan.cluster_ips {
            let key = self.key(ip);
            let endpoints = plan.endpoints(plan.internal);
            if endpoints.is_empty() {
                put(out, Container::NoEndpointServices.element(key), refusal);
                continue;
            }
            let chain = if self.is_shared() {
                for (i, at) in endpoints.iter().enumerate() {
                    let element = Container::Endpoints.element(format!("{key} . {i}"));
                    put(out, element, &format!("{} . {}", at.ip(), at.port()));
                }
                spread_chain(plan.protocol, endpoints.len())
            } else {
                self.policy_chain(plan.internal)
            };
            put(out, Container::ServiceIps.element(key), &format!("goto {chain}"));
        }
        if plan.externally_accessible() {
            self.render_external(refusal, out);
        }
    }

    /// Whether it needs no separate chain.
    fn is_shared(&self) -> bool {
        let plan = self.plan;
        plan.affinity_seconds.is_none()
            && !plan.externally_accessible()
            && plan.endpoints(plan.internal).len() <= RULES_PER_CHAIN_MAX
    }

    fn key(&self, ip: &IpAddr) -> String {
        format!("{ip} . {} . {}", self.plan.protocol.as_str(), self.plan.port)
    }

    fn render_external(&self, refusal: &str, out: &mut Fragment) {
        let plan = self.plan;
        let node_port = (plan.node_port != 0).then(|| format!("{} . {}", plan.protocol.as_str(), plan.node_port));
        let served = !plan.endpoints(plan.external).is_empty();
        // Even without a local endpoint, the node and its pods reach remote ones.
        if !plan.cluster_endpoints.is_empty() {
            let chain = self.chain("external");
            put(out, Item::Chain(chain.clone()), &self.external_rules().join("\n"));
            let verdict = format!("goto {chain}");
            for ip in plan.external_ips.iter().chain(&plan.load_balancer_ips) {
                put(out, Container::ServiceIps.element(self.key(ip)), &verdict);
            }
            if let Some(key) = &node_port {
                put(out, Container::ServiceNodePorts.element(key.clone()), &verdict);
            }
        }
        if !served {
            for ip in plan.external_ips.iter().chain(&plan.load_balancer_ips) {
                put(out, Container::NoEndpointServices.element(self.key(ip)), refusal);
            }
            if let Some(key) = node_port {
                put(out, Container::NoEndpointNodePorts.element(key), refusal);
            }
        }
        if !plan.source_ranges.is_empty() && !plan.load_balancer_ips.is_empty() {
            let chain = self.chain("firewall");
            put(out, Item::Chain(chain.clone()), &self.firewall_rules().join("\n"));
            for ip in &plan.load_balancer_ips {
                put(out, Container::FirewallIps.element(self.key(ip)), &format!("goto {chain}"));
            }
        }
    }

    fn external_rules(&self) -> Vec<String> {
        let service = self.policy_chain(TrafficPolicy::Cluster);
        if self.plan.external == TrafficPolicy::Cluster {
            return vec!["jump mark-for-masquerade".to_owned(), format!("goto {service}")];
        }
        // Traffic of pods and of the node is under neither policy, as if the load balancer had sent it back.
        let mut rules = Vec::with_capacity(4);
        let cidrs = self.options.cidrs(self.family);
        if !cidrs.is_empty() {
            rules.push(format!("{} saddr {{ {} }} goto {service}", self.family.as_str(), join(&cidrs)));
        }
        rules.push("fib saddr type local jump mark-for-masquerade".to_owned());
        rules.push(format!("fib saddr type local goto {service}"));
        if !self.plan.local_endpoints.is_empty() {
            rules.push(format!("goto {}", self.policy_chain(TrafficPolicy::Local)));
        }
        rules
    }

    fn firewall_rules(&self) -> Vec<String> {
        let (ip, plan) = (self.family.as_str(), self.plan);
        let mut admitted: Vec<IpNet> = plan.source_ranges.clone();
        // The node's own packets to an address on one of its interfaces have that address as their source.
        let own = |range: &IpNet| self.options.node_ips.iter().any(|a| range.contains(a));
        if plan.source_ranges.iter().any(own) {
            admitted.extend(plan.load_balancer_ips.iter().map(|a| IpNet::from(*a)));
        }
        let admitted = join(&without_contained(&admitted));
        vec![format!("{ip} saddr {{ {admitted} }} return"), "drop".to_owned()]
    }

    /// Returns rules that give each endpoint the same share of new connections.
    fn spread(&self, endpoints: &[SocketAddr]) -> Vec<String> {
        let (ip, protocol) = (self.family.as_str(), self.plan.protocol.as_str());
        let sticky = self.plan.affinity_seconds.is_some();
        let mut rules = Vec::new();
        if sticky {
            rules.extend(endpoints.iter().map(|at| {
                format!("{ip} saddr @{} goto {}", self.endpoint("affinity", at), self.endpoint("endpoint", at))
            }));
        }
        let count = endpoints.len();
        if count > RULES_PER_CHAIN_MAX {
            let choice = |(i, at): (usize, &SocketAddr)| {
                if sticky {
                    format!("{i} : goto {}", self.endpoint("endpoint", at))
                } else {
                    format!("{i} : {} . {}", at.ip(), at.port())
                }
            };
            let map = endpoints.iter().enumerate().map(choice).collect::<Vec<_>>().join(", ");
            rules.push(if sticky {
                format!("numgen random mod {count} vmap {{ {map} }}")
            } else {
                format!("meta l4proto {protocol} dnat {ip} to numgen random mod {count} map {{ {map} }}")
            });
            return rules;
        }
        for (i, at) in endpoints.iter().enumerate() {
            // One of the remaining endpoints with equal probability, so that overall each gets one in `count`.
            let left = count - i;
            let chance = if left > 1 { format!("numgen random mod {left} 0 ") } else { String::new() };
            rules.push(if sticky {
                format!("{chance}goto {}", self.endpoint("endpoint", at))
            } else {
                format!("meta l4proto {protocol} {chance}dnat {ip} to {at}")
            });
        }
        rules
    }

    /// Adds the set of each endpoint's clients and the chain that stores a client and forwards it.
    fn affinity(&self, endpoints: &[SocketAddr], out: &mut Fragment) {
        let Some(seconds) = self.plan.affinity_seconds else { return };
        let (ip, protocol) = (self.family.as_str(), self.plan.protocol.as_str());
        for at in endpoints {
            let set = self.endpoint("affinity", at);
            let rules = format!("update @{set} {{ {ip} saddr }}\nmeta l4proto {protocol} dnat {ip} to {at}");
            let spec = format!(
                "type {}; size {AFFINITY_CLIENTS_MAX}; flags dynamic,timeout; timeout {seconds}s;",
                self.family.address_type()
            );
            put(out, Item::Set(set), &spec);
            put(out, Item::Chain(self.endpoint("endpoint", at)), &rules);
        }
    }
}

/// The first of two equal claims of one service is used (two ports may share a node port in invalid data).
fn put(out: &mut Fragment, item: Item, value: &str) {
    out.entry(item).or_insert_with(|| Arc::from(value));
}
