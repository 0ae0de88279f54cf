//! Validation of `resource.k8s.io`, with the messages of upstream 1.36.2 for the same objects.
use serde_json::{Value, json};

use super::{device_claims, device_status};
use crate::path::Errors;

/// The validation of a kind.
pub(super) type Rule = fn(&Value, Option<&Value>, &mut Errors);

/// Returns the errors of an object.
pub(super) fn faults(rule: Rule, new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut e = Errors::new();
    rule(new, old, &mut e);
    e.finish().0.iter().map(ToString::to_string).collect()
}

/// Compares the beginning of each error: those about names continue with well-known text.
pub(super) fn check(rule: Rule, object: &Value, want: &[&str]) {
    let reported = faults(rule, object, None);
    let fits =
        reported.len() == want.len() && reported.iter().zip(want).all(|(reported, want)| reported.starts_with(want));
    assert!(fits, "{object}\n{reported:#?}\n{want:#?}");
}

fn claim(devices: Value, want: &[&str]) {
    check(device_claims::claim, &json!({"metadata": {"name": "c"}, "spec": {"devices": devices}}), want);
}

/// Checks a claim whose request has these fields.
fn request(over: Value, want: &[&str]) {
    let mut exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
    exactly.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
    claim(json!({"requests": [{"name": "r", "exactly": exactly}]}), want);
}

#[test]
fn requests() {
    let exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
    let named = |name: &str| json!({"name": name, "exactly": exactly});
    let at = "spec.devices.requests[0]";
    claim(json!({"requests": [named("r")]}), &[]);
    claim(json!({"requests": [named("")]}), &[&format!("{at}.name: Invalid value: \"\": a lowercase RFC 1123 label")]);
    claim(
        json!({"requests": [{"name": "r"}]}),
        &[&format!("{at}: Required value: exactly one of `exactly` or `firstAvailable` is required")],
    );
    let both = json!({"name": "r", "exactly": exactly, "firstAvailable": [exactly]});
    claim(
        json!({"requests": [both]}),
        &[&format!(
            "{at}: Invalid value: null: exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"
        )],
    );
    claim(json!({"requests": [named("r"), named("r")]}), &["spec.devices.requests[1]: Duplicate value: \"r\""]);
    let many: Vec<Value> = (0..33).map(|i| named(&format!("r{i}"))).collect();
    claim(json!({"requests": many}), &["spec.devices.requests: Too many: 33: must have at most 32 items"]);
    let at = format!("{at}.exactly");
    request(json!({"deviceClassName": ""}), &[&format!("{at}.deviceClassName: Required value")]);
    request(
        json!({"deviceClassName": "A_B"}),
        &[&format!("{at}.deviceClassName: Invalid value: \"A_B\": a lowercase RFC 1123 subdomain")],
    );
    request(
        json!({"allocationMode": "Some"}),
        &[&format!("{at}.allocationMode: Unsupported value: \"Some\": supported values: \"All\", \"ExactCount\"")],
    );
    request(
        json!({"allocationMode": "All", "count": 2}),
        &[&format!("{at}.count: Invalid value: 2: must not be specified when allocationMode is 'All'")],
    );
    request(json!({"count": -1}), &[&format!("{at}.count: Invalid value: -1: must be greater than zero")]);
}

