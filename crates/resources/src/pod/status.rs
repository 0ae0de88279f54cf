//! Validates a pod's status, which kubelets write (upstream `ValidatePodStatusUpdate`).
use std::collections::BTreeSet;

use kelson_meta::{is_dns1123_label, is_dns1123_subdomain, is_qualified_name};
use serde_json::Value;

use super::update::own_annotations;
use crate::addresses;
use crate::metadata::immutable;
use crate::path::{Errors, Path};
use crate::rules;
use crate::tree::{entries, int0, items, present, text};

/// Containers and their statuses, by the names of the lists.
const CONTAINERS: [(&str, &str); 3] = [
    ("containers", "containerStatuses"),
    ("initContainers", "initContainerStatuses"),
    ("ephemeralContainers", "ephemeralContainerStatuses"),
];
const HEALTH_MESSAGE_MAX: usize = 1024;

/// Synchronizes the old single-address fields and the new lists: the old field is used, since older nodes only know
/// that one.
pub fn agree(status: &mut Value) {
    let (one, many) = (text(&status["podIP"]), items(&status["podIPs"]));
    if one.is_empty() {
        if let Some(first) = many.first().map(|ip| text(&ip["ip"]).to_owned()).filter(|ip| !ip.is_empty()) {
            crate::tree::set(status, "podIP", first);
        }
    } else if many.first().is_none_or(|ip| text(&ip["ip"]) != one) {
        let list = serde_json::json!([{"ip": one}]);
        crate::tree::set(status, "podIPs", list);
    }
}

/// Validates the status of a pod, given the old pod.
pub fn check(new: &Value, old: &Value, e: &mut Errors) {
    let p = Path::new("status");
    let (n, o) = (&new["status"], &old["status"]);
    let meta = Path::new("metadata");
    own_annotations(new, old, &meta.child("annotations"), e);
    conditions(&n["conditions"], &p.child("conditions"), e);
    let nominated = text(&n["nominatedNodeName"]);
    if !nominated.is_empty() && nominated != text(&o["nominatedNodeName"]) {
        let at = p.child("nominatedNodeName");
        e.invalid_each(&at, nominated, is_dns1123_subdomain(nominated));
        if !text(&old["spec"]["nodeName"]).is_empty() {
            e.forbidden(&at, "may not be set on pods that are already bound to a node");
        }
    }
    not_negative(&n["observedGeneration"], &p.child("observedGeneration"), e);
    immutable(&n["qosClass"], &o["qosClass"], &p.child("qosClass"), e);
    for (containers, statuses) in CONTAINERS {
        transitions(containers, &n[statuses], &o[statuses], &old["spec"], &p.child(statuses), e);
    }
    claims(&n["resourceClaimStatuses"], &new["spec"], &p.child("resourceClaimStatuses"), e);
    extended_claim(&n["extendedResourceClaimStatus"], &new["spec"], &p.child("extendedResourceClaimStatus"), e);
    pod_addresses(n, o, &p, e);
    host_addresses(n, o, &p, e);
    let os = text(&new["spec"]["os"]["name"]);
    for (containers, statuses) in CONTAINERS {
        let list = p.child(statuses);
        for (i, status) in items(&n[statuses]).iter().enumerate() {
            let at = list.index(i);
            user(&status["user"], os, &at.child("user"), e);
            let allocated = at.child("allocatedResourcesStatus");
            if containers != "ephemeralContainers" {
                let container = items(&new["spec"][containers]).iter().find(|c| c["name"] == status["name"]);
                allocated_resources(&status["allocatedResourcesStatus"], container, &allocated, e);
            } else if !items(&status["allocatedResourcesStatus"]).is_empty() {
                e.forbidden(&allocated, "must not be specified in container status");
            }
        }
    }
}

fn not_negative(v: &Value, p: &Path<'_>, e: &mut Errors) {
    if int0(v) < 0 {
        e.invalid(p, v, "must be a non-negative integer");
    }
}

fn conditions(list: &Value, p: &Path<'_>, e: &mut Errors) {
    for (i, c) in items(list).iter().enumerate() {
        let at = p.index(i);
        not_negative(&c["observedGeneration"], &at.child("observedGeneration"), e);
        let kind = text(&c["type"]);
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            e.invalid_each(&at.child("Type"), kind, is_qualified_name(kind));
        }
    }
}

