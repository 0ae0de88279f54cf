//! Addresses of pools in services: what a service asks for, and how its annotations and status show what it has.
use std::net::IpAddr;

use serde_json::{Value, json};

use super::choice::Assignment;
use super::pools::{AddressRequestError, PoolClaim, Shortage};
use crate::views::ServiceView;
use crate::views::condition::{self, Condition};

/// Names the node that announces a service's addresses; nodes read it (`kelson-announce`).
pub const ANNOUNCED_BY: &str = "servicelb.kelson.dev/announced-by";
/// Annotations of users of MetalLB with requested addresses, separated by commas: its current and its former name.
const REQUESTED: [&str; 2] = ["metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"];
/// The condition of a service that says whether it has its addresses.
const ALLOCATED: &str = "servicelb.kelson.dev/AddressAllocated";

/// Returns what a service has and wants of the pools, and what is wrong with its request. A service with such a mistake
/// wants any address, so that it keeps what it has.
pub fn claim(service: &ServiceView, is_ours: bool) -> (PoolClaim, Option<Shortage>) {
    let (requested, mistake) = match requested(service) {
        Ok(requested) => (requested, None),
        Err(error) => (Vec::new(), Some(Shortage::Invalid(error))),
    };
    let status = service.status.load_balancer.ingress.iter().filter_map(|i| i.ip.parse().ok()).collect();
    let families = match service.spec.ip_families.is_empty() {
        true => vec!["IPv4".to_owned()],
        false => service.spec.ip_families.clone(),
    };
    let (key, created) = (service.metadata.key(), service.metadata.creation_timestamp.clone());
    (PoolClaim { key, created, is_ours, families, requested, status }, mistake)
}

/// Returns the addresses that a service asks for.
fn requested(service: &ServiceView) -> Result<Vec<IpAddr>, AddressRequestError> {
    let annotations = &service.metadata.annotations;
    let annotated = REQUESTED.iter().find_map(|name| annotations.get(*name)).map(|value| value.to_string());
    let field = &service.spec.load_balancer_ip;
    let text = match annotated {
        Some(_) if !field.is_empty() => {
            return Err(AddressRequestError::Ambiguous { annotation: REQUESTED[0] });
        }
        Some(text) => text,
        None => field.clone(),
    };
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let parse = |word: &str| word.parse().map_err(|_| AddressRequestError::NotAnAddress(word.to_owned()));
    let all = words.map(parse).collect::<Result<Vec<IpAddr>, AddressRequestError>>()?;
    let of = |is_ipv4: bool| all.iter().filter(|ip| ip.is_ipv4() == is_ipv4).count();
    match of(true).max(of(false)) > 1 {
        true => Err(AddressRequestError::SeveralOfFamily),
        false => Ok(all),
    }
}

/// Returns the node that announces a service, as its annotation says.
pub fn announcer(service: &ServiceView) -> Option<&str> {
    service.metadata.annotations.get(ANNOUNCED_BY).map(|name| &**name)
}

/// Returns whether annotation and condition of a service are those of its assignment.
pub fn is_shown(service: &ServiceView, assignment: &Assignment) -> bool {
    let there = condition::find(&service.status.conditions, ALLOCATED);
    let has_condition = match (there, condition(assignment, "")) {
        (Some(there), Some(new)) => {
            (&there.status, &there.reason, &there.message) == (&new.status, &new.reason, &new.message)
        }
        (there, new) => there.is_none() && new.is_none(),
    };
    announcer(service) == assignment.announcer() && has_condition
}

fn condition(assignment: &Assignment, now: &str) -> Option<Condition> {
    let pooled = assignment.pooled.as_ref()?;
    let (status, reason, message) = match &pooled.shortage {
        Some(shortage) => ("False", shortage.reason(), shortage.to_string()),
        None => {
            let all: Vec<String> = assignment.addresses.iter().map(ToString::to_string).collect();
            ("True", "Allocated", format!("the service has {}", all.join(", ")))
        }
    };
    Some(Condition::new(ALLOCATED, status, reason, message, now))
}

/// Writes annotation and condition of an assignment into a service, and removes those of an earlier one. The transition time
/// changes with the status alone.
pub fn show(object: &mut Value, assignment: &Assignment, now: &str) {
    if let Some(map) = object["metadata"]["annotations"].as_object_mut() {
        map.remove(ANNOUNCED_BY);
    }
    if let Some(node) = assignment.announcer() {
        object["metadata"]["annotations"][ANNOUNCED_BY] = node.into();
    }
    let conditions = &mut object["status"]["conditions"];
    let mut all: Vec<Value> = conditions.as_array().cloned().unwrap_or_default();
    let before = all.iter().find(|c| c["type"] == ALLOCATED).cloned();
    all.retain(|c| c["type"] != ALLOCATED);
    if let Some(new) = condition(assignment, now) {
        let mut new = json!(new);
        if let Some(before) = before.filter(|before| before["status"] == new["status"]) {
            new["lastTransitionTime"] = before["lastTransitionTime"].clone();
        }
        all.push(new);
    }
    if !all.is_empty() {
        *conditions = all.into();
    } else if let Some(status) = object["status"].as_object_mut() {
        status.remove("conditions");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_addresses_by_field_or_annotation() {
        let asked = |field: &str, annotation: &str, value: &str| {
            let mut object = json!({"metadata": {"name": "web"}, "spec": {"loadBalancerIP": field}});
            if !annotation.is_empty() {
                object["metadata"]["annotations"] = json!({annotation: value});
            }
            let service: ServiceView = serde_json::from_value(object).unwrap();
            requested(&service).map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(asked("", "", ""), Ok(String::new()));
        assert_eq!(asked("192.0.2.1", "", ""), Ok("192.0.2.1".into()));
        for name in REQUESTED {
            assert_eq!(asked("", name, "192.0.2.1, 2001:db8::1"), Ok("192.0.2.1 2001:db8::1".into()));
        }
        for (field, annotation, value, why) in [
            ("192.0.2.1", REQUESTED[0], "192.0.2.1", "must not both be set"),
            ("", REQUESTED[1], "192.0.2.1,192.0.2.2", "at most one address of each family"),
            ("web", "", "", "must be an IP address"),
        ] {
            assert!(asked(field, annotation, value).unwrap_err().to_string().contains(why), "{why}");
        }
    }
}
