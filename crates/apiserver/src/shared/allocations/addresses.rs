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

/// Fills in `ipFamilyPolicy` and `ipFamilies` from the request and the configured families, of which the first is the default. Reports what
/// contradicts itself or the cluster (upstream `initIPFamilyFields`).
pub(super) fn families(own: &[&'static str], service: &mut Value, old: &Value, errors: &mut FieldErrors) {
    let (spec, old) = (&mut service["spec"], &old["spec"]);
    if spec["type"] == "ExternalName" || keeps_preference(spec, old) {
        return;
    }
    // Without addresses and without pods, such a Service may have families that the cluster does not have.
    let is_free = is_headless(spec) && !spec["selector"].as_object().is_some_and(|s| !s.is_empty());
    if spec["ipFamilyPolicy"].is_null() {
        let default = if is_free { "RequireDualStack" } else { "SingleStack" };
        spec["ipFamilyPolicy"] = old["ipFamilyPolicy"].as_str().unwrap_or(default).into();
    }
    check_policy(spec, old, errors);
    infer_families(own, spec, errors);
    if !errors.is_empty() {
        return;
    }
    let is_dual = spec["ipFamilyPolicy"] != "SingleStack";
    let mut all: Vec<String> = listed(&spec["ipFamilies"]);
    let path = FieldPath::new("spec");
    if !is_free {
        if spec["ipFamilyPolicy"] == "RequireDualStack" && own.len() < 2 {
            let why = "this cluster is not configured for dual-stack services";
            errors.invalid(&path.child("ipFamilyPolicy"), &spec["ipFamilyPolicy"], why);
        }
        for (i, family) in all.iter().enumerate().filter(|(_, family)| !own.contains(&family.as_str())) {
            report_unserved_family(family, &path.child("ipFamilies").index(i), errors);
        }
        if !errors.is_empty() {
            return;
        }
    }
    if all.is_empty() {
        all.extend(own.first().map(|default| (*default).to_owned()));
    }
    if is_dual && all.len() == 1 && (is_free || own.len() == 2) {
        let other = if all[0] == "IPv4" { "IPv6" } else { "IPv4" };
        all.push(other.to_owned());
    }
    spec["ipFamilies"] = json!(all);
}

fn is_headless(spec: &Value) -> bool {
    spec["clusterIP"] == "None" || spec["clusterIPs"][0] == "None"
}

fn listed(list: &Value) -> Vec<String> {
    items(list).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Whether an update leaves a Service that prefers two families as it is. Such a Service does not gain or lose a family because the cluster
/// did.
fn keeps_preference(spec: &Value, old: &Value) -> bool {
    let prefers = |policy: &Value| policy == "PreferDualStack";
    prefers(&spec["ipFamilyPolicy"])
        && (prefers(&old["ipFamilyPolicy"]) || old["ipFamilyPolicy"].is_null())
        && matches!(spec["type"].as_str(), Some("ClusterIP" | "NodePort" | "LoadBalancer"))
        && spec["type"] == old["type"]
        && ["clusterIPs", "ipFamilies"].iter().all(|field| listed(&spec[*field]) == listed(&old[*field]))
}

/// Reports a policy that contradicts the families and addresses of the request. A Service that becomes one of a single family releases the
/// second one.
fn check_policy(spec: &mut Value, old: &Value, errors: &mut FieldErrors) {
    const FIELDS: [(&str, &str, &str); 2] =
        [("clusterIPs", "cluster IPs", "cluster IP"), ("ipFamilies", "IP families", "IP family")];
    let path = FieldPath::new("spec").child("ipFamilyPolicy");
    for (field, all, one) in FIELDS {
        let (now, before) = (listed(&spec[field]), listed(&old[field]));
        let is_single = spec["ipFamilyPolicy"] == "SingleStack";
        let why = if is_single && now.len() == 2 && now == before {
            spec[field] = json!(now[..1]);
            continue;
        } else if is_single && now.len() == 2 {
            format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {all} are specified")
        } else if !is_single && !now.is_empty() && now.len() < before.len() {
            format!("must be 'SingleStack' to release the secondary {one}")
        } else {
            continue;
        };
        errors.invalid(&path, &spec["ipFamilyPolicy"], why);
    }
}

/// Adds the families of requested addresses to `ipFamilies`.
fn infer_families(own: &[&'static str], spec: &mut Value, errors: &mut FieldErrors) {
    let mut all = listed(&spec["ipFamilies"]);
    let asked = named_ips(spec);
    for (i, ip) in asked.iter().enumerate().skip(all.len()) {
        let Ok(ip) = ip.parse::<IpAddr>() else { break };
        let family = family(&ip);
        if own.contains(&family) {
            all.push(family.to_owned());
        } else {
            let path = FieldPath::new("spec").child("clusterIPs").index(i);
            errors.invalid(&path, &asked, format!("{family} is not configured on this cluster"));
        }
    }
    if !all.is_empty() {
        spec["ipFamilies"] = json!(all);
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
    if is_headless(spec) {
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
        if let Some(kept) = asked.get(i).filter(|text| text.parse::<IpAddr>().is_ok_and(|ip| had.contains(&ip))) {
            // The cluster may have lost the family since.
            all.push(kept.clone());
            continue;
        }
        match asked.get(i) {
            Some(text) => {
                let Ok(ip) = text.parse::<IpAddr>() else { return };
                // A changed address is rejected later, by validation.
                if i >= had.len() {
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
    if let Some(first) = all.first() {
        spec["clusterIP"] = first.as_str().into();
        spec["clusterIPs"] = json!(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_prefers_two_families_keeps_what_it_has_when_the_cluster_changes() {
        let service = |ips: Value, families: Value| {
            let policy = "PreferDualStack";
            json!({"spec": {"type": "ClusterIP", "ipFamilyPolicy": policy, "clusterIPs": ips, "ipFamilies": families}})
        };
        let one = service(json!(["10.0.0.1"]), json!(["IPv4"]));
        let two = service(json!(["10.0.0.1", "fd00::1"]), json!(["IPv4", "IPv6"]));
        for (own, stored) in [(&["IPv4", "IPv6"][..], &one), (&["IPv4"][..], &two)] {
            let (mut updated, mut errors) = (stored.clone(), FieldErrors::new());
            families(own, &mut updated, stored, &mut errors);
            assert!(errors.is_empty(), "{errors}");
            assert_eq!(updated, *stored);
        }
        let (mut created, mut errors) = (service(Value::Null, json!(["IPv4"])), FieldErrors::new());
        families(&["IPv4", "IPv6"], &mut created, &Value::Null, &mut errors);
        assert_eq!(created["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
        let (mut single, mut errors) = (two.clone(), FieldErrors::new());
        single["spec"]["ipFamilyPolicy"] = "SingleStack".into();
        families(&["IPv4", "IPv6"], &mut single, &two, &mut errors);
        assert!(errors.is_empty(), "{errors}");
        assert_eq!(
            (&single["spec"]["clusterIPs"], &single["spec"]["ipFamilies"]),
            (&json!(["10.0.0.1"]), &json!(["IPv4"]))
        );
    }
}
