//! Validates webhook configurations, and the parts that policies have as well (upstream
//! `pkg/apis/admissionregistration/validation`).
use std::collections::BTreeSet;

use crate::path::{Errors, Path};
use kelson_cel::Type;
use kelson_cel::admission::{Extent, compile, env};
use kelson_meta::{is_dns1035_label, is_dns1123_subdomain, is_qualified_name};
use serde_json::Value;

use super::webhook_urls;
use crate::rules::label_selector;
use crate::tree::{int, items, present, text};

/// The maximum number of match conditions of a webhook or policy.
const CONDITIONS_MAX: usize = 64;
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
pub(super) const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
pub(super) const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
pub(super) const REINVOCATION_POLICIES: [&str; 2] = ["IfNeeded", "Never"];
const NO_SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const ALL_SIDE_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];

/// Validates a webhook configuration. Values that were stored under older rules may stay.
pub fn webhooks(obj: &Value, old: Option<&Value>, e: &mut Errors) {
    let hooks = items(&obj["webhooks"]);
    let before = old.map(|o| items(&o["webhooks"]));
    let was = |rule: fn(&Value) -> bool| before.is_none_or(|hooks| hooks.iter().all(rule));
    let free = was(|h| NO_SIDE_EFFECTS.contains(&text(&h["sideEffects"])));
    let reviewed = was(|h| {
        let versions = items(&h["admissionReviewVersions"]);
        versions.is_empty() || versions.iter().any(|v| REVIEW_VERSIONS.contains(&text(v)))
    });
    let distinct = before.is_none_or(|hooks| {
        let names: BTreeSet<&str> = hooks.iter().map(|h| text(&h["name"])).collect();
        names.len() == hooks.len()
    });
    let kept = before.is_some_and(|before| {
        before.len() == hooks.len()
            && before.iter().zip(hooks).all(|(o, n)| o["matchConditions"] == n["matchConditions"])
    });
    let mut names = BTreeSet::new();
    let list = Path::new("webhooks");
    for (i, hook) in hooks.iter().enumerate() {
        let p = list.index(i);
        webhook(hook, free, &p, e);
        if !kept {
            conditions(&hook["matchConditions"], false, &p.child("matchConditions"), e);
        }
        review_versions(&hook["admissionReviewVersions"], reviewed, &p.child("admissionReviewVersions"), e);
        let name = text(&hook["name"]);
        if distinct && !name.is_empty() && !names.insert(name) {
            e.duplicate(&p.child("name"), name);
        }
    }
}

fn webhook(hook: &Value, free: bool, p: &Path<'_>, e: &mut Errors) {
    fully_qualified(text(&hook["name"]), &p.child("name"), e);
    let rules = p.child("rules");
    for (j, rule) in items(&hook["rules"]).iter().enumerate() {
        rule_with_operations(rule, &rules.index(j), e);
    }
    one_of(&hook["failurePolicy"], &FAILURE_POLICIES, &p.child("failurePolicy"), e);
    one_of(&hook["matchPolicy"], &MATCH_POLICIES, &p.child("matchPolicy"), e);
    one_of(&hook["reinvocationPolicy"], &REINVOCATION_POLICIES, &p.child("reinvocationPolicy"), e);
    let allowed: &[&str] = if free { &NO_SIDE_EFFECTS } else { &ALL_SIDE_EFFECTS };
    if present(&hook["sideEffects"]) {
        one_of(&hook["sideEffects"], allowed, &p.child("sideEffects"), e);
    } else {
        e.required(&p.child("sideEffects"), &format!("must specify one of {}", allowed.join(", ")));
    }
    if let Some(seconds) = int(&hook["timeoutSeconds"])
        && !(1..=30).contains(&seconds)
    {
        e.invalid(&p.child("timeoutSeconds"), seconds, "the timeout value must be between 1 and 30 seconds");
    }
    for field in ["namespaceSelector", "objectSelector"] {
        label_selector(&hook[field], &p.child(field), e);
    }
    client_config(&hook["clientConfig"], &p.child("clientConfig"), e);
}

fn fully_qualified(name: &str, p: &Path<'_>, e: &mut Errors) {
    if name.is_empty() {
        return e.required(p, "");
    }
    if let Err(faults) = is_dns1123_subdomain(name) {
        return e.invalid(p, name, faults.join(", "));
    }
    if name.split('.').count() < 3 {
        e.invalid(p, name, "should be a domain with at least three segments separated by dots");
    }
}

pub(super) fn one_of(value: &Value, allowed: &[&str], p: &Path<'_>, e: &mut Errors) {
    if present(value) && !allowed.contains(&text(value)) {
        e.not_supported(p, text(value), allowed);
    }
}

fn client_config(config: &Value, p: &Path<'_>, e: &mut Errors) {
    let (url, service) = (&config["url"], &config["service"]);
    if present(url) == present(service) {
        return e.required(p, "exactly one of url or service is required");
    }
    if present(url) {
        return webhook_urls::check(text(url), &p.child("url"), e);
    }
    webhook_service(service, &p.child("service"), e);
}

