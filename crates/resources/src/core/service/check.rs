//! Validates a Service's spec.
use std::collections::BTreeSet;

use kelson_meta::{is_dns1123_label, is_dns1123_subdomain, is_qualified_name};
use serde_json::{Value, json};

use super::spec::{INTERNAL_POLICIES, headless, needs_health_port};
use crate::path::{Errors, GoStruct, Path};
use crate::tree::{empty, int0, items, present, text};
use crate::{addresses, metadata, rules};

pub(super) const AFFINITY_SECONDS_MAX: i64 = 86_400;

/// Validates the spec of a service; `old` is its previous spec, or null for a new one.
pub(super) fn check_spec(spec: &Value, old: &Value, e: &mut Errors) {
    let p = Path::new("spec");
    let kind = text(&spec["type"]);
    let ports = items(&spec["ports"]);
    if ports.is_empty() && !headless(spec) && kind != "ExternalName" {
        e.required(&p.child("ports"), "");
    }
    if headless(spec) && matches!(kind, "LoadBalancer" | "NodePort") {
        let list = p.child("clusterIPs");
        e.invalid(&list.index(0), "None", format!("may not be set to 'None' for {kind} services"));
    }
    if kind == "ExternalName" {
        check_external_name(spec, &p, e);
    }
    check_ports(spec, kind, &p.child("ports"), e);
    metadata::labels(&spec["selector"], &p.child("selector"), e);
    rules::one_of(&spec["sessionAffinity"], &p.child("sessionAffinity"), &["ClientIP", "None"], e);
    if text(&spec["sessionAffinity"]) == "ClientIP" {
        let at = p.child("sessionAffinityConfig");
        let ip = at.child("clientIP");
        let seconds = &spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
        if !present(seconds) {
            e.required(&ip.child("timeoutSeconds"), "");
        } else if !(1..=AFFINITY_SECONDS_MAX).contains(&int0(seconds)) {
            let why = format!("must be greater than 0 and less than {AFFINITY_SECONDS_MAX}");
            e.invalid(&ip.child("timeoutSeconds"), int0(seconds), why);
        }
    }
    check_addresses(spec, old, &p, e);
    rules::one_of(&spec["type"], &p.child("type"), &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], e);
    check_load_balancer(spec, old, kind, &p, e);
    check_policies(spec, kind, &p, e);
}

pub(super) fn check_external_name(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    for f in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        // A policy that is present counts, even if it is empty.
        if !empty(&spec[f]) || f == "ipFamilyPolicy" && present(&spec[f]) {
            e.forbidden(&p.child(f), "may not be set for ExternalName services");
        }
    }
    let cname = text(&spec["externalName"]);
    let cname = cname.strip_suffix('.').unwrap_or(cname);
    if cname.is_empty() {
        e.required(&p.child("externalName"), "");
    } else {
        e.invalid_each(&p.child("externalName"), cname, is_dns1123_subdomain(cname));
    }
}

