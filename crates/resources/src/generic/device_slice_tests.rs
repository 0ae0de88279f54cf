//! Validation of slices, with the messages of upstream 1.36.2 for the same objects.
use serde_json::{Value, json};

use super::device_slices;
use super::device_tests::{check, faults};

fn slice(over: Value, want: &[&str]) {
    let mut spec = json!({"driver": "a.b", "pool": {"name": "p", "resourceSliceCount": 1}, "nodeName": "n"});
    for (name, value) in over.as_object().unwrap() {
        spec[name] = value.clone();
    }
    check(device_slices::slice, &json!({"spec": spec}), want);
}

#[test]
fn slices() {
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    slice(json!({"devices": [{"name": "d"}]}), &[]);
    slice(json!({"driver": ""}), &["spec.driver: Required value"]);
    slice(
        json!({"pool": {"name": "p"}}),
        &["spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero"],
    );
    slice(json!({"nodeName": null}), &[&format!("spec: Required value: {ONE}")]);
    slice(
        json!({"allNodes": true}),
        &[&format!("spec: Invalid value: \"{{`nodeName`, `allNodes`}}\": {ONE}, but multiple fields are set")],
    );
    slice(
        json!({"nodeName": ""}),
        &[
            "spec.nodeName: Invalid value: \"\": must be either unset or set to a non-empty string",
            &format!("spec: Required value: {ONE}"),
        ],
    );
    slice(
        json!({"devices": [], "sharedCounters": []}),
        &["spec: Invalid value: \"\": only one of `sharedCounters` or `devices` is allowed"],
    );
    let many: Vec<Value> = (0..129).map(|i| json!({"name": format!("d{i}")})).collect();
    slice(json!({"devices": many}), &["spec.devices: Too many: 129: must have at most 128 items"]);
    let tainted = |i: usize| json!({"name": format!("d{i}"), "taints": [{"key": "a", "effect": "NoSchedule"}]});
    let many: Vec<Value> = (0..65).map(tainted).collect();
    slice(json!({"devices": many}), &["spec.devices: Too many: 65: must have at most 64 items"]);
    slice(json!({"devices": [{"name": "d"}, {"name": "d"}]}), &["spec.devices[1]: Duplicate value: \"d\""]);
    slice(
        json!({"sharedCounters": [{"name": "", "counters": {}}]}),
        &["spec.sharedCounters[0].name: Required value", "spec.sharedCounters[0].counters: Required value"],
    );
    let apart = |device: Value, want: &[&str]| {
        slice(json!({"nodeName": null, "perDeviceNodeSelection": true, "devices": [device]}), want)
    };
    let each = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    apart(json!({"name": "d", "nodeName": "n"}), &[]);
    apart(json!({"name": "d"}), &[&format!("spec.devices[0]: Required value: {each}")]);
    apart(
        json!({"name": "d", "nodeName": "n", "allNodes": true}),
        &[&format!("spec.devices[0]: Invalid value: \"{{`nodeName`, `allNodes`}}\": {each}")],
    );
    let old = json!({"spec": {"driver": "a.b", "pool": {"name": "p", "resourceSliceCount": 1}, "nodeName": "m"}});
    let mut new = old.clone();
    new["spec"]["nodeName"] = json!("n");
    assert_eq!(
        faults(device_slices::slice, &new, Some(&old)),
        ["spec.nodeName: Invalid value: \"n\": field is immutable"]
    );
}

#[test]
fn devices_of_slices() {
    let device = |over: Value, want: &str| {
        let mut device = json!({"name": "d"});
        device.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
        let want = format!("spec.devices[0]{want}");
        slice(json!({"devices": [device]}), &if want.ends_with(']') { vec![] } else { vec![want.as_str()] });
    };
    let attribute = |value: Value, want: &str| device(json!({"attributes": {"x": value}}), want);
    attribute(json!({"version": "1.2.3-alpha.1+b.01"}), "");
    attribute(json!({}), ".attributes[x]: Invalid value: \"\": exactly one value must be specified");
    attribute(json!({"string": "y".repeat(65)}), ".attributes[x].string: Too long: may not be more than 64 bytes");
    for version in ["1.2", "01.2.3", "1.2.3-01", "1.2.3+", "v1.2.3"] {
        let want = format!(
            ".attributes[x].version: Invalid value: \"{version}\": must be a string compatible with semver.org spec 2.0.0"
        );
        attribute(json!({"version": version}), &want);
    }
    device(
        json!({"attributes": {"x y": {"bool": true}}}),
        ".attributes: Invalid value: \"x y\": a valid C identifier must start",
    );
    device(
        json!({"nodeName": "n"}),
        ": Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true",
    );
    device(json!({"taints": [{"key": "a", "effect": ""}]}), ".taints[0].effect: Required value");
    device(
        json!({"capacity": {"x": {"value": "1", "requestPolicy": {"default": "1"}}}}),
        ".capacity[x].requestPolicy: Forbidden: allowMultipleAllocations must be true",
    );
    let policy = |policy: Value, want: &str| {
        let want = if want.is_empty() { String::new() } else { format!(".capacity[x].requestPolicy{want}") };
        device(
            json!({"allowMultipleAllocations": true, "capacity": {"x": {"value": "10", "requestPolicy": policy}}}),
            &want,
        );
    };
    policy(json!({"default": "2", "validValues": ["2", "4"]}), "");
    policy(json!({"validValues": ["2"]}), ".default: Required value: required when validValues is defined");
    policy(
        json!({"default": "2", "validValues": ["4", "2"]}),
        ".validValues[1]: Invalid value: \"2\": values must be sorted in ascending order",
    );
    policy(
        json!({"default": "2", "validValues": ["2", "20"]}),
        ".validValues[1]: Invalid value: \"20\": option is larger than capacity value: 10",
    );
    policy(
        json!({"default": "3", "validValues": ["2"]}),
        ".validValues: Invalid value: \"3\": default value is not valid according to the requestPolicy",
    );
    policy(
        json!({"default": "2", "validRange": {"max": "3"}}),
        ".validRange.min: Required value: required when validRange is defined",
    );
    policy(
        json!({"default": "2", "validRange": {"min": "3"}}),
        ".validRange.min: Invalid value: \"2\": default is less than min: 3",
    );
    policy(
        json!({"default": "2", "validRange": {"min": "1", "max": "5", "step": "2"}}),
        ".validRange.step: Invalid value: \"2\": value is not a multiple of a given step (2) from (1)",
    );
    policy(
        json!({"default": "1", "validRange": {"min": "1", "step": "11"}}),
        ".validRange.step: Invalid value: \"11\": one step 12 is larger than capacity value: 10",
    );
}
