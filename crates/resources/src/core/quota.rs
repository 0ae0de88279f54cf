//! ResourceQuotas, LimitRanges and PodTemplates.
use std::collections::BTreeSet;
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{Quantity, is_qualified_name};
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME};
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::pod;
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{age, label_map, name};
use crate::tree::{default_to, ensure, entries, holds, items, items_mut, text};

const SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];
const OVERCOMMIT_EXEMPT: &str = "hugepages-";

/// The strategy of resourcequotas.
pub struct ResourceQuotas;

static QUOTAS: LazyLock<Options> = LazyLock::new(|| Options {
    columns: columns![
        NAME,
        Column::text("Request", "Used and allowed, of requests and counts."),
        Column::text("Limit", "Used and allowed, of limits."),
        AGE,
    ],
    delete_returns_object: true,
    ..Options::of("", "resourcequotas")
});

impl Strategy for ResourceQuotas {
    fn options(&self) -> &Options {
        &QUOTAS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        for (part, fields) in [("spec", &["hard"][..]), ("status", &["hard", "used"][..])] {
            let Some(p) = ensure(obj, part) else { continue };
            for f in fields {
                if let Some(list) = p.get_mut(*f) {
                    pod::canonical_quantities(list);
                }
            }
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        quantities(&spec["hard"], &p.child("hard"), e);
        let scopes = items(&spec["scopes"]);
        let at = p.child("scopes");
        for scope in scopes.iter().map(text) {
            if !SCOPES.contains(&scope) {
                e.invalid(&at, scopes, "unsupported scope");
            }
            uncounted(scope, &spec["hard"], scopes, &at, e);
        }
        conflicts(&|s| holds(&spec["scopes"], s), scopes, &at, e);
        let selector = p.child("scopeSelector");
        scope_selector(spec, &selector.child("matchExpressions"), e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        let set = |v: &Value| items(&v["spec"]["scopes"]).iter().map(|s| text(s).to_owned()).collect::<BTreeSet<_>>();
        if set(new) != set(old) {
            let p = Path::new("spec");
            e.invalid(&p.child("scopes"), &new["spec"]["scopes"], "field is immutable");
        }
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, _old: &Value, e: &mut Errors) {
        let p = Path::new("status");
        for f in ["hard", "used"] {
            quantities(&new["status"][f], &p.child(f), e);
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (k, hard) in entries(&obj["status"]["hard"]) {
            let used = obj["status"]["used"][k.as_str()].as_str().unwrap_or("0");
            let shown = format!("{k}: {used}/{}", text(hard));
            if k.starts_with("limits.") { limits.push(shown) } else { requests.push(shown) }
        }
        vec![name(obj), json!(requests.join(", ")), json!(limits.join(", ")), age(obj, now)]
    }
}

/// Resources without a domain that a quota may contain.
const PLAIN: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "storage",
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
];
/// Requests and limits that a quota may contain; `storage` is not an amount of a namespace.
const PARTS: &[&str] = &[
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "services.nodeports",
    "services.loadbalancers",
];

fn quantities(list: &Value, p: &Path<'_>, e: &mut Errors) {
    for (k, v) in entries(list) {
        let at = p.key(k);
        e.invalid_each(&at, k, is_qualified_name(k));
        if !k.contains('/') {
            let pages = k.starts_with(OVERCOMMIT_EXEMPT) || k.starts_with("requests.hugepages-");
            let known = PLAIN.contains(&k.as_str()) || PARTS.contains(&k.as_str()) || pages;
            if !known && is_qualified_name(k).is_ok() {
                e.invalid(&at, k, "must be a standard resource type or fully qualified");
            }
            if !known || k == "storage" {
                e.invalid(&at, k, "must be a standard resource for quota");
            }
        }
        let Some(q) = rules::quantity(v, &at, e) else { continue };
        if q.signum() < 0 {
            e.invalid(&at, v, rules::NOT_NEGATIVE);
        }
        if is_counted(k) && q.nanos() % 1_000_000_000 != 0 {
            e.invalid(&at, v, "must be an integer");
        }
    }
}

/// Reports whether a name is for a number of objects or devices, which are whole numbers.
fn is_counted(name: &str) -> bool {
    let of_others = name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.");
    PLAIN[4..].contains(&name)
        || matches!(name, "services.nodeports" | "services.loadbalancers")
        || (of_others && is_qualified_name(&format!("requests.{name}")).is_ok())
}

/// Reports whether a quota with a scope counts a resource, since a scope selects pods or claims.
fn is_counted_under(scope: &str, resource: &str) -> bool {
    const COMPUTE: [&str; 7] =
        ["pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
    match scope {
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            COMPUTE.contains(&resource)
        }
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => ["persistentvolumeclaims", "requests.storage"].contains(&resource),
        _ => true,
    }
}

/// Reports whether a quota knows a resource without a domain.
fn is_standard(resource: &str) -> bool {
    resource != "storage"
        && (PLAIN.contains(&resource)
            || PARTS.contains(&resource)
            || resource.starts_with("requests.hugepages-")
            || resource.starts_with("hugepages-"))
}

fn conflicts(has: &dyn Fn(&str) -> bool, shown: &[Value], p: &Path<'_>, e: &mut Errors) {
    for (a, b) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if has(a) && has(b) {
            e.invalid(p, shown, "conflicting scopes");
        }
    }
}

/// Checks that nothing is limited that the scope does not count.
fn uncounted(scope: &str, hard: &Value, shown: &[Value], p: &Path<'_>, e: &mut Errors) {
    for _ in entries(hard).filter(|(k, _)| is_standard(k) && !is_counted_under(scope, k)) {
        e.invalid(p, shown, "unsupported scope applied to resource");
    }
}

fn scope_selector(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let all = items(&spec["scopeSelector"]["matchExpressions"]);
    for r in all {
        let (scope, operator, values) = (text(&r["scopeName"]), text(&r["operator"]), items(&r["values"]));
        if !SCOPES.contains(&scope) {
            e.invalid(&p.child("scopeName"), scope, "unsupported scope");
        }
        uncounted(scope, &spec["hard"], all, p, e);
        if !matches!(scope, "PriorityClass" | "VolumeAttributesClass")
            && SCOPES.contains(&scope)
            && operator != "Exists"
        {
            e.invalid(
                &p.child("operator"),
                operator,
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
            );
        }
        match operator {
            "In" | "NotIn" if values.is_empty() => e.required(
                &p.child("values"),
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            ),
            "Exists" | "DoesNotExist" if !values.is_empty() => e.invalid(
                &p.child("values"),
                values,
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => e.invalid(&p.child("operator"), other, "not a valid selector operator"),
        }
    }
    conflicts(&|s| all.iter().any(|r| text(&r["scopeName"]) == s), all, p, e);
}

/// The strategy of limitranges.
pub struct LimitRanges;

static RANGES: LazyLock<Options> =
    LazyLock::new(|| Options { allow_create_on_update: true, names_itself: true, ..Options::of("", "limitranges") });

impl Strategy for LimitRanges {
    fn options(&self) -> &Options {
        &RANGES
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        let Some(spec) = ensure(obj, "spec") else { return };
        for l in items_mut(spec, "limits") {
            for f in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
                if let Some(list) = l.get_mut(f) {
                    pod::canonical_quantities(list);
                }
            }
            if text(&l["type"]) != "Container" {
                continue;
            }
            for (to, from) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")] {
                let source = l[from].clone();
                if entries(&source).next().is_none() {
                    continue;
                }
                let Some(t) = ensure(l, to) else { continue };
                for (k, v) in entries(&source) {
                    default_to(t, k, v.clone());
                }
            }
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let spec = Path::new("spec");
        let list = spec.child("limits");
        let mut seen = BTreeSet::new();
        for (i, l) in items(&obj["spec"]["limits"]).iter().enumerate() {
            let at = list.index(i);
            let kind = text(&l["type"]);
            if let Err(why) = is_qualified_name(kind) {
                e.invalid_each(&at.child("type"), kind, Err(why));
            } else if !kind.contains('/') && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim") {
                e.invalid(&at.child("type"), kind, "must be a standard limit type or fully qualified");
            }
            if !seen.insert(kind) {
                e.duplicate(&at.child("type"), kind);
            }
            limit(l, kind, &at, e);
        }
    }
}