/// Checks that a terminated container only starts again if it may be restarted.
fn transitions(containers: &str, new: &Value, old: &Value, spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let ephemeral = containers == "ephemeralContainers";
    let rules =
        |list: &str| items(&spec[list]).iter().flat_map(|c| items(&c["restartPolicyRules"])).collect::<Vec<_>>();
    let all_may_restart = [rules("containers"), rules("initContainers")].concat();
    if !ephemeral && all_may_restart.iter().any(|rule| text(&rule["action"]) == "RestartAllContainers") {
        return;
    }
    for (i, was) in items(old).iter().enumerate() {
        let ended = &was["state"]["terminated"];
        if !present(ended) {
            continue;
        }
        let now = items(new).iter().find(|s| s["name"] == was["name"]);
        if now.is_none_or(|s| present(&s["state"]["terminated"])) {
            continue;
        }
        let container = items(&spec[containers]).iter().find(|c| c["name"] == was["name"]);
        let restarts = !ephemeral && container.is_some_and(|c| restarts(c, spec, int0(&ended["exitCode"])));
        if !restarts {
            e.forbidden(&p.index(i).child("state"), "may not be transitioned to non-terminated state");
        }
    }
}

/// Reports whether a container that exited with this code is restarted, by its own rules or else by the pod's policy
/// (KEP-5307).
fn restarts(container: &Value, spec: &Value, code: i64) -> bool {
    let policy =
        if present(&container["restartPolicy"]) { &container["restartPolicy"] } else { &spec["restartPolicy"] };
    let by_rule = present(&container["restartPolicy"])
        && items(&container["restartPolicyRules"]).iter().any(|rule| {
            let listed = items(&rule["exitCodes"]["values"]).iter().any(|v| v.as_i64() == Some(code));
            match text(&rule["exitCodes"]["operator"]) {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        });
    by_rule
        || match text(policy) {
            "Always" => true,
            "OnFailure" => code != 0,
            _ => false,
        }
}

fn claims(list: &Value, spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, status) in items(list).iter().enumerate() {
        let at = p.index(i);
        let name = text(&status["name"]);
        if !items(&spec["resourceClaims"]).iter().any(|claim| text(&claim["name"]) == name) {
            e.invalid(&at.child("name"), name, "must match the name of an entry in `spec.resourceClaims`");
        }
        if !seen.insert(name) {
            e.duplicate(&at.child("name"), name);
        }
        if let Some(claim) = status["resourceClaimName"].as_str() {
            e.invalid_each(&at.child("resourceClaimName"), claim, is_dns1123_subdomain(claim));
        }
    }
}

fn extended_claim(status: &Value, spec: &Value, p: &Path<'_>, e: &mut Errors) {
    if !present(status) {
        return;
    }
    let list = p.child("requestMappings");
    let mappings = items(&status["requestMappings"]);
    if mappings.is_empty() {
        e.required(&list, "at least one request mapping is required");
    }
    let mut seen = BTreeSet::new();
    for (i, mapping) in mappings.iter().enumerate() {
        let at = list.index(i);
        let key = ["containerName", "resourceName", "requestName"].map(|f| text(&mapping[f]));
        let [name, resource, request] = key;
        let mut all = items(&spec["containers"]).iter().chain(items(&spec["initContainers"]));
        match all.find(|c| text(&c["name"]) == name) {
            None => {
                let why = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                e.invalid(&at.child("containerName"), name, why);
            }
            Some(c) if !entries(&c["resources"]["requests"]).any(|(k, _)| k == resource) => {
                let why = "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests";
                e.invalid(&at.child("resourceName"), resource, why);
            }
            Some(_) => {}
        }
        e.invalid_each(&p.child("requestName"), request, is_dns1123_label(request));
        if !seen.insert(key) {
            for (f, value) in ["containerName", "resourceName", "requestName"].iter().zip(key) {
                e.duplicate(&at.child(f), value);
            }
        }
    }
    let at = p.child("resourceClaimName");
    let claim = text(&status["resourceClaimName"]);
    if rules::required(&status["resourceClaimName"], &at, e) {
        e.invalid_each(&at, claim, is_dns1123_subdomain(claim));
    }
}

fn listed<'a>(status: &'a Value, f: &str) -> Vec<&'a str> {
    items(&status[f]).iter().map(|ip| text(&ip["ip"])).collect()
}

fn pod_addresses(new: &Value, old: &Value, p: &Path<'_>, e: &mut Errors) {
    address_list(&listed(new, "podIPs"), &listed(old, "podIPs"), &p.child("podIPs"), e);
}

fn host_addresses(new: &Value, old: &Value, p: &Path<'_>, e: &mut Errors) {
    let (at, ips) = (p.child("hostIPs"), listed(new, "hostIPs"));
    if let Some(first) = ips.first()
        && *first != text(&new["hostIP"])
    {
        e.invalid(&at.index(0).child("ip"), first, "must be equal to `hostIP`");
    }
    address_list(&ips, &listed(old, "hostIPs"), &at, e);
}

