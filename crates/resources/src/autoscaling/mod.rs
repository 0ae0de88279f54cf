//! HorizontalPodAutoscalers: v2 is the stored form; v1 has annotations for what it has no field for.
mod convert;

use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{is_dns1123_label, is_path_segment_name};
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME};
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::pod;
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{NONE, UNKNOWN, UNSET, age, name};
use crate::tree::{default_to, ensure, int, int0, items, object_mut, present, same, set, text};

use convert::{CPU_PERCENT, SOURCES, cpu_metric};
pub use convert::{to_v1, to_v2};

/// The sources of a metric in the order of validation.
const IN_ORDER: [&str; 5] = ["object", "external", "pods", "resource", "containerResource"];

/// The strategy of horizontalpodautoscalers.
pub struct HorizontalPodAutoscalers;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    columns: columns![
        NAME,
        Column::text("Reference", "Object that is scaled."),
        Column::text("Targets", "Metrics and their targets."),
        Column::text("MinPods", "Minimum number of pods."),
        Column::text("MaxPods", "Maximum number of pods."),
        Column::text("Replicas", "Current number of pods."),
        AGE,
    ],
    ..Options::of("autoscaling", "horizontalpodautoscalers")
});

impl Strategy for HorizontalPodAutoscalers {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, version: &str, obj: &mut Value) {
        if let Some(s) = ensure(obj, "status") {
            default_to(s, "desiredReplicas", 0);
            if version == "v1" {
                default_to(s, "currentReplicas", 0);
            } else if let Some(o) = s.as_object_mut() {
                o.entry("currentMetrics").or_insert(Value::Null);
            }
        }
        let Some(spec) = ensure(obj, "spec") else { return };
        default_to(spec, "minReplicas", 1);
        if version == "v1" {
            return;
        }
        if items(&spec["metrics"]).is_empty() {
            set(spec, "metrics", vec![cpu_metric(CPU_PERCENT)]);
        }
        if let Some(b) = object_mut(spec, "behavior") {
            let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
            let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
            if let Some(up) = ensure(b, "scaleUp") {
                default_to(up, "stabilizationWindowSeconds", 0);
                default_to(up, "selectPolicy", "Max");
                default_to(up, "policies", vec![pods, percent.clone()]);
            }
            if let Some(down) = ensure(b, "scaleDown") {
                default_to(down, "selectPolicy", "Max");
                default_to(down, "policies", vec![percent]);
            }
        }
    }
    fn initial_status(&self) -> Value {
        json!({"desiredReplicas": 0, "currentMetrics": null})
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        let target = |obj: &Value, f: &str| obj["spec"]["scaleTargetRef"][f].clone();
        let mut shown = new.clone();
        // Older versions allowed more, so unchanged values are not validated again.
        if ["apiVersion", "kind"].iter().all(|f| same(&target(new, f), &target(old, f))) {
            crate::tree::path::set(&mut shown, &["spec", "scaleTargetRef", "apiVersion"], "unchanged/v1".into());
        }
        self.check(&shown, e);
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        let (min, max) = (int(&spec["minReplicas"]), int0(&spec["maxReplicas"]));
        if let Some(n) = min.filter(|n| *n < 1) {
            // Scaling to zero is behind a feature gate that is off (HPAScaleToZero).
            e.invalid(&p.child("minReplicas"), n, "must be greater than or equal to 1");
        }
        let at = p.child("maxReplicas");
        if max == 0 {
            e.required(&at, "must be set and greater than 0");
        } else if max < 0 {
            e.invalid(&at, max, "must be greater than or equal to 1");
        }
        if min.is_some_and(|n| max < n) {
            e.invalid(&at, max, "must be greater than or equal to `minReplicas`");
        }
        let group = match text(&spec["scaleTargetRef"]["kind"]) {
            // The only scalable kind of the group without a name.
            "ReplicationController" => Group::MayBeEmpty,
            _ => Group::Named,
        };
        reference(&spec["scaleTargetRef"], group, &p.child("scaleTargetRef"), e);
        let list = p.child("metrics");
        for (i, m) in items(&spec["metrics"]).iter().enumerate() {
            metric(m, &list.index(i), e);
        }
        let at_zero = |m: &Value| matches!(text(&m["type"]), "Object" | "External");
        if min == Some(0) && !items(&spec["metrics"]).iter().any(at_zero) {
            e.forbidden(
                &list,
                "must specify at least one Object or External metric to support scaling to zero replicas",
            );
        }
        let behavior = p.child("behavior");
        for f in ["scaleUp", "scaleDown"] {
            scaling_rules(&spec["behavior"][f], &behavior.child(f), e);
        }
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, _old: &Value, e: &mut Errors) {
        let p = Path::new("status");
        for f in ["currentReplicas", "desiredReplicas"] {
            rules::not_negative(&new["status"][f], &p.child(f), e);
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, target) = (&obj["spec"], &obj["spec"]["scaleTargetRef"]);
        vec![
            name(obj),
            json!(format!("{}/{}", text(&target["kind"]), text(&target["name"]))),
            json!(targets(&spec["metrics"], &obj["status"]["currentMetrics"])),
            json!(int(&spec["minReplicas"]).map_or_else(|| UNSET.to_owned(), |n| n.to_string())),
            json!(int0(&spec["maxReplicas"])),
            json!(int0(&obj["status"]["currentReplicas"])),
            age(obj, now),
        ]
    }
}

