//! Converts between `autoscaling/v1` and `v2`: annotations contain what v1 has no field for.
use serde_json::{Map, Value, json};

use crate::tree::{default_to, empty, ensure, int, items, object_mut, present, remove, set, text};

pub(super) const CPU_PERCENT: i64 = 80;

pub(super) fn cpu_metric(percent: i64) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": percent}}})
}

pub(super) const SOURCES: &[(&str, &str)] = &[
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];

pub(super) const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";

pub(super) const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";

pub(super) const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

pub(super) const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

/// Copies a field if it is present.
pub(super) fn take(from: &Value, field: &str, to: &mut Map<String, Value>, name: &str) {
    if present(&from[field]) {
        to.insert(name.to_owned(), from[field].clone());
    }
}

/// Converts v2 to v1: the first CPU utilization becomes a field, everything else annotations.
pub fn to_v1(obj: &mut Value) {
    let (spec, status) = (obj["spec"].clone(), obj["status"].clone());
    let cpu = |m: &Value| {
        text(&m["type"]) == "Resource"
            && text(&m["resource"]["name"]) == "cpu"
            && present(&m["resource"]["target"]["averageUtilization"])
    };
    let others: Vec<Value> = items(&spec["metrics"]).iter().filter(|m| !cpu(m)).map(|m| metric_v1(m, false)).collect();
    let current: Vec<Value> = items(&status["currentMetrics"]).iter().map(|m| metric_v1(m, true)).collect();
    let mut notes = Vec::new();
    if !others.is_empty() {
        notes.push((METRICS, Value::Array(others)));
    }
    if !current.is_empty() {
        notes.push((CURRENT_METRICS, Value::Array(current)));
    }
    if present(&spec["behavior"]) {
        notes.push((BEHAVIOR, rename(&spec["behavior"], true)));
    }
    if !items(&status["conditions"]).is_empty() {
        notes.push((CONDITIONS, status["conditions"].clone()));
    }
    if let Some(meta) = obj.get_mut("metadata") {
        drop_annotations(meta);
        if !notes.is_empty()
            && let Some(a) = ensure(meta, "annotations")
        {
            for (k, v) in notes {
                set(a, k, v.to_string());
            }
        }
    }
    let percent =
        items(&spec["metrics"]).iter().find(|m| cpu(m)).map(|m| &m["resource"]["target"]["averageUtilization"]);
    if let Some(s) = obj.get_mut("spec") {
        for f in ["metrics", "behavior"] {
            remove(s, f);
        }
        if let Some(p) = percent {
            set(s, "targetCPUUtilizationPercentage", p.clone());
        }
    }
    let now = items(&status["currentMetrics"])
        .iter()
        .find(|m| text(&m["type"]) == "Resource" && text(&m["resource"]["name"]) == "cpu")
        .map(|m| m["resource"]["current"]["averageUtilization"].clone());
    if let Some(s) = obj.get_mut("status") {
        for f in ["currentMetrics", "conditions"] {
            remove(s, f);
        }
        default_to(s, "currentReplicas", 0);
        if let Some(n) = now.filter(present) {
            set(s, "currentCPUUtilizationPercentage", n);
        }
    }
}

