//! Pods with extended resources that DeviceClasses map to: provided by device plugins or by drivers, the claim to
//! create, and what an earlier attempt left.
use std::sync::Arc;

use kelson_devices::ResourceClaimView;
use kelson_meta::ObjectKey;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::arguments::alone;
use super::devices::{put_claim, slice, step};
use super::{asks, core, decide, node, on, pod, useless};
use crate::core::{Core, DeviceBinding, Step};
use crate::plugins::change::Change;
use crate::view::Pod;

const GPU: &str = "example.com/gpu";

fn class(c: &mut Core, resource: Option<&str>) {
    let spec = json!({"extendedResourceName": resource});
    let class = json!({"metadata": {"name": "gpus"}, "spec": spec});
    c.cluster.devices.put_class("gpus", Some(Arc::new(serde_json::from_value(class).unwrap())));
    c.changed(Change::DeviceClassAdd, Some(&ObjectKey::new("", "gpus")), Instant::now());
}

fn wants(name: &str, resource: &str, n: &str) -> Arc<Pod> {
    let resources = json!({"requests": {"cpu": "1", resource: n}, "limits": {resource: n}});
    pod(name, json!({"spec": {"containers": [{"name": "c", "resources": resources}]}}))
}

/// Two nodes, of which `b` has devices of a class that maps to the resource.
fn cluster(devices: &[&str]) -> Core {
    let mut c = core(&[node("a", json!({})), node("b", json!({}))], &[]);
    class(&mut c, Some(GPU));
    slice(&mut c, "b", devices);
    c
}

fn planned(c: &mut Core, pod: Arc<Pod>) -> DeviceBinding {
    c.put_pod(pod, Instant::now());
    match step(c) {
        Step::BindDevices(binding) => binding,
        other => panic!("{other:?}"),
    }
}

/// A claim as it is created for a pod's extended resources.
fn made(pod: &str, allocation: &Value) -> Value {
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod, "controller": true});
    json!({"metadata": {"name": format!("{pod}-extended-resources-x"), "namespace": "default", "uid": "made",
        "resourceVersion": "5", "ownerReferences": [owner],
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}},
        "spec": {"devices": {"requests": [{"name": "container-0-request-1",
            "exactly": {"deviceClassName": "gpus", "allocationMode": "ExactCount", "count": 1}}]}},
        "status": {"allocation": allocation}})
}

#[test]
fn drivers_give_what_no_plugin_has() {
    let mut c = cluster(&["d1", "d2"]);
    let binding = planned(&mut c, wants("p", GPU, "2"));
    assert_eq!(&*binding.pod.node_name, "b");
    let plan = binding.plan.extended.clone().expect("a claim to be made");
    let exactly = json!({"deviceClassName": "gpus", "allocationMode": "ExactCount", "count": 2});
    assert_eq!(plan.requests, json!([{"name": "container-0-request-1", "exactly": exactly}]));
    let mapping = json!({"containerName": "c", "resourceName": GPU, "requestName": "container-0-request-1"});
    assert_eq!(plan.mappings, json!([mapping]));
    assert_eq!(plan.allocation["devices"]["results"].as_array().map(Vec::len), Some(2));
    // Until the claim is created, no other pod can use the devices.
    let other = decide(&mut c, wants("q", GPU, "1"));
    assert!(other.as_ref().is_err_and(|why| why.contains("2 cannot allocate all claims")), "{other:?}");
    // If it could not be created, they are free again.
    c.failed(&binding.pod, true, Instant::now());
    assert_eq!(&*planned(&mut c, wants("r", GPU, "2")).pod.node_name, "b");
}

#[test]
fn every_class_is_a_resource_of_its_name() {
    let mut c = core(&[node("b", json!({}))], &[]);
    class(&mut c, None);
    slice(&mut c, "b", &["d1"]);
    let binding = planned(&mut c, wants("p", "deviceclass.resource.kubernetes.io/gpus", "1"));
    assert_eq!(&*binding.pod.node_name, "b");
}

#[test]
fn where_a_plugin_has_some_drivers_are_not_asked() {
    let plugged = node("a", json!({"status": {"allocatable": {GPU: "1"}}}));
    let mut c = core(&[plugged, node("b", json!({}))], &[]);
    class(&mut c, Some(GPU));
    assert_eq!(decide(&mut c, wants("p", GPU, "1")), Ok("a".into()));
    let why = decide(&mut c, wants("q", GPU, "1"));
    assert!(why.as_ref().is_err_and(|w| w.contains("1 Insufficient example.com/gpu, 1 cannot allocate")), "{why:?}");
}

#[test]
fn without_a_class_it_is_as_ever() {
    let mut c = core(&[node("b", json!({}))], &[]);
    slice(&mut c, "b", &["d1"]);
    let tail = "1 Preemption is not helpful for scheduling";
    assert_eq!(decide(&mut c, wants("p", GPU, "1")), useless("1 Insufficient example.com/gpu", 1, tail));
    // When the class is created, the pod is requeued.
    class(&mut c, Some(GPU));
    assert!(matches!(step(&mut c), Step::BindDevices(_)));
}

