//! Node ports of a Service. A number belongs to one Service for all protocols.
use std::collections::HashMap;

use kelson_meta::tree::{items, text};
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Status};
use serde_json::Value;

use super::pools::{Reservation, Used};

fn wants_node_ports(spec: &Value) -> bool {
    match spec["type"].as_str() {
        Some("NodePort") => true,
        Some("LoadBalancer") => spec["allocateLoadBalancerNodePorts"].as_bool().unwrap_or(true),
        _ => false,
    }
}

/// Whether a Service of this type may have node ports.
pub(super) fn may_have_node_ports(spec: &Value) -> bool {
    spec["type"] == "NodePort" || spec["type"] == "LoadBalancer"
}

/// The requested number, which may be outside the range of ports.
fn number(value: &Value) -> Option<i64> {
    value.as_i64().filter(|port| *port != 0)
}

/// Takes the node ports that a Service requests, and free ones if its type needs them.
///
/// # Errors
/// 422 for a requested port that cannot be taken, 500 when none is free.
pub(super) fn take_ports(
    used: &mut Used,
    service: &mut Value,
    had: Option<&[u16]>,
    taken: &mut Reservation,
) -> Result<(), Status> {
    let name = text(&service["metadata"]["name"]).to_owned();
    let spec = &mut service["spec"];
    if !may_have_node_ports(spec) {
        return Ok(());
    }
    match had {
        None => take_first_ports(used, spec, &name, taken)?,
        Some(had) => take_more_ports(used, spec, &name, had, taken)?,
    }
    if spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local" {
        take_health_port(used, spec, had.unwrap_or(&[]), taken)?;
    }
    Ok(())
}

/// Ports of a new Service. A port that is served by several protocols gets one node port, even if it is requested for only one of
/// them.
fn take_first_ports(used: &mut Used, spec: &mut Value, name: &str, taken: &mut Reservation) -> Result<(), Status> {
    let allocate = wants_node_ports(spec);
    let mut named: HashMap<u64, i64> = HashMap::new();
    for port in items(&spec["ports"]) {
        if let Some(number) = number(&port["nodePort"]) {
            named.entry(port["port"].as_u64().unwrap_or(0)).or_insert(number);
        }
    }
    let mut by_port: HashMap<u64, i64> = HashMap::new();
    for (i, port) in spec["ports"].as_array_mut().into_iter().flatten().enumerate() {
        let of = port["port"].as_u64().unwrap_or(0);
        let asked = number(&port["nodePort"]);
        if asked.is_none() && !allocate {
            continue;
        }
        let number = match (by_port.get(&of).copied(), asked) {
            (Some(shared), None) => shared,
            (Some(shared), Some(asked)) if shared == asked => continue,
            (_, Some(asked)) => claim(used, asked, i, name, taken)?,
            (None, None) => match named.get(&of) {
                Some(asked) => claim(used, *asked, i, name, taken)?,
                None => any(used, taken)?,
            },
        };
        by_port.entry(of).or_insert(number);
        port["nodePort"] = number.into();
    }
    Ok(())
}

/// Ports of a changed Service. Ports that it already has are not taken again.
fn take_more_ports(
    used: &mut Used,
    spec: &mut Value,
    name: &str,
    had: &[u16],
    taken: &mut Reservation,
) -> Result<(), Status> {
    let allocate = wants_node_ports(spec);
    let mut own: Vec<i64> = had.iter().copied().map(i64::from).collect();
    for (i, port) in spec["ports"].as_array_mut().into_iter().flatten().enumerate() {
        match number(&port["nodePort"]) {
            Some(asked) if own.contains(&asked) => {}
            Some(asked) => own.push(claim(used, asked, i, name, taken)?),
            None if allocate => port["nodePort"] = any(used, taken)?.into(),
            None => {}
        }
    }
    Ok(())
}

/// Takes the port that the Service requests at this index.
fn claim(used: &mut Used, number: i64, place: usize, name: &str, taken: &mut Reservation) -> Result<i64, Status> {
    let claimed = used.claim_port(number, taken.dry_run).map_err(|why| {
        let path = FieldPath::new("spec").child("ports").index(place).child("nodePort");
        let mut errors = FieldErrors::new();
        errors.invalid(&path, number, why);
        Status::invalid(&GroupKind { group: String::new(), kind: "Service".into() }, name, &errors)
    })?;
    taken.ports.extend(claimed);
    Ok(number)
}

fn any(used: &mut Used, taken: &mut Reservation) -> Result<i64, Status> {
    let full = || Status::internal("failed to allocate a nodePort: range is full");
    let number = used.any_port().ok_or_else(full)?;
    taken.ports.push(number);
    Ok(number.into())
}

/// Takes the port on which nodes report to load balancers whether they have a local endpoint.
fn take_health_port(used: &mut Used, spec: &mut Value, had: &[u16], taken: &mut Reservation) -> Result<(), Status> {
    match number(&spec["healthCheckNodePort"]) {
        Some(asked) if had.iter().any(|port| i64::from(*port) == asked) => {}
        Some(asked) => {
            let claimed = used.claim_port(asked, taken.dry_run).map_err(|why| {
                Status::internal(format!("failed to allocate requested HealthCheck NodePort {asked}: {why}"))
            })?;
            taken.ports.extend(claimed);
        }
        None => {
            let full = || Status::internal("failed to allocate a HealthCheck NodePort 0: range is full");
            let number = used.any_port().ok_or_else(full)?;
            taken.ports.push(number);
            spec["healthCheckNodePort"] = number.into();
        }
    }
    Ok(())
}
