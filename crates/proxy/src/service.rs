//! Interprets a Service and its EndpointSlices for this node: its ports, their addresses, and the endpoints for each
//! kind of traffic (upstream: `pkg/proxy/serviceport.go`, `topology.go`). [`crate::render`] writes the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use kelson_meta::ObjectKey;

use crate::model::{
    EndpointSlice, Family, Hints, LABEL_HEADLESS, LABEL_PROXY_NAME, Protocol, Service, TrafficPolicy, slice_type,
};

/// Upstream's default, `DefaultClientIPServiceAffinitySeconds`.
const AFFINITY_SECONDS_DEFAULT: u32 = 10_800;

/// The properties of the node for choosing endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// The name of the node.
    pub name: String,
    /// Its zone; empty when it has none.
    pub zone: String,
    /// Its addresses in the cluster's network.
    pub internal_ips: Vec<IpAddr>,
    /// Its addresses outside the cluster, which may be translated before packets arrive here.
    pub external_ips: Vec<IpAddr>,
}

impl NodeInfo {
    /// Load balancer addresses of a service, with the internal addresses of this node if one of them is an external address of it: behind
    /// a translating gateway, packets for that one arrive here.
    fn with_translated(&self, mut ips: Vec<IpAddr>, family: Family) -> Vec<IpAddr> {
        if ips.iter().any(|ip| self.external_ips.contains(ip)) {
            ips.extend(self.internal_ips.iter().filter(|ip| Family::of(ip) == family));
            ips.sort();
            ips.dedup();
        }
        ips
    }
}

/// One port of a service in one address family, resolved for this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// Namespace and name of the Service.
    pub key: ObjectKey,
    /// The name of the port; may be empty.
    pub name: String,
    /// The transport protocol of the port.
    pub protocol: Protocol,
    /// The port at the service's addresses.
    pub port: u16,
    /// The node port; 0 when there is none.
    pub node_port: u16,
    /// Cluster addresses of the table's family.
    pub cluster_ips: Vec<IpAddr>,
    /// `externalIPs` of the table's family, which other routers send here.
    pub external_ips: Vec<IpAddr>,
    /// Load balancer addresses that this node handles itself.
    pub load_balancer_ips: Vec<IpAddr>,
    /// The clients that may use the load balancer's addresses; empty allows all.
    pub source_ranges: Vec<IpNet>,
    /// The seconds for which a client uses the same endpoint.
    pub affinity_seconds: Option<u32>,
    /// `internalTrafficPolicy`: the endpoints for connections from inside the cluster.
    pub internal: TrafficPolicy,
    /// `externalTrafficPolicy`: the endpoints for connections from outside.
    pub external: TrafficPolicy,
    /// Endpoints for traffic with the policy Cluster.
    pub cluster_endpoints: Vec<SocketAddr>,
    /// Endpoints for traffic with the policy Local.
    pub local_endpoints: Vec<SocketAddr>,
    /// Whether there is any usable endpoint in the cluster, which decides between "reject" and "drop".
    pub has_any_endpoint: bool,
    /// Addresses of endpoints that may run on this node, and so may connect to themselves.
    pub hairpin: BTreeSet<IpAddr>,
}

impl PortPlan {
    /// Reports whether it is reachable from outside the cluster.
    pub fn externally_accessible(&self) -> bool {
        self.node_port != 0 || !self.external_ips.is_empty() || !self.load_balancer_ips.is_empty()
    }
    /// Reports whether any rule uses [`Self::cluster_endpoints`]: traffic from the node and its pods to an external
    /// address does, whatever the policy.
    pub fn uses_cluster(&self) -> bool {
        self.externally_accessible() || self.internal == TrafficPolicy::Cluster
    }
    /// Reports whether any rule uses [`Self::local_endpoints`].
    pub fn uses_local(&self) -> bool {
        self.internal == TrafficPolicy::Local || (self.external == TrafficPolicy::Local && self.externally_accessible())
    }
    /// Returns the endpoints of a policy.
    pub fn endpoints(&self, policy: TrafficPolicy) -> &[SocketAddr] {
        match policy {
            TrafficPolicy::Cluster => &self.cluster_endpoints,
            TrafficPolicy::Local => &self.local_endpoints,
        }
    }
}

/// Reports whether this proxy ignores the service: headless, ExternalName, or of another proxy.
pub fn is_ignored(service: &Service) -> bool {
    let labels = &service.metadata.labels;
    let ip = service.spec.cluster_ip.as_str();
    service.spec.kind == "ExternalName"
        || ip.is_empty()
        || ip == "None"
        || labels.contains_key(LABEL_PROXY_NAME)
        || labels.contains_key(LABEL_HEADLESS)
}

