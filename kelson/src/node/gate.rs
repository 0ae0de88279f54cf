//! Holds the containers of a starting pod until its network policies are enforced: connects the kubelet's gate to this
//! node's enforcement.
use std::error::Error;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{self as core, Pod};
use kelson_kubelet::NetworkGate;
use kelson_meta::ObjectMeta;
use kelson_net::Protocol;
use kelson_network_policy::{Gate, PodFacts, view};

/// The gate of this node's enforcement.
pub struct PolicyGate(pub Gate);

#[async_trait]
impl NetworkGate for PolicyGate {
    async fn pass(&self, pod: &Pod, ips: &[String]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let Some(facts) = PodFacts::of(&view_of(pod)) else { return Ok(()) };
        let ips = ips.iter().map(|ip| ip.parse()).collect::<Result<_, _>>()?;
        Ok(self.0.pass(PodFacts { ips: Vec::new(), ..facts }, ips).await?)
    }
}

/// Returns the fields of a pod that enforcement reads. Addresses are left out: a starting pod gets other addresses than
/// its status has.
fn view_of(pod: &Pod) -> view::Pod {
    let spec = pod.spec.as_ref();
    let containers = |of: fn(&core::PodSpec) -> Option<&Vec<core::Container>>| {
        spec.and_then(of).into_iter().flatten().map(container).collect()
    };
    let labels = pod.metadata.labels.iter().flatten().map(|(key, value)| (key.clone(), value.clone()));
    let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
    view::Pod {
        metadata: ObjectMeta {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            labels: labels.collect(),
            ..ObjectMeta::default()
        },
        spec: view::PodSpec {
            node_name: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            host_network: spec.and_then(|spec| spec.host_network).unwrap_or_default(),
            containers: containers(|spec| Some(&spec.containers)),
            init_containers: containers(|spec| spec.init_containers.as_ref()),
        },
        status: view::PodStatus { phase: phase.unwrap_or_default(), ..view::PodStatus::default() },
    }
}

fn container(container: &core::Container) -> view::Container {
    let ports = container.ports.iter().flatten().map(|port| view::ContainerPort {
        name: port.name.clone().unwrap_or_default(),
        container_port: u16::try_from(port.container_port).unwrap_or_default(),
        protocol: match port.protocol.as_deref() {
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some("TCP") => Some(Protocol::Tcp),
            _ => None,
        },
    });
    view::Container { restart_policy: container.restart_policy.clone().unwrap_or_default(), ports: ports.collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_typed_pod_has_the_facts_of_its_json() {
        let port = |name: &str, protocol: &str| json!({"name": name, "containerPort": 53, "protocol": protocol});
        let container = |ports: serde_json::Value| json!({"name": "c", "image": "i", "ports": ports});
        let mut sidecar = container(json!([port("side", "SCTP")]));
        sidecar["restartPolicy"] = json!("Always");
        let containers = json!([
            container(json!([port("dns", "UDP"), {"containerPort": 80}])),
            container(json!([{"name": "web", "containerPort": 8080}, port("tcp", "TCP")]))
        ]);
        let spec = json!({"nodeName": "n", "containers": containers,
            "initContainers": [container(json!([port("init", "TCP")])), sidecar]});
        let pod = json!({"metadata": {"name": "p", "namespace": "a", "labels": {"app": "x", "tier": "y"}}, "spec": spec,
            "status": {"phase": "Pending"}});
        let facts_of = |pod: &serde_json::Value| {
            let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
            let read: view::Pod = serde_json::from_value(pod.clone()).unwrap();
            let facts = PodFacts::of(&view_of(&typed));
            assert_eq!(facts, PodFacts::of(&read), "{pod}");
            facts
        };
        assert_eq!(facts_of(&pod).map(|facts| facts.ports.len()), Some(4));
        for (field, value) in [("/spec/hostNetwork", json!(true)), ("/status/phase", json!("Failed"))] {
            let mut other = pod.clone();
            let (parent, key) = field.rsplit_once('/').unwrap();
            other.pointer_mut(parent).unwrap()[key] = value;
            assert_eq!(facts_of(&other), None, "{other}");
        }
        assert_eq!(facts_of(&json!({"metadata": {}})).map(|facts| facts.ports.len()), Some(0));
    }
}
