//! Pods with claims in `WaitForFirstConsumer` mode: their node, what is bound and provisioned, and what other pods can
//! get meanwhile.
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::ObjectKey;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{core, decide, node, on, pod, useless};
use crate::cluster::storage::{Plan, Progress};
use crate::core::{Core, PendingBinding, Step};
use crate::plugins::change::Change;
use crate::view::Pod;

fn class(c: &mut Core, name: &str, over: Value) {
    let mut all = json!({"metadata": {"name": name}, "provisioner": "example.com/disk",
        "volumeBindingMode": "WaitForFirstConsumer"});
    all.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
    c.cluster.storage.put_class(name, Some(serde_json::from_value(all).unwrap()));
}

fn claim_value(name: &str, class: &str, size: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1", "annotations": {}},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
}

fn put_claim(c: &mut Core, value: &Value) {
    let key = ObjectKey::new("default", value["metadata"]["name"].as_str().unwrap());
    c.cluster.storage.put_claim(key, Some(serde_json::from_value(value.clone()).unwrap()));
    c.changed(Change::VolumeUpdate, None, Instant::now());
}

fn volume_value(name: &str, class: &str, size: &str, node: &str) -> Value {
    json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "status": {"phase": "Available"},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}}}})
}

fn put_volume(c: &mut Core, value: &Value) {
    let name = value["metadata"]["name"].as_str().unwrap();
    c.cluster.storage.put_volume(name, Some(serde_json::from_value(value.clone()).unwrap()));
    c.changed(Change::VolumeUpdate, None, Instant::now());
}

fn user(name: &str, claims: &[&str]) -> Arc<Pod> {
    let volumes: Vec<Value> =
        claims.iter().map(|c| json!({"name": c, "persistentVolumeClaim": {"claimName": c}})).collect();
    pod(name, json!({"spec": {"volumes": volumes}}))
}

fn two_nodes() -> Core {
    core(&[node("a", json!({})), node("b", json!({}))], &[])
}

/// Expects that the pod's volumes must be bound first.
fn planned(c: &mut Core, pod: Arc<Pod>) -> PendingBinding {
    let now = Instant::now();
    c.put_pod(pod, now);
    match c.step(now) {
        Step::BindVolumes(binding) => binding,
        other => panic!("{other:?}"),
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

const TAIL: &str = "2 Preemption is not helpful for scheduling";

#[test]
fn a_pod_goes_where_its_claims_can_have_volumes() {
    let mut c = two_nodes();
    class(&mut c, "local", json!({"provisioner": "kubernetes.io/no-provisioner"}));
    put_claim(&mut c, &claim_value("small", "local", "1Gi"));
    put_claim(&mut c, &claim_value("large", "local", "5Gi"));
    let none = "2 node(s) didn't find available persistent volumes to bind";
    assert_eq!(decide(&mut c, user("p", &["small"])), useless(none, 2, TAIL));
    put_volume(&mut c, &volume_value("a-9", "local", "9Gi", "a"));
    put_volume(&mut c, &volume_value("b-2", "local", "2Gi", "b"));
    put_volume(&mut c, &volume_value("b-6", "local", "6Gi", "b"));
    // Only one node has room for both, and the smaller claim leaves the larger volume to the larger claim.
    let binding = planned(&mut c, user("both", &["large", "small"]));
    let bind = vec![(key("small"), "b-2".to_owned()), (key("large"), "b-6".to_owned())];
    assert_eq!(*binding.plan, Plan { node: "b".into(), bind, provision: Vec::new() });
    // A volume of a plan is not available to other pods.
    put_claim(&mut c, &claim_value("third", "local", "1Gi"));
    assert_eq!(planned(&mut c, user("q", &["third"])).plan.bind, [(key("third"), "a-9".to_owned())]);
    put_claim(&mut c, &claim_value("fourth", "local", "1Gi"));
    assert_eq!(decide(&mut c, user("r", &["fourth"])), useless(none, 2, TAIL));
    // A plan that is given up releases its volumes.
    c.failed(&binding.pod, true, Instant::now());
    c.changed(Change::VolumeUpdate, None, Instant::now());
    assert_eq!(planned(&mut c, user("s", &["fourth"])).plan.bind, [(key("fourth"), "b-2".to_owned())]);
}

#[test]
fn volumes_are_made_where_the_class_allows() {
    let mut c = core(
        &[
            node("a", json!({"metadata": {"labels": {"zone": "x"}}})),
            node("b", json!({"metadata": {"labels": {"zone": "y"}}})),
        ],
        &[],
    );
    class(
        &mut c,
        "disk",
        json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["y"]}]}]}),
    );
    put_claim(&mut c, &claim_value("c", "disk", "1Gi"));
    let binding = planned(&mut c, user("p", &["c"]));
    assert_eq!(*binding.plan, Plan { node: "b".into(), bind: Vec::new(), provision: vec![key("c")] });
    // A pod that shares the claim follows it, before and after the choice is written.
    let second = planned(&mut c, user("q", &["c"]));
    assert_eq!(&*second.plan.node, "b");
    c.failed(&binding.pod, true, Instant::now());
    c.failed(&second.pod, true, Instant::now());
    let mut chosen = claim_value("c", "disk", "1Gi");
    chosen["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!("a");
    chosen["metadata"]["resourceVersion"] = json!("2");
    put_claim(&mut c, &chosen);
    assert!(decide(&mut c, user("nowhere", &["c"])).is_err(), "its class does not allow that node");
    class(&mut c, "disk", json!({}));
    assert_eq!(&*planned(&mut c, user("r", &["c"])).plan.node, "a", "somebody chose for it");
}

