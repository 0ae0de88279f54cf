//! Pods with ResourceClaims: their node, the allocations, what other pods can get meanwhile, and when a waiting pod is
//! retried.
use std::sync::Arc;

use kelson_devices::{Readiness, ResourceClaimView};
use kelson_meta::ObjectKey;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{asks, core, decide, node, on, pod, useless};
use crate::core::{Core, DeviceBinding, Report, Step};
use crate::plugins::change::Change;
use crate::view::Pod;

pub fn slice(c: &mut Core, node: &str, devices: &[&str]) {
    let devices: Vec<Value> = devices.iter().map(|d| json!({"name": d})).collect();
    let slice = json!({"metadata": {"name": node}, "spec": {"driver": "d.example.com", "nodeName": node, "devices": devices,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}});
    c.cluster.devices.put_slice(node, Some(Arc::new(serde_json::from_value(slice).unwrap())));
    c.changed(Change::SliceUpdate, None, Instant::now());
}

pub fn class(c: &mut Core, name: &str, expression: &str) {
    let selectors = if expression.is_empty() { json!([]) } else { json!([{"cel": {"expression": expression}}]) };
    let class = json!({"metadata": {"name": name}, "spec": {"selectors": selectors}});
    c.cluster.devices.put_class(name, Some(Arc::new(serde_json::from_value(class).unwrap())));
    c.changed(Change::SliceUpdate, None, Instant::now());
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

/// A claim for one device of a class.
fn claim_value(name: &str, class: &str) -> Value {
    let exactly = json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": 1});
    json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}})
}

pub fn put_claim(c: &mut Core, value: &Value) {
    let claim: ResourceClaimView = serde_json::from_value(value.clone()).unwrap();
    c.put_resource_claim(claim.metadata.key(), Some(Arc::new(claim)), Instant::now());
}

/// The claim after its plan was written.
fn written(value: &Value, allocation: &Value, version: &str) -> Value {
    let mut value = value.clone();
    value["metadata"]["resourceVersion"] = version.into();
    value["status"]["allocation"] = allocation.clone();
    value
}

fn user(name: &str, claims: &[&str]) -> Arc<Pod> {
    let claims: Vec<Value> = claims.iter().map(|c| json!({"name": c, "resourceClaimName": c})).collect();
    pod(name, json!({"spec": {"resourceClaims": claims}}))
}

/// Two nodes, of which `b` has a device.
fn cluster() -> Core {
    let mut c = core(&[node("a", json!({})), node("b", json!({}))], &[]);
    class(&mut c, "any", "");
    slice(&mut c, "b", &["d1"]);
    c
}

pub fn step(c: &mut Core) -> Step {
    c.step(Instant::now())
}

fn planned(c: &mut Core, pod: Arc<Pod>) -> DeviceBinding {
    c.put_pod(pod, Instant::now());
    match step(c) {
        Step::BindDevices(binding) => binding,
        other => panic!("{other:?}"),
    }
}

fn reported(c: &mut Core, pod: Arc<Pod>) -> Report {
    c.put_pod(pod, Instant::now());
    match step(c) {
        Step::Report(report) => report,
        other => panic!("{other:?}"),
    }
}

fn stuck(message: &str) -> String {
    let tail = "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    format!("0/2 nodes are available: {message}. still not schedulable, {tail}")
}

