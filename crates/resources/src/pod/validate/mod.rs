//! Validates pod specs, in pods and in templates (upstream `pkg/apis/core/validation`, `ValidatePodSpec`).
mod container;
mod context;
mod env;
mod handler;
mod paths;
mod resources;
mod scheduling;
mod security;
mod volume;
mod windows;

use context::Pod;
pub use resources::{
    container_resource_name, is_standard as is_standard_resource, of_container as container_requirements, overcommit,
    value as resource_value,
};
pub use scheduling::{node_selector, tolerations, topology_terms};

use std::collections::BTreeSet;

use kelson_meta::{is_dns1123_label, is_dns1123_subdomain, is_qualified_name};
use serde_json::Value;

use crate::addresses;
use crate::metadata;
use crate::path::{Errors, GoStruct, Path};
use crate::rules;
use crate::tree::{entries, flag, int, items, present, text};

/// The annotation of static pods, which a kubelet reads from files.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const NAMESERVERS_MAX: usize = 3;
const SEARCH_PATHS_MAX: usize = 32;
const SEARCH_CHARS_MAX: usize = 2048;
const HOSTNAME_OVERRIDE_MAX: usize = 64;

/// Validates a new pod, apart from its metadata.
pub fn pod_create(obj: &Value, e: &mut Errors) {
    pod_and_spec(obj, e);
    let (spec, p) = (&obj["spec"], Path::new("spec"));
    if !items(&spec["ephemeralContainers"]).is_empty() {
        e.forbidden(&p.child("ephemeralContainers"), "cannot be set on create");
    }
    security::change_policy(spec, &p, e);
    if !text(&spec["nodeName"]).is_empty() && !items(&spec["schedulingGates"]).is_empty() {
        e.forbidden(&p.child("nodeName"), "cannot be set until all schedulingGates have been cleared");
    }
}

/// Validates a pod, new or changed, apart from its metadata.
pub fn pod_and_spec(obj: &Value, e: &mut Errors) {
    let (spec, p) = (&obj["spec"], Path::new("spec"));
    let meta = Path::new("metadata");
    annotations(&obj["metadata"], spec, &meta.child("annotations"), e);
    pod_spec(spec, Some(&obj["metadata"]), &p, e);
    if text(&spec["serviceAccountName"]).is_empty() {
        let volumes = p.child("volumes");
        for (i, v) in items(&spec["volumes"]).iter().enumerate() {
            for (j, s) in items(&v["projected"]["sources"]).iter().enumerate() {
                if present(&s["serviceAccountToken"]) {
                    let v = volumes.index(i);
                    let projected = v.child("projected");
                    let sources = projected.child("sources");
                    e.forbidden(
                        &sources.index(j).child("serviceAccountToken"),
                        "must not be specified when serviceAccountName is not set",
                    );
                }
            }
        }
    }
    for list in ["containers", "initContainers"] {
        let at = p.child(list);
        for (i, c) in items(&spec[list]).iter().enumerate() {
            container::padded_image(c, &at.index(i), e);
        }
    }
}

