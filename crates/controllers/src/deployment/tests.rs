//! Deployments with replica sets on a paused clock.
use std::time::Duration;

use serde_json::{Value, json};

use crate::Config;
use crate::testing::run;
use kelson_simulation::Api;

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

fn reason(d: &Value, kind: &str) -> String {
    let all = d["status"]["conditions"].as_array().unwrap();
    all.iter().find(|c| c["type"] == kind).unwrap()["reason"].as_str().unwrap().to_owned()
}
async fn get(api: &Api) -> Value {
    api.get("apps/v1/deployments", "n", "web").await.unwrap()
}
async fn set_image(api: &Api, image: &str) {
    api.change("apps/v1/deployments", "n", "web", |v| {
        v["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image)
    })
    .await;
}
async fn sizes(api: &Api) -> Vec<(String, i64)> {
    let mut all: Vec<(String, i64)> = api
        .list("apps/v1/replicasets")
        .await
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
    let api = Api::start().await;
    api.namespace("n").await;
    let _running = run(&api, BOTH, Config::default()).await;
    api.create("apps/v1/deployments", deployment(3, "v1", rolling())).await;
    api.run_pods().await;
    let d = get(&api).await;
    assert_eq!(d["status"]["availableReplicas"], 3);
    assert_eq!(
        (reason(&d, "Progressing").as_str(), d["status"]["observedGeneration"].as_i64()),
        // The annotation with the revision is written with the status.
        ("NewReplicaSetAvailable", Some(1))
    );
    assert_eq!(d["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    let first = &api.list("apps/v1/replicasets").await[0];
    let hash = first["metadata"]["labels"]["pod-template-hash"].as_str().unwrap();
    assert_eq!(first["metadata"]["name"], format!("web-{hash}"));
    assert_eq!(first["spec"]["selector"]["matchLabels"], json!({"app": "web", "pod-template-hash": hash}));
    assert!(api.events().await.contains(&format!("ScalingReplicaSet Scaled up replica set web-{hash} from 0 to 3")));

    set_image(&api, "v2").await;
    api.run_pods().await;
    assert_eq!(sizes(&api).await, pairs(&[("1", 0), ("2", 3)]));
    assert_eq!(get(&api).await["status"]["updatedReplicas"], 3);
    set_image(&api, "v1").await;
    api.run_pods().await;
    assert_eq!(sizes(&api).await, pairs(&[("2", 0), ("3", 3)]), "the old set came back as revision 3");
    for v in ["v4", "v5", "v6"] {
        set_image(&api, v).await;
        api.run_pods().await;
    }
    assert_eq!(sizes(&api).await.len(), 3, "two old ones are kept");
    let writes = api.writes().len();
    tokio::time::sleep(Duration::from_secs(7200)).await;
    assert_eq!(api.writes().len(), writes, "at rest nothing is written");
}

#[tokio::test(start_paused = true)]
async fn scales_pauses_and_resumes() {
    let api = Api::start().await;
    api.namespace("n").await;
    let _running = run(&api, BOTH, Config::default()).await;
    api.create("apps/v1/deployments", deployment(2, "v1", rolling())).await;
    api.run_pods().await;
    api.change("apps/v1/deployments", "n", "web", |v| v["spec"]["paused"] = json!(true)).await;
    set_image(&api, "v2").await;
    api.run_pods().await;
    assert_eq!(
        (sizes(&api).await, reason(&get(&api).await, "Progressing").as_str()),
        (pairs(&[("1", 2)]), "DeploymentPaused")
    );
    api.change("apps/v1/deployments", "n", "web", |v| v["spec"]["replicas"] = json!(5)).await;
    api.run_pods().await;
    assert_eq!(sizes(&api).await, pairs(&[("1", 5)]), "scaling works while paused");
    api.change("apps/v1/deployments", "n", "web", |v| v["spec"]["paused"] = json!(false)).await;
    api.run_pods().await;
    assert_eq!(
        (sizes(&api).await, reason(&get(&api).await, "Progressing").as_str()),
        (pairs(&[("1", 0), ("2", 5)]), "NewReplicaSetAvailable")
    );
}

#[tokio::test(start_paused = true)]
async fn recreate_never_mixes_versions() {
    let api = Api::start().await;
    api.namespace("n").await;
    let _running = run(&api, BOTH, Config::default()).await;
    api.create("apps/v1/deployments", deployment(3, "v1", json!({"type": "Recreate"}))).await;
    api.run_pods().await;
    set_image(&api, "v2").await;
    api.settle().await;
    assert_eq!(sizes(&api).await, pairs(&[("1", 0)]), "no new set while old pods run");
    assert_eq!(api.list("v1/pods").await.len(), 3);
    api.run_pods().await;
    assert_eq!(sizes(&api).await, pairs(&[("1", 0), ("2", 3)]));
    let images: Vec<Value> =
        api.list("v1/pods").await.iter().map(|p| p["spec"]["containers"][0]["image"].clone()).collect();
    assert_eq!(images, ["v2", "v2", "v2"]);
}

#[tokio::test(start_paused = true)]
async fn a_stuck_rollout_is_reported_in_time() {
    let api = Api::start().await;
    api.namespace("n").await;
    let _running = run(&api, BOTH, Config::default()).await;
    api.create("apps/v1/deployments", deployment(1, "bad", rolling())).await;
    tokio::time::sleep(Duration::from_secs(590)).await;
    assert_eq!(reason(&get(&api).await, "Progressing"), "ReplicaSetUpdated");
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(reason(&get(&api).await, "Progressing"), "ProgressDeadlineExceeded");
}

#[tokio::test(start_paused = true)]
async fn the_revision_does_not_count_as_a_change_of_the_spec() {
    let api = Api::start().await;
    api.namespace("n").await;
    let _running = run(&api, BOTH, Config::default()).await;
    let kind = "apps/v1/deployments";
    let template = |image: &str| json!({"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": image}]}});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"app": "d"}}, "template": template("v1")});
    api.create(kind, json!({"metadata": {"name": "d", "namespace": "n"}, "spec": spec})).await;
    for (generation, revision) in [(1, "1"), (2, "2")] {
        if generation == 2 {
            api.change(kind, "n", "d", |d| d["spec"]["template"] = template("v2")).await;
        }
        api.settle().await;
        let d = api.get(kind, "n", "d").await.unwrap();
        let noted = &d["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
        assert_eq!((noted, &d["metadata"]["generation"]), (&json!(revision), &json!(generation)));
        assert_eq!(d["status"]["observedGeneration"], generation);
    }
}
