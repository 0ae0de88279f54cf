//! Validates volumes and volume mounts.
use std::collections::{BTreeMap, BTreeSet};

use kelson_meta::{is_dns1123_label, is_dns1123_subdomain, is_qualified_name};
use serde_json::Value;

use super::context::Pod;
use super::env;
use super::paths::{descending, non_reserved};
use crate::metadata;
use crate::path::{Errors, Path};
use crate::rules;
use crate::tree::{empty, flag, int, items, present, text};
use crate::volume_sources::{self, Owner};

const MODE_WHY: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const TOKEN_SECONDS_MIN: i64 = 600;
const TOKEN_SECONDS_MAX: i64 = 1 << 32;
/// Validates `spec.volumes`; returns the valid ones by name.
pub fn volumes<'a>(
    spec: &'a Value,
    meta: Option<&Value>,
    p: &Path<'_>,
    e: &mut Errors,
) -> BTreeMap<&'a str, &'a Value> {
    let mut out = BTreeMap::new();
    let pod_name = meta.map_or("", |m| text(&m["name"]));
    for (i, v) in items(&spec["volumes"]).iter().enumerate() {
        let at = p.index(i);
        let name = text(&v["name"]);
        let before = e.len();
        volume_sources::one(v, volume_sources::OF_PODS, &at, e, |kind, s, at, e| {
            if !volume_sources::shared(kind, s, Owner::Pod, at, e) {
                check_source(kind, v, pod_name, at, e);
                if kind == "image" && meta.is_some() {
                    rules::required(&s["reference"], &at.child("reference"), e);
                }
            }
        });
        volume_sources::portal_of_pod(v, &at, e);
        if name.is_empty() {
            e.required(&at.child("name"), "");
        } else {
            e.invalid_each(&at.child("name"), name, is_dns1123_label(name));
        }
        if out.contains_key(name) {
            e.duplicate(&at.child("name"), name);
        }
        if e.len() == before {
            out.insert(name, v);
        }
        let claim = text(&v["persistentVolumeClaim"]["claimName"]);
        let created = |o: &Value| present(&o["ephemeral"]) && format!("{pod_name}-{}", text(&o["name"])) == claim;
        if !claim.is_empty() && !pod_name.is_empty() && items(&spec["volumes"]).iter().any(created) {
            let source = at.child("persistentVolumeClaim");
            e.invalid(
                &source.child("claimName"),
                claim,
                "must not reference a PVC that gets created for an ephemeral volume",
            );
        }
    }
    out
}

/// Validates the sources that only pods have.
fn check_source(kind: &str, v: &Value, pod_name: &str, p: &Path<'_>, e: &mut Errors) {
    let s = &v[kind];
    match kind {
        "emptyDir" => {
            if let Some(q) = rules::quantity(&s["sizeLimit"], &p.child("sizeLimit"), e)
                && q.signum() < 0
            {
                e.forbidden(&p.child("sizeLimit"), "SizeLimit field must be a valid resource quantity");
            }
        }
        "gitRepo" => {
            rules::required(&s["repository"], &p.child("repository"), e);
            descending(text(&s["directory"]), &p.child("directory"), e);
        }
        "persistentVolumeClaim" => {
            rules::required(&s["claimName"], &p.child("claimName"), e);
        }
        "secret" => keys(s, "secretName", p, e),
        "configMap" => keys(s, "name", p, e),
        "downwardAPI" => {
            mode(&s["defaultMode"], &p.child("defaultMode"), e);
            for f in items(&s["items"]) {
                downward_file(f, p, e);
            }
        }
        "projected" => projected(s, p, e),
        "csi" => volume_sources::pod_csi(s, p, e),
        "image" => {
            rules::one_of(&s["pullPolicy"], &p.child("pullPolicy"), &["Always", "IfNotPresent", "Never"], e);
        }
        "ephemeral" => ephemeral(v, pod_name, p, e),
        _ => {}
    }
}

fn ephemeral(v: &Value, pod_name: &str, p: &Path<'_>, e: &mut Errors) {
    let template = &v["ephemeral"]["volumeClaimTemplate"];
    let at = p.child("volumeClaimTemplate");
    if present(template) {
        metadata::of_template(&template["metadata"], &at.child("metadata"), e);
        crate::core::check_claim_spec(&template["spec"], &at.child("spec"), e);
    } else {
        e.required(&at, "");
    }
    let name = text(&v["name"]);
    if !pod_name.is_empty() && !name.is_empty() {
        let claim = format!("{pod_name}-{name}");
        for why in is_dns1123_subdomain(&claim).err().into_iter().flatten() {
            e.invalid(&p.child("name"), name, format!("PVC name {claim:?}: {why}"));
        }
    }
}

fn mode(v: &Value, p: &Path<'_>, e: &mut Errors) {
    if let Some(n) = int(v)
        && !(0..=0o777).contains(&n)
    {
        e.invalid(p, n, MODE_WHY);
    }
}

