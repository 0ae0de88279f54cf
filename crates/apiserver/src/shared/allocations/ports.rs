//! Node ports of a Service. A number is one Service's, whatever protocols it uses it for.
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

/// Whether a Service of its type may have node ports at all.
pub(super) fn may_have_node_ports(spec: &Value) -> bool {
    spec["type"] == "NodePort" || spec["type"] == "LoadBalancer"
}

fn number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

/// Takes the node ports that a Service names, and free ones where its type wants some.
///
/// # Errors
/// 422 for a port that cannot be had, 500 when none is free.
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

/// Of a new Service: one port that is served by several protocols has one node port, be it named for one of them alone.
fn take_first_ports(used: &mut Used, spec: &mut Value, name: &str, taken: &mut Reservation) -> Result<(), Status> {
    let allocate = wants_node_ports(spec);
    let mut named: HashMap<u64, u16> = HashMap::new();
    for port in items(&spec["ports"]) {
        if let Some(number) = number(&port["nodePort"]) {
            named.entry(port["port"].as_u64().unwrap_or(0)).or_insert(number);
        }
    }
    let mut by_port: HashMap<u64, u16> = HashMap::new();
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

/// Of a changed Service: what it has is not taken again.
fn take_more_ports(
    used: &mut Used,
    spec: &mut Value,
    name: &str,
    had: &[u16],
    taken: &mut Reservation,
) -> Result<(), Status> {
    let allocate = wants_node_ports(spec);
    let mut own = had.to_vec();
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

/// Takes the port that the Service names in this place.
fn claim(used: &mut Used, number: u16, place: usize, name: &str, taken: &mut Reservation) -> Result<u16, Status> {
    if let Err(why) = used.claim_port(number, taken.dry_run) {
        let path = FieldPath::new("spec").child("ports").index(place).child("nodePort");
        let mut errors = FieldErrors::new();
        errors.invalid(&path, number, why);
        return Err(Status::invalid(&GroupKind { group: String::new(), kind: "Service".into() }, name, &errors));
    }
    taken.ports.push(number);
    Ok(number)
}

fn any(used: &mut Used, taken: &mut Reservation) -> Result<u16, Status> {
    let full = || Status::internal("failed to allocate a nodePort: range is full");
    let number = used.any_port().ok_or_else(full)?;
    taken.ports.push(number);
    Ok(number)
}

/// The port on which nodes tell load balancers whether they have an endpoint of their own.
fn take_health_port(used: &mut Used, spec: &mut Value, had: &[u16], taken: &mut Reservation) -> Result<(), Status> {
    match number(&spec["healthCheckNodePort"]) {
        Some(asked) if had.contains(&asked) => {}
        Some(asked) => {
            used.claim_port(asked, taken.dry_run).map_err(|why| {
                Status::internal(format!("failed to allocate requested HealthCheck NodePort {asked}: {why}"))
            })?;
            taken.ports.push(asked);
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