#[test]
fn without_the_feature_no_class_is_a_resource() {
    let mut c = cluster(&["d1"]);
    c.cluster.devices.without_extended();
    let tail = "2 Preemption is not helpful for scheduling";
    assert_eq!(decide(&mut c, wants("p", GPU, "1")), useless("2 Insufficient example.com/gpu", 2, tail));
}

#[test]
fn what_an_earlier_try_has_left_goes_first() {
    let mut c = cluster(&["d1"]);
    let result = json!({"request": "container-0-request-1", "driver": "d.example.com", "pool": "b", "device": "d1"});
    put_claim(&mut c, &made("p", &json!({"devices": {"results": [result]}})));
    c.put_pod(wants("p", GPU, "1"), Instant::now());
    let report = match step(&mut c) {
        Step::Report(report) => report,
        other => panic!("{other:?}"),
    };
    let key = ObjectKey::new("default", "p-extended-resources-x");
    let why = "0/2 nodes are available: 2 cannot schedule extended resource claim. deletion of ResourceClaim completed";
    assert_eq!((report.drop.as_ref(), &*report.message), (Some(&key), why));
    assert!(matches!(step(&mut c), Step::Idle(_)));
    c.put_resource_claim(key, None::<Arc<ResourceClaimView>>, Instant::now());
    assert!(matches!(step(&mut c), Step::BindDevices(_)), "once it is gone the pod is tried again");
}

#[test]
fn a_claim_that_was_made_holds_its_devices() {
    let mut c = cluster(&["d1"]);
    let binding = planned(&mut c, wants("p", GPU, "1"));
    let given = binding.plan.extended.as_ref().map(|e| e.allocation.clone()).expect("devices");
    put_claim(&mut c, &made("p", &given));
    c.bound(&binding.pod, Instant::now());
    let other = decide(&mut c, wants("q", GPU, "1"));
    assert!(other.as_ref().is_err_and(|why| why.contains("cannot allocate all claims")), "{other:?}");
    let mut gone = made("p", &json!(null));
    gone["metadata"]["resourceVersion"] = "6".into();
    put_claim(&mut c, &gone);
    assert!(matches!(step(&mut c), Step::BindDevices(_)), "its devices are free");
}

/// Only this plugin scores, by this resource; `a` has four devices and `b` two.
fn scored(plugin: &str, args: &Value) -> Core {
    let mut c = alone(plugin, args);
    class(&mut c, Some(GPU));
    slice(&mut c, "a", &["a1", "a2", "a3", "a4"]);
    slice(&mut c, "b", &["b1", "b2"]);
    c
}

#[test]
fn nodes_are_scored_by_what_drivers_have() {
    for (strategy, expected) in [("LeastAllocated", "a"), ("MostAllocated", "b")] {
        let args = json!({"scoringStrategy": {"type": strategy, "resources": [{"name": GPU, "weight": 1}]}});
        let mut c = scored("NodeResourcesFit", &args);
        assert_eq!(decide(&mut c, wants("p", GPU, "1")), Err(format!("gives devices on {expected}")), "{strategy}");
    }
    // Three of four are allocated now: another node has more free.
    let args = json!({"scoringStrategy": {"type": "LeastAllocated", "resources": [{"name": GPU, "weight": 1}]}});
    let mut c = scored("NodeResourcesFit", &args);
    let given = |device: &str| json!({"request": "r", "driver": "d.example.com", "pool": "a", "device": device});
    let results: Vec<Value> = ["a1", "a2", "a3"].map(given).into();
    put_claim(&mut c, &made("other", &json!({"devices": {"results": results}})));
    assert_eq!(decide(&mut c, wants("p", GPU, "1")), Err("gives devices on b".into()));
}

#[test]
fn an_even_use_counts_what_drivers_have() {
    let args = json!({"resources": [{"name": "cpu", "weight": 1}, {"name": GPU, "weight": 1}]});
    // Half of the CPUs of `b` are used, and none of its devices: with the pod that is more balanced.
    let mut c = scored("NodeResourcesBalancedAllocation", &args);
    assert_eq!(decide(&mut c, wants("p", GPU, "1")), Err("gives devices on b".into()));
    // Half of the CPUs of `a` instead: one of two devices of `b`, which is empty, is less balanced.
    let mut c = scored("NodeResourcesBalancedAllocation", &args);
    c.remove_pod(&on("b", asks("there", "2", json!({}))), Instant::now());
    c.put_pod(on("a", asks("here", "2", json!({}))), Instant::now());
    assert_eq!(decide(&mut c, wants("p", GPU, "1")), Err("gives devices on a".into()));
}