#[test]
fn selectors_and_tolerations() {
    let at = "spec.devices.requests[0].exactly";
    let selects = |source: &str, want: &[&str]| request(json!({"selectors": [{"cel": {"expression": source}}]}), want);
    selects("device.driver == 'a.b' && device.attributes['a.b'].model == 'x'", &[]);
    let strings = "['a', 'b', 'c'].all(x, ['a', 'b', 'c'].all(y, (x + y).matches(device.attributes['a.b'].s)))";
    selects(strings, &[]);
    request(json!({"selectors": [{}]}), &[&format!("{at}.selectors[0].cel: Required value")]);
    let p = format!("{at}.selectors[0].cel.expression");
    selects("1", &[&format!("{p}: Invalid value: \"1\": must evaluate to bool or the unknown type, not int")]);
    selects(
        "device.",
        &[&format!("{p}: Invalid value: \"device.\": compilation failed: ERROR: <input>:1:8: Syntax error:")],
    );
    selects(&format!("true{}", " ".repeat(10240)), &[&format!("{p}: Too long: may not be more than 10240 bytes")]);
    for (toleration, want) in [
        (
            json!({"key": "a", "operator": "In"}),
            "operator: Unsupported value: \"In\": supported values: \"Equal\", \"Exists\"",
        ),
        (
            json!({"key": "a", "operator": "Exists", "value": "x"}),
            "value: Invalid value: \"x\": must be empty for operator `Exists`",
        ),
        (
            json!({"key": "a", "operator": "Equal", "value": "x y"}),
            "value: Invalid value: \"x y\": a valid label must be",
        ),
        (json!({"key": "a b", "operator": "Exists"}), "key: Invalid value: \"a b\": name part must consist of"),
        (
            json!({"key": "a", "operator": "Exists", "effect": "Some"}),
            "effect: Unsupported value: \"Some\": supported values: \"NoExecute\", \"NoSchedule\", \"None\"",
        ),
    ] {
        request(json!({"tolerations": [toleration]}), &[&format!("{at}.tolerations[0].{want}")]);
    }
}

#[test]
fn alternatives() {
    let at = "spec.devices.requests[0].firstAvailable";
    claim(
        json!({"requests": [{"name": "r", "firstAvailable": [alternative("s"), alternative("s")]}]}),
        &[&format!("{at}[1]: Duplicate value: \"s\"")],
    );
    let many: Vec<Value> = (0..9).map(|i| alternative(&format!("s{i}"))).collect();
    claim(
        json!({"requests": [{"name": "r", "firstAvailable": many}]}),
        &[&format!("{at}: Too many: 9: must have at most 8 items")],
    );
}

/// Checks a claim in which this part has one entry.
fn with(part: &str, value: Value, want: &[&str]) {
    let exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
    let requests = json!([{"name": "r", "exactly": exactly}, {"name": "f", "firstAvailable": [alternative("s")]}]);
    let mut devices = json!({"requests": requests});
    devices[part] = json!([value]);
    claim(devices, want);
}

fn alternative(name: &str) -> Value {
    json!({"name": name, "deviceClassName": "g", "allocationMode": "ExactCount", "count": 1})
}

#[test]
fn constraints() {
    let reference =
        "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let c = "spec.devices.constraints[0]";
    with("constraints", json!({"requests": ["r", "f/s"], "matchAttribute": "a.b/c"}), &[]);
    with(
        "constraints",
        json!({"requests": ["r"]}),
        &[&format!(
            "{c}: Required value: exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set"
        )],
    );
    with(
        "constraints",
        json!({"requests": ["x"], "matchAttribute": "a.b/c"}),
        &[&format!("{c}.requests[0]: Invalid value: \"x\": {reference}")],
    );
    with(
        "constraints",
        json!({"requests": ["r/s/t"], "matchAttribute": "a.b/c"}),
        &[&format!("{c}.requests[0]: Invalid value: \"r/s/t\": {reference}")],
    );
    with(
        "constraints",
        json!({"requests": ["r", "r"], "matchAttribute": "a.b/c"}),
        &[&format!("{c}.requests[1]: Duplicate value: \"r\"")],
    );
    with(
        "constraints",
        json!({"matchAttribute": "c"}),
        &[&format!(
            "{c}.matchAttribute: Invalid value: \"c\": a fully qualified name must be a domain and a name separated by a slash"
        )],
    );
    with(
        "constraints",
        json!({"matchAttribute": "a.b/c-d"}),
        &[&format!("{c}.matchAttribute: Invalid value: \"c-d\": a valid C identifier must start")],
    );
    with(
        "constraints",
        json!({"matchAttribute": "A B/"}),
        &[
            &format!("{c}.matchAttribute: Invalid value: \"A B\": a lowercase RFC 1123 subdomain"),
            &format!("{c}.matchAttribute: Invalid value: \"\": the name must not be empty"),
        ],
    );
    with(
        "constraints",
        json!({"distinctAttribute": "/c"}),
        &[&format!("{c}.distinctAttribute: Invalid value: \"\": the domain must not be empty")],
    );
}