fn keys(s: &Value, name: &str, p: &Path<'_>, e: &mut Errors) {
    rules::required(&s[name], &p.child(name), e);
    mode(&s["defaultMode"], &p.child("defaultMode"), e);
    key_items(s, p, e);
}

fn key_items(s: &Value, p: &Path<'_>, e: &mut Errors) {
    let list = p.child("items");
    for (i, k) in items(&s["items"]).iter().enumerate() {
        let at = list.index(i);
        rules::required(&k["key"], &at.child("key"), e);
        rules::required(&k["path"], &at.child("path"), e);
        non_reserved(text(&k["path"]), &at.child("path"), e);
        mode(&k["mode"], &at.child("mode"), e);
    }
}

fn downward_file(f: &Value, p: &Path<'_>, e: &mut Errors) {
    rules::required(&f["path"], &p.child("path"), e);
    non_reserved(text(&f["path"]), &p.child("path"), e);
    let (field, resource) = (&f["fieldRef"], &f["resourceFieldRef"]);
    if present(field) {
        env::object_field(field, env::FILE_FIELDS, &p.child("fieldRef"), e);
        if present(resource) {
            e.invalid(p, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously");
        }
    } else if present(resource) {
        env::resource_field(resource, true, &p.child("resourceFieldRef"), e);
    } else {
        e.required(p, "one of fieldRef and resourceFieldRef is required");
    }
    mode(&f["mode"], &p.child("mode"), e);
}

fn projected(s: &Value, p: &Path<'_>, e: &mut Errors) {
    mode(&s["defaultMode"], &p.child("defaultMode"), e);
    let mut paths = BTreeSet::new();
    let list = p.child("sources");
    for (i, source) in items(&s["sources"]).iter().enumerate() {
        let at = list.index(i);
        let mut found = 0;
        for (kind, x) in source.as_object().into_iter().flatten().filter(|(_, x)| present(x)) {
            found += 1;
            projected_source(kind, x, &at.child(kind), p, e);
            for (path, shown) in projected_paths(kind, x) {
                if !path.is_empty() && !paths.insert(path) {
                    e.invalid(p, shown, "conflicting duplicate paths");
                }
            }
        }
        if found > 1 {
            e.forbidden(&at, "may not specify more than 1 volume type per source");
        }
    }
}

/// Returns the paths that a source writes, and their names in conflict messages. Tokens are not compared, as upstream.
fn projected_paths<'a>(kind: &str, x: &'a Value) -> Vec<(&'a str, &'a str)> {
    match kind {
        "secret" | "configMap" => items(&x["items"]).iter().map(|i| (text(&i["path"]), text(&x["name"]))).collect(),
        "downwardAPI" => items(&x["items"]).iter().map(|i| (text(&i["path"]), text(&i["path"]))).collect(),
        "clusterTrustBundle" => vec![(text(&x["path"]), text(&x["path"]))],
        "podCertificate" => ["credentialBundlePath", "keyPath", "certificateChainPath"]
            .iter()
            .map(|f| (text(&x[*f]), text(&x[*f])))
            .collect(),
        _ => Vec::new(),
    }
}

fn projected_source(kind: &str, x: &Value, p: &Path<'_>, volume: &Path<'_>, e: &mut Errors) {
    match kind {
        "secret" | "configMap" => {
            rules::required(&x["name"], &p.child("name"), e);
            key_items(x, p, e);
        }
        "downwardAPI" => {
            for f in items(&x["items"]) {
                downward_file(f, p, e);
            }
        }
        "serviceAccountToken" => {
            let seconds = x["expirationSeconds"].as_i64().unwrap_or(0);
            let at = p.child("expirationSeconds");
            if seconds < TOKEN_SECONDS_MIN {
                e.invalid(&at, seconds, "may not specify a duration less than 10 minutes");
            }
            if seconds > TOKEN_SECONDS_MAX {
                e.invalid(&at, seconds, "may not specify a duration larger than 2^32 seconds");
            }
            let path = text(&x["path"]);
            if path.is_empty() {
                e.required(&volume.child("path"), "");
            } else {
                non_reserved(path, &volume.child("path"), e);
            }
        }
        "clusterTrustBundle" => trust_bundle(x, p, e),
        "podCertificate" => pod_certificate(x, p, e),
        _ => {}
    }
}

fn trust_bundle(x: &Value, p: &Path<'_>, e: &mut Errors) {
    match (present(&x["name"]), present(&x["signerName"])) {
        (true, true) => e.invalid(p, x, "only one of name and signerName may be used"),
        (true, false) => {
            if text(&x["name"]).is_empty() {
                e.required(&p.child("name"), "must be a valid object name");
            }
            if present(&x["labelSelector"]) {
                e.invalid(
                    &p.child("labelSelector"),
                    &x["labelSelector"],
                    "labelSelector must be unset if name is specified",
                );
            }
        }
        (false, true) => {
            if text(&x["signerName"]).is_empty() {
                e.required(&p.child("signerName"), "must be a valid signer name");
            }
            rules::label_selector(&x["labelSelector"], &p.child("labelSelector"), e);
        }
        (false, false) => e.required(p, "either name or signerName must be specified"),
    }
    rules::required(&x["path"], &p.child("path"), e);
    non_reserved(text(&x["path"]), &p.child("path"), e);
}