#[test]
fn a_pod_goes_where_its_devices_are() {
    let mut c = cluster();
    let claim = claim_value("one", "any");
    put_claim(&mut c, &claim);
    let binding = planned(&mut c, user("p", &["one"]));
    let given = binding.plan.claims[0].allocation.clone().expect("devices");
    assert_eq!((&*binding.pod.node_name, &given["devices"]["results"][0]["device"]), ("b", &json!("d1")));
    // Until the allocation is written, no other pod can use the claim or the device.
    let busy = "resource claim default/one is in the process of being allocated";
    assert_eq!(
        decide(&mut c, user("sibling", &["one"])),
        useless(busy, 2, "2 Preemption is not helpful for scheduling")
    );
    put_claim(&mut c, &claim_value("two", "any"));
    assert_eq!(reported(&mut c, user("q", &["two"])).message, stuck("2 cannot allocate all claims"));
    put_claim(&mut c, &written(&claim, &given, "2"));
    assert_eq!(c.devices_progress(&binding, None), Readiness::Ready);
    c.bound(&binding.pod, Instant::now());
    // The sibling waited for exactly that, and shares the device.
    match step(&mut c) {
        Step::BindDevices(b) => {
            assert_eq!((&*b.pod.name, &*b.pod.node_name), ("sibling", "b"));
            assert_eq!(b.plan.claims[0].allocation, None, "it has its devices");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(step(&mut c), Step::Idle(_)), "the other claim's pod still cannot have it");
    let mut freed = claim;
    freed["metadata"]["resourceVersion"] = "3".into();
    put_claim(&mut c, &freed);
    match step(&mut c) {
        Step::BindDevices(b) => assert_eq!(&*b.pod.name, "q"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_fails_gives_its_devices_back() {
    let mut c = cluster();
    put_claim(&mut c, &claim_value("one", "any"));
    let binding = planned(&mut c, user("p", &["one"]));
    c.failed(&binding.pod, true, Instant::now());
    put_claim(&mut c, &claim_value("two", "any"));
    assert_eq!(&*planned(&mut c, user("q", &["two"])).pod.node_name, "b");
}

#[test]
fn a_pod_is_not_looked_at_before_its_claims_are_there() {
    let mut c = cluster();
    let made = |status: Value| {
        pod(
            "p",
            json!({"spec": {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]}, "status": status}),
        )
    };
    c.put_pod(made(json!({})), Instant::now());
    assert!(matches!(step(&mut c), Step::Idle(_)), "its claim is to be made yet");
    assert_eq!(c.queue.depth().gated, 1);
    c.put_pod(made(json!({"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "p-c-x"}]})), Instant::now());
    assert!(matches!(step(&mut c), Step::Idle(_)), "it is named and not seen yet");
    let mut foreign = claim_value("p-c-x", "any");
    put_claim(&mut c, &foreign);
    assert!(matches!(step(&mut c), Step::Idle(_)), "it is another's");
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    foreign["metadata"]["ownerReferences"] = owner;
    foreign["metadata"]["resourceVersion"] = "2".into();
    put_claim(&mut c, &foreign);
    assert!(matches!(step(&mut c), Step::BindDevices(_)));
    // A status that says that no claim is needed does not hold the pod.
    let none = json!({"resourceClaimStatuses": [{"name": "c"}]});
    let claims = json!([{"name": "c", "resourceClaimTemplateName": "t"}]);
    let free = pod("free", json!({"spec": {"resourceClaims": claims}, "status": none}));
    assert!(decide(&mut c, free).is_ok());
}

#[test]
fn why_no_node_will_do() {
    let mut c = cluster();
    put_claim(&mut c, &claim_value("classless", "none"));
    let tail = "2 Preemption is not helpful for scheduling";
    let missing = "request r: device class none does not exist";
    assert_eq!(decide(&mut c, user("p", &["classless"])), useless(missing, 2, tail));
    // When the class is created, the pod is requeued.
    class(&mut c, "none", "");
    assert!(matches!(step(&mut c), Step::BindDevices(_)));
    class(&mut c, "broken", "device.attributes['d.example.com'].nothing");
    put_claim(&mut c, &claim_value("odd", "broken"));
    slice(&mut c, "b", &["d1", "d2"]);
    let report = reported(&mut c, user("q", &["odd"]));
    let text = "running \"DynamicResources\" filter plugin: class broken: selector #0: CEL runtime error: no such key: nothing";
    assert_eq!((report.reason, &*report.message), ("SchedulerError", text));
}

#[test]
fn devices_elsewhere_are_given_back() {
    let mut c = cluster();
    let only = json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gone"]}]}]});
    let result = json!({"request": "r", "driver": "d.example.com", "pool": "gone", "device": "d9"});
    let allocation = json!({"devices": {"results": [result]}, "nodeSelector": only});
    let claim = written(&claim_value("one", "any"), &allocation, "2");
    put_claim(&mut c, &claim);
    let report = reported(&mut c, user("p", &["one"]));
    let tail = "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    let why = "2 resourceclaim not available on the node. deallocation of ResourceClaim completed";
    assert_eq!(report.message, format!("0/2 nodes are available: {why}, {tail}"));
    assert_eq!(report.free, Some(key("one")));
    // A claim that other pods use is not deallocated.
    let mut used = claim.clone();
    used["metadata"]["resourceVersion"] = "3".into();
    used["status"]["reservedFor"] = json!([{"resource": "pods", "name": "x", "uid": "x"}]);
    put_claim(&mut c, &used);
    let report = match step(&mut c) {
        Step::Report(report) => report,
        other => panic!("{other:?}"),
    };
    assert_eq!((report.free, &*report.message), (None, &*stuck("2 resourceclaim not available on the node")));
    // Once the claim is deallocated, the pod gets other devices.
    let mut freed = claim_value("one", "any");
    freed["metadata"]["resourceVersion"] = "4".into();
    put_claim(&mut c, &freed);
    assert!(matches!(step(&mut c), Step::BindDevices(_)));
}

#[test]
fn devices_that_must_be_prepared_are_waited_for() {
    let mut c = cluster();
    let claim = claim_value("one", "any");
    put_claim(&mut c, &claim);
    let binding = planned(&mut c, user("p", &["one"]));
    let mut given = binding.plan.claims[0].allocation.clone().expect("devices");
    given["devices"]["results"][0]["bindingConditions"] = json!(["Attached"]);
    given["devices"]["results"][0]["bindingFailureConditions"] = json!(["Broken"]);
    let says = |version: &str, kind: &str| {
        let mut claim = written(&claim, &given, version);
        let condition = json!({"type": kind, "status": "True", "reason": "R", "message": "m"});
        claim["status"]["devices"] =
            json!([{"driver": "d.example.com", "pool": "b", "device": "d1", "conditions": [condition]}]);
        claim
    };
    put_claim(&mut c, &written(&claim, &given, "2"));
    assert_eq!(c.devices_progress(&binding, None), Readiness::Waits);
    put_claim(&mut c, &says("3", "Attached"));
    assert_eq!(c.devices_progress(&binding, None), Readiness::Ready);
    put_claim(&mut c, &says("4", "Broken"));
    let failed = "device binding failed: claim=one, reason=R, message=\"m\"";
    assert_eq!(c.devices_progress(&binding, None), Readiness::Failed(failed.into()));
    // The next attempt finds that these devices cannot be used.
    c.failed(&binding.pod, false, Instant::now());
    let again = match c.step(Instant::now() + std::time::Duration::from_secs(60)) {
        Step::Report(report) => report,
        other => panic!("{other:?}"),
    };
    assert_eq!(again.free, Some(key("one")), "{}", again.message);
}

#[test]
fn what_was_not_asked_says_so() {
    // VolumeBinding rejects the pod before DynamicResources is asked.
    let mut c = cluster();
    let volume = json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]}});
    let why = "0/2 nodes are available: persistentvolumeclaim \"v\" not found. not found";
    assert_eq!(decide(&mut c, pod("p", volume)), Err(why.into()));
    let full = on("a", asks("big", "4", json!({"spec": {"priority": 0}})));
    let mut c = core(&[node("a", json!({}))], &[full]);
    let tail = "1 No preemption victims found for incoming pod";
    assert_eq!(decide(&mut c, asks("q", "4", json!({}))), useless("1 Insufficient cpu", 1, tail));
}