/// Whether an `apiVersion` must have a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Named,
    MayBeEmpty,
}

fn reference(r: &Value, group: Group, p: &Path<'_>, e: &mut Errors) {
    for f in ["kind", "name"] {
        let v = text(&r[f]);
        if v.is_empty() {
            e.required(&p.child(f), "");
        } else {
            e.invalid_each(&p.child(f), v, is_path_segment_name(v));
        }
    }
    let version = text(&r["apiVersion"]);
    match version.matches('/').count() {
        0 if group == Group::Named => e.invalid(&p.child("apiVersion"), version, "apiVersion must specify API group"),
        0 | 1 => {}
        _ => e.invalid(&p.child("apiVersion"), version, format!("unexpected GroupVersion string: {version}")),
    }
}

fn metric(m: &Value, p: &Path<'_>, e: &mut Errors) {
    let kind = text(&m["type"]);
    let expected = SOURCES.iter().find(|(k, _)| *k == kind).map(|(_, field)| *field);
    if expected.is_none() {
        if kind.is_empty() {
            e.required(&p.child("type"), "must specify a metric source type");
        }
        let all: Vec<&str> = SOURCES.iter().map(|(k, _)| *k).collect();
        // The source for the type is missing as well, for which upstream reports the same error.
        (0..2).for_each(|_| e.not_supported(&p.child("type"), kind, &all));
    }
    // Only the first source is validated, whatever the type is.
    let present: Vec<&str> = IN_ORDER.iter().copied().filter(|f| present(&m[*f])).collect();
    if let Some(first) = present.first() {
        source(first, &m[*first], &p.child(first), e);
    }
    if let Some(field) = expected
        && !present.contains(&field)
    {
        e.required(&p.child(field), "must populate information for the given metric source");
    }
    if present.len() != 1 {
        for f in present.iter().filter(|f| Some(**f) != expected) {
            e.forbidden(&p.child(f), "must populate the given metric source only");
        }
    }
}

/// Validates the source of a metric, and its target.
fn source(field: &str, source: &Value, p: &Path<'_>, e: &mut Errors) {
    let of_containers = field == "containerResource";
    if field == "object" {
        reference(&source["describedObject"], Group::MayBeEmpty, &p.child("describedObject"), e);
    }
    if of_containers || field == "resource" {
        if rules::required(&source["name"], &p.child("name"), e) && of_containers {
            pod::container_resource_name(text(&source["name"]), &p.child("name"), e);
        }
    } else {
        let metric = p.child("metric");
        let name = text(&source["metric"]["name"]);
        if rules::required(&source["metric"]["name"], &metric.child("name"), e) {
            e.invalid_each(&metric.child("name"), name, is_path_segment_name(name));
        }
    }
    if of_containers && rules::required(&source["container"], &p.child("container"), e) {
        let name = text(&source["container"]);
        e.invalid_each(&p.child("container"), name, is_dns1123_label(name));
    }
    let (t, at) = (&source["target"], p.child("target"));
    target(t, &at, e);
    let [value, average, utilization] = ["value", "averageValue", "averageUtilization"].map(|f| present(&t[f]));
    let average_at = at.child("averageValue");
    match field {
        "object" if !value && !average => e.required(&average_at, "must set either a target value or averageValue"),
        "external" if !value && !average => {
            e.required(&average_at, "must set either a target value for metric or a per-pod target");
        }
        "external" if value && average => {
            e.forbidden(&at.child("value"), "may not set both a target value for metric and a per-pod target");
        }
        "pods" if !average => e.required(&average_at, "must specify a positive target averageValue"),
        "resource" | "containerResource" if !utilization && !average => {
            let why = "must set either a target raw value or a target utilization";
            e.required(&at.child("averageUtilization"), why);
        }
        "resource" | "containerResource" if utilization && average => {
            e.forbidden(&average_at, "may not set both a target raw value and a target utilization");
        }
        _ => {}
    }
}

fn target(t: &Value, p: &Path<'_>, e: &mut Errors) {
    let kind = text(&t["type"]);
    if kind.is_empty() {
        e.required(&p.child("type"), "must specify a metric target type");
    }
    if !matches!(kind, "AverageValue" | "Utilization" | "Value") {
        e.invalid(&p.child("type"), kind, "must be either Utilization, Value, or AverageValue");
    }
    for f in ["value", "averageValue"] {
        if let Some(q) = rules::quantity(&t[f], &p.child(f), e)
            && q.signum() != 1
        {
            e.invalid(&p.child(f), &t[f], "must be positive");
        }
    }
    if let Some(n) = int(&t["averageUtilization"])
        && n < 1
    {
        e.invalid(&p.child("averageUtilization"), n, "must be greater than 0");
    }
}

