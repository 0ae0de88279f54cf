//! Validates resource slices and device taint rules (upstream `pkg/apis/resource/validation`).
use std::cmp::Ordering;

use kelson_meta::{Quantity, is_dns1123_subdomain};
use serde_json::{Value, json};

use super::device_formats::{binding, driver, each, label, pool, qualified, set, taint};
use crate::metadata::immutable;
use crate::path::{Errors, Path};
use crate::pod::node_selector;
use crate::tree::{empty, entries, flag, int0, items, len, present, same, text};

const DEVICES_MAX: usize = 128;
/// The maximum number of devices if some have taints, use counters, or have list attributes.
const ADVANCED_MAX: usize = 64;
const COUNTER_SETS_MAX: usize = 8;
const COUNTERS_MAX: usize = 32;
const CONSUMED_MAX: usize = 2;
const NAMES_MAX: usize = 32;
const VALUES_MAX: usize = 48;
const VALUE_MAX: usize = 64;
const TAINTS_MAX: usize = 16;
const OPTIONS_MAX: usize = 10;
const PLACES: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
const DEVICE_PLACES: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
    `perDeviceNodeSelection` is set to true in the ResourceSlice spec";

/// Validates a slice.
pub fn slice(obj: &Value, old: Option<&Value>, e: &mut Errors) {
    let (root, spec) = (Path::new("spec"), &obj["spec"]);
    driver(&spec["driver"], &root.child("driver"), e);
    let (at, of) = (root.child("pool"), &spec["pool"]);
    pool(&of["name"], &at.child("name"), e);
    if int0(&of["resourceSliceCount"]) <= 0 {
        e.invalid(&at.child("resourceSliceCount"), int0(&of["resourceSliceCount"]), "must be greater than zero");
    }
    if int0(&of["generation"]) < 0 {
        e.invalid(&at.child("generation"), int0(&of["generation"]), "must be greater than or equal to zero");
    }
    if let Some(before) = old.map(|old| &old["spec"]) {
        immutable(&of["name"], &before["pool"]["name"], &at.child("name"), e);
        immutable(&spec["driver"], &before["driver"], &root.child("driver"), e);
        immutable(&spec["nodeName"], &before["nodeName"], &root.child("nodeName"), e);
    }
    places(spec, &root, e);
    if present(&spec["sharedCounters"]) && present(&spec["devices"]) {
        e.invalid(&root, "", "only one of `sharedCounters` or `devices` is allowed");
    }
    let advanced = items(&spec["devices"]).iter().any(|d| {
        let lists = ["bools", "ints", "strings", "versions"];
        let listed = entries(&d["attributes"]).any(|(_, a)| lists.iter().any(|list| present(&a[*list])));
        listed || !items(&d["taints"]).is_empty() || !items(&d["consumesCounters"]).is_empty()
    });
    let max = if advanced { ADVANCED_MAX } else { DEVICES_MAX };
    let name = |d: &Value| text(&d["name"]).to_owned();
    let shown = |d: &Value| d["name"].clone();
    let known = old.map_or(&[][..], |old| items(&old["spec"]["devices"]));
    let apart = flag(&spec["perDeviceNodeSelection"]);
    set(&spec["devices"], max, &root.child("devices"), e, name, shown, |d, p, e| {
        device(d, known.iter().find(|k| k["name"] == d["name"]), apart, p, e);
    });
    set(&spec["sharedCounters"], COUNTER_SETS_MAX, &root.child("sharedCounters"), e, name, shown, |s, p, e| {
        named_counters(s, "name", p, e);
    });
}

/// Validates which nodes reach the devices of a slice.
fn places(spec: &Value, root: &Path<'_>, e: &mut Errors) {
    let mut said = Vec::new();
    let (name, at) = (&spec["nodeName"], root.child("nodeName"));
    if present(name) && text(name).is_empty() {
        e.invalid(&at, "", "must be either unset or set to a non-empty string");
    } else if present(name) {
        said.push("`nodeName`");
        e.invalid_each(&at, text(name), is_dns1123_subdomain(text(name)));
    }
    if present(&spec["nodeSelector"]) {
        said.push("`nodeSelector`");
        let at = root.child("nodeSelector");
        node_selector(&spec["nodeSelector"], &at, e);
        let terms = &spec["nodeSelector"]["nodeSelectorTerms"];
        if items(terms).len() != 1 {
            e.invalid(&at.child("nodeSelectorTerms"), terms, "must have exactly one node selector term");
        }
    }
    for (name, quoted) in [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")] {
        if flag(&spec[name]) {
            said.push(quoted);
        } else if present(&spec[name]) {
            e.invalid(&root.child(name), false, "must be either unset or set to true");
        }
    }
    match said.len() {
        0 => e.required(root, PLACES),
        1 => {}
        _ => e.invalid(root, format!("{{{}}}", said.join(", ")), format!("{PLACES}, but multiple fields are set")),
    }
}

