//! What enforcement knows of one pod.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kelson_meta::{LabelMap, ObjectKey};
use kelson_net::Protocol;

use crate::view::{ContainerPort, Pod};

/// What policies need to know of a pod with an address of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodFacts {
    /// The namespace that the pod is in; policies of this namespace may select it.
    pub namespace: String,
    /// The pod's name in its namespace.
    pub name: String,
    /// What selectors of policies look at.
    pub labels: LabelMap,
    /// The pod's addresses, at most one per family; empty before the pod has one.
    pub ips: Vec<IpAddr>,
    /// The ports that policies may refer to by name.
    pub ports: Vec<NamedPort>,
    /// The node that the pod is bound to; that node enforces its policies.
    pub node: String,
}

/// A port that policies may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// The name in the container's specification (`ports[].name`).
    pub name: String,
    /// The transport protocol, which a rule must name too.
    pub protocol: Protocol,
    /// The port number that the container listens on.
    pub number: u16,
}

impl PodFacts {
    /// The facts of a pod; `None` for a pod that policies do not concern: one on the host's network, or one that has
    /// ended and no longer has its address.
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

    /// The key under which the pod is known.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }

    /// Whether the pod has a port of this name and number.
    pub fn has_port(&self, name: &str, protocol: Protocol, number: u16) -> bool {
        self.ports.iter().any(|p| p.name == name && p.protocol == protocol && p.number == number)
    }
}