fn scaling_rules(r: &Value, p: &Path<'_>, e: &mut Errors) {
    const WINDOW_SECONDS_MAX: i64 = 3600;
    const PERIOD_SECONDS_MAX: i64 = 1800;
    if !present(r) {
        return;
    }
    if let Some(n) = int(&r["stabilizationWindowSeconds"]) {
        let at = p.child("stabilizationWindowSeconds");
        rules::not_negative(&r["stabilizationWindowSeconds"], &at, e);
        if n > WINDOW_SECONDS_MAX {
            e.invalid(&at, n, format!("must be less than or equal to {WINDOW_SECONDS_MAX}"));
        }
    }
    rules::optional_one_of(&r["selectPolicy"], &p.child("selectPolicy"), &["Disabled", "Max", "Min"], e);
    if let Some(q) = rules::quantity(&r["tolerance"], &p.child("tolerance"), e)
        && q.signum() < 0
    {
        e.invalid(&p.child("tolerance"), &r["tolerance"], rules::NOT_NEGATIVE);
    }
    let list = p.child("policies");
    let policies = items(&r["policies"]);
    if policies.is_empty() {
        e.required(&list, "must specify at least one Policy");
    }
    for (i, x) in policies.iter().enumerate() {
        let at = list.index(i);
        let kind = text(&x["type"]);
        if !["Percent", "Pods"].contains(&kind) {
            e.not_supported(&at.child("type"), kind, &["Percent", "Pods"]);
        }
        for f in ["value", "periodSeconds"] {
            if int0(&x[f]) <= 0 {
                e.invalid(&at.child(f), int0(&x[f]), "must be greater than zero");
            }
        }
        if int0(&x["periodSeconds"]) > PERIOD_SECONDS_MAX {
            let why = format!("must be less than or equal to {PERIOD_SECONDS_MAX}");
            e.invalid(&at.child("periodSeconds"), int0(&x["periodSeconds"]), why);
        }
    }
}

fn targets(specs: &Value, statuses: &Value) -> String {
    const SHOWN: usize = 2;
    let all: Vec<String> = items(specs).iter().enumerate().map(|(i, s)| one_target(s, &statuses[i])).collect();
    match all.len() {
        0 => NONE.to_owned(),
        n if n > SHOWN => format!("{} + {} more...", all[..SHOWN].join(", "), n - SHOWN),
        _ => all.join(", "),
    }
}

fn one_target(spec: &Value, status: &Value) -> String {
    let kind = text(&spec["type"]);
    let Some((_, field)) = SOURCES.iter().find(|(k, _)| *k == kind) else { return UNKNOWN.to_owned() };
    let (s, now) = (&spec[*field]["target"], &status[*field]["current"]);
    let known = |f: &str| now[f].as_str().unwrap_or(UNKNOWN).to_owned();
    let average = present(&s["averageValue"]);
    match *field {
        "external" | "object" if average => format!("{}/{} (avg)", known("averageValue"), text(&s["averageValue"])),
        "external" | "object" => format!("{}/{}", known("value"), text(&s["value"])),
        "pods" => format!("{}/{}", known("averageValue"), text(&s["averageValue"])),
        _ if average => {
            format!("{}: {}/{}", text(&spec[*field]["name"]), known("averageValue"), text(&s["averageValue"]))
        }
        _ => {
            let percent = |v: &Value, none: &str| int(v).map_or_else(|| none.to_owned(), |n| format!("{n}%"));
            let (current, wanted) =
                (percent(&now["averageUtilization"], UNKNOWN), percent(&s["averageUtilization"], "<auto>"));
            format!("{}: {current}/{wanted}", text(&spec[*field]["name"]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::convert::BEHAVIOR;
    use super::*;
    use crate::tree::remove;

    #[test]
    fn versions_round_trip() {
        let mut h = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d"},
            "metrics": [cpu_metric(50), {"type": "Pods", "pods": {"metric": {"name": "q"}, "target": {"type": "AverageValue", "averageValue": "10"}}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}}});
        HorizontalPodAutoscalers.set_defaults("v2", &mut h);
        let original = h.clone();
        to_v1(&mut h);
        assert_eq!(h["spec"]["targetCPUUtilizationPercentage"], 50);
        assert!(text(&h["metadata"]["annotations"][BEHAVIOR]).contains("\"StabilizationWindowSeconds\":60"));
        to_v2(&mut h);
        HorizontalPodAutoscalers.set_defaults("v2", &mut h);
        remove(h.get_mut("status").unwrap(), "currentReplicas");
        assert_eq!(h, original);
    }
}