/// Returns the service's ports in one family; none when it has no cluster address of the family.
pub fn plan<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
    family: Family,
    node: &NodeInfo,
) -> Vec<PortPlan> {
    let spec = &service.spec;
    if is_ignored(service) {
        return Vec::new();
    }
    let cluster_ips = match spec.cluster_ips.as_slice() {
        [] => addresses(std::iter::once(&spec.cluster_ip), family),
        all => addresses(all.iter(), family),
    };
    if cluster_ips.is_empty() {
        return Vec::new();
    }
    let vips = spec_vips(service);
    let external = matches!(spec.kind.as_str(), "NodePort" | "LoadBalancer") || !spec.external_ips.is_empty();
    let mut plans = Vec::with_capacity(spec.ports.len());
    for port in &spec.ports {
        let endpoints = endpoints_of(slices.clone(), family, &port.name, port.protocol);
        let mut plan = PortPlan {
            key: service.metadata.key(),
            name: port.name.clone(),
            protocol: port.protocol,
            port: port.port,
            node_port: port.node_port,
            cluster_ips: cluster_ips.clone(),
            external_ips: addresses(spec.external_ips.iter(), family),
            load_balancer_ips: node.with_translated(addresses(vips.iter().copied(), family), family),
            source_ranges: ranges(&spec.load_balancer_source_ranges, family),
            affinity_seconds: (spec.session_affinity == "ClientIP").then(|| {
                spec.session_affinity_config.client_ip.timeout_seconds.unwrap_or(AFFINITY_SECONDS_DEFAULT).max(1)
            }),
            internal: spec.internal_traffic_policy,
            external: if external { spec.external_traffic_policy } else { TrafficPolicy::Cluster },
            cluster_endpoints: Vec::new(),
            local_endpoints: Vec::new(),
            has_any_endpoint: false,
            hairpin: BTreeSet::new(),
        };
        categorize(&mut plan, &endpoints, node);
        plans.push(plan);
    }
    plans
}

/// Returns the number of the service's ready endpoints on this node, each address once, in any family: the answer of a
/// health check node port.
pub fn local_ready<'a>(slices: impl Iterator<Item = &'a EndpointSlice>, node: &NodeInfo) -> usize {
    let mut found = BTreeSet::new();
    for slice in slices {
        for e in slice.endpoints.iter().flatten() {
            if e.conditions.ready != Some(false) && e.node_name.as_deref() == Some(node.name.as_str()) {
                found.extend(e.addresses.first());
            }
        }
    }
    found.len()
}

fn spec_vips(service: &Service) -> Vec<&String> {
    let ingress = service.status.load_balancer.ingress.iter();
    ingress
        .filter(|_| service.spec.kind == "LoadBalancer")
        .filter(|i| !i.ip.is_empty() && i.ip_mode.as_deref().is_none_or(|m| m == "VIP"))
        .map(|i| &i.ip)
        .collect()
}

fn addresses<'a>(texts: impl Iterator<Item = &'a String>, family: Family) -> Vec<IpAddr> {
    let parsed = texts.filter_map(|t| t.trim().parse::<IpAddr>().ok());
    let usable = parsed.filter(|ip| Family::of(ip) == family && !ip.is_unspecified() && !ip.is_loopback());
    usable.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the ranges of one family, none inside another (nft rejects that); empty when they allow everything.
fn ranges(texts: &[String], family: Family) -> Vec<IpNet> {
    let parsed = texts.iter().filter_map(|t| t.trim().parse::<IpNet>().ok()).map(|n| n.trunc());
    let nets: Vec<IpNet> = parsed.filter(|n| Family::of(&n.addr()) == family).collect();
    if nets.iter().any(|n| n.prefix_len() == 0) { Vec::new() } else { without_contained(&nets) }
}

/// Removes ranges inside others, and duplicates.
pub(crate) fn without_contained(nets: &[IpNet]) -> Vec<IpNet> {
    let mut kept: Vec<IpNet> = Vec::with_capacity(nets.len());
    for net in nets {
        if !nets.iter().any(|other| other != net && other.contains(net)) && !kept.contains(net) {
            kept.push(*net);
        }
    }
    kept
}

/// An endpoint of a port, merged from the slices.
#[derive(Clone, Debug, Default)]
struct Endpoint<'a> {
    ready: bool,
    serving: bool,
    terminating: bool,
    node: Option<&'a str>,
    hints: Option<&'a Hints>,
}