/// Validates the name of a resource for a limit of this type.
fn limited_resource(kind: &str, name: &str, p: &Path<'_>, e: &mut Errors) {
    if matches!(kind, "Pod" | "Container") {
        return pod::container_resource_name(name, p, e);
    }
    match is_qualified_name(name) {
        Err(why) => e.invalid_each(p, name, Err(why)),
        Ok(()) if !name.contains('/') && !pod::is_standard_resource(name) => {
            e.invalid(p, name, "must be a standard resource type or fully qualified");
        }
        Ok(()) => {}
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio is compared as upstream compares it, in floating point")]
fn amount(q: Quantity) -> f64 {
    q.milli_value() as f64 / 1000.0
}

fn limit(l: &Value, kind: &str, p: &Path<'_>, e: &mut Errors) {
    for f in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        let at = p.child(f);
        for (k, v) in entries(&l[f]) {
            if kind == "Pod" && matches!(f, "default" | "defaultRequest") {
                e.forbidden(&at, "may not be specified when `type` is 'Pod'");
                break;
            }
            limited_resource(kind, k, &at.key(k), e);
            rules::quantity(v, &at.key(k), e);
        }
    }
    if kind == "PersistentVolumeClaim" && l["min"].get("storage").is_none() && l["max"].get("storage").is_none() {
        e.required(&p.child("limits"), "either minimum or maximum storage value is required, but neither was provided");
    }
    let keys: BTreeSet<&String> = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"]
        .iter()
        .flat_map(|f| entries(&l[*f]).map(|(k, _)| k))
        .collect();
    for k in keys {
        let q = |f: &str| l[f][k.as_str()].as_str().and_then(|s| s.parse::<Quantity>().ok());
        let mut ordered = |low: &str, high: &str, at: &str, shown: &str, why: &dyn Fn(Quantity, Quantity) -> String| {
            if let (Some(a), Some(b)) = (q(low), q(high))
                && a > b
            {
                let f = p.child(at);
                e.invalid(&f.key(k), &l[shown][k.as_str()], why(a, b));
            }
        };
        ordered("min", "max", "min", "min", &|a, b| format!("min value {a} is greater than max value {b}"));
        ordered("min", "defaultRequest", "defaultRequest", "defaultRequest", &|a, b| {
            format!("min value {a} is greater than default request value {b}")
        });
        ordered("defaultRequest", "max", "defaultRequest", "defaultRequest", &|a, b| {
            format!("default request value {a} is greater than max value {b}")
        });
        ordered("defaultRequest", "default", "defaultRequest", "defaultRequest", &|a, b| {
            format!("default request value {a} is greater than default limit value {b}")
        });
        ordered("min", "default", "default", "min", &|a, b| format!("min value {a} is greater than default value {b}"));
        ordered("default", "max", "default", "max", &|a, b| format!("default value {a} is greater than max value {b}"));
        let at = p.child("maxLimitRequestRatio");
        if let Some(r) = q("maxLimitRequestRatio") {
            if r < Quantity::from_i64(1) {
                e.invalid(&at.key(k), r.to_string(), format!("ratio {r} is less than 1"));
            }
            if let (Some(min), Some(max)) = (q("min"), q("max")) {
                // With the numbers as upstream rounds them: a division by zero allows every ratio.
                let limit = amount(max) / amount(min);
                if amount(r) > limit {
                    let why = format!("ratio {r} is greater than max/min = {limit:.6}");
                    e.invalid(&at.key(k), r.to_string(), why);
                }
            }
        }
        if let (Some(default), Some(request)) = (q("default"), q("defaultRequest"))
            && !pod::overcommit(k)
            && default != request
        {
            let at = p.child("defaultRequest");
            let why = format!("default value {default} must equal to defaultRequest value {request} in {k}");
            e.invalid(&at.key(k), request.to_string(), why);
        }
    }
}

/// The strategy of podtemplates.
pub struct PodTemplates;

static TEMPLATES: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    columns: columns![
        NAME,
        Column::text("Containers", "Names of the containers in the template."),
        Column::text("Images", "Images of the containers in the template."),
        Column::text("Pod Labels", "Labels of the pods."),
    ],
    delete_returns_object: true,
    ..Options::of("", "podtemplates")
});

impl Strategy for PodTemplates {
    fn options(&self) -> &Options {
        &TEMPLATES
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(t) = ensure(obj, "template") {
            pod::default_template(t);
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        pod::check_template(&obj["template"], &Path::new("template"), e);
    }
    fn row(&self, obj: &Value, _now: Timestamp) -> Vec<Value> {
        let (names, images) = crate::table::containers(&obj["template"]["spec"]);
        vec![name(obj), names, images, json!(label_map(&obj["template"]["metadata"]["labels"]))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_devices_are_counted_whole() {
        for (name, want) in [
            ("example.com/gpu", true),
            ("limits.example.com/gpu", true),
            ("gpu.deviceclass.resource.k8s.io/devices", true),
            ("count/deployments.apps", true),
            ("services.nodeports", true),
            ("pods", true),
            ("requests.example.com/gpu", false),
            ("deviceclass.resource.kubernetes.io/gpu", false),
            ("requests.cpu", false),
            ("cpu", false),
        ] {
            assert_eq!(is_counted(name), want, "{name}");
        }
    }
}
