//! Holds the containers of a starting pod until its network policies are in force: the kubelet's gate on this node's
//! enforcement.
use std::error::Error;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kelson_kubelet::NetworkGate;
use kelson_network_policy::{Gate, PodFacts, view};

/// The gate of this node's enforcement.
pub struct PolicyGate(pub Gate);

#[async_trait]
impl NetworkGate for PolicyGate {
    async fn pass(&self, pod: &Pod, ips: &[String]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let view: view::Pod = serde_json::from_value(serde_json::to_value(pod)?)?;
        let Some(facts) = PodFacts::of(&view) else { return Ok(()) };
        let ips = ips.iter().map(|ip| ip.parse()).collect::<Result<_, _>>()?;
        Ok(self.0.pass(PodFacts { ips: Vec::new(), ..facts }, ips).await?)
    }
}