/// Converts v1 to v2, including annotations.
pub fn to_v2(obj: &mut Value) {
    let note = |k: &str| -> Option<Value> { serde_json::from_str(obj["metadata"]["annotations"][k].as_str()?).ok() };
    let (others, current, behavior, conditions) =
        (note(METRICS), note(CURRENT_METRICS), note(BEHAVIOR), note(CONDITIONS));
    let percent = int(&obj["spec"]["targetCPUUtilizationPercentage"]);
    let mut metrics: Vec<Value> = percent.map(cpu_metric).into_iter().collect();
    metrics.extend(items(&others.unwrap_or_default()).iter().map(|m| metric_v2(m, false)));
    if metrics.is_empty() {
        metrics.push(cpu_metric(CPU_PERCENT));
    }
    let now = int(&obj["status"]["currentCPUUtilizationPercentage"]);
    let mut statuses: Vec<Value> = items(&current.unwrap_or_default()).iter().map(|m| metric_v2(m, true)).collect();
    if statuses.is_empty()
        && let Some(n) = now
    {
        statuses.push(json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": n}}}));
    }
    // A spec that becomes empty is kept.
    if let Some(s) = ensure(obj, "spec") {
        remove(s, "targetCPUUtilizationPercentage");
        set(s, "metrics", metrics);
        if let Some(b) = behavior.filter(Value::is_object) {
            set(s, "behavior", rename(&b, false));
        }
    }
    if let Some(s) = obj.get_mut("status") {
        remove(s, "currentCPUUtilizationPercentage");
        set(s, "currentMetrics", if statuses.is_empty() { Value::Null } else { Value::Array(statuses) });
        if let Some(c) = conditions.filter(Value::is_array) {
            set(s, "conditions", c);
        }
    }
    if let Some(meta) = obj.get_mut("metadata") {
        drop_annotations(meta);
    }
}

pub(super) fn drop_annotations(meta: &mut Value) {
    let Some(a) = object_mut(meta, "annotations") else { return };
    for k in [METRICS, CURRENT_METRICS, BEHAVIOR, CONDITIONS] {
        remove(a, k);
    }
    if empty(a) {
        remove(meta, "annotations");
    }
}

/// Renames fields for the behaviour annotation, which has Go's field names: the first letter is upper-case.
pub(super) fn rename(v: &Value, upper: bool) -> Value {
    match v {
        Value::Object(o) => o
            .iter()
            .map(|(k, v)| {
                let mut c = k.chars();
                let first = c.next().map(|f| if upper { f.to_ascii_uppercase() } else { f.to_ascii_lowercase() });
                (first.into_iter().chain(c).collect::<String>(), rename(v, upper))
            })
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(a) => a.iter().map(|v| rename(v, upper)).collect(),
        other => other.clone(),
    }
}

/// Returns the flat form of a metric, of its target or of its status.
pub(super) fn metric_v1(m: &Value, status: bool) -> Value {
    let Some((_, field)) = SOURCES.iter().find(|(k, _)| *k == text(&m["type"])) else { return m.clone() };
    let (s, mut out) = (&m[*field], Map::new());
    let (values, prefix) = if status { (&s["current"], "current") } else { (&s["target"], "target") };
    let pre = |f: &str| format!("{prefix}{f}");
    match *field {
        "resource" | "containerResource" => {
            take(s, "name", &mut out, "name");
            take(s, "container", &mut out, "container");
            take(values, "averageUtilization", &mut out, &pre("AverageUtilization"));
            take(values, "averageValue", &mut out, &pre("AverageValue"));
        }
        _ => {
            take(&s["metric"], "name", &mut out, "metricName");
            let selector = if *field == "external" { "metricSelector" } else { "selector" };
            take(&s["metric"], "selector", &mut out, selector);
            if *field == "object" {
                take(s, "describedObject", &mut out, "target");
                take(values, "averageValue", &mut out, "averageValue");
            } else {
                take(values, "averageValue", &mut out, &pre("AverageValue"));
            }
            if *field != "pods" {
                take(values, "value", &mut out, &pre("Value"));
            }
        }
    }
    if status {
        // The flat form of a status always contains these.
        let always = if matches!(*field, "object" | "external") { "currentValue" } else { "currentAverageValue" };
        out.entry(always).or_insert_with(|| "0".into());
    }
    json!({"type": m["type"], *field: out})
}

/// The inverse of [`metric_v1`].
pub(super) fn metric_v2(m: &Value, status: bool) -> Value {
    let Some((_, field)) = SOURCES.iter().find(|(k, _)| *k == text(&m["type"])) else { return m.clone() };
    let (s, mut out, mut values) = (&m[*field], Map::new(), Map::new());
    let prefix = if status { "current" } else { "target" };
    let pre = |f: &str| format!("{prefix}{f}");
    take(s, &pre("AverageUtilization"), &mut values, "averageUtilization");
    take(s, &pre("AverageValue"), &mut values, "averageValue");
    if !matches!(*field, "resource" | "containerResource") {
        take(s, &pre("Value"), &mut values, "value");
        let mut metric = Map::new();
        take(s, "metricName", &mut metric, "name");
        take(s, if *field == "external" { "metricSelector" } else { "selector" }, &mut metric, "selector");
        out.insert("metric".to_owned(), metric.into());
        if *field == "object" {
            take(s, "averageValue", &mut values, "averageValue");
            take(s, "target", &mut out, "describedObject");
        }
    } else {
        take(s, "name", &mut out, "name");
        take(s, "container", &mut out, "container");
    }
    if !status {
        let kind = if values.contains_key("averageUtilization") {
            "Utilization"
        } else if values.contains_key("averageValue") {
            "AverageValue"
        } else {
            "Value"
        };
        values.insert("type".to_owned(), json!(kind));
    }
    out.insert(if status { "current" } else { "target" }.to_owned(), values.into());
    json!({"type": m["type"], *field: out})
}
