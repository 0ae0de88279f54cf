//! The fields of Services, EndpointSlices and Nodes that the proxy reads. What they mean is [`crate::service`]'s.

use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectKey, ObjectMeta, null_default};
pub use kelson_net::Family;
use serde::Deserialize;

/// Services with this label belong to another proxy.
pub const LABEL_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Set on headless services and their slices: nothing for a proxy.
pub const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";
/// Names a slice's service.
pub const LABEL_SERVICE: &str = "kubernetes.io/service-name";
/// A node's zone.
pub const LABEL_ZONE: &str = "topology.kubernetes.io/zone";

/// A transport protocol a service port can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub enum Protocol {
    /// TCP, the default.
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    /// `UDP`, without connections of its own.
    #[serde(rename = "UDP")]
    Udp,
    /// `SCTP`, where the kernel has it.
    #[serde(rename = "SCTP")]
    Sctp,
}

impl Protocol {
    /// As nft writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// Where traffic of one kind may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum TrafficPolicy {
    /// Any ready endpoint of the cluster.
    #[default]
    Cluster,
    /// Endpoints of this node.
    Local,
}

/// What the rules need of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Name, labels and annotations; the proxy's name among the labels.
    pub metadata: ObjectMeta,
    /// What is asked for; see the API's ServiceSpec.
    pub spec: ServiceSpec,
    /// What a load balancer has answered.
    pub status: ServiceStatus,
}
slim_object!(Service, ResourceType::namespaced("", "v1", "services", "Service"));

/// `v1.ServiceSpec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer`, `ExternalName`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Address; `None` when headless.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// Addresses, one per family.
    #[serde(rename = "clusterIPs", deserialize_with = "null_default")]
    pub cluster_ips: Vec<String>,
    /// Each port is rules of its own.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<ServicePort>,
    /// Addresses routed to the nodes by somebody else.
    #[serde(rename = "externalIPs", deserialize_with = "null_default")]
    pub external_ips: Vec<String>,
    /// Who may use the load balancer's addresses.
    #[serde(deserialize_with = "null_default")]
    pub load_balancer_source_ranges: Vec<String>,
    /// `ClientIP` or `None`.
    pub session_affinity: String,
    /// How long a client stays with an endpoint.
    pub session_affinity_config: SessionAffinityConfig,
    /// For traffic from inside.
    pub internal_traffic_policy: TrafficPolicy,
    /// For traffic from outside.
    pub external_traffic_policy: TrafficPolicy,
    /// Where a load balancer asks for local endpoints; 0 when unused.
    pub health_check_node_port: u16,
}

/// `v1.ServicePort`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// Name; may be empty.
    pub name: String,
    /// The transport of both port and endpoints.
    pub protocol: Protocol,
    /// The port at the service's addresses.
    pub port: u16,
    /// Port on every node; 0 when there is none.
    pub node_port: u16,
}

/// `v1.SessionAffinityConfig`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SessionAffinityConfig {
    /// Read only where the affinity is `ClientIP`.
    #[serde(rename = "clientIP")]
    pub client_ip: ClientIpConfig,
}

/// `v1.ClientIPConfig`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    /// How long a client sticks, after its last connection.
    pub timeout_seconds: Option<u32>,
}

/// `v1.ServiceStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    /// Where a load balancer listens.
    pub load_balancer: LoadBalancerStatus,
}

/// `v1.LoadBalancerStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// Its ways in.
    #[serde(deserialize_with = "null_default")]
    pub ingress: Vec<LoadBalancerIngress>,
}

/// `v1.LoadBalancerIngress`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoadBalancerIngress {
    /// Address; empty when it has a host name.
    pub ip: String,
    /// `VIP` (the default) or `Proxy` (KEP-1860).
    pub ip_mode: Option<String>,
}

/// What the rules need of an EndpointSlice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Labels name the service it belongs to.
    pub metadata: ObjectMeta,
    /// `IPv4`, `IPv6`, `FQDN`.
    pub address_type: String,
    /// Go writes null for none.
    pub endpoints: Option<Vec<SliceEndpoint>>,
    /// Apply to all endpoints; Go writes null for none.
    pub ports: Option<Vec<SlicePort>>,
}
slim_object!(EndpointSlice, ResourceType::namespaced("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"));

impl EndpointSlice {
    /// The service it belongs to.
    pub fn service(&self) -> Option<ObjectKey> {
        let name = self.metadata.labels.get(LABEL_SERVICE)?;
        Some(ObjectKey::new(&self.metadata.namespace, name))
    }
}

/// `discovery.v1.Endpoint`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SliceEndpoint {
    /// The first counts.
    #[serde(deserialize_with = "null_default")]
    pub addresses: Vec<String>,
    /// Whether it takes connections, and whether it is about to go.
    pub conditions: Conditions,
    /// Where it runs.
    pub node_name: Option<String>,
    /// Who should use it.
    pub hints: Option<Hints>,
}

/// `discovery.v1.EndpointConditions`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// Absent means ready.
    pub ready: Option<bool>,
    /// Absent means serving.
    pub serving: Option<bool>,
    /// Absent means not terminating.
    pub terminating: Option<bool>,
}

/// `discovery.v1.EndpointHints`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    /// Zones whose nodes should use the endpoint.
    pub for_zones: Option<Vec<Named>>,
    /// Nodes that should use the endpoint (KEP-4444).
    pub for_nodes: Option<Vec<Named>>,
}

/// `discovery.v1.ForZone` and `ForNode`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Named {
    /// Name of a zone or a node.
    pub name: String,
}

/// `discovery.v1.EndpointPort`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SlicePort {
    /// Name of the service's port; may be empty or absent.
    pub name: Option<String>,
    /// Protocol; absent means TCP.
    pub protocol: Option<Protocol>,
    /// Number; absent means all, which no proxy can serve.
    pub port: Option<u16>,
}

/// What the rules need of the node they are for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Metadata, with the zone among the labels.
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
    /// The address.
    pub address: String,
}
slim_object!(Node, ResourceType::cluster("", "v1", "nodes", "Node"));

/// The `addressType` of slices that hold addresses of a family.
pub fn slice_type(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}