pub(super) fn check_ports(spec: &Value, kind: &str, p: &Path<'_>, e: &mut Errors) {
    let ports = items(&spec["ports"]);
    let mut names = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = p.index(i);
        let n = text(&port["name"]);
        if n.is_empty() {
            if ports.len() > 1 {
                e.required(&at.child("name"), "");
            }
        } else {
            e.invalid_each(&at.child("name"), n, is_dns1123_label(n));
            if !names.insert(n) {
                e.duplicate(&at.child("name"), n);
            }
        }
        rules::port(&port["port"], &at.child("port"), e);
        rules::one_of(&port["protocol"], &at.child("protocol"), &["SCTP", "TCP", "UDP"], e);
        rules::port_or_name(&port["targetPort"], &at.child("targetPort"), e);
        if let Some(app) = port["appProtocol"].as_str() {
            e.invalid_each(&at.child("appProtocol"), app, is_qualified_name(app));
        }
        if kind == "ClusterIP" && int0(&port["nodePort"]) != 0 {
            e.forbidden(&at.child("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
    }
    let (mut node_ports, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (i, port) in ports.iter().enumerate() {
        let at = p.index(i);
        let node = int0(&port["nodePort"]);
        if node != 0 && !node_ports.insert((text(&port["protocol"]), node)) {
            e.duplicate(&at.child("nodePort"), node);
        }
        if !numbers.insert((text(&port["protocol"]), int0(&port["port"]))) {
            let (none, zero) = (Value::Null, json!(0));
            e.duplicate(
                &at,
                GoStruct([
                    ("Name", &json!("")),
                    ("Protocol", &port["protocol"]),
                    ("AppProtocol", &none),
                    ("Port", &port["port"]),
                    ("TargetPort", &zero),
                    ("NodePort", &zero),
                ]),
            );
        }
    }
}

pub(super) fn check_addresses(spec: &Value, old: &Value, p: &Path<'_>, e: &mut Errors) {
    let kept = |f: &str| items(&old[f]).iter().map(text).collect::<Vec<_>>();
    let externals = p.child("externalIPs");
    for (i, ip) in items(&spec["externalIPs"]).iter().map(text).enumerate() {
        let at = externals.index(i);
        let faults = e.len();
        addresses::ip(ip, &kept("externalIPs"), &at, e);
        if e.len() == faults {
            crate::core::endpoint_ip(ip, &at, e);
        }
    }
    check_families(spec, old, e);
}

/// Validates cluster addresses and their families, before any address is allocated (upstream
/// `ValidateServiceClusterIPsRelatedFields`).
pub(super) fn check_families(spec: &Value, old: &Value, e: &mut Errors) {
    if text(&spec["type"]) == "ExternalName" {
        return;
    }
    let p = Path::new("spec");
    let kept = |f: &str| items(&old[f]).iter().map(text).collect::<Vec<_>>();
    let list = p.child("clusterIPs");
    let (one, ips) = (text(&spec["clusterIP"]), items(&spec["clusterIPs"]));
    match (one.is_empty(), ips.first().map(text)) {
        (false, None) => e.required(&list, ""),
        (false, Some(first)) if first != one => e.invalid(&list, ips, "first value must match `clusterIP`"),
        (true, Some(_)) => e.invalid(&list, ips, "must be empty when `clusterIP` is not specified"),
        _ => {}
    }
    let families = items(&spec["ipFamilies"]);
    let at = p.child("ipFamilies");
    for (i, f) in families.iter().enumerate() {
        if !matches!(text(f), "IPv4" | "IPv6") {
            e.not_supported(&at.index(i), f, &["IPv4", "IPv6"]);
        }
        if families[..i].contains(f) {
            e.duplicate(&at.index(i), f);
        }
    }
    rules::optional_one_of(
        &spec["ipFamilyPolicy"],
        &p.child("ipFamilyPolicy"),
        &["PreferDualStack", "RequireDualStack", "SingleStack"],
        e,
    );
    check_cluster_ips(ips, families, &kept("clusterIPs"), &list, e);
}

pub(super) fn check_cluster_ips(ips: &[Value], families: &[Value], kept: &[&str], list: &Path<'_>, e: &mut Errors) {
    let before = e.len();
    for (i, ip) in ips.iter().map(text).enumerate() {
        if i == 0 && ip == "None" {
            if ips.len() > 1 {
                e.invalid(list, ips, "'None' must be the first and only value");
            }
        } else {
            addresses::ip(ip, kept, &list.index(i), e);
        }
    }
    if ips.len() > 2 {
        e.invalid(list, ips, "may only hold up to 2 values");
    }
    if e.len() > before {
        return;
    }
    let is_v4: Vec<bool> = ips.iter().filter_map(|i| addresses::parse_ip(text(i))).map(|i| i.is_ipv4()).collect();
    if is_v4.len() == 2 && is_v4[0] == is_v4[1] {
        e.invalid(list, ips, "may specify no more than one IP for each IP family");
    }
    for (i, (v4, family)) in is_v4.iter().zip(families).enumerate() {
        let family = text(family);
        if matches!(family, "IPv4" | "IPv6") && (family == "IPv4") != *v4 {
            e.invalid(&list.index(i), &ips[i], format!("expected an {family} value as indicated by `ipFamilies[{i}]`"));
        }
    }
}

pub(super) fn check_addresses_update(new: &Value, old: &Value, e: &mut Errors) {
    let external = |s: &Value| text(&s["type"]) == "ExternalName";
    if external(new) || external(old) || (headless(new) && headless(old)) {
        return;
    }
    let spec = Path::new("spec");
    let list = spec.child("clusterIPs");
    let (n, o) = (items(&new["clusterIPs"]), items(&old["clusterIPs"]));
    if n.len() == o.len() {
        for (i, (a, b)) in n.iter().zip(o).enumerate() {
            if a != b {
                e.invalid(&list.index(i), n, "may not change once set");
            }
        }
    } else if n.len() < o.len() && n.is_empty() {
        e.invalid(&list.index(0), n, "primary clusterIP can not be unset");
    } else if !o.is_empty() && n[0] != o[0] {
        e.invalid(&list.index(0), n, "may not change once set");
    } else if n.len() < o.len() && text(&new["ipFamilyPolicy"]) != "SingleStack" {
        e.invalid(
            &spec.child("ipFamilyPolicy"),
            &new["ipFamilyPolicy"],
            "must be set to 'SingleStack' when releasing the secondary clusterIP",
        );
    }
    if headless(new) || headless(old) {
        return;
    }
    let (n, o) = (items(&new["ipFamilies"]), items(&old["ipFamilies"]));
    let at = spec.child("ipFamilies");
    if n.len() == o.len() {
        if n != o {
            e.invalid(&at.index(0), n, "may not change once set");
        }
    } else if let (Some(a), Some(b)) = (n.first(), o.first())
        && a != b
    {
        e.invalid(&at.index(0), n, "may not change once set");
    }
}

pub(super) fn check_load_balancer(spec: &Value, old: &Value, kind: &str, p: &Path<'_>, e: &mut Errors) {
    let balanced = kind == "LoadBalancer";
    let only = "may only be used when `type` is 'LoadBalancer'";
    let at = p.child("LoadBalancerSourceRanges");
    let ranges = items(&spec["loadBalancerSourceRanges"]);
    let kept: Vec<&str> = items(&old["loadBalancerSourceRanges"]).iter().map(text).collect();
    if !ranges.is_empty() && !balanced {
        e.forbidden(&at, only);
    }
    for (i, r) in ranges.iter().enumerate() {
        addresses::cidr(text(r).trim(), &kept, &at.index(i), e);
    }
    if present(&spec["allocateLoadBalancerNodePorts"]) && !balanced {
        e.forbidden(&p.child("allocateLoadBalancerNodePorts"), only);
    }
    if let Some(class) = spec["loadBalancerClass"].as_str() {
        if balanced {
            e.invalid_each(&p.child("loadBalancerClass"), class, is_qualified_name(class));
        } else {
            e.forbidden(&p.child("loadBalancerClass"), only);
        }
    }
}

pub(super) fn check_policies(spec: &Value, kind: &str, p: &Path<'_>, e: &mut Errors) {
    let external = &spec["externalTrafficPolicy"];
    let at = p.child("externalTrafficPolicy");
    let accessible =
        matches!(kind, "LoadBalancer" | "NodePort") || (kind == "ClusterIP" && !items(&spec["externalIPs"]).is_empty());
    if accessible {
        rules::one_of(external, &at, &["Cluster", "Local"], e);
    } else if !empty(external) {
        e.invalid(&at, external, "may only be set for externally-accessible services");
    }
    let check = int0(&spec["healthCheckNodePort"]);
    if needs_health_port(spec) {
        if !(0..=65535).contains(&check) {
            e.invalid(&p.child("healthCheckNodePort"), check, "must be a valid port");
        }
    } else if check != 0 {
        e.invalid(
            &p.child("healthCheckNodePort"),
            check,
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        );
    }
    let internal = &spec["internalTrafficPolicy"];
    if present(internal) {
        rules::optional_one_of(internal, &p.child("internalTrafficPolicy"), &INTERNAL_POLICIES, e);
    } else if kind != "ExternalName" {
        e.required(&p.child("internalTrafficPolicy"), "");
    }
    rules::optional_one_of(
        &spec["trafficDistribution"],
        &p.child("trafficDistribution"),
        &["PreferClose", "PreferSameZone", "PreferSameNode"],
        e,
    );
}
