//! The fields of Services, EndpointSlices and Nodes that the proxy reads. [`crate::service`] interprets them.

use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectKey, ObjectMeta, null_default};
pub use kelson_net::Family;
use serde::Deserialize;

/// Services with this label belong to another proxy.
pub const LABEL_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// The label of headless services and their slices, which the proxy ignores.
pub const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";
/// The label with a slice's service.
pub const LABEL_SERVICE: &str = "kubernetes.io/service-name";
/// The label with a node's zone.
pub const LABEL_ZONE: &str = "topology.kubernetes.io/zone";

/// The transport protocol of a service port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub enum Protocol {
    /// `TCP`, the default.
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    /// `UDP`, which has no connections.
    #[serde(rename = "UDP")]
    Udp,
    /// `SCTP`, if the kernel supports it.
    #[serde(rename = "SCTP")]
    Sctp,
}

impl Protocol {
    /// Returns the name in nft.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// The endpoints that traffic may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum TrafficPolicy {
    /// Any ready endpoint of the cluster.
    #[default]
    Cluster,
    /// Endpoints of this node.
    Local,
}

/// The fields of a Service for the rules.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Metadata; a label may name another proxy.
    pub metadata: ObjectMeta,
    /// The specification; see the API's ServiceSpec.
    pub spec: ServiceSpec,
    /// The status, with the addresses of a load balancer.
    pub status: ServiceStatus,
}
slim_object!(Service, ResourceType::namespaced("", "v1", "services", "Service"));

/// The fields of `v1.ServiceSpec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    /// The type: `ClusterIP`, `NodePort`, `LoadBalancer`, `ExternalName`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The cluster address; `None` for a headless service.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// The cluster addresses, one per family.
    #[serde(rename = "clusterIPs", deserialize_with = "null_default")]
    pub cluster_ips: Vec<String>,
    /// The ports of the service.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<ServicePort>,
    /// Addresses that other routers send to the nodes.
    #[serde(rename = "externalIPs", deserialize_with = "null_default")]
    pub external_ips: Vec<String>,
    /// The clients that may use the load balancer's addresses.
    #[serde(deserialize_with = "null_default")]
    pub load_balancer_source_ranges: Vec<String>,
    /// The session affinity: `ClientIP` or `None`.
    pub session_affinity: String,
    /// The configuration of the session affinity.
    pub session_affinity_config: SessionAffinityConfig,
    /// The policy for traffic from inside the cluster.
    pub internal_traffic_policy: TrafficPolicy,
    /// The policy for traffic from outside.
    pub external_traffic_policy: TrafficPolicy,
    /// The port on which a load balancer queries local endpoints; 0 when unused.
    pub health_check_node_port: u16,
}

/// The fields of `v1.ServicePort`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// The name; may be empty.
    pub name: String,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The port at the service's addresses.
    pub port: u16,
    /// The port on every node; 0 when there is none.
    pub node_port: u16,
}

/// The fields of `v1.SessionAffinityConfig`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SessionAffinityConfig {
    /// Used only with the affinity `ClientIP`.
    #[serde(rename = "clientIP")]
    pub client_ip: ClientIpConfig,
}

/// The fields of `v1.ClientIPConfig`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    /// The time for which a client uses the same endpoint after its last connection, in seconds.
    pub timeout_seconds: Option<u32>,
}

/// The fields of `v1.ServiceStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    /// The addresses of the load balancer.
    pub load_balancer: LoadBalancerStatus,
}

/// The fields of `v1.LoadBalancerStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// The ingress points.
    #[serde(deserialize_with = "null_default")]
    pub ingress: Vec<LoadBalancerIngress>,
}

/// The fields of `v1.LoadBalancerIngress`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoadBalancerIngress {
    /// The address; empty when it has a host name.
    pub ip: String,
    /// The mode: `VIP` (the default) or `Proxy` (KEP-1860).
    pub ip_mode: Option<String>,
}

/// The fields of an EndpointSlice for the rules.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Metadata; a label names the service.
    pub metadata: ObjectMeta,
    /// The address type: `IPv4`, `IPv6`, `FQDN`.
    pub address_type: String,
    /// The endpoints; Go writes null for none.
    pub endpoints: Option<Vec<SliceEndpoint>>,
    /// The ports of all endpoints; Go writes null for none.
    pub ports: Option<Vec<SlicePort>>,
}
slim_object!(EndpointSlice, ResourceType::namespaced("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"));

impl EndpointSlice {
    /// Returns the service it belongs to.
    pub fn service(&self) -> Option<ObjectKey> {
        let name = self.metadata.labels.get(LABEL_SERVICE)?;
        Some(ObjectKey::new(&self.metadata.namespace, name))
    }
}

/// The fields of `discovery.v1.Endpoint`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SliceEndpoint {
    /// The addresses, of which the first is used.
    #[serde(deserialize_with = "null_default")]
    pub addresses: Vec<String>,
    /// Whether it accepts connections, and whether it is terminating.
    pub conditions: Conditions,
    /// The node it runs on.
    pub node_name: Option<String>,
    /// The zones and nodes that should use it.
    pub hints: Option<Hints>,
}

/// The fields of `discovery.v1.EndpointConditions`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// Whether it is ready; absent means true.
    pub ready: Option<bool>,
    /// Whether it is serving; absent means true.
    pub serving: Option<bool>,
    /// Whether it is terminating; absent means false.
    pub terminating: Option<bool>,
}

/// The fields of `discovery.v1.EndpointHints`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    /// Zones whose nodes should use the endpoint.
    pub for_zones: Option<Vec<Named>>,
    /// Nodes that should use the endpoint (KEP-4444).
    pub for_nodes: Option<Vec<Named>>,
}

/// The fields of `discovery.v1.ForZone` and `ForNode`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Named {
    /// The name of a zone or a node.
    pub name: String,
}

/// The fields of `discovery.v1.EndpointPort`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SlicePort {
    /// The name of the service's port; may be empty or absent.
    pub name: Option<String>,
    /// The protocol; absent means TCP.
    pub protocol: Option<Protocol>,
    /// The port number; absent means all ports, which no proxy supports.
    pub port: Option<u16>,
}

/// The fields of the proxy's node for the rules.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Metadata; a label has the zone.
    pub metadata: ObjectMeta,
    /// Status, with the node's addresses.
    pub status: NodeStatus,
}

/// The part of `v1.NodeStatus` that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// The node's addresses.
    #[serde(deserialize_with = "null_default")]
    pub addresses: Vec<NodeAddress>,
}

/// `v1.NodeAddress`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP` and others.
    #[serde(rename = "type")]
    pub kind: String,
    /// The IP address or host name.
    pub address: String,
}
slim_object!(Node, ResourceType::cluster("", "v1", "nodes", "Node"));

/// Returns the `addressType` of slices with addresses of a family.
pub fn slice_type(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}
