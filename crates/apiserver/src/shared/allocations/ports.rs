//! Node ports of a Service.
use std::collections::HashMap;

use kelson_meta::{FieldErrors, FieldPath};
use serde_json::Value;

use super::pools::{Reservation, Used, protocol};

fn wants_node_ports(spec: &Value) -> bool {
    match spec["type"].as_str() {
        Some("NodePort") => true,
        Some("LoadBalancer") => spec["allocateLoadBalancerNodePorts"].as_bool().unwrap_or(true),
        _ => false,
    }
}

/// Takes the node ports that a Service names, and free ones where its type wants some.
pub(super) fn take_ports(
    used: &mut Used,
    service: &mut Value,
    had: &[(u16, &'static str)],
    taken: &mut Reservation,
    errors: &mut FieldErrors,
) {
    let spec = &mut service["spec"];
    let allocate = wants_node_ports(spec);
    let may = allocate || spec["type"] == "LoadBalancer";
    // One service may use one number for several protocols.
    let mut by_port: HashMap<u64, u16> = HashMap::new();
    if let Some(ports) = spec["ports"].as_array_mut().filter(|_| may) {
        for (i, port) in ports.iter_mut().enumerate() {
            let path = FieldPath::new("spec").child("ports").index(i).child("nodePort");
            let protocol = protocol(port);
            let service_port = port["port"].as_u64().unwrap_or(0);
            let asked = port["nodePort"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(0);
            if asked > 0 {
                if !had.contains(&(asked, protocol)) {
                    if let Err(why) = used.claim_port(asked, protocol) {
                        errors.invalid(&path, asked, why);
                        return;
                    }
                    taken.ports.push((asked, protocol));
                }
                by_port.insert(service_port, asked);
                continue;
            }
            if !allocate {
                continue;
            }
            let shared =
                by_port.get(&service_port).copied().filter(|p| used.ports.entry(*p).or_default().insert(protocol));
            let Some(number) = shared.or_else(|| used.any_port(protocol)) else {
                errors.invalid(&path, 0, "failed to allocate a nodePort: range is full");
                return;
            };
            taken.ports.push((number, protocol));
            by_port.insert(service_port, number);
            port["nodePort"] = number.into();
        }
    }
    if spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local" {
        take_health_port(used, spec, had, taken, errors);
    }
}

/// The port on which nodes tell load balancers whether they have an endpoint of their own.
fn take_health_port(
    used: &mut Used,
    spec: &mut Value,
    had: &[(u16, &'static str)],
    taken: &mut Reservation,
    errors: &mut FieldErrors,
) {
    let path = FieldPath::new("spec").child("healthCheckNodePort");
    let asked = spec["healthCheckNodePort"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(0);
    if asked == 0 {
        match used.any_port("TCP") {
            Some(number) => {
                taken.ports.push((number, "TCP"));
                spec["healthCheckNodePort"] = number.into();
            }
            None => errors.invalid(&path, 0, "failed to allocate a nodePort: range is full"),
        }
    } else if !had.contains(&(asked, "TCP")) {
        match used.claim_port(asked, "TCP") {
            Ok(()) => taken.ports.push((asked, "TCP")),
            Err(why) => errors.invalid(&path, asked, why),
        }
    }
}