fn pod_certificate(x: &Value, p: &Path<'_>, e: &mut Errors) {
    const KEYS: &[&str] = &["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
    const LIFETIME_SECONDS_MIN: i64 = 3600;
    let signer = text(&x["signerName"]);
    if signer.is_empty() {
        e.required(&p.child("signerName"), "");
    } else {
        e.invalid_each(&p.child("signerName"), signer, is_qualified_name(signer));
    }
    let key = text(&x["keyType"]);
    if !KEYS.contains(&key) {
        e.not_supported(&p.child("keyType"), key, KEYS);
    }
    if let Some(n) = int(&x["maxExpirationSeconds"])
        && n < LIFETIME_SECONDS_MIN
    {
        e.invalid(&p.child("maxExpirationSeconds"), n, "if provided, maxExpirationSeconds must be >= 3600");
    }
    let fields = ["credentialBundlePath", "keyPath", "certificateChainPath"];
    for f in fields {
        non_reserved(text(&x[f]), &p.child(f), e);
    }
    if fields.iter().all(|f| empty(&x[*f])) {
        e.required(p, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath");
    }
}

/// Validates a container's `volumeMounts`.
pub fn mounts(c: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    let devices = items(&c["volumeDevices"]);
    let mut seen = BTreeSet::new();
    for (i, m) in items(&c["volumeMounts"]).iter().enumerate() {
        let at = p.index(i);
        let (name, path) = (text(&m["name"]), text(&m["mountPath"]));
        if name.is_empty() {
            e.required(&at.child("name"), "");
        }
        if !pod.volumes.contains_key(name) {
            e.not_found(&at.child("name"), name);
        }
        if path.is_empty() {
            e.required(&at.child("mountPath"), "");
        }
        if !seen.insert(path) {
            e.invalid(&at.child("mountPath"), path, "must be unique");
        }
        if devices.iter().any(|d| text(&d["name"]) == name) {
            e.invalid(&at.child("name"), name, "must not already exist in volumeDevices");
        }
        if devices.iter().any(|d| text(&d["devicePath"]) == path) {
            e.invalid(&at.child("mountPath"), path, "must not already exist as a path in volumeDevices");
        }
        let (sub, expression) = (text(&m["subPath"]), text(&m["subPathExpr"]));
        descending(sub, &p.child("subPath"), e);
        if !expression.is_empty() {
            if !sub.is_empty() {
                e.invalid(&at.child("subPathExpr"), expression, "subPathExpr and subPath are mutually exclusive");
            }
            descending(expression, &p.child("subPathExpr"), e);
        }
        propagation(m, c, p, e);
    }
}

fn propagation(m: &Value, c: &Value, p: &Path<'_>, e: &mut Errors) {
    let how = m["mountPropagation"].as_str();
    let at = p.child("mountPropagation");
    rules::optional_one_of(&m["mountPropagation"], &at, &["Bidirectional", "HostToContainer", "None"], e);
    if how == Some("Bidirectional") && !flag(&c["securityContext"]["privileged"]) {
        e.forbidden(&at, "Bidirectional mount propagation is available only to privileged containers");
    }
    let at = p.child("recursiveReadOnly");
    match m["recursiveReadOnly"].as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !flag(&m["readOnly"]) {
                e.forbidden(&at, "may only be specified when readOnly is true");
            }
            if how.is_some_and(|h| h != "None") {
                e.forbidden(&at, "may only be specified when mountPropagation is None or not specified");
            }
        }
        Some(other) => e.not_supported(&at, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

/// Validates a container's `volumeDevices`.
pub fn devices(c: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    let mounts = items(&c["volumeMounts"]);
    for (i, d) in items(&c["volumeDevices"]).iter().enumerate() {
        let at = p.index(i);
        let (name, path) = (text(&d["name"]), text(&d["devicePath"]));
        if name.is_empty() {
            e.required(&at.child("name"), "");
        } else if !names.insert(name) {
            e.invalid(&at.child("name"), name, "must be unique");
        }
        match pod.volumes.get(name) {
            None => e.not_found(&at.child("name"), name),
            Some(v) if !present(&v["persistentVolumeClaim"]) && !present(&v["ephemeral"]) => e.invalid(
                &at.child("name"),
                name,
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            ),
            Some(_) => {}
        }
        if path.is_empty() {
            e.required(&at.child("devicePath"), "");
        }
        if path.split('/').any(|s| s == "..") {
            e.invalid(&at.child("devicePath"), path, "can not contain backsteps ('..')");
        } else if !paths.insert(path) {
            e.invalid(&at.child("devicePath"), path, "must be unique");
        }
        if mounts.iter().any(|m| text(&m["name"]) == name) {
            e.invalid(&at.child("name"), name, "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|m| text(&m["mountPath"]) == path) {
            e.invalid(&at.child("devicePath"), path, "must not already exist as a path in volumeMounts");
        }
    }
}
