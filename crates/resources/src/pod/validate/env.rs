//! Validates environment variables and their sources.
use kelson_meta::{Quantity, is_config_map_key, is_dns1123_label, is_dns1123_subdomain, is_qualified_name};
use serde_json::Value;

use crate::path::{Errors, Path};
use crate::rules::no_backsteps;
use crate::tree::{items, present, text};

const FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// The fields for downward API files.
pub const FILE_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const DIVISORS: &[&str] = &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// Validates printable ASCII without `=`, not empty (KEP-4369).
fn relaxed_name(s: &str) -> Result<(), Vec<String>> {
    let why = if s.is_empty() {
        "environment variable name must be non-empty"
    } else if !s.bytes().all(|c| (b' '..=b'~').contains(&c) && c != b'=') {
        "a valid environment variable name must consist only of printable ASCII characters other than '='"
    } else {
        return Ok(());
    };
    Err(vec![why.to_owned()])
}

pub fn env(list: &Value, p: &Path<'_>, e: &mut Errors) {
    for (i, v) in items(list).iter().enumerate() {
        let at = p.index(i);
        let name = text(&v["name"]);
        if name.is_empty() {
            e.required(&at.child("name"), "");
        } else {
            e.invalid_each(&at.child("name"), name, relaxed_name(name));
        }
        let from = &v["valueFrom"];
        if present(from) {
            value_from(v, from, &at.child("valueFrom"), e);
        }
    }
}

