//! Validates resource requirements.
use std::collections::BTreeSet;

use kelson_meta::{Quantity, is_qualified_name};
use serde_json::Value;

use super::context::Pod;
use crate::path::{Errors, Path};
use crate::rules;
use crate::tree::{entries, items, present, text};

const STANDARD: &[&str] =
    &["cpu", "memory", "ephemeral-storage", "storage", "pods", "services", "secrets", "configmaps"];
/// Names that are only used in quotas.
const OF_QUOTAS: &[&str] = &[
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "resourcequotas",
    "replicationcontrollers",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];
const POD_LEVEL: &[&str] = &["cpu", "hugepages-", "memory"];

/// Reports whether a resource is huge pages of some size.
fn huge(name: &str) -> bool {
    name.starts_with("hugepages-")
}
fn native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}
/// Reports whether a resource's name needs no domain.
pub fn is_standard(name: &str) -> bool {
    huge(name) || STANDARD.contains(&name) || OF_QUOTAS.contains(&name)
}
/// Reports whether requests may differ from limits.
pub fn overcommit(name: &str) -> bool {
    native(name) && !huge(name)
}
/// Reports whether a name is an extended resource: `vendor.example/thing`, not in kubernetes.io and without the quota
/// prefix.
fn extended(name: &str) -> bool {
    !native(name) && !name.starts_with("requests.") && is_qualified_name(&format!("requests.{name}")).is_ok()
}

/// Validates the name of a resource that a container may request.
pub fn container_resource_name(name: &str, p: &Path<'_>, e: &mut Errors) {
    if let Err(why) = is_qualified_name(name) {
        return e.invalid_each(p, name, Err(why));
    }
    if name.contains('/') {
        if !native(name) && !extended(name) {
            e.invalid(p, name, "doesn't follow extended resource name standard");
        }
    } else if huge(name) || matches!(name, "cpu" | "memory" | "ephemeral-storage") {
    } else if STANDARD.contains(&name) {
        e.invalid(p, name, "must be a standard resource for containers");
    } else {
        e.invalid(p, name, "must be a standard resource type or fully qualified");
        e.invalid(p, name, "must be a standard resource for containers");
    }
}

/// Validates a quantity: not negative, and an integer for countable resources.
pub fn value(name: &str, v: &Value, p: &Path<'_>, e: &mut Errors) -> Option<Quantity> {
    let q = rules::quantity(v, p, e)?;
    if q.signum() < 0 {
        e.invalid(p, v, rules::NOT_NEGATIVE);
    }
    let whole = extended(name) || matches!(name, "pods" | "services" | "secrets" | "configmaps");
    if whole && q.nanos() % 1_000_000_000 != 0 {
        e.invalid(p, v, "must be an integer");
    }
    Some(q)
}

/// Validates limits and requests of a container.
pub fn of_container(r: &Value, p: &Path<'_>, e: &mut Errors) {
    requirements(r, container_resource_name, p, e);
}

/// Validates `resources` of a container.
pub fn container(r: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    of_container(r, p, e);
    claims(&r["claims"], &pod.claims, &p.child("claims"), e);
}

