//! The volume for a claim, and its life from the claim to its deletion.
use serde_json::{Value, json};

use super::{HOSTNAME, Refusal, refused, volume_for};
use crate::Config;
use crate::testing::run;
use crate::views::{ClaimView, NodeView, StorageClassView};
use kelson_simulation::Api;

const CLAIMS: &str = "v1/persistentvolumeclaims";
const VOLUMES: &str = "v1/persistentvolumes";
const CLASSES: &str = "storage.k8s.io/v1/storageclasses";
const CONTROLLERS: [&str; 4] = [
    "local-path-provisioner",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
];

fn claim(spec: Value) -> Value {
    let mut all = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"metadata": {"name": "c", "namespace": "n"}, "spec": all})
}

fn node() -> Value {
    json!({"metadata": {"name": "n1", "labels": {HOSTNAME: "host-1"},
        "annotations": {"local-path.kelson.dev/directory": "/data/storage"}}})
}

#[test]
fn what_is_made_for_a_claim() {
    let class: StorageClassView = serde_json::from_value(super::class()).unwrap();
    let made = |spec: Value, selected: Option<&str>, node: Option<Value>| {
        let mut c = claim(spec);
        c["metadata"]["uid"] = json!("u");
        if let Some(n) = selected {
            c["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": n});
        }
        let c: ClaimView = serde_json::from_value(c).unwrap();
        let node: Option<NodeView> = node.map(|n| serde_json::from_value(n).unwrap());
        volume_for(&c, &class, node.as_ref())
    };
    let volume = made(json!({}), Some("n1"), Some(node())).unwrap();
    assert_eq!(volume["metadata"]["name"], "pvc-u");
    let spec = &volume["spec"];
    assert_eq!(spec["hostPath"], json!({"path": "/data/storage/pvc-u_n_c", "type": "DirectoryOrCreate"}));
    assert_eq!(
        (&spec["capacity"]["storage"], &spec["persistentVolumeReclaimPolicy"]),
        (&json!("1Gi"), &json!("Delete"))
    );
    let required = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!(required, &json!({"key": HOSTNAME, "operator": "In", "values": ["host-1"]}));
    let again = |why: &str| Refusal { why: why.into(), choose_again: true };
    let rows = [
        (made(json!({}), None, None), refused("configuration error, no node was specified")),
        (made(json!({}), Some("n2"), None), again("node \"n2\" not found")),
        (made(json!({}), Some("n2"), Some(json!({}))), again("node \"n2\" does not support local volumes")),
        (made(json!({"selector": {}}), Some("n1"), Some(node())), refused("claim.Spec.Selector is not supported")),
    ];
    for (got, want) in rows {
        assert_eq!(got.unwrap_err(), want);
    }
    for spec in [json!({"accessModes": ["ReadWriteMany"]}), json!({"volumeMode": "Block"})] {
        assert!(!made(spec, Some("n1"), Some(node())).unwrap_err().choose_again);
    }
}

#[tokio::test(start_paused = true)]
async fn from_claim_to_volume_and_back() {
    let api = Api::start().await;
    api.namespace("n").await;
    api.create("v1/nodes", node()).await;
    let _running = run(&api, &CONTROLLERS, Config::default()).await;
    api.until("the class", async |api| api.get(CLASSES, "", "local-path").await).await;
    api.create(CLAIMS, claim(json!({}))).await;
    let said = |all: Vec<String>, part: &str| all.into_iter().find(|e| e.contains(part));
    api.until("it waits", async |api| said(api.events().await, "WaitForFirstConsumer waiting for first consumer"))
        .await;
    assert_eq!(api.get(CLAIMS, "n", "c").await.unwrap()["spec"]["storageClassName"], "local-path", "the default");
    // The scheduler's choice.
    api.change(CLAIMS, "n", "c", |v| v["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!("n1"))
        .await;
    let bound = async |api: &Api| api.get(CLAIMS, "n", "c").await.filter(|c| c["status"]["phase"] == "Bound");
    let c = api.until("bound", bound).await;
    let name = format!("pvc-{}", c["metadata"]["uid"].as_str().unwrap());
    assert_eq!((&c["spec"]["volumeName"], &c["status"]["capacity"]["storage"]), (&json!(name), &json!("1Gi")));
    assert_eq!(c["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"], "rancher.io/local-path");
    let v = api.get(VOLUMES, "", &name).await.unwrap();
    assert_eq!(v["status"]["phase"], "Bound");
    // The node is not reachable, so the volume is kept and an event has the reason.
    api.remove(CLAIMS, "n", "c").await;
    api.until("an event", async |api| said(api.events().await, "VolumeFailedDelete node n1 failed to remove")).await;
    assert_eq!(api.get(VOLUMES, "", &name).await.unwrap()["status"]["phase"], "Released");
    // The directories of a deleted node are gone.
    api.remove("v1/nodes", "", "n1").await;
    api.until("gone", async |api| api.get(VOLUMES, "", &name).await.is_none().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_without_such_volumes_is_given_back_to_the_scheduler() {
    let api = Api::start().await;
    api.namespace("n").await;
    api.create("v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    let _running = run(&api, &CONTROLLERS, Config::default()).await;
    api.until("the class", async |api| api.get(CLASSES, "", "local-path").await).await;
    let mut wanted = claim(json!({}));
    wanted["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "n1"});
    api.create(CLAIMS, wanted).await;
    let given_back = async |api: &Api| {
        let c = api.get(CLAIMS, "n", "c").await?;
        c["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].is_null().then_some(())
    };
    api.until("given back", given_back).await;
    let reported = api.events().await;
    assert!(
        reported.iter().any(|e| e.contains("ProvisioningFailed") && e.contains("does not support local volumes")),
        "{reported:?}"
    );
}
