//! Validates resource claims, claim templates and device classes (upstream `pkg/apis/resource/validation`).
use kelson_cel::device::compile;
use serde_json::Value;

use super::device_formats::{RequestNames, class, driver, each, fully_qualified, label, raw, set, toleration};
use crate::metadata::{self, immutable};
use crate::path::{Errors, Path};
use crate::tree::{int0, items, present, same, text};

const REQUESTS_MAX: usize = 32;
const CONSTRAINTS_MAX: usize = 32;
const CONFIG_MAX: usize = 32;
const SELECTORS_MAX: usize = 32;
const ALTERNATIVES_MAX: usize = 8;
const EXPRESSION_MAX: usize = 10 * 1024;
const PARAMETERS_MAX: usize = 10 * 1024;

/// Validates a claim.
pub fn claim(obj: &Value, old: Option<&Value>, e: &mut Errors) {
    let spec = Path::new("spec");
    match old {
        // Only a change is reported, since other errors could not be fixed.
        Some(old) => immutable(&obj["spec"], &old["spec"], &spec, e),
        None => devices(&obj["spec"]["devices"], &spec.child("devices"), e),
    }
}

/// Validates a claim template.
pub fn template(obj: &Value, old: Option<&Value>, e: &mut Errors) {
    let spec = Path::new("spec");
    if let Some(old) = old {
        immutable(&obj["spec"], &old["spec"], &spec, e);
    }
    metadata::of_template(&obj["spec"]["metadata"], &spec.child("metadata"), e);
    devices(&obj["spec"]["spec"]["devices"], &spec.child("spec").child("devices"), e);
}

/// Validates a device class. Stored values may be longer than new ones.
pub fn device_class(obj: &Value, old: Option<&Value>, e: &mut Errors) {
    let (root, spec) = (Path::new("spec"), &obj["spec"]);
    each(&spec["selectors"], SELECTORS_MAX, &root.child("selectors"), e, selector);
    let stored = old.is_some_and(|old| same(&old["spec"]["config"], &spec["config"]));
    each(&spec["config"], CONFIG_MAX, &root.child("config"), e, |c, p, e| configuration(c, stored, p, e));
    let extended = &spec["extendedResourceName"];
    if present(extended) && !is_extended(text(extended)) {
        e.invalid(&root.child("extendedResourceName"), extended, "must be a valid extended resource name");
    }
}

/// Reports whether a name has a domain other than Kubernetes' own, and is allowed in quotas.
fn is_extended(name: &str) -> bool {
    let native = |domain: &str| domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    let Some((domain, _)) = name.split_once('/') else { return false };
    !native(domain)
        && !name.starts_with("requests.")
        && kelson_meta::is_qualified_name(&format!("requests.{name}")).is_ok()
}

fn devices(v: &Value, p: &Path<'_>, e: &mut Errors) {
    let names = RequestNames::of(v);
    let name = |r: &Value| text(&r["name"]).to_owned();
    let shown = |r: &Value| r["name"].clone();
    set(&v["requests"], REQUESTS_MAX, &p.child("requests"), e, name, shown, request);
    each(&v["constraints"], CONSTRAINTS_MAX, &p.child("constraints"), e, |c, p, e| constraint(c, &names, p, e));
    each(&v["config"], CONFIG_MAX, &p.child("config"), e, |c, p, e| {
        references(&c["requests"], &names, &p.child("requests"), e);
        configuration(c, false, p, e);
    });
}

/// Validates references to requests.
pub fn references(v: &Value, names: &RequestNames<'_>, p: &Path<'_>, e: &mut Errors) {
    set(v, REQUESTS_MAX, p, e, |r| text(r).to_owned(), Value::clone, |r, p, e| names.check(r, p, e));
}

fn request(v: &Value, p: &Path<'_>, e: &mut Errors) {
    const ONE: &str = "exactly one of `exactly` or `firstAvailable` is required";
    label(&v["name"], &p.child("name"), e);
    match (present(&v["exactly"]), !items(&v["firstAvailable"]).is_empty()) {
        (false, false) => e.required(p, ONE),
        (true, true) => e.invalid(p, Value::Null, format!("{ONE}, but multiple fields are set")),
        (true, false) => exact(&v["exactly"], &p.child("exactly"), e),
        (false, true) => {
            let name = |r: &Value| text(&r["name"]).to_owned();
            let shown = |r: &Value| r["name"].clone();
            set(&v["firstAvailable"], ALTERNATIVES_MAX, &p.child("firstAvailable"), e, name, shown, |r, p, e| {
                label(&r["name"], &p.child("name"), e);
                exact(r, p, e);
            });
        }
    }
}

fn exact(v: &Value, p: &Path<'_>, e: &mut Errors) {
    class(&v["deviceClassName"], &p.child("deviceClassName"), e);
    each(&v["selectors"], SELECTORS_MAX, &p.child("selectors"), e, selector);
    let (at, count) = (p.child("count"), int0(&v["count"]));
    match text(&v["allocationMode"]) {
        "All" if count != 0 => e.invalid(&at, count, "must not be specified when allocationMode is 'All'"),
        "All" => {}
        "ExactCount" if count <= 0 => e.invalid(&at, count, "must be greater than zero"),
        "ExactCount" => {}
        other => e.not_supported(&p.child("allocationMode"), other, &["All", "ExactCount"]),
    }
    let list = p.child("tolerations");
    items(&v["tolerations"]).iter().enumerate().for_each(|(i, t)| toleration(t, &list.index(i), e));
}

fn selector(v: &Value, p: &Path<'_>, e: &mut Errors) {
    let cel = p.child("cel");
    if !present(&v["cel"]) {
        return e.required(&cel, "");
    }
    let (source, p) = (text(&v["cel"]["expression"]), cel.child("expression"));
    if source.len() > EXPRESSION_MAX {
        return e.too_long(&p, EXPRESSION_MAX);
    }
    // The cost is limited during evaluation: attributes have no declared sizes, so an estimate here would reject what
    // upstream accepts.
    if let Err(why) = compile(source) {
        e.invalid(&p, source, why);
    }
}

fn constraint(v: &Value, names: &RequestNames<'_>, p: &Path<'_>, e: &mut Errors) {
    references(&v["requests"], names, &p.child("requests"), e);
    if present(&v["matchAttribute"]) {
        fully_qualified(&v["matchAttribute"], &p.child("matchAttribute"), e);
    } else if present(&v["distinctAttribute"]) {
        fully_qualified(&v["distinctAttribute"], &p.child("distinctAttribute"), e);
    } else {
        // Upstream's message, though none is set.
        let one = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
        e.required(p, one);
    }
}

/// Validates the configuration for a driver.
pub fn configuration(v: &Value, stored: bool, p: &Path<'_>, e: &mut Errors) {
    let (opaque, p) = (&v["opaque"], p.child("opaque"));
    if !present(opaque) {
        return e.required(&p, "");
    }
    driver(&opaque["driver"], &p.child("driver"), e);
    raw(&opaque["parameters"], stored, PARAMETERS_MAX, &p.child("parameters"), e);
}