fn device(v: &Value, old: Option<&Value>, apart: bool, p: &Path<'_>, e: &mut Errors) {
    label(&v["name"], &p.child("name"), e);
    let names = len(&v["attributes"]) + len(&v["capacity"]);
    if names > NAMES_MAX {
        e.invalid(p, names, format!("the total number of attributes and capacities must not exceed {NAMES_MAX}"));
    }
    let values: usize = entries(&v["attributes"]).map(|(_, a)| values_of(a)).sum();
    if values > VALUES_MAX {
        e.invalid(p, values, format!("the total number of attribute values must not exceed {VALUES_MAX}"));
    }
    let at = p.child("attributes");
    for (name, a) in entries(&v["attributes"]) {
        qualified(name, &at, e);
        attribute(a, &at.key(name), e);
    }
    let at = p.child("capacity");
    for (name, c) in entries(&v["capacity"]) {
        qualified(name, &at, e);
        capacity(c, flag(&v["allowMultipleAllocations"]), &at.key(name), e);
    }
    if old.is_none_or(|old| !same(&old["taints"], &v["taints"])) {
        each(&v["taints"], TAINTS_MAX, &p.child("taints"), e, |t, p, e| taint(t, None, p, e));
    }
    let of = |c: &Value| text(&c["counterSet"]).to_owned();
    let shown = |c: &Value| c["counterSet"].clone();
    set(&v["consumesCounters"], CONSUMED_MAX, &p.child("consumesCounters"), e, of, shown, |c, p, e| {
        named_counters(c, "counterSet", p, e);
    });
    device_places(v, apart, p, e);
    binding(v, p, e);
}

/// Validates which nodes reach a single device.
fn device_places(v: &Value, apart: bool, p: &Path<'_>, e: &mut Errors) {
    if !apart {
        if ["nodeName", "nodeSelector", "allNodes"].iter().any(|name| present(&v[*name])) {
            let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to \
                       true in the ResourceSlice spec";
            e.invalid(p, Value::Null, why);
        }
        return;
    }
    let mut said = Vec::new();
    let (name, at) = (&v["nodeName"], p.child("nodeName"));
    if present(name) && text(name).is_empty() {
        e.invalid(&at, "", "must not be empty");
    } else if present(name) {
        said.push("`nodeName`");
        e.invalid_each(&at, text(name), is_dns1123_subdomain(text(name)));
    }
    if present(&v["nodeSelector"]) {
        said.push("`nodeSelector`");
        node_selector(&v["nodeSelector"], &p.child("nodeSelector"), e);
    }
    if flag(&v["allNodes"]) {
        said.push("`allNodes`");
    } else if present(&v["allNodes"]) {
        e.invalid(&p.child("allNodes"), false, "must be either unset or set to true");
    }
    match said.len() {
        0 => e.required(p, DEVICE_PLACES),
        1 => {}
        _ => e.invalid(p, format!("{{{}}}", said.join(", ")), DEVICE_PLACES),
    }
}

/// Validates a counter set, or a device's consumption of one.
fn named_counters(v: &Value, name: &str, p: &Path<'_>, e: &mut Errors) {
    match text(&v[name]) {
        "" => e.required(&p.child(name), ""),
        _ => label(&v[name], &p.child(name), e),
    }
    let (counters, at) = (&v["counters"], p.child("counters"));
    if empty(counters) {
        e.required(&at, "");
    } else if len(counters) > COUNTERS_MAX {
        e.too_many(&at, len(counters), COUNTERS_MAX);
    } else {
        entries(counters).for_each(|(name, _)| label(&json!(name), &at, e));
    }
}

const LISTS: [(&str, &str); 4] = [("bool", "bools"), ("int", "ints"), ("string", "strings"), ("version", "versions")];

/// Returns the number of values of an attribute.
fn values_of(v: &Value) -> usize {
    LISTS.iter().map(|(_, list)| items(&v[*list]).len()).sum::<usize>().max(1)
}

fn attribute(v: &Value, p: &Path<'_>, e: &mut Errors) {
    let mut said = 0;
    for (one, list) in LISTS {
        said += usize::from(present(&v[one])) + usize::from(present(&v[list]));
        if present(&v[one]) {
            value(one, &v[one], &p.child(one), e);
        }
        if present(&v[list]) {
            let at = p.child(list);
            if items(&v[list]).is_empty() {
                e.invalid(&at, &v[list], "must not be empty if specified");
            }
            items(&v[list]).iter().enumerate().for_each(|(i, v)| value(one, v, &at.index(i), e));
        }
    }
    match said {
        0 => e.invalid(p, "", "exactly one value must be specified"),
        1 => {}
        _ => e.invalid(p, v, "exactly one value must be specified"),
    }
}

fn value(kind: &str, v: &Value, p: &Path<'_>, e: &mut Errors) {
    if kind == "version" && !is_version(text(v)) {
        e.invalid(p, v, "must be a string compatible with semver.org spec 2.0.0");
    }
    if matches!(kind, "string" | "version") && text(v).len() > VALUE_MAX {
        e.too_long(p, VALUE_MAX);
    }
}