impl Endpoint<'_> {
    fn is_last_resort(&self) -> bool {
        self.serving && self.terminating
    }
    fn is_on(&self, node: &NodeInfo) -> bool {
        self.node == Some(node.name.as_str())
    }
    fn hints_zone(&self) -> impl Iterator<Item = &str> {
        self.hints.and_then(|h| h.for_zones.as_ref()).into_iter().flatten().map(|z| z.name.as_str())
    }
    fn hints_node(&self) -> impl Iterator<Item = &str> {
        self.hints.and_then(|h| h.for_nodes.as_ref()).into_iter().flatten().map(|z| z.name.as_str())
    }
}

/// Returns endpoints by address. One that moves between slices may be in two for a moment: the more ready one is used.
fn endpoints_of<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    family: Family,
    port: &str,
    protocol: Protocol,
) -> BTreeMap<SocketAddr, Endpoint<'a>> {
    let mut all: BTreeMap<SocketAddr, Endpoint<'a>> = BTreeMap::new();
    for slice in slices.filter(|s| s.address_type == slice_type(family)) {
        let ports = slice.ports.iter().flatten();
        let named = ports
            .filter(|p| p.name.as_deref().unwrap_or_default() == port && p.protocol.unwrap_or_default() == protocol);
        for number in named.filter_map(|p| p.port) {
            for e in slice.endpoints.iter().flatten() {
                let Some(ip) = e.addresses.first().and_then(|a| a.parse::<IpAddr>().ok()) else { continue };
                if Family::of(&ip) != family {
                    continue;
                }
                let new = Endpoint {
                    ready: e.conditions.ready.unwrap_or(true),
                    serving: e.conditions.serving.unwrap_or(true),
                    terminating: e.conditions.terminating.unwrap_or(false),
                    node: e.node_name.as_deref(),
                    hints: e.hints.as_ref(),
                };
                let at = SocketAddr::new(ip, number);
                if all.get(&at).is_none_or(|old| (new.ready, new.serving) > (old.ready, old.serving)) {
                    all.insert(at, new);
                }
            }
        }
    }
    all
}

fn categorize(plan: &mut PortPlan, all: &BTreeMap<SocketAddr, Endpoint<'_>>, node: &NodeInfo) {
    let pick = |keep: &dyn Fn(&Endpoint<'_>) -> bool| -> Vec<SocketAddr> {
        all.iter().filter(|(_, e)| keep(e)).map(|(at, _)| *at).collect()
    };
    let or = |first: Vec<SocketAddr>, second: &dyn Fn() -> Vec<SocketAddr>| {
        if first.is_empty() { second() } else { first }
    };
    if plan.uses_cluster() {
        let hinted = topology(all, node);
        let ready = pick(&|e| e.ready && hinted.admits(e, node));
        plan.cluster_endpoints = or(ready, &|| pick(&|e| e.is_last_resort()));
    }
    if plan.uses_local() {
        let ready = pick(&|e| e.ready && e.is_on(node));
        plan.local_endpoints = or(ready, &|| pick(&|e| e.is_last_resort() && e.is_on(node)));
    }
    plan.has_any_endpoint = all.values().any(|e| e.ready || e.is_last_resort());
    let used = plan.cluster_endpoints.iter().chain(&plan.local_endpoints);
    let here = used.filter(|at| all.get(at).is_some_and(|e| e.node.is_none() || e.is_on(node)));
    plan.hairpin = here.map(SocketAddr::ip).collect();
}

/// The topology hints that apply (KEP-2433, KEP-3015).
#[derive(Clone, Copy)]
enum Topology {
    Everybody,
    SameZone,
    SameNode,
}

impl Topology {
    fn admits(self, e: &Endpoint<'_>, node: &NodeInfo) -> bool {
        match self {
            Self::Everybody => true,
            Self::SameZone => e.hints_zone().any(|z| z == node.zone),
            Self::SameNode => e.hints_node().any(|n| n == node.name),
        }
    }
}

/// Hints apply only when every ready endpoint has them and one of them is for this node: incomplete hints must not
/// overload a few endpoints.
fn topology(all: &BTreeMap<SocketAddr, Endpoint<'_>>, node: &NodeInfo) -> Topology {
    let ready = || all.values().filter(|e| e.ready);
    let holds =
        |mode: Topology, has: &dyn Fn(&Endpoint<'_>) -> bool| ready().all(has) && ready().any(|e| mode.admits(e, node));
    if holds(Topology::SameNode, &|e| e.hints_node().next().is_some()) {
        Topology::SameNode
    } else if !node.zone.is_empty() && holds(Topology::SameZone, &|e| e.hints_zone().next().is_some()) {
        Topology::SameZone
    } else {
        Topology::Everybody
    }
}