fn value_from(v: &Value, from: &Value, p: &Path<'_>, e: &mut Errors) {
    let mut sources = 0;
    for (kind, f) in [
        ("fieldRef", field as fn(&Value, &Path<'_>, &mut Errors)),
        ("resourceFieldRef", env_resource),
        ("configMapKeyRef", key),
        ("secretKeyRef", key),
        ("fileKeyRef", file_key),
    ] {
        if present(&from[kind]) {
            sources += 1;
            f(&from[kind], &p.child(kind), e);
        }
    }
    if sources == 0 {
        e.invalid(
            p,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        );
    } else if !text(&v["value"]).is_empty() {
        e.invalid(p, "", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        e.invalid(p, "", "may not have more than one field specified at a time");
    }
}

fn field(f: &Value, p: &Path<'_>, e: &mut Errors) {
    object_field(f, FIELDS, p, e);
}

/// Validates a reference to one of the pod's fields.
pub fn object_field(f: &Value, allowed: &[&str], p: &Path<'_>, e: &mut Errors) {
    let (version, path) = (text(&f["apiVersion"]), text(&f["fieldPath"]));
    if version.is_empty() {
        return e.required(&p.child("apiVersion"), "");
    }
    if path.is_empty() {
        return e.required(&p.child("fieldPath"), "");
    }
    let at = p.child("fieldPath");
    if version != "v1" {
        let why = format!("error converting fieldPath: unsupported pod version: {version}");
        return e.invalid(&at, path, why);
    }
    if let Some((base, key)) = path.strip_suffix("']").and_then(|s| s.split_once("['")) {
        match base {
            "metadata.annotations" => e.invalid_each(p, key, is_qualified_name(&key.to_lowercase())),
            "metadata.labels" => e.invalid_each(p, key, is_qualified_name(key)),
            _ => {
                let why = format!("error converting fieldPath: field label does not support subscript: {path}");
                e.invalid(&at, path, why);
            }
        }
        return;
    }
    const KNOWN: &[&str] = &[
        "metadata.annotations",
        "metadata.labels",
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.serviceAccountName",
        "spec.schedulerName",
        "status.phase",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    if !KNOWN.contains(&path) {
        e.invalid(&at, path, format!("error converting fieldPath: field label not supported: {path}"));
    } else if !allowed.contains(&path) {
        e.not_supported(&at, path, allowed);
    }
}

fn env_resource(f: &Value, p: &Path<'_>, e: &mut Errors) {
    resource_field(f, false, p, e);
}

/// Validates a reference to a container's request or limit; in a volume the container must be named.
pub fn resource_field(f: &Value, volume: bool, p: &Path<'_>, e: &mut Errors) {
    let resource = text(&f["resource"]);
    let huge = resource.starts_with("requests.hugepages-") || resource.starts_with("limits.hugepages-");
    if volume && text(&f["containerName"]).is_empty() {
        e.required(&p.child("containerName"), "");
    } else if resource.is_empty() {
        e.required(&p.child("resource"), "");
    } else if !RESOURCES.contains(&resource) && !huge {
        e.not_supported(&p.child("resource"), resource, RESOURCES);
    }
    let at = p.child("divisor");
    let Some(divisor) = crate::rules::quantity(&f["divisor"], &at, e) else { return };
    if divisor == Quantity::default() {
        return;
    }
    let shown = Quantity::canonical(text(&f["divisor"])).unwrap_or_else(|_| divisor.to_string());
    let cpu = resource.ends_with(".cpu");
    if cpu && !matches!(shown.as_str(), "1m" | "1") {
        e.invalid(&at, resource, "only divisor's values 1m and 1 are supported with the cpu resource");
    } else if !cpu && !DIVISORS.contains(&shown.as_str()) {
        let what = match resource.split_once('.').map(|(_, r)| r) {
            Some("memory") => "memory",
            Some("ephemeral-storage") => "local ephemeral storage",
            _ if huge => "hugepages",
            _ => return,
        };
        e.invalid(
            &at,
            resource,
            format!("only divisor's values {} are supported with the {what} resource", DIVISORS.join(", ")),
        );
    }
}

fn key(f: &Value, p: &Path<'_>, e: &mut Errors) {
    let (name, key) = (text(&f["name"]), text(&f["key"]));
    e.invalid_each(&p.child("name"), name, is_dns1123_subdomain(name));
    if key.is_empty() {
        e.required(&p.child("key"), "");
    } else {
        e.invalid_each(&p.child("key"), key, is_config_map_key(key));
    }
}

fn file_key(f: &Value, p: &Path<'_>, e: &mut Errors) {
    let (key, volume, path) = (text(&f["key"]), text(&f["volumeName"]), text(&f["path"]));
    if key.is_empty() {
        e.required(&p.child("key"), "");
    } else {
        e.invalid_each(&p.child("key"), key, relaxed_name(key));
    }
    if volume.is_empty() {
        e.required(&p.child("volumeName"), "");
    } else {
        e.invalid_each(&p.child("volumeName"), volume, is_dns1123_label(volume));
    }
    if path.is_empty() {
        e.required(&p.child("path"), "");
    } else {
        no_backsteps(path, &p.child("path"), e);
    }
}

/// Checks that files with variables are in an emptyDir of the pod (KEP-3721).
pub fn file_key_volumes(c: &Value, spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let list = p.child("env");
    for (i, v) in items(&c["env"]).iter().enumerate() {
        let r = &v["valueFrom"]["fileKeyRef"];
        if !present(r) {
            continue;
        }
        let at = list.index(i);
        let from = at.child("valueFrom");
        let file = from.child("fileKeyRef");
        let name = &r["volumeName"];
        match items(&spec["volumes"]).iter().find(|v| v["name"] == *name) {
            None => e.not_found(&file.child("volumeName"), name),
            Some(v) if !present(&v["emptyDir"]) => {
                e.invalid(&file.child("volumeName"), name, "referenced volume must be of type emptyDir");
            }
            Some(_) => {}
        }
    }
}

pub fn env_from(list: &Value, p: &Path<'_>, e: &mut Errors) {
    for (i, v) in items(list).iter().enumerate() {
        let at = p.index(i);
        let prefix = text(&v["prefix"]);
        if !prefix.is_empty() {
            e.invalid_each(&at.child("prefix"), prefix, relaxed_name(prefix));
        }
        let mut sources = 0;
        for kind in ["configMapRef", "secretRef"] {
            if !present(&v[kind]) {
                continue;
            }
            sources += 1;
            let r = at.child(kind);
            let name = text(&v[kind]["name"]);
            if name.is_empty() {
                e.required(&r.child("name"), "");
            } else {
                e.invalid_each(&r.child("name"), name, crate::names::NameRule::Subdomain.check(name, true));
            }
        }
        match sources {
            0 => e.invalid(p, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => e.invalid(p, "", "may not have more than one field specified at a time"),
        }
    }
}
