//! Claims and volumes on the real API server, created and deleted in any order.
use serde_json::{Value, json};

use crate::testing::run;
use crate::{Config, Running};
use kelson_simulation::{Api, DISTURBANCES, at_every_request};

const CLAIMS: &str = "v1/persistentvolumeclaims";
const VOLUMES: &str = "v1/persistentvolumes";
const CLASSES: &str = "storage.k8s.io/v1/storageclasses";
const BINDER: [&str; 1] = ["persistentvolume-binder-controller"];

fn claim(name: &str, spec: Value) -> Value {
    let mut all = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}}});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"metadata": {"name": name, "namespace": "n"}, "spec": all})
}

fn volume(name: &str, spec: Value) -> Value {
    let mut all = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"},
        "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/mnt"}});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"metadata": {"name": name}, "spec": all})
}

fn class(name: &str, provisioner: &str, mode: &str) -> Value {
    json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode})
}

async fn start() -> (Api, Running) {
    let api = Api::start().await;
    api.namespace("n").await;
    let running = run(&api, &BINDER, Config::default()).await;
    (api, running)
}

async fn phase(api: &Api, resource: &str, name: &str) -> String {
    let namespace = if resource == CLAIMS { "n" } else { "" };
    let object = api.get(resource, namespace, name).await.unwrap_or_default();
    object["status"]["phase"].as_str().unwrap_or("none").to_owned()
}

async fn reported(api: &Api, part: &str) -> bool {
    api.events().await.iter().any(|e| e.contains(part))
}

#[tokio::test(start_paused = true)]
async fn both_say_that_they_belong_together() {
    let (api, _running) = start().await;
    api.create(CLAIMS, claim("c", json!({}))).await;
    api.settle().await;
    assert!(
        reported(&api, "FailedBinding no persistent volumes available for this claim and no storage class is set")
            .await
    );
    api.create(VOLUMES, volume("large", json!({"capacity": {"storage": "9Gi"}}))).await;
    api.settle().await;
    let (c, v) = (api.get(CLAIMS, "n", "c").await.unwrap(), api.get(VOLUMES, "", "large").await.unwrap());
    assert_eq!((phase(&api, CLAIMS, "c").await, phase(&api, VOLUMES, "large").await), ("Bound".into(), "Bound".into()));
    assert_eq!((&c["spec"]["volumeName"], &v["spec"]["claimRef"]["uid"]), (&json!("large"), &c["metadata"]["uid"]));
    assert_eq!(c["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"], "yes");
    assert_eq!(c["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"], "yes");
    assert_eq!(v["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"], "yes");
    assert_eq!(c["status"]["capacity"]["storage"], "9Gi");
    assert_eq!(c["status"]["accessModes"], json!(["ReadWriteOnce"]));
    // A volume is bound to one claim only.
    api.create(CLAIMS, claim("second", json!({}))).await;
    api.settle().await;
    assert_eq!(phase(&api, CLAIMS, "second").await, "Pending");
    // Its claim is deleted, so it is kept and released.
    api.change(CLAIMS, "n", "c", |v| v["metadata"]["finalizers"] = json!([])).await;
    api.remove(CLAIMS, "n", "c").await;
    api.settle().await;
    assert_eq!(phase(&api, VOLUMES, "large").await, "Released");
    assert_eq!(phase(&api, CLAIMS, "second").await, "Pending");
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_claims_takes_a_volume_each() {
    let (api, _running) = start().await;
    for n in 0..12 {
        api.create(VOLUMES, volume(&format!("v{n}"), json!({"capacity": {"storage": format!("{}Gi", n + 1)}}))).await;
        api.create(CLAIMS, claim(&format!("c{n}"), json!({}))).await;
    }
    api.settle().await;
    let mut taken: Vec<String> = Vec::new();
    for c in api.list(CLAIMS).await {
        assert_eq!(c["status"]["phase"], "Bound");
        taken.push(c["spec"]["volumeName"].as_str().unwrap().to_owned());
    }
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), 12);
    assert!(api.list(VOLUMES).await.iter().all(|v| v["status"]["phase"] == "Bound"));
}

