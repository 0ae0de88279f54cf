//! The fields of Pods, Namespaces and NetworkPolicies that enforcement reads. [`crate::policy`] interprets policies.

use kelson_client::{ResourceType, slim_object};
use kelson_meta::{LabelSelectorSpec, ObjectMeta, null_default};
use kelson_net::Protocol;
use serde::Deserialize;

/// The fields of a Pod that decide which policies apply to it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Namespace, name and labels.
    pub metadata: ObjectMeta,
    /// Node, network mode and named ports.
    pub spec: PodSpec,
    /// Phase and addresses.
    pub status: PodStatus,
}
slim_object!(Pod, ResourceType::namespaced("", "v1", "pods", "Pod"));

/// The fields of `v1.PodSpec` that enforcement reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// The node the pod is bound to; empty before it is scheduled.
    #[serde(deserialize_with = "null_default")]
    pub node_name: String,
    /// A pod on the host's network has the node's address; policies do not apply to it.
    #[serde(deserialize_with = "null_default")]
    pub host_network: bool,
    /// The containers; policies may refer to their ports by name.
    #[serde(deserialize_with = "null_default")]
    pub containers: Vec<Container>,
    /// Sidecars (restartable init containers) have ports too.
    #[serde(deserialize_with = "null_default")]
    pub init_containers: Vec<Container>,
}

/// The ports of one container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    /// `Always` makes an init container a sidecar.
    #[serde(deserialize_with = "null_default")]
    pub restart_policy: String,
    /// The ports that the container listens on.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<ContainerPort>,
}

/// A port that a container lists (`v1.ContainerPort`); policies may refer to it by name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    /// The name by which policies refer to the port; empty for an unnamed port.
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    /// The port number in the pod.
    pub container_port: u16,
    /// The protocol; absent means TCP.
    pub protocol: Option<Protocol>,
}

/// The fields of `v1.PodStatus` that enforcement reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// A pod that is `Succeeded` or `Failed` no longer has its address.
    #[serde(deserialize_with = "null_default")]
    pub phase: String,
    /// The primary address.
    #[serde(rename = "podIP", deserialize_with = "null_default")]
    pub pod_ip: String,
    /// All addresses, one per family.
    #[serde(rename = "podIPs", deserialize_with = "null_default")]
    pub pod_ips: Vec<PodIp>,
}

/// One address of a pod (`v1.PodIP`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodIp {
    /// An address of the pod.
    pub ip: String,
}

/// The labels of a Namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Name and labels.
    pub metadata: ObjectMeta,
}
slim_object!(Namespace, ResourceType::cluster("", "v1", "namespaces", "Namespace"));

/// A network policy (`networking.k8s.io/v1` NetworkPolicy).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NetworkPolicy {
    /// Namespace and name.
    pub metadata: ObjectMeta,
    /// The desired selection and rules of the policy.
    pub spec: NetworkPolicySpec,
}
slim_object!(NetworkPolicy, ResourceType::namespaced("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"));

/// The selection and the rules of a policy (`networking.k8s.io/v1` NetworkPolicySpec).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkPolicySpec {
    /// The pods that the policy applies to; empty selects every pod of the namespace.
    #[serde(deserialize_with = "null_default")]
    pub pod_selector: LabelSelectorSpec,
    /// Allowed traffic to the selected pods.
    #[serde(deserialize_with = "null_default")]
    pub ingress: Vec<IngressRule>,
    /// Allowed traffic from the selected pods.
    #[serde(deserialize_with = "null_default")]
    pub egress: Vec<EgressRule>,
    /// `Ingress`, `Egress`; when absent, Ingress, and Egress if there is an egress rule.
    #[serde(deserialize_with = "null_default")]
    pub policy_types: Vec<String>,
}

/// Allowed traffic to the selected pods (`networking.k8s.io/v1` NetworkPolicyIngressRule).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IngressRule {
    /// Sources; empty means every source.
    #[serde(deserialize_with = "null_default")]
    pub from: Vec<Peer>,
    /// Ports of the selected pods; empty means every port.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<Port>,
}

/// Allowed traffic from the selected pods (`networking.k8s.io/v1` NetworkPolicyEgressRule).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EgressRule {
    /// Destinations; empty means every destination.
    #[serde(deserialize_with = "null_default")]
    pub to: Vec<Peer>,
    /// Ports of the destinations; empty means every port.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<Port>,
}

/// The peer of allowed traffic (`networking.k8s.io/v1` NetworkPolicyPeer): pods, or a block of addresses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Peer {
    /// Selects pods by label, in the namespaces that `namespace_selector` selects, else in the policy's own.
    pub pod_selector: Option<LabelSelectorSpec>,
    /// Selects namespaces by label.
    pub namespace_selector: Option<LabelSelectorSpec>,
    /// A range of addresses.
    pub ip_block: Option<IpBlock>,
}

/// A range of addresses with exceptions (`networking.k8s.io/v1` IPBlock).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IpBlock {
    /// The range, such as `192.168.1.0/24`.
    pub cidr: String,
    /// Parts of the range that are excluded.
    #[serde(deserialize_with = "null_default")]
    pub except: Vec<String>,
}

/// An allowed port (`networking.k8s.io/v1` NetworkPolicyPort).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Port {
    /// The protocol; absent means TCP.
    pub protocol: Option<Protocol>,
    /// Number or name; absent means every port of the protocol.
    pub port: Option<PortRef>,
    /// The last port of a range that begins at `port`.
    pub end_port: Option<u16>,
}

/// A port by number or by name (`intstr.IntOrString`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum PortRef {
    /// The port number.
    Number(u16),
    /// The name of a container's port.
    Name(String),
}
