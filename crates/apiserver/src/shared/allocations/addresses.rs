//! Cluster IPs of a Service: which families, which addresses.
use std::net::IpAddr;

use kelson_meta::tree::items;
use kelson_meta::{FieldErrors, FieldPath};
use serde_json::{Value, json};

use super::pools::{Reservation, Used};
use super::ranges::Ranges;

fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// Fills in `ipFamilyPolicy` and `ipFamilies` from the request and the configured families.
pub(super) fn families(own: &[&'static str], service: &mut Value, old: &Value) {
    let spec = &mut service["spec"];
    if spec["type"] == "ExternalName" {
        return;
    }
    let headless = spec["clusterIP"] == "None" || spec["clusterIPs"][0] == "None";
    let selects = spec["selector"].as_object().is_some_and(|s| !s.is_empty());
    if spec["ipFamilyPolicy"].is_null() {
        let dual = items(&spec["ipFamilies"]).len() == 2 || items(&spec["clusterIPs"]).len() == 2;
        let policy = if dual || (headless && !selects && old.is_null()) { "RequireDualStack" } else { "SingleStack" };
        spec["ipFamilyPolicy"] = policy.into();
    }
    let dual = spec["ipFamilyPolicy"] != "SingleStack";
    if items(&spec["ipFamilies"]).is_empty() {
        let asked: Vec<IpAddr> = items(&spec["clusterIPs"]).iter().filter_map(|v| v.as_str()?.parse().ok()).collect();
        let first = asked.first().map_or(own[0], family);
        let mut all = vec![first];
        let other = if first == "IPv4" { "IPv6" } else { "IPv4" };
        let anywhere = headless && !selects;
        if dual && (own.contains(&other) || anywhere) {
            all.push(other);
        }
        spec["ipFamilies"] = json!(all);
    } else if dual && items(&spec["ipFamilies"]).len() == 1 && (own.len() == 2 || (headless && !selects)) {
        let other = if spec["ipFamilies"][0] == "IPv4" { "IPv6" } else { "IPv4" };
        spec["ipFamilies"] = json!([spec["ipFamilies"][0], other]);
    } else if !dual && items(&spec["ipFamilies"]).len() == 2 && !old.is_null() {
        spec["ipFamilies"] = json!([spec["ipFamilies"][0]]);
    }
}

/// The addresses that a Service requests, one for each of its families.
fn named_ips(spec: &Value) -> Vec<String> {
    let listed = items(&spec["clusterIPs"]).iter().filter_map(Value::as_str);
    let named: Vec<String> = listed.filter(|s| !s.is_empty()).map(str::to_owned).collect();
    match spec["clusterIP"].as_str() {
        Some(one) if named.is_empty() && !one.is_empty() => vec![one.to_owned()],
        _ => named,
    }
}

/// Whether `clusterIP` and the first of `clusterIPs` are both set and differ.
fn first_addresses_differ(spec: &Value) -> bool {
    let given = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let (one, first) = (given(&spec["clusterIP"]), given(&spec["clusterIPs"][0]));
    one.is_some() && first.is_some() && one != first
}

/// Reports a family that the cluster does not have, or that does not exist.
fn report_unserved_family(family: &str, path: &FieldPath, errors: &mut FieldErrors) {
    if ["IPv4", "IPv6"].contains(&family) {
        errors.invalid(path, family, "not configured on this cluster");
    } else {
        errors.not_supported(path, family, &["IPv4", "IPv6"]);
    }
}

/// Takes the cluster IPs that a Service requests, and free ones where it requests any.
pub(super) fn take_ips(
    used: &mut Used,
    ranges: &Ranges<'_>,
    service: &mut Value,
    had: &[IpAddr],
    taken: &mut Reservation,
    errors: &mut FieldErrors,
) {
    let path = FieldPath::new("spec").child("clusterIPs");
    let spec = &mut service["spec"];
    if spec["type"] == "ExternalName" {
        return;
    }
    if had.is_empty() && first_addresses_differ(spec) {
        errors.invalid(&path, &spec["clusterIPs"], "first value must match `clusterIP`");
        return;
    }
    if spec["clusterIP"] == "None" || spec["clusterIPs"][0] == "None" {
        spec["clusterIP"] = "None".into();
        spec["clusterIPs"] = json!(["None"]);
        return;
    }
    let asked = named_ips(spec);
    let families: Vec<String> =
        items(&spec["ipFamilies"]).iter().map(|v| v.as_str().unwrap_or("").to_owned()).collect();
    let shown = asked.clone();
    let mut all: Vec<String> = Vec::new();
    for (i, family) in families.iter().enumerate() {
        if !ranges.families().contains(&family.as_str()) {
            if spec["ipFamilyPolicy"] == "PreferDualStack" && i > 0 {
                continue;
            }
            let path = FieldPath::new("spec").child("ipFamilies").index(i);
            report_unserved_family(family, &path, errors);
            return;
        }
        match asked.get(i) {
            Some(text) => {
                let Ok(ip) = text.parse::<IpAddr>() else { return };
                // A changed address is rejected later, by validation.
                if i >= had.len() && !had.contains(&ip) {
                    if let Err(why) = ranges.claim(family, ip, &mut used.ips) {
                        errors.invalid(&path, &shown, format!("failed to allocate IP {ip}: {why}"));
                        return;
                    }
                    taken.ips.push(ip);
                }
                all.push(text.clone());
            }
            None => match ranges.any(family, &mut used.ips) {
                Some(ip) => {
                    taken.ips.push(ip);
                    all.push(ip.to_string());
                }
                None => {
                    errors.invalid(&path, &shown, "failed to allocate IP: range is full");
                    return;
                }
            },
        }
    }
    if all.len() == 1 && spec["ipFamilyPolicy"] == "PreferDualStack" {
        spec["ipFamilies"] = json!([families[0]]);
    }
    if let Some(first) = all.first() {
        spec["clusterIP"] = first.as_str().into();
        spec["clusterIPs"] = json!(all);
    }
}