#[test]
fn only_its_own_claims_bring_a_pod_back() {
    let mut c = two_nodes();
    let now = Instant::now();
    class(&mut c, "disk", json!({}));
    c.put_pod(user("p", &["mine"]), now);
    assert!(matches!(c.step(now), Step::Report(_)));
    for (name, back) in [("theirs", false), ("mine", true)] {
        let claim = serde_json::from_value(claim_value(name, "disk", "1Gi")).unwrap();
        c.cluster.storage.put_claim(key(name), Some(claim));
        c.changed(Change::ClaimAdd, Some(&key(name)), now);
        assert_eq!(!matches!(c.step(now + Duration::from_secs(20)), Step::Idle(_)), back, "{name}");
    }
}

#[test]
fn volumes_are_made_where_their_driver_has_room() {
    let zones = |name: &str, zone: &str| node(name, json!({"metadata": {"labels": {"zone": zone}}}));
    let mut c = core(&[zones("a", "x"), zones("b", "y")], &[]);
    class(&mut c, "disk", json!({}));
    put_claim(&mut c, &claim_value("c", "disk", "5Gi"));
    let driver = |c: &mut Core, asks: bool| {
        let driver = json!({"metadata": {"name": "example.com/disk"}, "spec": {"storageCapacity": asks}});
        c.cluster.storage.put_driver("example.com/disk", Some(&serde_json::from_value(driver).unwrap()));
        c.changed(Change::VolumeUpdate, None, Instant::now());
    };
    let room = |c: &mut Core, name: &str, class: &str, zone: &str, size: Value| {
        let mut all = json!({"metadata": {"name": name, "namespace": "n"}, "storageClassName": class});
        all.as_object_mut().unwrap().extend(size.as_object().unwrap().clone());
        if !zone.is_empty() {
            all["nodeTopology"] = json!({"matchLabels": {"zone": zone}});
        }
        let said = serde_json::from_value(all).unwrap();
        c.cluster.storage.put_capacity(ObjectKey::new("n", name), Some(&said));
        c.changed(Change::VolumeUpdate, None, Instant::now());
    };
    let none = "2 node(s) did not have enough free storage";
    driver(&mut c, true);
    assert_eq!(decide(&mut c, user("p", &["c"])), useless(none, 2, TAIL), "nobody says that there is any");
    room(&mut c, "small", "disk", "x", json!({"capacity": "4Gi"}));
    room(&mut c, "other", "tape", "x", json!({"capacity": "40Gi"}));
    room(&mut c, "nowhere", "disk", "", json!({"capacity": "40Gi"}));
    room(&mut c, "pieces", "disk", "x", json!({"capacity": "40Gi", "maximumVolumeSize": "4Gi"}));
    room(&mut c, "unknown", "disk", "x", json!({}));
    assert_eq!(decide(&mut c, user("q", &["c"])), useless(none, 2, TAIL));
    room(&mut c, "large", "disk", "y", json!({"capacity": "5Gi"}));
    assert_eq!(&*planned(&mut c, user("r", &["c"])).plan.node, "b");
    c.cluster.storage.put_capacity(ObjectKey::new("n", "large"), None);
    put_claim(&mut c, &claim_value("d", "disk", "5Gi"));
    assert_eq!(decide(&mut c, user("s", &["d"])), useless(none, 2, TAIL), "what is taken back is not there");
    driver(&mut c, false);
    planned(&mut c, user("t", &["d"]));
}