#[tokio::test(start_paused = true)]
async fn what_users_reserve_is_theirs() {
    let (api, _running) = start().await;
    let reserved = json!({"claimRef": {"namespace": "n", "name": "c"}});
    api.create(VOLUMES, volume("kept", reserved)).await;
    api.create(VOLUMES, volume("free", json!({}))).await;
    api.create(CLAIMS, claim("other", json!({"volumeName": "kept"}))).await;
    api.settle().await;
    assert_eq!(phase(&api, VOLUMES, "kept").await, "Available");
    assert_eq!(phase(&api, CLAIMS, "other").await, "Pending");
    assert!(reported(&api, "FailedBinding volume \"kept\" already bound to a different claim.").await);
    api.create(CLAIMS, claim("c", json!({}))).await;
    api.create(CLAIMS, claim("named", json!({"volumeName": "free"}))).await;
    api.create(CLAIMS, claim("early", json!({"volumeName": "later"}))).await;
    api.settle().await;
    let c = api.get(CLAIMS, "n", "c").await.unwrap();
    assert_eq!((&c["spec"]["volumeName"], &c["status"]["phase"]), (&json!("kept"), &json!("Bound")));
    let kept = api.get(VOLUMES, "", "kept").await.unwrap();
    assert!(kept["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"].is_null(), "a user reserved it");
    assert_eq!(phase(&api, CLAIMS, "named").await, "Bound");
    assert_eq!(phase(&api, CLAIMS, "early").await, "Pending");
    api.create(VOLUMES, volume("later", json!({"capacity": {"storage": "1Mi"}}))).await;
    api.settle().await;
    assert!(
        reported(&api, "VolumeMismatch Cannot bind to requested volume \"later\": requested PV is too small").await
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_loses_its_volume_is_lost() {
    let (api, _running) = start().await;
    api.create(VOLUMES, volume("v", json!({}))).await;
    api.create(CLAIMS, claim("c", json!({}))).await;
    api.settle().await;
    assert_eq!(phase(&api, CLAIMS, "c").await, "Bound");
    api.change(VOLUMES, "", "v", |v| v["metadata"]["finalizers"] = json!([])).await;
    api.remove(VOLUMES, "", "v").await;
    api.settle().await;
    assert_eq!(phase(&api, CLAIMS, "c").await, "Lost");
    assert!(reported(&api, "ClaimLost Bound claim has lost its PersistentVolume. Data on the volume is lost!").await);
    assert!(api.get(CLAIMS, "n", "c").await.unwrap()["status"]["capacity"].is_null());
}

#[tokio::test(start_paused = true)]
async fn who_is_asked_for_a_volume() {
    let (api, _running) = start().await;
    api.create(CLASSES, class("now", "example.com/disk", "Immediate")).await;
    api.create(CLASSES, class("later", "example.com/disk", "WaitForFirstConsumer")).await;
    api.create(CLASSES, class("none", "kubernetes.io/no-provisioner", "Immediate")).await;
    for name in ["now", "later", "none", "missing"] {
        api.create(CLAIMS, claim(name, json!({"storageClassName": name}))).await;
    }
    let wants = |app: &str| {
        json!({"metadata": {"name": app, "namespace": "n"}, "spec": {"containers":
        [{"name": "c", "image": "c"}], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "used"}}]}})
    };
    api.create("v1/pods", wants("p")).await;
    api.settle().await;
    api.create(CLAIMS, claim("used", json!({"storageClassName": "later"}))).await;
    api.settle().await;
    let asked = async |name: &str| {
        let c = api.get(CLAIMS, "n", name).await.unwrap();
        c["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"].clone()
    };
    assert_eq!(asked("now").await, "example.com/disk");
    assert!(asked("later").await.is_null() && asked("none").await.is_null());
    for text in [
        "ExternalProvisioning Waiting for a volume to be created either by the external provisioner 'example.com/disk' or",
        "WaitForFirstConsumer waiting for first consumer to be created before binding",
        "WaitForPodScheduled waiting for pod p to be scheduled",
        "ProvisioningFailed no volume plugin matched name: kubernetes.io/no-provisioner",
        "ProvisioningFailed storageclass.storage.k8s.io \"missing\" not found",
    ] {
        assert!(reported(&api, text).await, "{text}: {:?}", api.events().await);
    }
    // A volume that the scheduler chooses is not bound here, and a class that is created later applies.
    api.create(VOLUMES, volume("v", json!({"storageClassName": "later"}))).await;
    api.create(CLASSES, class("missing", "example.com/disk", "Immediate")).await;
    api.settle().await;
    assert_eq!(phase(&api, VOLUMES, "v").await, "Available");
    assert_eq!(asked("missing").await, "example.com/disk");
    // A provisioned volume is bound to the claim.
    let uid = api.get(CLAIMS, "n", "now").await.unwrap()["metadata"]["uid"].clone();
    let mut made = volume(
        "made",
        json!({"storageClassName": "now", "persistentVolumeReclaimPolicy": "Delete",
        "claimRef": {"namespace": "n", "name": "now", "uid": uid}}),
    );
    made["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": "example.com/disk"});
    api.create(VOLUMES, made).await;
    api.settle().await;
    assert_eq!(phase(&api, CLAIMS, "now").await, "Bound");
    api.change(CLAIMS, "n", "now", |v| v["metadata"]["finalizers"] = json!([])).await;
    api.remove(CLAIMS, "n", "now").await;
    api.settle().await;
    assert_eq!(phase(&api, VOLUMES, "made").await, "Released", "its provisioner removes it");
}

