//! Sets, keeps and drops fields of a Service's spec.
use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::tree::{default_to, default_zero, empty, int0, items, items_mut, present, remove, same, set, text};

/// The values of `internalTrafficPolicy`.
pub(super) const INTERNAL_POLICIES: [&str; 2] = ["Cluster", "Local"];
/// The default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
const AFFINITY_SECONDS: i64 = 10_800;

pub(super) fn default_spec(spec: &mut Value) {
    default_zero(spec, "sessionAffinity", "None");
    match text(&spec["sessionAffinity"]) {
        "None" => remove(spec, "sessionAffinityConfig"),
        "ClientIP" if !present(&spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"]) => {
            set(spec, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}}));
        }
        _ => {}
    }
    default_zero(spec, "type", "ClusterIP");
    for p in items_mut(spec, "ports") {
        default_zero(p, "protocol", "TCP");
        let port = p["port"].clone();
        if !empty(&port) {
            default_zero(p, "targetPort", port);
        }
    }
    let external = !items(&spec["externalIPs"]).is_empty();
    let kind = text(&spec["type"]).to_owned();
    let accessible = matches!(kind.as_str(), "LoadBalancer" | "NodePort") || (kind == "ClusterIP" && external);
    if accessible {
        default_zero(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind != "ExternalName" {
        default_to(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default_to(spec, "allocateLoadBalancerNodePorts", true);
    }
}

/// Synchronizes `clusterIP` and `clusterIPs[0]`, which are one field with two names: clients that only know the older
/// one are supported, others set both (upstream `normalizeClusterIPs`).
pub(super) fn sync_cluster_ips(spec: &mut Value, old: Option<&Value>) {
    let one = text(&spec["clusterIP"]).to_owned();
    let Some(old) = old else {
        if !one.is_empty() && items(&spec["clusterIPs"]).is_empty() {
            set(spec, "clusterIPs", vec![json!(one)]);
        }
        return;
    };
    let (was, were) = (text(&old["clusterIP"]), items(&old["clusterIPs"]));
    if !were.is_empty() && items(&spec["clusterIPs"]).is_empty() && one == was {
        set(spec, "clusterIPs", were.to_vec());
    }
    if one == was || items(&spec["clusterIPs"]) != were {
        return;
    }
    if one.is_empty() {
        remove(spec, "clusterIPs");
    } else {
        set(spec, "clusterIPs", vec![json!(one)]);
    }
}

/// Drops the internal traffic policy of an ExternalName service, which clients may set.
pub(super) fn drop_policy_of_alias(spec: &mut Value) {
    if text(&spec["type"]) == "ExternalName" && INTERNAL_POLICIES.contains(&text(&spec["internalTrafficPolicy"])) {
        remove(spec, "internalTrafficPolicy");
    }
}

/// Drops fields that do not apply to the new type, unless the same request changed them.
pub(super) fn drop_type_dependent(new: &mut Value, old: &Value) {
    let kind = |s: &Value| text(&s["type"]).to_owned();
    let (n, o) = (kind(new), kind(old));
    let needs_ip = |k: &str| matches!(k, "ClusterIP" | "NodePort" | "LoadBalancer" | "");
    if needs_ip(&o) && !needs_ip(&n) {
        for f in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if same(&new[f], &old[f]) {
                remove(new, f);
            }
        }
    }
    let node_port = |k: &str| matches!(k, "NodePort" | "LoadBalancer");
    if node_port(&o) && !node_port(&n) {
        let ports = |s: &Value| items(&s["ports"]).iter().map(|p| int0(&p["nodePort"])).collect::<Vec<_>>();
        if ports(new) == ports(old) {
            for p in items_mut(new, "ports") {
                remove(p, "nodePort");
            }
        }
    }
    if needs_health_port(old)
        && !needs_health_port(new)
        && same(&new["healthCheckNodePort"], &old["healthCheckNodePort"])
    {
        remove(new, "healthCheckNodePort");
    }
    if o == "LoadBalancer" && n != "LoadBalancer" {
        for f in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(&new[f], &old[f]) {
                remove(new, f);
            }
        }
    }
    let external = |k: &str, s: &Value| node_port(k) || (k == "ClusterIP" && !items(&s["externalIPs"]).is_empty());
    if external(&o, old) && !external(&n, new) && same(&new["externalTrafficPolicy"], &old["externalTrafficPolicy"]) {
        remove(new, "externalTrafficPolicy");
    }
}

/// Keeps allocated values that the request does not set: cluster addresses, node ports by port, the health check port.
pub(super) fn keep_allocated(new: &mut Value, old: &Value) {
    let kind = text(&new["type"]).to_owned();
    if kind == "ExternalName" {
        return;
    }
    if text(&old["type"]) != "ExternalName" {
        for f in ["clusterIP", "clusterIPs"] {
            if empty(&new[f]) {
                crate::tree::restore(new, old, f);
            }
        }
    }
    let node_port = |k: &str| matches!(k, "NodePort" | "LoadBalancer");
    if node_port(&kind) && node_port(text(&old["type"])) {
        let asked: BTreeSet<i64> = items(&new["ports"]).iter().map(|p| int0(&p["nodePort"])).collect();
        for p in items_mut(new, "ports") {
            if int0(&p["nodePort"]) != 0 {
                continue;
            }
            let was = items(&old["ports"]).iter().find(|o| {
                o["port"] == p["port"] && o["protocol"] == p["protocol"] && !asked.contains(&int0(&o["nodePort"]))
            });
            if let Some(n) = was.map(|o| int0(&o["nodePort"])).filter(|n| *n != 0) {
                set(p, "nodePort", n);
            }
        }
    }
    if needs_health_port(new) && needs_health_port(old) && int0(&new["healthCheckNodePort"]) == 0 {
        crate::tree::restore(new, old, "healthCheckNodePort");
    }
}

pub(super) fn needs_health_port(spec: &Value) -> bool {
    text(&spec["type"]) == "LoadBalancer" && text(&spec["externalTrafficPolicy"]) == "Local"
}

pub(super) fn headless(spec: &Value) -> bool {
    let ips = items(&spec["clusterIPs"]);
    ips.len() == 1 && text(&ips[0]) == "None"
}
