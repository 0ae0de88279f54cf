//! `discovery.k8s.io/v1` EndpointSlice with the fields that are compared and written.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::{Deserialize, Serialize};

use super::index::{IndexKey, Indexed};
use super::pod::PodView;

/// `discovery.k8s.io/v1` EndpointSlice with the fields that are compared and written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSliceView {
    pub metadata: ObjectMeta,
    /// `IPv4`, `IPv6`, `FQDN`.
    pub address_type: String,
    #[serde(deserialize_with = "null_default")]
    pub endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<Port>,
}

/// The label with the name of a slice's service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

impl Indexed for EndpointSliceView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        if self.metadata.labels.contains_key(SERVICE_NAME_LABEL) {
            into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
        }
    }
}
slim_object!(EndpointSliceView, ResourceType::namespaced("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"));

/// `discovery.k8s.io/v1` Endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    pub addresses: Vec<String>,
    pub conditions: EndpointConditions,
    /// Host name under the service's domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
    /// The pod's node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The node's zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The zones and nodes that should use the endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<EndpointHints>,
}

/// The zones and nodes that should use an endpoint (`discovery.k8s.io/v1` EndpointHints).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub for_zones: Vec<HintTarget>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub for_nodes: Vec<HintTarget>,
}

impl EndpointHints {
    /// Returns hints for one zone and one node, or `None` if neither is given.
    pub fn new(zone: Option<String>, node: Option<String>) -> Option<Self> {
        let place = |name: Option<String>| name.map(|name| HintTarget { name }).into_iter().collect();
        let hints = Self { for_zones: place(zone), for_nodes: place(node) };
        (hints != Self::default()).then_some(hints)
    }
}

/// `discovery.k8s.io/v1` ForZone and ForNode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HintTarget {
    pub name: String,
}

/// `discovery.k8s.io/v1` EndpointConditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// Whether the endpoint accepts traffic; absent means true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Whether the pod is ready, even if it is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    /// Whether the pod is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

/// Reference to a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetRef {
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

impl TargetRef {
    /// A reference to a pod.
    pub fn pod(p: &PodView) -> Self {
        let m = &p.metadata;
        Self { kind: "Pod".into(), namespace: m.namespace.clone(), name: m.name.clone(), uid: m.uid.clone() }
    }
}

/// `discovery.k8s.io/v1` EndpointPort.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Port {
    /// The service port's name.
    pub name: Option<String>,
    pub protocol: Option<String>,
    /// The pod's port.
    pub port: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}