fn webhook_service(service: &Value, p: &Path<'_>, e: &mut Errors) {
    for field in ["name", "namespace"] {
        if text(&service[field]).is_empty() {
            e.required(&p.child(field), "");
        }
    }
    let port = int(&service["port"]).unwrap_or(443);
    if !(1..=65535).contains(&port) {
        e.invalid(&p.child("port"), port, "port is not valid: must be between 1 and 65535, inclusive");
    }
    let path = text(&service["path"]);
    let at = p.child("path");
    if matches!(path, "" | "/") {
        return;
    }
    if path == "//" {
        return e.invalid(&at, path, "segment[0] may not be empty");
    }
    if !path.starts_with('/') {
        e.invalid(&at, path, "must start with a '/'");
    }
    let inner = path.strip_prefix('/').unwrap_or(path);
    for (i, segment) in inner.strip_suffix('/').unwrap_or(inner).split('/').enumerate() {
        if segment.is_empty() {
            e.invalid(&at, path, format!("segment[{i}] may not be empty"));
        } else if let Err(faults) = is_dns1123_subdomain(segment) {
            faults.into_iter().for_each(|fault| e.invalid(&at, path, format!("segment[{i}]: {fault}")));
        }
    }
}

fn review_versions(versions: &Value, recognized: bool, p: &Path<'_>, e: &mut Errors) {
    let known = REVIEW_VERSIONS.join(", ");
    let list = items(versions);
    if list.is_empty() {
        return e.required(p, &format!("must specify one of {known}"));
    }
    let mut seen = BTreeSet::new();
    for (i, version) in list.iter().map(text).enumerate() {
        if seen.insert(version) {
            e.invalid_each(&p.index(i), version, is_dns1035_label(version));
        } else {
            e.invalid(&p.index(i), version, "duplicate version");
        }
    }
    if recognized && !REVIEW_VERSIONS.iter().any(|v| seen.contains(v)) {
        e.invalid(p, versions, format!("must include at least one of {known}"));
    }
}

pub(super) fn rule_with_operations(rule: &Value, p: &Path<'_>, e: &mut Errors) {
    let operations = p.child("operations");
    not_beside_all(&rule["operations"], "operations", &operations, e);
    for (i, operation) in items(&rule["operations"]).iter().enumerate() {
        if !OPERATIONS.contains(&text(operation)) {
            e.not_supported(&operations.index(i), text(operation), &OPERATIONS);
        }
    }
    not_beside_all(&rule["apiGroups"], "API groups", &p.child("apiGroups"), e);
    let versions = p.child("apiVersions");
    not_beside_all(&rule["apiVersions"], "API versions", &versions, e);
    for (i, version) in items(&rule["apiVersions"]).iter().enumerate() {
        if text(version).is_empty() {
            e.required(&versions.index(i), "");
        }
    }
    resources(&rule["resources"], &p.child("resources"), e);
    one_of(&rule["scope"], &SCOPES, &p.child("scope"), e);
}

fn not_beside_all(list: &Value, what: &str, p: &Path<'_>, e: &mut Errors) {
    let entries = items(list);
    if entries.is_empty() {
        e.required(p, "");
    } else if entries.len() > 1 && entries.iter().any(|v| text(v) == "*") {
        e.invalid(p, list, format!("if '*' is present, must not specify other {what}"));
    }
}

fn resources(list: &Value, p: &Path<'_>, e: &mut Errors) {
    let entries = items(list);
    if entries.is_empty() {
        e.required(p, "");
    }
    let (mut all_of, mut in_all) = (BTreeSet::new(), BTreeSet::new());
    let mut plain = false;
    for (i, entry) in entries.iter().map(text).enumerate() {
        let at = p.index(i);
        let Some((resource, sub)) = entry.split_once('/') else {
            if entry.is_empty() {
                e.required(&at, "");
            }
            plain |= !matches!(entry, "" | "*");
            continue;
        };
        if all_of.contains(resource) {
            e.invalid(&at, entry, format!("if '{resource}/*' is present, must not specify {entry}"));
        }
        if in_all.contains(sub) {
            e.invalid(&at, entry, format!("if '*/{sub}' is present, must not specify {entry}"));
        }
        if sub == "*" {
            all_of.insert(resource);
        }
        if resource == "*" {
            in_all.insert(sub);
        }
    }
    let has = |wanted: &str| entries.iter().any(|v| text(v) == wanted);
    if entries.len() > 1 && has("*/*") {
        e.invalid(p, list, "if '*/*' is present, must not specify other resources");
    }
    if has("*") && plain {
        e.invalid(p, list, "if '*' is present, must not specify other resources without subresources");
    }
}

fn expression(source: &str, extent: Extent, wanted: &[Type], p: &Path<'_>, e: &mut Errors) {
    if let Err(why) = compile(env(extent), source, wanted) {
        e.invalid(p, source, why);
    }
}

pub(super) fn conditions(list: &Value, params: bool, p: &Path<'_>, e: &mut Errors) {
    let entries = items(list);
    if entries.len() > CONDITIONS_MAX {
        e.too_many(p, entries.len(), CONDITIONS_MAX);
    }
    let extent = Extent { params, authorizer: true, mutations: false };
    let mut names = BTreeSet::new();
    for (i, condition) in entries.iter().enumerate() {
        let at = p.index(i);
        match text(&condition["expression"]).trim() {
            "" => e.required(&at.child("expression"), ""),
            source => expression(source, extent, &[Type::Bool], &at.child("expression"), e),
        }
        let name = text(&condition["name"]);
        if name.is_empty() {
            e.required(&at.child("name"), "");
        } else {
            e.invalid_each(&at.child("name"), name, is_qualified_name(name));
            if !names.insert(name) {
                e.duplicate(&at.child("name"), name);
            }
        }
    }
}
