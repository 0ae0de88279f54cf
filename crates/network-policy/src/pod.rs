//! The facts about a pod that enforcement uses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kelson_meta::{LabelMap, ObjectKey};
use kelson_net::Protocol;

use crate::view::{ContainerPort, Pod};

/// The fields of a pod with its own address that policies need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodFacts {
    /// The namespace of the pod; policies of this namespace may select it.
    pub namespace: String,
    /// The pod's name in its namespace.
    pub name: String,
    /// The labels for selectors of policies.
    pub labels: LabelMap,
    /// The pod's addresses, at most one per family; empty before the pod has one.
    pub ips: Vec<IpAddr>,
    /// The ports that policies may refer to by name.
    pub ports: Vec<NamedPort>,
    /// The node that the pod is bound to; that node enforces its policies.
    pub node: String,
}

/// A named port of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// The name in the container's specification (`ports[].name`).
    pub name: String,
    /// The transport protocol, which a rule must match too.
    pub protocol: Protocol,
    /// The port number that the container listens on.
    pub number: u16,
}

impl PodFacts {
    /// Returns the facts of a pod; `None` for a pod that policies do not apply to: one on the host's network, or one
    /// that has ended and no longer has its address.
    pub fn of(pod: &Pod) -> Option<Self> {
        if pod.spec.host_network || matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
            return None;
        }
        let listed = pod.status.pod_ips.iter().map(|ip| ip.ip.as_str()).chain([pod.status.pod_ip.as_str()]);
        let ips: BTreeSet<IpAddr> = listed.filter_map(|ip| ip.parse().ok()).collect();
        let sidecars = pod.spec.init_containers.iter().filter(|c| c.restart_policy == "Always");
        let ports = pod.spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports).filter(|p| !p.name.is_empty());
        let named = |p: &ContainerPort| NamedPort {
            name: p.name.clone(),
            protocol: p.protocol.unwrap_or(Protocol::Tcp),
            number: p.container_port,
        };
        Some(Self {
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            labels: pod.metadata.labels.clone(),
            ips: ips.into_iter().collect(),
            ports: ports.map(named).collect(),
            node: pod.spec.node_name.clone(),
        })
    }

    /// Returns the key of the pod.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }

    /// Reports whether the pod has a port with this name and number.
    pub fn has_port(&self, name: &str, protocol: Protocol, number: u16) -> bool {
        self.ports.iter().any(|p| p.name == name && p.protocol == protocol && p.number == number)
    }
}
