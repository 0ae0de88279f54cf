//! Names, keys and lists in objects of `resource.k8s.io` (upstream `pkg/apis/resource/validation`).
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use kelson_meta::{is_dns1123_label, is_dns1123_subdomain, is_label_value, is_qualified_name};
use serde_json::Value;

use crate::path::{Errors, Path};
use crate::tree::{items, present, text};

const DRIVER_MAX: usize = 63;
const POOL_MAX: usize = 253;
/// The maximum length of an attribute's name after the domain.
const ID_MAX: usize = 32;
const CONDITIONS_MAX: usize = 4;
const C_IDENTIFIER: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
    alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is \
    '[A-Za-z_][A-Za-z0-9_]*')";
const REFERENCE: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];

/// Validates each of at most `max` items; if there are more, only that is reported.
pub fn each<'v>(
    list: &'v Value,
    max: usize,
    p: &Path<'_>,
    e: &mut Errors,
    mut check: impl FnMut(&'v Value, &Path<'_>, &mut Errors),
) -> bool {
    let all = items(list);
    if all.len() > max {
        e.too_many(p, all.len(), max);
        return false;
    }
    all.iter().enumerate().for_each(|(i, item)| check(item, &p.index(i), e));
    true
}

/// Validates a list as [`each`] does, and that no two items have the same key.
pub fn set<'v, K: Eq + Hash>(
    list: &'v Value,
    max: usize,
    p: &Path<'_>,
    e: &mut Errors,
    key: impl Fn(&'v Value) -> K,
    shown: impl Fn(&'v Value) -> Value,
    check: impl FnMut(&'v Value, &Path<'_>, &mut Errors),
) {
    if !each(list, max, p, e, check) {
        return;
    }
    let mut seen = HashSet::new();
    for (i, item) in items(list).iter().enumerate() {
        if !seen.insert(key(item)) {
            e.duplicate(&p.index(i), shown(item));
        }
    }
}

/// Validates the name of a driver.
pub fn driver(v: &Value, p: &Path<'_>, e: &mut Errors) {
    driver_name(text(v), p, e);
}

fn driver_name(name: &str, p: &Path<'_>, e: &mut Errors) {
    if name.is_empty() {
        return e.required(p, "");
    }
    if name.len() > DRIVER_MAX {
        e.too_long(p, DRIVER_MAX);
    }
    e.invalid_each(p, name, is_dns1123_subdomain(&name.to_lowercase()));
}

/// Validates the name of a pool: subdomains separated by slashes.
pub fn pool(v: &Value, p: &Path<'_>, e: &mut Errors) {
    let name = text(v);
    if name.is_empty() {
        return e.required(p, "");
    }
    if name.len() > POOL_MAX {
        e.too_long(p, POOL_MAX);
    }
    name.split('/').for_each(|part| e.invalid_each(p, part, is_dns1123_subdomain(part)));
}

/// Validates the name of a device, a request or a counter set.
pub fn label(v: &Value, p: &Path<'_>, e: &mut Errors) {
    e.invalid_each(p, text(v), is_dns1123_label(text(v)));
}

/// Validates the name of a device class.
pub fn class(v: &Value, p: &Path<'_>, e: &mut Errors) {
    match text(v) {
        "" => e.required(p, ""),
        name => e.invalid_each(p, name, is_dns1123_subdomain(name)),
    }
}

/// Validates the name of an attribute or a capacity, with or without a domain.
pub fn qualified(name: &str, p: &Path<'_>, e: &mut Errors) {
    let parts: Vec<&str> = name.split('/').collect();
    match parts.as_slice() {
        [id] => identifier(id, p, e),
        [domain, id] => {
            match *domain {
                "" => e.invalid(p, "", "the domain must not be empty"),
                domain => driver_name(domain, p, e),
            }
            match *id {
                "" => e.invalid(p, "", "the name must not be empty"),
                id => identifier(id, p, e),
            }
        }
        // As upstream, which does not validate names with more slashes.
        _ => {}
    }
}

/// Validates a name that must have a domain.
pub fn fully_qualified(v: &Value, p: &Path<'_>, e: &mut Errors) {
    qualified(text(v), p, e);
    if !text(v).contains('/') {
        e.invalid(p, text(v), "a fully qualified name must be a domain and a name separated by a slash");
    }
}

fn identifier(id: &str, p: &Path<'_>, e: &mut Errors) {
    if id.len() > ID_MAX {
        e.too_long(p, ID_MAX);
    }
    let starts = id.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !starts || !id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        e.invalid(p, id, C_IDENTIFIER);
    }
}

/// Validates the UID of a device share.
pub fn share(v: &Value, p: &Path<'_>, e: &mut Errors) {
    let uid = text(v);
    let hex = |s: &str| s.chars().all(|c| c.is_ascii_hexdigit());
    if uid.len() != 36 {
        return e.invalid(p, uid, format!("error validating uid: invalid UUID length: {}", uid.len()));
    }
    let parts: Vec<&str> = uid.split('-').collect();
    if parts.iter().map(|part| part.len()).ne([8, 4, 4, 4, 12]) || !parts.iter().all(|part| hex(part)) {
        return e.invalid(p, uid, "error validating uid: invalid UUID format");
    }
    if uid.chars().any(|c| c.is_ascii_uppercase()) {
        e.invalid(
            p,
            uid,
            "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal \
             characters",
        );
    }
}