/// Validates the addresses of a pod or a host: at most one of each family.
fn address_list(ips: &[&str], kept: &[&str], p: &Path<'_>, e: &mut Errors) {
    for (i, ip) in ips.iter().enumerate() {
        addresses::ip(ip, kept, &p.index(i), e);
    }
    if ips.len() < 2 {
        return;
    }
    let families: Option<BTreeSet<bool>> =
        ips.iter().map(|ip| addresses::parse_ip(ip).map(|ip| ip.to_canonical().is_ipv4())).collect();
    if families.is_none() {
        e.internal(p, "failed to check for dual stack: an entry is not an IP address");
    }
    if families.is_none_or(|families| families.len() != 2) || ips.len() > 2 {
        e.invalid(p, ips, "may specify no more than one IP for each IP family");
    }
}

fn user(user: &Value, os: &str, p: &Path<'_>, e: &mut Errors) {
    const WHY: &str = "must be between 0 and 2147483647, inclusive";
    let (linux, at) = (&user["linux"], p.child("linux"));
    if !present(linux) {
        return;
    }
    if os == "windows" {
        return e.forbidden(&at, "cannot be set for a windows pod");
    }
    let valid = |id: &Value| (0..=i64::from(i32::MAX)).contains(&int0(id));
    for f in ["uid", "gid"] {
        if !valid(&linux[f]) {
            e.invalid(&at.child(f), &linux[f], WHY);
        }
    }
    let groups = at.child("supplementalGroups");
    for (i, group) in items(&linux["supplementalGroups"]).iter().enumerate().filter(|(_, group)| !valid(group)) {
        e.invalid(&groups.index(i), group, WHY);
    }
}

/// Validates the health of a container's devices (KEP-4680).
fn allocated_resources(list: &Value, container: Option<&Value>, p: &Path<'_>, e: &mut Errors) {
    for (j, allocated) in items(list).iter().enumerate() {
        let at = p.index(j);
        let name = text(&allocated["name"]);
        // Upstream ignores containers that the pod does not have.
        if let Some(container) = container {
            let (known, why) = if name.starts_with("claim:") {
                let of = |c: &Value| match text(&c["request"]) {
                    "" => format!("claim:{}", text(&c["name"])),
                    request => format!("claim:{}/{request}", text(&c["name"])),
                };
                let known = items(&container["resources"]["claims"]).iter().any(|c| of(c) == name);
                (
                    known,
                    "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty",
                )
            } else {
                let known = entries(&container["resources"]["requests"]).any(|(k, _)| k == name);
                (known, "must match one of the container's resource requests")
            };
            if !known {
                e.invalid(&at.child("name"), name, why);
            }
        }
        let resources = at.child("resources");
        let mut seen = BTreeSet::new();
        for (k, r) in items(&allocated["resources"]).iter().enumerate() {
            let at = resources.index(k);
            let health = text(&r["health"]);
            if !matches!(health, "Healthy" | "Unhealthy" | "Unknown") {
                e.not_supported(&at.child("health"), health, &["Healthy", "Unhealthy", "Unknown"]);
            }
            match r["message"].as_str() {
                Some("") => e.required(&at.child("message"), "must be non-empty if specified"),
                Some(message) if message.len() > HEALTH_MESSAGE_MAX => {
                    e.too_long(&at.child("message"), HEALTH_MESSAGE_MAX);
                }
                _ => {}
            }
            if !seen.insert(text(&r["resourceID"])) {
                e.duplicate(&at.child("resourceID"), &r["resourceID"]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(status: Value) -> Vec<String> {
        let old = json!({"spec": {"containers": [{"name": "c"}]}, "status": {}});
        let mut new = json!({"spec": old["spec"], "status": status});
        agree(&mut new["status"]);
        let mut e = Errors::new();
        check(&new, &old, &mut e);
        e.finish().0.iter().map(|f| format!("{} {}", f.path, f.kind.words())).collect()
    }

    #[test]
    fn addresses_are_addresses() {
        for (status, want) in [
            (json!({"podIP": "10.0.0.1"}), vec![]),
            (json!({"podIP": "a"}), vec!["status.podIPs[0] Invalid value"]),
            // The value of older nodes is used.
            (json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "a"}]}), vec![]),
            (json!({"podIPs": [{"ip": "::ffff:10.0.0.1"}]}), vec!["status.podIPs[0] Invalid value"]),
            (
                json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]}),
                vec!["status.podIPs Invalid value"],
            ),
            (json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::2"}]}), vec![]),
            (json!({"hostIPs": [{"ip": "10.0.0.1"}]}), vec!["status.hostIPs[0].ip Invalid value"]),
            (json!({"hostIP": "x", "hostIPs": [{"ip": "x"}]}), vec!["status.hostIPs[0] Invalid value"]),
            (json!({"conditions": [{}]}), vec!["status.conditions[0].Type Invalid value"; 2]),
        ] {
            let mut found = faults(status.clone());
            found.dedup();
            let mut want = want;
            want.dedup();
            assert_eq!(found, want, "{status}");
        }
    }
}
