//! Attachments from the pod that needs one to the node that unmounts it, on the real API server.
use std::time::Duration;

use serde_json::{Value, json};

use super::plan::{attachment_name, unique_name};
use crate::testing::run;
use crate::{Config, Running};
use kelson_simulation::Api;

const ATTACHMENTS: &str = "storage.k8s.io/v1/volumeattachments";

async fn start() -> (Api, Running) {
    let api = Api::start().await;
    api.namespace("n").await;
    for n in ["n1", "n2"] {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        api.create("v1/nodes", json!({"metadata": {"name": n}, "status": {"conditions": ready}})).await;
    }
    let claim = json!({"metadata": {"name": "c", "namespace": "n",
        "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "v",
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = api.create("v1/persistentvolumeclaims", claim).await;
    let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"},
        "claimRef": {"namespace": "n", "name": "c", "uid": claim["metadata"]["uid"]}}});
    api.create("v1/persistentvolumes", volume).await;
    let running = run(&api, &["persistentvolume-attach-detach-controller"], Config::default()).await;
    (api, running)
}

async fn pod(api: &Api, name: &str, node: &str) {
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    let pod = json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"nodeName": node, "volumes": volumes,
        "containers": [{"name": "c", "image": "c"}]}});
    api.create("v1/pods", pod).await;
    api.settle().await;
}

async fn attachments(api: &Api) -> Vec<String> {
    let name = |a: &Value| a["metadata"]["name"].as_str().unwrap().to_owned();
    api.list(ATTACHMENTS).await.iter().map(name).collect()
}

#[tokio::test(start_paused = true)]
async fn a_volume_follows_its_pod_once_the_node_has_let_go() {
    let (api, _running) = start().await;
    pod(&api, "p", "n1").await;
    let first = attachment_name("d", "h", "n1");
    assert_eq!(attachments(&api).await, [&*first]);
    // The driver's status, and the node's status before and after.
    api.change(ATTACHMENTS, "", &first, |a| a["status"]["attached"] = json!(true)).await;
    api.settle().await;
    let node = api.get("v1/nodes", "", "n1").await.unwrap();
    assert_eq!(node["status"]["volumesAttached"], json!([{"name": unique_name("d", "h"), "devicePath": ""}]));
    assert!(api.events().await.iter().any(|e| e.contains("SuccessfulAttachVolume")));
    api.change("v1/nodes", "", "n1", |n| n["status"]["volumesInUse"] = json!([unique_name("d", "h")])).await;
    pod(&api, "q", "n2").await;
    assert_eq!(attachments(&api).await, [&*first], "it is one node's alone");
    assert!(api.events().await.iter().any(|e| e.starts_with("FailedAttachVolume Multi-Attach error for volume \"v\"")));
    api.remove("v1/pods", "n", "p").await;
    api.settle().await;
    assert_eq!(attachments(&api).await, [first], "it is still mounted");
    api.change("v1/nodes", "", "n1", |n| n["status"]["volumesInUse"] = json!([])).await;
    api.settle().await;
    assert_eq!(attachments(&api).await, [attachment_name("d", "h", "n2")]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_off_loses_its_volumes() {
    for (taint, patience) in [(false, 361), (true, 1)] {
        let (api, _running) = start().await;
        pod(&api, "p", "n1").await;
        api.change("v1/nodes", "", "n1", |n| {
            n["status"]["volumesInUse"] = json!([unique_name("d", "h")]);
            n["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
        })
        .await;
        api.settle().await;
        api.remove("v1/pods", "n", "p").await;
        api.settle().await;
        assert_eq!(attachments(&api).await.len(), 1, "it may come back");
        if taint {
            let out = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
            api.change("v1/nodes", "", "n1", |n| n["spec"]["taints"] = out.clone()).await;
        }
        tokio::time::sleep(Duration::from_secs(patience)).await;
        api.settle().await;
        assert!(attachments(&api).await.is_empty(), "taint: {taint}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_does_not_attach_is_left_alone() {
    let (api, _running) = start().await;
    let driver = json!({"metadata": {"name": "d"}, "spec": {"attachRequired": false}});
    api.create("storage.k8s.io/v1/csidrivers", driver).await;
    api.settle().await;
    pod(&api, "p", "n1").await;
    assert!(attachments(&api).await.is_empty());
}