/// Validates a pod template: labels, annotations and spec.
pub fn template(t: &Value, p: &Path<'_>, e: &mut Errors) {
    metadata::labels(&t["metadata"]["labels"], &p.child("labels"), e);
    let at = p.child("annotations");
    metadata::annotations(&t["metadata"]["annotations"], &at, e);
    annotations(&t["metadata"], &t["spec"], &at, e);
    pod_spec(&t["spec"], None, &p.child("spec"), e);
    security::change_policy(&t["spec"], &p.child("spec"), e);
    if !items(&t["spec"]["ephemeralContainers"]).is_empty() {
        let spec = p.child("spec");
        e.forbidden(&spec.child("ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
}

pub(super) fn annotations(meta: &Value, spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let a = &meta["annotations"];
    if let Some(v) = a.get(MIRROR)
        && text(&spec["nodeName"]).is_empty()
    {
        e.invalid(&p.key(MIRROR), v, "must set spec.nodeName if mirror pod annotation is set");
    }
    if let Some(v) = a.get(DELETION_COST)
        && text(v).parse::<i32>().is_err()
    {
        e.invalid(&p.key(DELETION_COST), v, "must be a 32bit integer");
    }
}

/// Validates any pod spec; `meta` is a pod's own metadata, absent for templates.
pub fn pod_spec(spec: &Value, meta: Option<&Value>, p: &Path<'_>, e: &mut Errors) {
    if !present(&spec["terminationGracePeriodSeconds"]) {
        e.required(&p.child("terminationGracePeriodSeconds"), "");
    }
    let pod = Pod {
        volumes: volume::volumes(spec, meta, &p.child("volumes"), e),
        claims: items(&spec["resourceClaims"]).iter().map(|c| text(&c["name"])).filter(|n| !n.is_empty()).collect(),
        restart_policy: text(&spec["restartPolicy"]),
        grace: int(&spec["terminationGracePeriodSeconds"]),
        host_users: spec["hostUsers"].as_bool().unwrap_or(true),
        os: text(&spec["os"]["name"]),
        is_pod: meta.is_some(),
    };
    resource_claims(spec, meta, &p.child("resourceClaims"), e);
    container::containers(spec, &pod, &p.child("containers"), e);
    container::init_containers(spec, &pod, &p.child("initContainers"), e);
    container::ephemeral_containers(spec, &pod, &p.child("ephemeralContainers"), e);
    resources::pod_level(spec, &pod.claims, &p.child("resources"), e);
    host_network_ports(spec, &pod, &p.child("containers"), e);
    rules::one_of(&spec["restartPolicy"], &p.child("restartPolicy"), &["Always", "OnFailure", "Never"], e);
    rules::one_of(
        &spec["dnsPolicy"],
        &p.child("dnsPolicy"),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        e,
    );
    metadata::labels(&spec["nodeSelector"], &p.child("nodeSelector"), e);
    security::pod(spec, &p.child("securityContext"), e);
    scheduling::affinity(&spec["affinity"], &p.child("affinity"), e);
    dns_config(spec, &p.child("dnsConfig"), e);
    gates(spec, p, e);
    scheduling::spread(&spec["topologySpreadConstraints"], &p.child("topologySpreadConstraints"), e);
    host_users(spec, &pod, p, e);
    names(spec, p, e);
    scheduling::tolerations(&spec["tolerations"], &p.child("tolerations"), e);
    host_aliases(&spec["hostAliases"], &p.child("hostAliases"), e);
    windows::host_process(spec, p, e);
    last(spec, &pod, p, e);
}

fn last(spec: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    if present(&spec["preemptionPolicy"]) {
        let policies = &["PreemptLowerPriority", "Never"];
        rules::one_of(&spec["preemptionPolicy"], &p.child("preemptionPolicy"), policies, e);
    }
    let overhead = p.child("overhead");
    for (k, v) in entries(&spec["overhead"]) {
        resources::container_resource_name(k, &overhead.child("limits").key(k), e);
        resources::value(k, v, &overhead.child("limits").key(k), e);
    }
    if present(&spec["os"]) {
        let at = p.child("os");
        match text(&spec["os"]["name"]) {
            "" => e.required(&at.child("name"), ""),
            "linux" | "windows" => {}
            other => e.not_supported(&at, other, &["linux", "windows"]),
        }
        security::os(spec, pod.os, p, e);
    }
    if present(&spec["schedulingGroup"]) {
        let at = p.child("schedulingGroup");
        let name = text(&spec["schedulingGroup"]["podGroupName"]);
        if name.is_empty() {
            e.required(&at.child("podGroupName"), "");
        } else {
            e.invalid_each(&at.child("podGroupName"), name, is_dns1123_subdomain(name));
        }
    }
    for (list, at) in [("containers", p.child("containers")), ("initContainers", p.child("initContainers"))] {
        for (i, c) in items(&spec[list]).iter().enumerate() {
            env::file_key_volumes(c, spec, &at.index(i), e);
        }
    }
}

fn resource_claims(spec: &Value, meta: Option<&Value>, p: &Path<'_>, e: &mut Errors) {
    let claims = items(&spec["resourceClaims"]);
    if !claims.is_empty() && meta.is_some_and(|m| m["annotations"].get(MIRROR).is_some()) {
        return e.forbidden(&Path::new("[]"), "static pods do not support resource claims");
    }
    let mut seen = BTreeSet::new();
    for (i, c) in claims.iter().enumerate() {
        let at = p.index(i);
        let name = text(&c["name"]);
        if name.is_empty() {
            e.required(&at.child("name"), "");
        } else if seen.insert(name) {
            e.invalid_each(&at.child("name"), name, is_dns1123_label(name));
        } else {
            e.duplicate(&at.child("name"), name);
        }
        let (claim, template) = (&c["resourceClaimName"], &c["resourceClaimTemplateName"]);
        let shown =
            GoStruct([("Name", &c["name"]), ("ResourceClaimName", claim), ("ResourceClaimTemplateName", template)]);
        match (present(claim), present(template)) {
            (true, true) => e.invalid(
                &at,
                shown,
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            ),
            (false, false) => {
                e.invalid(&at, shown, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`");
            }
            _ => {}
        }
        for (f, v) in [("resourceClaimName", claim), ("resourceClaimTemplateName", template)] {
            if let Some(n) = v.as_str() {
                e.invalid_each(&at.child(f), n, is_dns1123_subdomain(n));
            }
        }
    }
}

fn host_network_ports(spec: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    if !flag(&spec["hostNetwork"]) {
        return;
    }
    for (i, c) in items(&spec["containers"]).iter().enumerate() {
        for (j, port) in items(&c["ports"]).iter().enumerate() {
            let host = port["hostPort"].as_i64().unwrap_or(0);
            if (pod.is_pod || host != 0) && Some(host) != port["containerPort"].as_i64() {
                let c = p.index(i);
                let ports = c.child("ports");
                e.invalid(
                    &ports.index(j).child("hostPort"),
                    host,
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
        }
    }
}

fn dns_config(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let config = &spec["dnsConfig"];
    let servers = items(&config["nameservers"]);
    if text(&spec["dnsPolicy"]) == "None" {
        if !present(config) {
            return e.required(p, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        if servers.is_empty() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return e.required(&p.child("nameservers"), why);
        }
    }
    let at = p.child("nameservers");
    if servers.len() > NAMESERVERS_MAX {
        e.invalid(&at, servers, format!("must not have more than {NAMESERVERS_MAX} nameservers"));
    }
    for (i, s) in servers.iter().enumerate() {
        addresses::ip(text(s), &[], &at.index(i), e);
    }
    let searches: Vec<&str> = items(&config["searches"]).iter().map(text).collect();
    let at = p.child("searches");
    if searches.len() > SEARCH_PATHS_MAX {
        e.invalid(&at, &searches, format!("must not have more than {SEARCH_PATHS_MAX} search paths"));
    }
    if searches.join(" ").len() > SEARCH_CHARS_MAX {
        let why =
            format!("must not have more than {SEARCH_CHARS_MAX} characters (including spaces) in the search list");
        e.invalid(&at, &searches, why);
    }
    for (i, s) in searches.iter().enumerate().filter(|(_, s)| **s != ".") {
        // Underscores are allowed only here (KEP-4427).
        let plain = s.strip_suffix('.').unwrap_or(s).replace('_', "a");
        e.invalid_each(&at.index(i), s, is_dns1123_subdomain(&plain));
    }
    let at = p.child("options");
    for (i, o) in items(&config["options"]).iter().enumerate() {
        if text(&o["name"]).is_empty() {
            e.required(&at.index(i), "must not be empty");
        }
    }
}

fn gates(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let at = p.child("readinessGates");
    for (i, g) in items(&spec["readinessGates"]).iter().enumerate() {
        let t = text(&g["conditionType"]);
        e.invalid_each(&at.index(i).child("conditionType"), t, is_qualified_name(t));
    }
    let at = p.child("schedulingGates");
    let mut seen = BTreeSet::new();
    for (i, g) in items(&spec["schedulingGates"]).iter().enumerate() {
        let n = text(&g["name"]);
        e.invalid_each(&at.index(i), n, is_qualified_name(n));
        if !seen.insert(n) {
            e.duplicate(&at.index(i), n);
        }
    }
}

fn host_users(spec: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    if pod.host_users {
        return;
    }
    let why = "when `hostUsers` is false";
    for (f, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if flag(&spec[f]) {
            e.forbidden(&p.child(shown), why);
        }
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let at = p.child(list);
        for (i, c) in items(&spec[list]).iter().enumerate() {
            if !items(&c["volumeDevices"]).is_empty() {
                e.forbidden(&at.index(i).child("volumeDevices"), why);
            }
        }
    }
}

fn names(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    if let Some(h) = spec["hostnameOverride"].as_str() {
        let at = p.child("hostnameOverride");
        if flag(&spec["setHostnameAsFQDN"]) {
            e.forbidden(&at, "may not be specified when setHostnameAsFQDN is true");
        }
        if flag(&spec["hostNetwork"]) {
            e.forbidden(&at, "may not be specified when hostNetwork is true");
        }
        if h.len() > HOSTNAME_OVERRIDE_MAX {
            e.too_long(&at, HOSTNAME_OVERRIDE_MAX);
        }
        e.invalid_each(&at, h, is_dns1123_subdomain(h));
    }
    for f in ["serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"] {
        let n = text(&spec[f]);
        if !n.is_empty() || (f == "runtimeClassName" && present(&spec[f])) {
            e.invalid_each(&p.child(f), n, is_dns1123_subdomain(n));
        }
    }
    if let Some(n) = int(&spec["activeDeadlineSeconds"])
        && !(1..=i64::from(i32::MAX)).contains(&n)
    {
        e.invalid(&p.child("activeDeadlineSeconds"), n, "must be between 1 and 2147483647, inclusive");
    }
    for f in ["hostname", "subdomain"] {
        let n = text(&spec[f]);
        if !n.is_empty() {
            e.invalid_each(&p.child(f), n, is_dns1123_label(n));
        }
    }
}

fn host_aliases(list: &Value, p: &Path<'_>, e: &mut Errors) {
    for (i, a) in items(list).iter().enumerate() {
        let at = p.index(i);
        addresses::ip(text(&a["ip"]), &[], &at.child("ip"), e);
        let hosts = at.child("hostnames");
        for (j, h) in items(&a["hostnames"]).iter().map(text).enumerate() {
            e.invalid_each(&hosts.index(j), h, is_dns1123_subdomain(h));
        }
    }
}