/// Reports whether this is a semantic version.
fn is_version(text: &str) -> bool {
    let number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit()) && (s == "0" || !s.starts_with('0'));
    let word = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, before) = rest.split_once('-').map_or((rest, None), |(core, before)| (core, Some(before)));
    let parts: Vec<&str> = core.split('.').collect();
    let early = |s: &str| word(s) && (number(s) || !s.bytes().all(|b| b.is_ascii_digit()));
    parts.len() == 3
        && parts.iter().all(|part| number(part))
        && before.is_none_or(|before| before.split('.').all(early))
        && build.is_none_or(|build| build.split('.').all(word))
}

fn capacity(v: &Value, shared: bool, p: &Path<'_>, e: &mut Errors) {
    let (policy, p) = (&v["requestPolicy"], p.child("requestPolicy"));
    if !present(policy) {
        return;
    }
    if !shared {
        return e.forbidden(&p, "allowMultipleAllocations must be true");
    }
    let (values, range) = (&policy["validValues"], &policy["validRange"]);
    let all = quantity(&v["value"]);
    let usual = present(&policy["default"]).then(|| quantity(&policy["default"]));
    if !items(values).is_empty() && present(range) {
        let why =
            "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time";
        e.forbidden(&p, why);
    } else if !items(values).is_empty() {
        match usual {
            None => e.required(&p.child("default"), "required when validValues is defined"),
            Some(usual) => options(values, usual, all, &p.child("validValues"), e),
        }
    } else if present(range) {
        match usual {
            None => e.required(&p.child("default"), "required when validRange is defined"),
            Some(usual) => valid_range(range, usual, all, &p.child("validRange"), e),
        }
    }
}

fn quantity(v: &Value) -> Quantity {
    text(v).parse().unwrap_or_default()
}

fn less(a: Quantity, b: Quantity) -> bool {
    a.minus(b).signum().cmp(&0) == Ordering::Less
}

fn options(v: &Value, usual: Quantity, all: Quantity, p: &Path<'_>, e: &mut Errors) {
    for (i, pair) in items(v).windows(2).enumerate() {
        if less(quantity(&pair[1]), quantity(&pair[0])) {
            e.invalid(&p.index(i + 1), quantity(&pair[1]).to_string(), "values must be sorted in ascending order");
        }
    }
    let key = |o: &Value| quantity(o).value();
    set(
        v,
        OPTIONS_MAX,
        p,
        e,
        key,
        |o| quantity(o).value().to_string().into(),
        |o, p, e| {
            if less(all, quantity(o)) {
                e.invalid(p, quantity(o).to_string(), format!("option is larger than capacity value: {all}"));
            }
        },
    );
    if !items(v).iter().any(|o| quantity(o).minus(usual).is_zero()) {
        e.invalid(p, usual.to_string(), "default value is not valid according to the requestPolicy");
    }
}

fn valid_range(v: &Value, usual: Quantity, all: Quantity, p: &Path<'_>, e: &mut Errors) {
    let (at_min, at_max, at_step) = (p.child("min"), p.child("max"), p.child("step"));
    if !present(&v["min"]) {
        return e.required(&at_min, "required when validRange is defined");
    }
    let min = quantity(&v["min"]);
    let max = present(&v["max"]).then(|| quantity(&v["max"]));
    if less(all, min) {
        e.invalid(&at_min, min.to_string(), format!("min is larger than capacity value: {all}"));
    }
    if less(usual, min) {
        e.invalid(&at_min, usual.to_string(), format!("default is less than min: {min}"));
    }
    if let Some(max) = max {
        if less(max, min) {
            e.invalid(&at_max, min.to_string(), format!("min is larger than max: {max}"));
        }
        if less(all, max) {
            e.invalid(&at_max, max.to_string(), format!("max is larger than capacity value: {all}"));
        }
        if less(max, usual) {
            e.invalid(&at_max, usual.to_string(), format!("default is more than max: {max}"));
        }
    }
    if !present(&v["step"]) {
        return;
    }
    let step = quantity(&v["step"]);
    if less(all, min.plus(step)) {
        let why = format!("one step {} is larger than capacity value: {all}", min.plus(step));
        e.invalid(&at_step, step.to_string(), why);
    }
    for value in [Some(usual), max].into_iter().flatten() {
        // With a step of zero only the minimum can be reached.
        let off = (value.value() - min.value()).checked_rem(step.value());
        if off != Some(0) && !(step.is_zero() && value.minus(min).is_zero()) {
            let why = format!("value is not a multiple of a given step ({step}) from ({min})");
            e.invalid(&at_step, value.to_string(), why);
        }
    }
}

/// Validates a device taint rule.
pub fn taint_rule(obj: &Value, old: Option<&Value>, e: &mut Errors) {
    let (root, spec) = (Path::new("spec"), &obj["spec"]);
    let (selector, at) = (&spec["deviceSelector"], root.child("deviceSelector"));
    if present(&selector["driver"]) {
        driver(&selector["driver"], &at.child("driver"), e);
    }
    if present(&selector["pool"]) {
        pool(&selector["pool"], &at.child("pool"), e);
    }
    if present(&selector["device"]) {
        label(&selector["device"], &at.child("device"), e);
    }
    taint(&spec["taint"], old.map(|old| &old["spec"]["taint"]), &root.child("taint"), e);
}
