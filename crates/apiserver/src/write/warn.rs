//! Warnings for the client of a write: those of the kind, and those about this cluster.
use ipnet::IpNet;
use serde_json::Value;

use crate::catalog::Served;
use crate::shared::context::RequestContext;

/// Warning for a NetworkPolicy in a cluster whose nodes do not enforce policies.
const NOT_ENFORCED: &str = "this cluster's nodes do not enforce network policies (--disable network-policy): unless another network \
                            plug-in does, this object has no effect";

/// Adds the warnings about an object that is created (`old` is `None`) or changed.
pub fn add(cx: &RequestContext, served: &Served, object: &Value, old: Option<&Value>) {
    served.strategy.warnings(object, old).into_iter().for_each(|text| cx.warn(text));
    if (served.gvk.group.as_str(), served.gvk.kind.as_str()) != ("networking.k8s.io", "NetworkPolicy") {
        return;
    }
    let config = &cx.server.config;
    if !config.enforces_network_policies {
        return cx.warn(NOT_ENFORCED);
    }
    foreign_blocks(&object["spec"], &config.service_cidrs).into_iter().for_each(|text| cx.warn(text));
}

/// The `ipBlock`s of a NetworkPolicy whose address family the cluster's ranges do not have.
fn foreign_blocks(spec: &Value, ranges: &[IpNet]) -> Vec<String> {
    let mut found = Vec::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (i, rule) in list(&spec[direction]).iter().enumerate() {
            for (j, peer) in list(&rule[peers]).iter().enumerate() {
                let Some(cidr) = peer["ipBlock"]["cidr"].as_str() else { continue };
                let Ok(block) = cidr.parse::<IpNet>() else { continue };
                if !ranges.iter().any(|range| range.addr().is_ipv4() == block.addr().is_ipv4()) {
                    let at = format!("spec.{direction}[{i}].{peers}[{j}].ipBlock.cidr");
                    found.push(format!(
                        "{at}: {cidr} has no effect: it is of an address family that this cluster does not have"
                    ));
                }
            }
        }
    }
    found
}
