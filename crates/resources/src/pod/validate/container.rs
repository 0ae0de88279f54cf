//! Validates containers: the common rules, and those of regular, init and ephemeral ones.
use std::collections::BTreeSet;

use kelson_meta::is_dns1123_label;
use serde_json::Value;

use super::context::Pod;
use super::{env, handler, resources, security, volume};
use crate::path::{Errors, Path};
use crate::rules;
use crate::tree::{empty, int0, items, present, text};

const RESTART_RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const RESTART_POLICIES: &[&str] = &["Always", "Never", "OnFailure"];
/// The fields that an ephemeral container may set (upstream `allowedEphemeralContainerFields`).
const EPHEMERAL_FIELDS: &[&str] = &[
    "name",
    "image",
    "command",
    "args",
    "workingDir",
    "envFrom",
    "env",
    "volumeMounts",
    "volumeDevices",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "imagePullPolicy",
    "securityContext",
    "stdin",
    "stdinOnce",
    "tty",
    "targetContainerName",
];

/// Validates the list `spec.containers`.
pub fn containers(spec: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    let list = items(&spec["containers"]);
    if list.is_empty() {
        return e.required(p, "");
    }
    let mut names = BTreeSet::new();
    for (i, c) in list.iter().enumerate() {
        let at = p.index(i);
        common(c, pod, &at, e);
        if !names.insert(text(&c["name"])) {
            e.duplicate(&at.child("name"), &c["name"]);
        }
        handler::lifecycle_and_probes(c, pod, &at, e);
        restart_policy(c, &at, e);
    }
    host_ports(list, 0, p, e);
}

/// Validates the list `spec.initContainers`.
pub fn init_containers(spec: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    let list = items(&spec["initContainers"]);
    if list.is_empty() {
        return;
    }
    let mut names: BTreeSet<&str> = items(&spec["containers"]).iter().map(|c| text(&c["name"])).collect();
    for (i, c) in list.iter().enumerate() {
        let at = p.index(i);
        common(c, pod, &at, e);
        // Upstream validates the rules of an init container only with a policy.
        if present(&c["restartPolicy"]) || items(&c["restartPolicyRules"]).is_empty() {
            restart_policy(c, &at, e);
        } else {
            e.required(&at.child("restartPolicy"), "must specify restartPolicy when restart rules are used");
        }
        let name = text(&c["name"]);
        if !name.is_empty() && !names.insert(name) {
            e.duplicate(&at.child("name"), name);
        }
        host_ports(&list[i..=i], i, p, e);
        let sidecar = text(&c["restartPolicy"]) == "Always";
        if sidecar {
            handler::lifecycle_and_probes(c, pod, &at, e);
        } else {
            for f in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                if present(&c[f]) {
                    e.forbidden(&at.child(f), "may not be set for init containers without restartPolicy=Always");
                }
            }
            let policies = at.child("resizePolicy");
            for (j, r) in items(&c["resizePolicy"]).iter().enumerate() {
                if text(&r["restartPolicy"]) == "RestartContainer" {
                    e.invalid(
                        &policies.index(j).child("restartPolicy"),
                        &r["restartPolicy"],
                        "must not be set to 'RestartContainer' for non-sidecar initContainers",
                    );
                }
            }
        }
    }
}

/// Validates the list `spec.ephemeralContainers`.
pub fn ephemeral_containers(spec: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    let list = items(&spec["ephemeralContainers"]);
    if list.is_empty() {
        return;
    }
    let others: BTreeSet<&str> =
        items(&spec["containers"]).iter().chain(items(&spec["initContainers"])).map(|c| text(&c["name"])).collect();
    let mut names = others.clone();
    for (i, c) in list.iter().enumerate() {
        let at = p.index(i);
        common(c, pod, &at, e);
        padded_image(c, &at, e);
        if !names.insert(text(&c["name"])) {
            e.duplicate(&at.child("name"), &c["name"]);
        }
        let target = text(&c["targetContainerName"]);
        if !target.is_empty() && !others.contains(target) {
            e.not_found(&at.child("targetContainerName"), target);
        }
        let why = "cannot be set for an Ephemeral Container";
        for (f, v) in c.as_object().into_iter().flatten() {
            let is_set = !empty(v) || f == "lifecycle" && v.is_object();
            if !EPHEMERAL_FIELDS.contains(&f.as_str()) && is_set {
                e.forbidden(&at.child(f), why);
            }
        }
        let mounts = at.child("volumeMounts");
        for (j, m) in items(&c["volumeMounts"]).iter().enumerate() {
            for f in ["subPath", "subPathExpr"] {
                if !text(&m[f]).is_empty() {
                    e.forbidden(&mounts.index(j).child(f), why);
                }
            }
        }
    }
}

/// Checks that a pod's image has no surrounding white space, which templates may have for historical reasons.
pub fn padded_image(c: &Value, p: &Path<'_>, e: &mut Errors) {
    let image = text(&c["image"]);
    if image.trim().len() != image.len() {
        e.invalid(&p.child("image"), image, "must not have leading or trailing whitespace");
    }
}