#[tokio::test(start_paused = true)]
async fn a_claim_made_before_the_default_class_gets_it() {
    let (api, _running) = start().await;
    let mut plain = claim("c", json!({}));
    plain["spec"].as_object_mut().unwrap().remove("storageClassName");
    api.create(CLAIMS, plain).await;
    api.create(CLAIMS, claim("none", json!({}))).await;
    api.settle().await;
    let mut default = class("std", "example.com/disk", "Immediate");
    default["metadata"]["annotations"] = json!({"storageclass.kubernetes.io/is-default-class": "true"});
    api.create(CLASSES, default).await;
    api.settle().await;
    assert_eq!(api.get(CLAIMS, "n", "c").await.unwrap()["spec"]["storageClassName"], "std");
    assert_eq!(api.get(CLAIMS, "n", "none").await.unwrap()["spec"]["storageClassName"], "");
}

#[tokio::test(start_paused = true)]
async fn what_no_policy_can_do_is_said() {
    let (api, _running) = start().await;
    for (policy, name) in [("Delete", "d"), ("Recycle", "r")] {
        let gone = json!({"namespace": "n", "name": "gone", "uid": "earlier"});
        api.create(VOLUMES, volume(name, json!({"persistentVolumeReclaimPolicy": policy, "claimRef": gone}))).await;
    }
    api.settle().await;
    for (name, text) in [
        ("d", "error getting deleter volume plugin for volume \"d\": no deletable volume plugin matched"),
        ("r", "No recycler plugin found for the volume!"),
    ] {
        let v = api.get(VOLUMES, "", name).await.unwrap();
        assert_eq!((&v["status"]["phase"], &v["status"]["message"]), (&json!("Failed"), &json!(text)));
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_every_claim_ends_with_one_volume() {
    at_every_request(&DISTURBANCES, async |api: Api| {
        api.namespace("n").await;
        let _running = run(&api, &BINDER, Config::default()).await;
        api.create(VOLUMES, volume("v1", json!({}))).await;
        api.create(VOLUMES, volume("v2", json!({}))).await;
        api.create(CLAIMS, claim("c", json!({}))).await;
        api.until("bound", async |api| (phase(api, CLAIMS, "c").await == "Bound").then_some(())).await;
        api.settle().await;
        let mut phases: Vec<String> = Vec::new();
        for v in api.list(VOLUMES).await {
            phases.push(v["status"]["phase"].as_str().unwrap_or_default().to_owned());
        }
        phases.sort_unstable();
        assert_eq!(phases, ["Available", "Bound"]);
    })
    .await;
}