fn requirements(r: &Value, name_rule: fn(&str, &Path<'_>, &mut Errors), p: &Path<'_>, e: &mut Errors) {
    if !present(r) {
        return;
    }
    let (limits, requests) = (p.child("limits"), p.child("requests"));
    let (mut compute, mut pages) = (false, false);
    for (k, v) in entries(&r["limits"]) {
        let at = limits.key(k);
        name_rule(k, &at, e);
        if let Some(q) = value(k, v, &at, e) {
            divisible(k, q, v, &at, e);
        }
        compute |= matches!(k.as_str(), "cpu" | "memory");
        pages |= huge(k);
    }
    for (k, v) in entries(&r["requests"]) {
        let at = requests.key(k);
        name_rule(k, &at, e);
        let q = value(k, v, &at, e);
        let limit = &r["limits"][k.as_str()];
        let parsed = limit.as_str().and_then(|s| s.parse::<Quantity>().ok());
        match (q, parsed) {
            (Some(q), Some(l)) if q != l && !overcommit(k) => {
                e.invalid(&requests, q.to_string(), format!("must be equal to {k} limit of {l}"));
            }
            (Some(q), Some(l)) if q > l => {
                e.invalid(&requests, q.to_string(), format!("must be less than or equal to {k} limit of {l}"));
            }
            _ if !present(limit) && !overcommit(k) => {
                e.required(&limits, "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
        if let Some(q) = q {
            divisible(k, q, v, &at, e);
        }
        compute |= matches!(k.as_str(), "cpu" | "memory");
        pages |= huge(k);
    }
    if pages && !compute {
        e.forbidden(p, "HugePages require cpu or memory");
    }
}

fn divisible(name: &str, q: Quantity, v: &Value, p: &Path<'_>, e: &mut Errors) {
    let Some(size) = name.strip_prefix("hugepages-").and_then(|s| s.parse::<Quantity>().ok()) else { return };
    if size.signum() <= 0 || q.nanos() % size.nanos() != 0 {
        e.invalid(p, v, format!("{q} is not positive integer multiple of {name}"));
    }
}

fn claims(list: &Value, known: &BTreeSet<&str>, p: &Path<'_>, e: &mut Errors) {
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (i, c) in items(list).iter().enumerate() {
        let at = p.index(i);
        let (name, request) = (text(&c["name"]), text(&c["request"]));
        if name.is_empty() {
            e.required(&at, "");
            continue;
        }
        if !request.is_empty() {
            e.invalid_each(&at.child("request"), request, kelson_meta::is_dns1123_label(request));
        }
        if seen.iter().any(|(n, r)| *n == name && (r.is_empty() || request.is_empty() || *r == request)) {
            e.duplicate(&at, name);
        }
        seen.push((name, request));
        if !known.contains(name) {
            e.not_found(&at, name);
        }
    }
}

fn pod_level_name(name: &str, p: &Path<'_>, e: &mut Errors) {
    match is_qualified_name(name) {
        Err(why) => e.invalid_each(p, name, Err(why)),
        Ok(()) if !name.contains('/') && !is_standard(name) => {
            e.invalid(p, name, "must be a standard resource type or fully qualified");
        }
        Ok(()) if !matches!(name, "cpu" | "memory") && !huge(name) => e.not_supported(p, name, POD_LEVEL),
        Ok(()) => {}
    }
}

/// Validates `spec.resources` of the pod (KEP-2837).
pub fn pod_level(spec: &Value, claim_names: &BTreeSet<&str>, p: &Path<'_>, e: &mut Errors) {
    let r = &spec["resources"];
    if !present(r) {
        return;
    }
    if text(&spec["os"]["name"]) == "windows" {
        return e.forbidden(p, "may not be set for a windows pod");
    }
    if present(&r["claims"]) {
        e.forbidden(&p.child("claims"), "claims may not be set for Resources at pod-level");
    }
    claims(&r["claims"], claim_names, &p.child("claims"), e);
    requirements(r, pod_level_name, p, e);
    let quantity = |v: &Value| v.as_str().and_then(|s| s.parse::<Quantity>().ok());
    for (which, word) in [("requests", "requests"), ("limits", "limits")] {
        let at = p.child(which);
        for (k, total) in crate::pod::aggregate(spec, which) {
            if which == "limits" && !huge(&k) {
                continue;
            }
            let own = &r[which][k.as_str()];
            if let Some(q) = quantity(own)
                && total > q
            {
                let why = format!("must be greater than or equal to aggregate container {word} of {total}");
                e.invalid(&at.key(&k), own, why);
            }
        }
    }
    let containers = p.child("containers");
    for (i, c) in items(&spec["containers"]).iter().enumerate() {
        for (k, v) in entries(&c["resources"]["limits"]) {
            if let (Some(own), Some(q)) = (quantity(&r["limits"][k.as_str()]), quantity(v))
                && q > own
            {
                let at = containers.index(i);
                let key = at.key(k);
                e.invalid(&key.child("limits"), v, format!("must be less than or equal to pod limits of {own}"));
            }
        }
    }
}