#[test]
fn configuration() {
    let o = "spec.devices.config[0].opaque";
    with("config", json!({"opaque": {"driver": "A.b", "parameters": {}}}), &[]);
    with("config", json!({}), &[&format!("{o}: Required value")]);
    with(
        "config",
        json!({"opaque": {"driver": "A_B", "parameters": {}}}),
        &[&format!("{o}.driver: Invalid value: \"A_B\": a lowercase RFC 1123 subdomain")],
    );
    with("config", json!({"opaque": {"driver": "", "parameters": {}}}), &[&format!("{o}.driver: Required value")]);
    with(
        "config",
        json!({"opaque": {"driver": format!("a.{}", "b".repeat(63)), "parameters": {}}}),
        &[&format!("{o}.driver: Too long: may not be more than 63 bytes")],
    );
    with("config", json!({"opaque": {"driver": "a.b"}}), &[&format!("{o}.parameters: Required value")]);
    with(
        "config",
        json!({"opaque": {"driver": "a.b", "parameters": [1]}}),
        &[&format!("{o}.parameters: Invalid value: \"<value omitted>\": must be a valid JSON object")],
    );
    with(
        "config",
        json!({"opaque": {"driver": "a.b", "parameters": {"x": "y".repeat(10300)}}}),
        &[&format!("{o}.parameters: Too long: may not be more than 10240 bytes")],
    );
}

#[test]
fn templates_classes_and_what_may_not_change() {
    let devices = json!({"requests": [{"name": "r"}]});
    let template = json!({"spec": {"metadata": {"labels": {"a b": "c"}}, "spec": {"devices": devices}}});
    let want = [
        "spec.metadata.labels: Invalid value: \"a b\": name part must consist of",
        "spec.spec.devices.requests[0]: Required value",
    ];
    check(device_claims::template, &template, &want);
    let old = json!({"spec": {"devices": {}}});
    let reported = faults(device_claims::claim, &json!({"spec": {"devices": devices}}), Some(&old));
    assert!(
        reported.len() == 1
            && reported[0].starts_with("spec: Invalid value: ")
            && reported[0].ends_with("field is immutable"),
        "{reported:?}"
    );
    let class = |spec: Value, want: &[&str]| check(device_claims::device_class, &json!({"spec": spec}), want);
    class(json!({"extendedResourceName": "example.com/gpu"}), &[]);
    for name in ["cpu", "kubernetes.io/x", "a.b/c d", "requests.a.b/c"] {
        class(
            json!({"extendedResourceName": name}),
            &[&format!("spec.extendedResourceName: Invalid value: \"{name}\": must be a valid extended resource name")],
        );
    }
    class(
        json!({"selectors": [{}], "config": [{}]}),
        &["spec.selectors[0].cel: Required value", "spec.config[0].opaque: Required value"],
    );
}

/// Checks a claim with this status.
fn status(status: Value, want: &[&str]) {
    let devices = json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]});
    check(device_status::claim_status, &json!({"metadata": {}, "spec": {"devices": devices}, "status": status}), want);
}

fn result(over: Value) -> Value {
    let mut result = json!({"request": "r", "driver": "a.b", "pool": "p", "device": "d"});
    result.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
    json!({"devices": {"results": [result]}})
}