#[test]
fn how_far_a_plan_is() {
    let mut c = core(&[node("a", json!({}))], &[]);
    class(&mut c, "disk", json!({}));
    put_claim(&mut c, &claim_value("c", "disk", "1Gi"));
    put_claim(&mut c, &claim_value("s", "disk", "1Gi"));
    put_volume(&mut c, &volume_value("v", "disk", "1Gi", "a"));
    let binding = planned(&mut c, user("p", &["c", "s"]));
    assert_eq!(binding.plan.bind.len(), 1);
    let (to_bind, to_make) = (binding.plan.bind[0].0.name.clone(), binding.plan.provision[0].name.clone());
    let failed = |text: String| Progress::Failed(text);
    let lost = format!("selectedNode annotation reset for PVC {to_make:?}");
    let written = |name: &str, version: &str| {
        let mut v = claim_value(name, "disk", "1Gi");
        v["metadata"]["resourceVersion"] = json!(version);
        v
    };
    let mut volume = volume_value("v", "disk", "1Gi", "a");
    volume["spec"]["claimRef"] = json!({"namespace": "default", "name": to_bind, "uid": to_bind});
    volume["metadata"]["resourceVersion"] = json!("2");
    c.cluster.storage.wrote_volume(serde_json::from_value(volume).unwrap());
    assert_eq!(c.volumes_progress(&binding), failed(lost.clone()), "not written yet");
    let mut made = written(&to_make, "3");
    made["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!("a");
    c.cluster.storage.wrote_claim(serde_json::from_value(made.clone()).unwrap());
    assert_eq!(c.volumes_progress(&binding), Progress::Waits);
    put_claim(&mut c, &written(&to_make, "1"));
    assert_eq!(c.volumes_progress(&binding), Progress::Waits, "old news change nothing");
    let complete = |mut v: Value, volume: &str, version: &str| {
        v["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
        v["metadata"]["resourceVersion"] = json!(version);
        v["spec"]["volumeName"] = json!(volume);
        v
    };
    put_claim(&mut c, &complete(written(&to_bind, "4"), "v", "4"));
    assert_eq!(c.volumes_progress(&binding), Progress::Waits);
    put_claim(&mut c, &complete(made, "m", "5"));
    assert_eq!(c.volumes_progress(&binding), Progress::Waits, "the volume is not known yet");
    put_volume(&mut c, &volume_value("m", "disk", "1Gi", "a"));
    assert_eq!(c.volumes_progress(&binding), Progress::Done);
    put_volume(
        &mut c,
        &json!({"metadata": {"name": "m", "uid": "m", "resourceVersion": "6"},
        "spec": volume_value("m", "disk", "1Gi", "b")["spec"]}),
    );
    assert_eq!(c.volumes_progress(&binding), failed("pv \"m\" node affinity doesn't match node \"a\"".into()));
    put_claim(&mut c, &written(&to_make, "7"));
    assert_eq!(c.volumes_progress(&binding), failed(lost), "it is to be chosen again");
    c.remove_pod(&binding.pod, Instant::now());
    assert_eq!(c.volumes_progress(&binding), failed("the pod was deleted".into()));
}

#[test]
fn a_claim_for_one_pod_alone() {
    let bound = |mut v: Value| {
        v["spec"]["volumeName"] = json!("v");
        v["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
        v["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
        v
    };
    let mut c = two_nodes();
    put_volume(&mut c, &json!({"metadata": {"name": "v"}, "spec": {}}));
    put_claim(&mut c, &bound(claim_value("c", "", "1Gi")));
    let first = on("a", user("first", &["c"]));
    c.put_pod(Arc::clone(&first), Instant::now());
    let why = "2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by \
               another pod";
    let tail = "2 No preemption victims found for incoming pod";
    assert_eq!(decide(&mut c, user("second", &["c"])), useless(why, 2, tail));
    c.remove_pod(&first, Instant::now());
    assert!(matches!(c.step(Instant::now()), Step::Bind(_)), "the first is gone");
}

#[test]
fn a_node_has_only_so_many_volumes_of_a_driver() {
    let mut c = two_nodes();
    let bound = |name: &str| {
        let mut v = claim_value(name, "", "1Gi");
        v["spec"]["volumeName"] = json!(format!("v-{name}"));
        v["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
        v
    };
    for name in ["x", "y", "z"] {
        put_claim(&mut c, &bound(name));
        let csi = json!({"driver": "d", "volumeHandle": name});
        put_volume(&mut c, &json!({"metadata": {"name": format!("v-{name}")}, "spec": {"csi": csi}}));
    }
    class(&mut c, "disk", json!({"provisioner": "d"}));
    put_claim(&mut c, &claim_value("new", "disk", "1Gi"));
    for n in ["a", "b"] {
        let limit = json!({"metadata": {"name": n}, "spec": {"drivers": [{"name": "d", "allocatable": {"count": 1}}]}});
        c.cluster.storage.put_csi_node(n, Some(&serde_json::from_value(limit).unwrap()));
    }
    let now = Instant::now();
    c.put_pod(on("a", user("first", &["x"])), now);
    c.put_pod(on("b", user("second", &["y"])), now);
    let tail = "2 No preemption victims found for incoming pod";
    let full = || useless("2 node(s) exceed max volume count", 2, tail);
    assert_eq!(decide(&mut c, user("third", &["z"])), full());
    assert_eq!(decide(&mut c, user("made", &["new"])), full(), "one that is to be made counts");
    assert_eq!(decide(&mut c, user("shares", &["x"])), Ok("a".into()), "one that is there counts once");
    c.cluster.storage.put_csi_node("b", None);
    c.changed(Change::VolumeUpdate, None, now);
    assert_eq!(decide(&mut c, user("fourth", &["z"])), Ok("b".into()), "without a word there is no limit");
}