fn common(c: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    let name = text(&c["name"]);
    if name.is_empty() {
        e.required(&p.child("name"), "");
    } else {
        e.invalid_each(&p.child("name"), name, is_dns1123_label(name));
    }
    if text(&c["image"]).is_empty() {
        e.required(&p.child("image"), "");
    }
    rules::one_of(
        &c["terminationMessagePolicy"],
        &p.child("terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
        e,
    );
    ports(&c["ports"], &p.child("ports"), e);
    env::env(&c["env"], &p.child("env"), e);
    env::env_from(&c["envFrom"], &p.child("envFrom"), e);
    volume::mounts(c, pod, &p.child("volumeMounts"), e);
    volume::devices(c, pod, &p.child("volumeDevices"), e);
    rules::one_of(&c["imagePullPolicy"], &p.child("imagePullPolicy"), &["Always", "IfNotPresent", "Never"], e);
    resources::container(&c["resources"], pod, &p.child("resources"), e);
    resize_policy(&c["resizePolicy"], pod, &p.child("resizePolicy"), e);
    security::container(&c["securityContext"], pod, &p.child("securityContext"), e);
}

fn ports(list: &Value, p: &Path<'_>, e: &mut Errors) {
    let mut names = BTreeSet::new();
    for (i, port) in items(list).iter().enumerate() {
        let at = p.index(i);
        let name = text(&port["name"]);
        if !name.is_empty() {
            let rule = rules::port_name(name);
            if rule.is_ok() && !names.insert(name) {
                e.duplicate(&at.child("name"), name);
            }
            e.invalid_each(&at.child("name"), name, rule);
        }
        if int0(&port["containerPort"]) == 0 {
            e.required(&at.child("containerPort"), "");
        } else {
            rules::port(&port["containerPort"], &at.child("containerPort"), e);
        }
        if int0(&port["hostPort"]) != 0 {
            rules::port(&port["hostPort"], &at.child("hostPort"), e);
        }
        rules::one_of(&port["protocol"], &at.child("protocol"), &["SCTP", "TCP", "UDP"], e);
    }
}

fn host_ports(list: &[Value], first: usize, p: &Path<'_>, e: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, c) in list.iter().enumerate() {
        for (j, port) in items(&c["ports"]).iter().enumerate() {
            let host = int0(&port["hostPort"]);
            if host != 0 && !seen.insert((text(&port["protocol"]), text(&port["hostIP"]), host)) {
                let at = p.index(first + i);
                let ports = at.child("ports");
                let shown = format!("{}/{}/{host}", text(&port["protocol"]), text(&port["hostIP"]));
                e.duplicate(&ports.index(j).child("hostPort"), shown);
            }
        }
    }
}

fn resize_policy(list: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, r) in items(list).iter().enumerate() {
        if !seen.insert(text(&r["resourceName"])) {
            e.duplicate(&p.index(i), &r["resourceName"]);
        }
        rules::one_of(&r["resourceName"], p, &["cpu", "memory"], e);
        rules::one_of(&r["restartPolicy"], p, &["NotRequired", "RestartContainer"], e);
        if pod.restart_policy == "Never" && text(&r["restartPolicy"]) != "NotRequired" {
            e.invalid(p, &r["restartPolicy"], "must be 'NotRequired' when pod `restartPolicy` is 'Never'");
        }
    }
}

fn restart_policy(c: &Value, p: &Path<'_>, e: &mut Errors) {
    let restart_rules = items(&c["restartPolicyRules"]);
    if present(&c["restartPolicy"]) {
        rules::optional_one_of(&c["restartPolicy"], &p.child("restartPolicy"), RESTART_POLICIES, e);
    } else if !restart_rules.is_empty() {
        e.required(&p.child("restartPolicy"), "must specify restartPolicy when restart rules are used");
    }
    let list = p.child("restartPolicyRules");
    if restart_rules.len() > RESTART_RULES_MAX {
        e.too_many(&list, restart_rules.len(), RESTART_RULES_MAX);
    }
    for (i, r) in restart_rules.iter().enumerate() {
        let at = list.index(i);
        let action = text(&r["action"]);
        if !matches!(action, "Restart" | "RestartAllContainers") {
            e.not_supported(&at.child("action"), action, &["Restart", "RestartAllContainers"]);
        }
        let codes = at.child("exitCodes");
        if !present(&r["exitCodes"]) {
            e.required(&codes, "must be specified");
            continue;
        }
        let operator = text(&r["exitCodes"]["operator"]);
        if !matches!(operator, "In" | "NotIn") {
            e.not_supported(&codes.child("operator"), operator, &["In", "NotIn"]);
        }
        let values = items(&r["exitCodes"]["values"]).len();
        if values > EXIT_CODES_MAX {
            e.too_many(&codes.child("values"), values, EXIT_CODES_MAX);
        }
    }
}