#[test]
fn what_claims_are_given() {
    let user = |uid: &str| json!({"resource": "pods", "name": "p", "uid": uid});
    status(json!({"allocation": result(json!({})), "reservedFor": [user("1")]}), &[]);
    status(
        json!({"reservedFor": [user("1")]}),
        &["status.reservedFor: Forbidden: may not be specified when `allocated` is not set"],
    );
    status(
        json!({"allocation": result(json!({})), "reservedFor": [user("1"), user("1")]}),
        &["status.reservedFor[1]: Duplicate value: \"1\""],
    );
    let r = "status.allocation.devices.results[0]";
    for (over, want) in [
        (json!({"driver": ""}), "driver: Required value"),
        (json!({"pool": ""}), "pool: Required value"),
        (json!({"pool": "A/b"}), "pool: Invalid value: \"A\": a lowercase RFC 1123 subdomain"),
        (json!({"device": "A"}), "device: Invalid value: \"A\": a lowercase RFC 1123 label"),
        (
            json!({"bindingConditions": ["a"]}),
            "bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions",
        ),
        (
            json!({"bindingFailureConditions": ["f"]}),
            "bindingConditions: Invalid value: null: bindingConditions are required to use bindingFailureConditions",
        ),
        (
            json!({"bindingConditions": ["a"], "bindingFailureConditions": ["a"]}),
            "bindingFailureConditions[0]: Invalid value: \"a\": bindingFailureConditions must not overlap with bindingConditions",
        ),
        (
            json!({"bindingConditions": ["a", "a"], "bindingFailureConditions": ["b"]}),
            "bindingConditions[1]: Duplicate value: \"a\"",
        ),
        (
            json!({"bindingConditions": ["a b"], "bindingFailureConditions": ["b"]}),
            "bindingConditions[0]: Invalid value: \"a b\": name part must consist of",
        ),
        (json!({"shareID": "x"}), "shareID: Invalid value: \"x\": error validating uid: invalid UUID length: 1"),
        (
            json!({"shareID": "AAAAAAAA-AAAA-4AAA-8AAA-AAAAAAAAAAAA"}),
            "shareID: Invalid value: \"AAAAAAAA-AAAA-4AAA-8AAA-AAAAAAAAAAAA\": uid must be in RFC 4122 normalized form",
        ),
    ] {
        status(json!({"allocation": result(over)}), &[&format!("{r}.{want}")]);
    }
    let mut sourced = result(json!({}));
    sourced["devices"]["config"] = json!([{"source": "X", "opaque": {"driver": "a.b", "parameters": {}}}]);
    status(
        json!({"allocation": sourced}),
        &[
            "status.allocation.devices.config[0].source: Unsupported value: \"X\": supported values: \"FromClaim\", \"FromClass\"",
        ],
    );
}

#[test]
fn what_drivers_say_of_devices() {
    let device = |over: Value| {
        let mut device = json!({"driver": "a.b", "pool": "p", "device": "d"});
        device.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
        json!({"allocation": result(json!({})), "devices": [device]})
    };
    status(
        device(json!({"device": "e"})),
        &[
            "status.devices[0]: Invalid value: {\"Device\":\"e\",\"Driver\":\"a.b\",\"Pool\":\"p\",\"ShareID\":\"\"}: must be an allocated device in the claim",
        ],
    );
    status(
        device(json!({"data": [1]})),
        &["status.devices[0].data: Invalid value: \"<value omitted>\": must be a valid JSON object"],
    );
    let ips = json!({"networkData": {"ips": ["1.2.3.4", "01.2.3.4/24", "1.2.3.4/24", "1.2.3.4/24"]}});
    let n = "status.devices[0].networkData.ips";
    status(
        device(ips),
        &[
            &format!(
                "{n}[0]: Invalid value: \"1.2.3.4\": must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"
            ),
            &format!("{n}[1]: Invalid value: \"01.2.3.4/24\": must be in canonical form (\"1.2.3.4/24\")"),
            &format!("{n}[3]: Duplicate value: \"1.2.3.4/24\""),
        ],
    );
}

#[test]
fn what_is_given_stays() {
    let of = |allocation: Value| json!({"metadata": {}, "spec": {"devices": {"requests": [{"name": "r"}]}}, "status": {"allocation": allocation}});
    let old = of(result(json!({"pool": "OLD"})));
    assert!(faults(device_status::claim_status, &old, Some(&old)).is_empty(), "what was stored is not judged again");
    let reported = faults(device_status::claim_status, &of(result(json!({}))), Some(&old));
    assert!(
        reported.len() == 1
            && reported[0].starts_with("status.allocation: Invalid value: ")
            && reported[0].ends_with("field is immutable"),
        "{reported:?}"
    );
    let going = |users: Value| {
        let mut claim = of(result(json!({})));
        claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        claim["status"]["reservedFor"] = users;
        claim
    };
    let user = |uid: &str| json!({"resource": "pods", "name": "p", "uid": uid});
    let old = going(json!([user("1")]));
    let reported = faults(device_status::claim_status, &going(json!([user("1"), user("2")])), Some(&old));
    assert_eq!(
        reported,
        [
            "status.reservedFor: Forbidden: new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        ]
    );
}
