//! Deployments with replica sets on a paused clock, a few lines playing the kubelet.
use std::time::Duration;

use serde_json::{Value, json};

use crate::Config;
use crate::testing::FakeApi;

const BOTH: &[&str] = &["deployment-controller", "replicaset-controller"];

fn deployment(replicas: i32, image: &str, strategy: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "n"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "strategy": strategy,
            "revisionHistoryLimit": 2, "progressDeadlineSeconds": 600,
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}}})
}

fn rolling() -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
}

/// Pods become ready, and those being deleted go, for as long as anything changes.
async fn kubelet(api: &FakeApi) {
    for _ in 0..60 {
        api.settle().await;
        let mut changed = false;
        for p in api.list("v1/pods") {
            let name = p["metadata"]["name"].as_str().unwrap();
            if !p["metadata"]["deletionTimestamp"].is_null() {
                api.remove("v1/pods", "n", name);
                changed = true;
            } else if p["status"].is_null() {
                let now = kelson_meta::format_seconds(kelson_meta::Clock::now(&api.clock));
                api.change("v1/pods", "n", name, |v| {
                    v["status"] = json!({"phase": "Running",
                        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}]});
                });
                changed = true;
            }
        }
        if !changed {
            return;
        }
    }
    panic!("the rollout does not end");
}

fn reason(d: &Value, kind: &str) -> String {
    let all = d["status"]["conditions"].as_array().unwrap();
    all.iter().find(|c| c["type"] == kind).unwrap()["reason"].as_str().unwrap().to_owned()
}
fn get(api: &FakeApi) -> Value {
    api.get("apps/v1/deployments", "n", "web").unwrap()
}
fn set_image(api: &FakeApi, image: &str) {
    api.change("apps/v1/deployments", "n", "web", |v| {
        v["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image)
    });
}
fn sizes(api: &FakeApi) -> Vec<(String, i64)> {
    let mut all: Vec<(String, i64)> = api
        .list("apps/v1/replicasets")
        .iter()
        .map(|s| {
            let revision = &s["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
            (revision.as_str().unwrap().to_owned(), s["spec"]["replicas"].as_i64().unwrap())
        })
        .collect();
    all.sort();
    all
}
fn pairs(list: &[(&str, i64)]) -> Vec<(String, i64)> {
    list.iter().map(|(r, n)| ((*r).to_owned(), *n)).collect()
}

#[tokio::test(start_paused = true)]
async fn rolls_out_undoes_and_keeps_history() {
    let api = FakeApi::new();
    let _running = api.run(BOTH, Config::default());
    api.create("apps/v1/deployments", deployment(3, "v1", rolling()));
    kubelet(&api).await;
    let d = get(&api);
    assert_eq!(d["status"]["availableReplicas"], 3);
    assert_eq!(
        (reason(&d, "Progressing").as_str(), d["status"]["observedGeneration"].as_i64()),
        ("NewReplicaSetAvailable", Some(1))
    );
    assert_eq!(d["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    let first = &api.list("apps/v1/replicasets")[0];
    let hash = first["metadata"]["labels"]["pod-template-hash"].as_str().unwrap();
    assert_eq!(first["metadata"]["name"], format!("web-{hash}"));
    assert_eq!(first["spec"]["selector"]["matchLabels"], json!({"app": "web", "pod-template-hash": hash}));
    assert!(api.events().contains(&format!("ScalingReplicaSet Scaled up replica set web-{hash} from 0 to 3")));

    set_image(&api, "v2");
    kubelet(&api).await;
    assert_eq!(sizes(&api), pairs(&[("1", 0), ("2", 3)]));
    assert_eq!(get(&api)["status"]["updatedReplicas"], 3);
    set_image(&api, "v1");
    kubelet(&api).await;
    assert_eq!(sizes(&api), pairs(&[("2", 0), ("3", 3)]), "the old set came back as revision 3");
    for v in ["v4", "v5", "v6"] {
        set_image(&api, v);
        kubelet(&api).await;
    }
    assert_eq!(sizes(&api).len(), 3, "two old ones are kept");
    let writes = api.writes().len();
    tokio::time::sleep(Duration::from_secs(7200)).await;
    assert_eq!(api.writes().len(), writes, "at rest nothing is written");
}

#[tokio::test(start_paused = true)]
async fn scales_pauses_and_resumes() {
    let api = FakeApi::new();
    let _running = api.run(BOTH, Config::default());
    api.create("apps/v1/deployments", deployment(2, "v1", rolling()));
    kubelet(&api).await;
    api.change("apps/v1/deployments", "n", "web", |v| v["spec"]["paused"] = json!(true));
    set_image(&api, "v2");
    kubelet(&api).await;
    assert_eq!((sizes(&api), reason(&get(&api), "Progressing").as_str()), (pairs(&[("1", 2)]), "DeploymentPaused"));
    api.change("apps/v1/deployments", "n", "web", |v| v["spec"]["replicas"] = json!(5));
    kubelet(&api).await;
    assert_eq!(sizes(&api), pairs(&[("1", 5)]), "scaling works while paused");
    api.change("apps/v1/deployments", "n", "web", |v| v["spec"]["paused"] = json!(false));
    kubelet(&api).await;
    assert_eq!(
        (sizes(&api), reason(&get(&api), "Progressing").as_str()),
        (pairs(&[("1", 0), ("2", 5)]), "NewReplicaSetAvailable")
    );
}

#[tokio::test(start_paused = true)]
async fn recreate_never_mixes_versions() {
    let api = FakeApi::new();
    let _running = api.run(BOTH, Config::default());
    api.create("apps/v1/deployments", deployment(3, "v1", json!({"type": "Recreate"})));
    kubelet(&api).await;
    set_image(&api, "v2");
    api.settle().await;
    assert_eq!(sizes(&api), pairs(&[("1", 0)]), "no new set while old pods run");
    assert_eq!(api.list("v1/pods").len(), 3);
    kubelet(&api).await;
    assert_eq!(sizes(&api), pairs(&[("1", 0), ("2", 3)]));
    let images: Vec<Value> = api.list("v1/pods").iter().map(|p| p["spec"]["containers"][0]["image"].clone()).collect();
    assert_eq!(images, ["v2", "v2", "v2"]);
}

#[tokio::test(start_paused = true)]
async fn a_stuck_rollout_is_told_in_time() {
    let api = FakeApi::new();
    let _running = api.run(BOTH, Config::default());
    api.create("apps/v1/deployments", deployment(1, "bad", rolling()));
    tokio::time::sleep(Duration::from_secs(590)).await;
    assert_eq!(reason(&get(&api), "Progressing"), "ReplicaSetUpdated");
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(reason(&get(&api), "Progressing"), "ProgressDeadlineExceeded");
}
