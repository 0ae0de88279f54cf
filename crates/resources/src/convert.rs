//! Converts between served and stored versions. Most kinds have the same fields in all versions; the others are
//! converted here.
use kelson_meta::{Gvk, Status};
use serde_json::Value;

use crate::tree::{at_mut, items_mut, present, set};
use crate::{autoscaling, registry};

/// Converts `obj` from version `from` to version `to`, including `apiVersion` and `kind`.
///
/// # Errors
/// 400 when both are not versions of one kind.
pub fn convert(from: &Gvk, to: &Gvk, mut obj: Value) -> Result<Value, Status> {
    if from == to {
        return Ok(obj);
    }
    let events = |g: &Gvk| matches!(g.group.as_str(), "" | "events.k8s.io") && g.kind == "Event";
    if from.kind != to.kind || (from.group != to.group && !(events(from) && events(to))) {
        return Err(Status::bad_request(format!("{from} cannot be converted to {to}")));
    }
    match (from.group.as_str(), from.kind.as_str()) {
        ("" | "events.k8s.io", "Event") if from.group != to.group => event(&mut obj, to.group.is_empty()),
        ("autoscaling", "HorizontalPodAutoscaler") if to.version == "v1" => autoscaling::to_v1(&mut obj),
        ("autoscaling", "HorizontalPodAutoscaler") if from.version == "v1" => autoscaling::to_v2(&mut obj),
        ("resource.k8s.io", kind) if (from.version == "v1beta1") != (to.version == "v1beta1") => {
            resource(kind, &mut obj, to.version == "v1beta1");
        }
        _ => {}
    }
    set(&mut obj, "apiVersion", to.api_version());
    set(&mut obj, "kind", to.kind.clone());
    Ok(obj)
}

/// Returns the stored version of a built-in resource; `None` for others.
pub fn storage_gvk(group: &str, resource: &str) -> Option<Gvk> {
    registry::strategy(group, resource).map(|s| s.options().storage.clone())
}

/// Converts events: core/v1 and events.k8s.io/v1 have different names for the same fields.
fn event(obj: &mut Value, to_core: bool) {
    const NAMES: &[(&str, &str)] = &[
        ("involvedObject", "regarding"),
        ("source", "deprecatedSource"),
        ("message", "note"),
        ("firstTimestamp", "deprecatedFirstTimestamp"),
        ("lastTimestamp", "deprecatedLastTimestamp"),
        ("count", "deprecatedCount"),
        ("reportingComponent", "reportingController"),
    ];
    let Some(o) = obj.as_object_mut() else { return };
    for (core, new) in NAMES {
        let (from, to) = if to_core { (*new, *core) } else { (*core, *new) };
        if let Some(v) = o.remove(from) {
            o.insert(to.to_owned(), v);
        }
    }
    if !to_core {
        // The new version writes these if they are set, the old one always.
        for reporter in ["reportingController", "reportingInstance"] {
            if o.get(reporter).and_then(Value::as_str) == Some("") {
                o.remove(reporter);
            }
        }
    }
}

/// Converts dynamic resource allocation: v1beta1 has flatter requests and deeper devices.
fn resource(kind: &str, obj: &mut Value, to_beta1: bool) {
    match kind {
        "ResourceClaim" => requests(at_mut(obj, &["spec", "devices"]), to_beta1),
        "ResourceClaimTemplate" => requests(at_mut(obj, &["spec", "spec", "devices"]), to_beta1),
        "ResourceSlice" => {
            let Some(spec) = obj.get_mut("spec") else { return };
            for d in items_mut(spec, "devices") {
                device(d, to_beta1);
            }
        }
        _ => {}
    }
}

const EXACT: &[&str] =
    &["deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"];

fn requests(devices: Option<&mut Value>, to_beta1: bool) {
    for r in devices.into_iter().flat_map(|d| items_mut(d, "requests")) {
        let Some(o) = r.as_object_mut() else { continue };
        if to_beta1 {
            if let Some(Value::Object(exact)) = o.remove("exactly") {
                o.extend(exact);
            }
            continue;
        }
        let exact: serde_json::Map<String, Value> =
            EXACT.iter().filter_map(|f| o.remove(*f).filter(present).map(|v| ((*f).to_owned(), v))).collect();
        if !exact.is_empty() {
            o.insert("exactly".to_owned(), exact.into());
        }
    }
}

fn device(d: &mut Value, to_beta1: bool) {
    let Some(o) = d.as_object_mut() else { return };
    if to_beta1 {
        let basic: serde_json::Map<String, Value> = o
            .keys()
            .filter(|k| *k != "name")
            .cloned()
            .collect::<Vec<_>>()
            .into_iter()
            .filter_map(|k| o.remove(&k).map(|v| (k, v)))
            .collect();
        o.insert("basic".to_owned(), basic.into());
    } else if let Some(Value::Object(basic)) = o.remove("basic") {
        o.extend(basic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::remove;
    use serde_json::json;

    fn check(from: (&str, &str), to: (&str, &str), kind: &str, obj: Value, want: Value) {
        let (a, b) = (Gvk::new(from.0, from.1, kind), Gvk::new(to.0, to.1, kind));
        let got = convert(&a, &b, obj.clone()).unwrap();
        let mut shown = got.clone();
        for f in ["apiVersion", "kind"] {
            remove(&mut shown, f);
        }
        assert_eq!(shown, want);
        let mut back = convert(&b, &a, got).unwrap();
        for f in ["apiVersion", "kind"] {
            remove(&mut back, f);
        }
        assert_eq!(back, obj);
    }

    #[test]
    fn events() {
        check(
            ("", "v1"),
            ("events.k8s.io", "v1"),
            "Event",
            json!({"involvedObject": {"name": "x"}, "message": "m", "count": 1, "reportingComponent": "c", "type": "Normal"}),
            json!({"regarding": {"name": "x"}, "note": "m", "deprecatedCount": 1, "reportingController": "c", "type": "Normal"}),
        );
    }

    #[test]
    fn device_requests() {
        check(
            ("resource.k8s.io", "v1beta1"),
            ("resource.k8s.io", "v1"),
            "ResourceClaim",
            json!({"spec": {"devices": {"requests": [{"name": "r", "deviceClassName": "c", "count": 2}]}}}),
            json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c", "count": 2}}]}}}),
        );
        check(
            ("resource.k8s.io", "v1"),
            ("resource.k8s.io", "v1beta1"),
            "ResourceSlice",
            json!({"spec": {"devices": [{"name": "d", "nodeName": "n"}]}}),
            json!({"spec": {"devices": [{"name": "d", "basic": {"nodeName": "n"}}]}}),
        );
    }

    #[test]
    fn strangers() {
        assert!(convert(&Gvk::new("", "v1", "Pod"), &Gvk::new("", "v1", "Node"), json!({})).is_err());
        assert!(convert(&Gvk::new("a", "v1", "Pod"), &Gvk::new("b", "v1", "Pod"), json!({})).is_err());
    }
}
