//! The usage of a service: one object, node ports and load balancers.
use kelson_meta::Quantity;
use kelson_meta::tree::{int0, items, text};
use serde_json::Value;

use crate::amounts::Amounts;

/// The resource names of quotas that count services.
pub const NAMES: &[&str] = &["count/services", "services", "services.nodeports", "services.loadbalancers"];

/// Returns the usage of a service. It counts requested node ports, because the server may not have allocated them yet.
pub fn usage(service: &Value) -> Amounts {
    let ports = items(&service["spec"]["ports"]);
    let wished = ports.iter().filter(|p| int0(&p["nodePort"]) != 0).count();
    let (node_ports, balancers) = match text(&service["spec"]["type"]) {
        "NodePort" => (ports.len(), 0),
        "LoadBalancer" if service["spec"]["allocateLoadBalancerNodePorts"] == false => (wished, 1),
        "LoadBalancer" => (ports.len(), 1),
        _ => (0, 0),
    };
    let mut out = Amounts::one_each(["count/services".to_owned(), "services".to_owned()]);
    out.set("services.nodeports", Quantity::from_i64(i64::try_from(node_ports).unwrap_or(i64::MAX)));
    out.set("services.loadbalancers", Quantity::from_i64(balancers));
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_services_use() {
        let ports = json!([{"port": 1}, {"port": 2, "nodePort": 30000}]);
        let rows = [
            (json!({"type": "ClusterIP", "ports": ports}), 0, 0),
            (json!({"type": "NodePort", "ports": ports}), 2, 0),
            (json!({"type": "LoadBalancer", "ports": ports}), 2, 1),
            (json!({"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false}), 1, 1),
        ];
        for (spec, node_ports, balancers) in rows {
            let want = format!(
                "count/services=1,services=1,services.loadbalancers={balancers},services.nodeports={node_ports}"
            );
            assert_eq!(usage(&json!({"spec": spec})).words(), want, "{spec}");
        }
    }
}