/// Validates the key of a label.
pub fn key(v: &Value, p: &Path<'_>, e: &mut Errors) {
    e.invalid_each(p, text(v), is_qualified_name(text(v)));
}

/// Validates a taint of a device; an unchanged effect is not validated again.
pub fn taint(v: &Value, old: Option<&Value>, p: &Path<'_>, e: &mut Errors) {
    key(&v["key"], &p.child("key"), e);
    if !text(&v["value"]).is_empty() {
        e.invalid_each(&p.child("value"), text(&v["value"]), is_label_value(text(&v["value"])));
    }
    let effect = text(&v["effect"]);
    match effect {
        _ if old.is_some_and(|old| text(&old["effect"]) == effect) => {}
        "" => e.required(&p.child("effect"), ""),
        other if !EFFECTS.contains(&other) => e.not_supported(&p.child("effect"), other, &EFFECTS),
        _ => {}
    }
}

/// Validates a toleration of a request.
pub fn toleration(v: &Value, p: &Path<'_>, e: &mut Errors) {
    if !text(&v["key"]).is_empty() {
        key(&v["key"], &p.child("key"), e);
    }
    let (at, value) = (p.child("value"), text(&v["value"]));
    match text(&v["operator"]) {
        "Exists" if !value.is_empty() => e.invalid(&at, value, "must be empty for operator `Exists`"),
        "Exists" => {}
        "Equal" => e.invalid_each(&at, value, is_label_value(value)),
        "" => e.required(&p.child("operator"), ""),
        other => e.not_supported(&p.child("operator"), other, &["Equal", "Exists"]),
    }
    match text(&v["effect"]) {
        "" => {}
        other if !EFFECTS.contains(&other) => e.not_supported(&p.child("effect"), other, &EFFECTS),
        _ => {}
    }
}

/// Validates the conditions that a driver must set before a pod can be bound.
pub fn binding(v: &Value, p: &Path<'_>, e: &mut Errors) {
    let (met, failed) = (&v["bindingConditions"], &v["bindingFailureConditions"]);
    let (at_met, at_failed) = (p.child("bindingConditions"), p.child("bindingFailureConditions"));
    each(met, CONDITIONS_MAX, &at_met, e, key);
    each(failed, CONDITIONS_MAX, &at_failed, e, key);
    let mut seen = HashSet::new();
    for (i, condition) in items(met).iter().enumerate().filter(|(_, c)| !seen.insert(text(c))) {
        e.duplicate(&at_met.index(i), condition);
    }
    let mut twice = HashSet::new();
    for (i, condition) in items(failed).iter().enumerate() {
        if !twice.insert(text(condition)) {
            e.duplicate(&at_failed.index(i), condition);
        }
        if seen.contains(text(condition)) {
            e.invalid(
                &at_failed.index(i),
                condition,
                "bindingFailureConditions must not overlap with bindingConditions",
            );
        }
    }
    if items(met).is_empty() && !items(failed).is_empty() {
        e.invalid(&at_met, met, "bindingConditions are required to use bindingFailureConditions");
    }
    if items(failed).is_empty() && !items(met).is_empty() {
        e.invalid(&at_failed, failed, "bindingFailureConditions are required to use bindingConditions");
    }
}

/// Validates driver-specific data: a JSON object; a `stored` one may be longer than a new one.
pub fn raw(v: &Value, stored: bool, max: usize, p: &Path<'_>, e: &mut Errors) {
    if !present(v) {
        e.required(p, "");
    } else if !stored && v.to_string().len() > max {
        e.too_long(p, max);
    } else if !v.is_object() {
        e.invalid(p, "<value omitted>", "must be a valid JSON object");
    }
}

/// The requests of a claim by name, each with its subrequests.
pub struct RequestNames<'v>(HashMap<&'v str, HashSet<&'v str>>);

impl<'v> RequestNames<'v> {
    /// Reads `spec.devices` of a claim.
    pub fn of(devices: &'v Value) -> Self {
        let name = |r: &'v Value| text(&r["name"]);
        let requests = items(&devices["requests"]).iter();
        Self(requests.map(|r| (name(r), items(&r["firstAvailable"]).iter().map(name).collect())).collect())
    }

    fn has(&self, name: &str) -> bool {
        match name.split_once('/') {
            None => self.0.contains_key(name),
            Some((request, alternative)) => self.0.get(request).is_some_and(|all| all.contains(alternative)),
        }
    }

    /// Validates a reference to a request.
    pub fn check(&self, v: &Value, p: &Path<'_>, e: &mut Errors) {
        let name = text(v);
        if name.matches('/').count() > 1 {
            return e.invalid(p, name, REFERENCE);
        }
        name.split('/').for_each(|part| e.invalid_each(p, part, is_dns1123_label(part)));
        if !self.has(name) {
            e.invalid(p, name, REFERENCE);
        }
    }
}
