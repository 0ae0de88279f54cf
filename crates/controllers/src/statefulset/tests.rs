//! Stateful sets on the API server in memory, on a paused clock.
use kelson_simulation::{Api, Failure, at_every_request};
use serde_json::{Value, json};

use crate::cluster::{names, run, run_pods, start};

const ME: &[&str] = &["statefulset-controller"];

fn set(replicas: i32, image: &str) -> Value {
    json!({"metadata": {"name": "s", "namespace": "n"}, "spec": {
        "replicas": replicas, "serviceName": "svc", "revisionHistoryLimit": 1, "selector": {"matchLabels": {"app": "s"}},
        "template": {"metadata": {"labels": {"app": "s"}}, "spec": {"containers": [{"name": "c", "image": image}]}}}})
}

fn with_claims(mut set: Value, policy: Value) -> Value {
    set["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]);
    set["spec"]["persistentVolumeClaimRetentionPolicy"] = policy;
    set
}

async fn change(api: &Api, f: impl Fn(&mut Value)) {
    api.change("apps/v1/statefulsets", "n", "s", f).await;
}
async fn set_image(api: &Api, image: &str) {
    change(api, |v| v["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image)).await;
}
async fn status(api: &Api) -> Value {
    api.get("apps/v1/statefulsets", "n", "s").await.unwrap()["status"].clone()
}
/// `NAME=IMAGE` of every pod.
async fn pods(api: &Api) -> String {
    let all = api.list("v1/pods").await;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let one = |p: &Value| format!("{}={}", text(&p["metadata"]["name"]), text(&p["spec"]["containers"][0]["image"]));
    all.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[tokio::test(start_paused = true)]
async fn comes_in_order_and_goes_in_reverse() {
    let (api, _running) = start(ME).await;
    api.create("apps/v1/statefulsets", set(3, "v1")).await;
    run_pods(&api, |p| p["metadata"]["name"] == "s-1").await;
    assert_eq!(pods(&api).await, "s-0=v1 s-1=v1", "nobody comes after one that is not ready");
    run_pods(&api, |_| false).await;
    assert_eq!(pods(&api).await, "s-0=v1 s-1=v1 s-2=v1");
    let s = status(&api).await;
    let revision = s["updateRevision"].clone();
    let want = json!({"observedGeneration": 1, "replicas": 3, "readyReplicas": 3, "currentReplicas": 3,
        "updatedReplicas": 3, "availableReplicas": 3, "currentRevision": revision, "updateRevision": revision, "collisionCount": 0});
    assert_eq!(s, want);
    let pod = api.get("v1/pods", "n", "s-2").await.unwrap();
    assert_eq!((&pod["spec"]["hostname"], &pod["spec"]["subdomain"]), (&json!("s-2"), &json!("svc")));
    assert_eq!(pod["metadata"]["labels"]["controller-revision-hash"], revision);
    assert_eq!(pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"], "2");
    assert!(api.events().await.contains(&"SuccessfulCreate Create Pod s-0 in StatefulSet s successful".to_owned()));

    change(&api, |v| v["spec"]["replicas"] = json!(1)).await;
    api.settle().await;
    let going: Vec<_> =
        api.list("v1/pods").await.into_iter().filter(|p| !p["metadata"]["deletionTimestamp"].is_null()).collect();
    assert_eq!((going.len(), &going[0]["metadata"]["name"]), (1, &json!("s-2")), "one at a time");
    run_pods(&api, |_| false).await;
    assert_eq!(pods(&api).await, "s-0=v1");
    change(&api, |v| {
        v["spec"]["replicas"] = json!(2);
        v["spec"]["ordinals"] = json!({"start": 4});
    })
    .await;
    run_pods(&api, |_| false).await;
    assert_eq!(pods(&api).await, "s-4=v1 s-5=v1");
}

#[tokio::test(start_paused = true)]
async fn updates_in_reverse_by_partition_and_rolls_back() {
    let (api, _running) = start(ME).await;
    api.create("apps/v1/statefulsets", set(3, "v1")).await;
    run_pods(&api, |_| false).await;
    let first = status(&api).await["currentRevision"].clone();
    let partition = |n: i32| move |v: &mut Value| v["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = json!(n);
    change(&api, partition(2)).await;
    set_image(&api, "v2").await;
    run_pods(&api, |_| false).await;
    assert_eq!(pods(&api).await, "s-0=v1 s-1=v1 s-2=v2", "a canary");
    let s = status(&api).await;
    assert_eq!((&s["currentRevision"], &s["currentReplicas"], &s["updatedReplicas"]), (&first, &json!(2), &json!(1)));
    api.remove("v1/pods", "n", "s-0").await;
    run_pods(&api, |_| false).await;
    assert_eq!(pods(&api).await, "s-0=v1 s-1=v1 s-2=v2", "below the partition the old revision comes back");
    change(&api, partition(0)).await;
    run_pods(&api, |p| p["metadata"]["name"] == "s-1" && p["spec"]["containers"][0]["image"] == "v2").await;
    assert_eq!(pods(&api).await, "s-0=v1 s-1=v2 s-2=v2", "one after the other");
    run_pods(&api, |_| false).await;
    assert_eq!(pods(&api).await, "s-0=v2 s-1=v2 s-2=v2");
    let s = status(&api).await;
    assert_eq!(s["currentRevision"], s["updateRevision"]);
    set_image(&api, "v1").await;
    run_pods(&api, |_| false).await;
    assert_eq!(status(&api).await["updateRevision"], first, "the old revision is used again");
    for image in ["v3", "v4"] {
        set_image(&api, image).await;
        run_pods(&api, |_| false).await;
    }
    let all = api.list("apps/v1/controllerrevisions").await;
    let mut numbers: Vec<_> = all.iter().map(|r| r["revision"].as_i64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [4, 5], "one old revision is kept");
}

#[tokio::test(start_paused = true)]
async fn failed_pods_are_replaced_and_orphans_adopted() {
    let (api, _running) = start(ME).await;
    let mut parallel = set(3, "v1");
    parallel["spec"]["podManagementPolicy"] = json!("Parallel");
    api.create("apps/v1/statefulsets", parallel).await;
    api.settle().await;
    assert_eq!(names(&api, "v1/pods").await.len(), 3, "all at once");
    run_pods(&api, |_| false).await;
    let uid = api.get("v1/pods", "n", "s-1").await.unwrap()["metadata"]["uid"].clone();
    api.change("v1/pods", "n", "s-1", |p| p["status"]["phase"] = json!("Failed")).await;
    run_pods(&api, |_| false).await;
    let new = api.get("v1/pods", "n", "s-1").await.unwrap();
    assert_ne!(new["metadata"]["uid"], uid);
    let uid = new["metadata"]["uid"].clone();
    api.change("v1/pods", "n", "s-1", |p| p["metadata"]["ownerReferences"] = json!([])).await;
    api.settle().await;
    let pod = api.get("v1/pods", "n", "s-1").await.unwrap();
    assert_eq!(
        (&pod["metadata"]["uid"], &pod["metadata"]["ownerReferences"][0]["kind"]),
        (&uid, &json!("StatefulSet"))
    );
    api.change("v1/pods", "n", "s-1", |p| p["metadata"]["labels"]["app"] = json!("other")).await;
    api.settle().await;
    let pod = api.get("v1/pods", "n", "s-1").await.unwrap();
    assert_eq!(pod["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len), 0, "released");
}

#[tokio::test(start_paused = true)]
async fn claims_stay_or_go_as_the_policy_says() {
    let (api, _running) = start(&["statefulset-controller", "garbage-collector-controller"]).await;
    let policy = json!({"whenDeleted": "Delete", "whenScaled": "Delete"});
    api.create("apps/v1/statefulsets", with_claims(set(2, "v1"), policy)).await;
    run_pods(&api, |_| false).await;
    assert_eq!(names(&api, "v1/persistentvolumeclaims").await, ["data-s-0", "data-s-1"]);
    let claim = api.get("v1/persistentvolumeclaims", "n", "data-s-1").await.unwrap();
    assert_eq!(claim["metadata"]["labels"], json!({"app": "s"}));
    assert_eq!(claim["metadata"]["ownerReferences"][0]["kind"], "StatefulSet");
    let volumes = &api.get("v1/pods", "n", "s-1").await.unwrap()["spec"]["volumes"];
    assert_eq!(volumes[0]["persistentVolumeClaim"]["claimName"], "data-s-1");
    change(&api, |v| v["spec"]["replicas"] = json!(1)).await;
    for _ in 0..20 {
        run_pods(&api, |_| false).await;
        // The protection controller does not run here, so the test removes the finalizer.
        for claim in names(&api, "v1/persistentvolumeclaims").await {
            let claim_now = api.get("v1/persistentvolumeclaims", "n", &claim).await.unwrap();
            if !claim_now["metadata"]["deletionTimestamp"].is_null() {
                api.change("v1/persistentvolumeclaims", "n", &claim, |c| c["metadata"]["finalizers"] = json!([])).await;
            }
        }
    }
    assert_eq!(names(&api, "v1/persistentvolumeclaims").await, ["data-s-0"]);
    change(&api, |v| v["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] = json!("Retain")).await;
    run_pods(&api, |_| false).await;
    let claim = api.get("v1/persistentvolumeclaims", "n", "data-s-0").await.unwrap();
    assert_eq!(claim["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len), 0);
}

#[tokio::test(start_paused = true)]
async fn ready_long_enough_comes_first() {
    let (api, _running) = start(ME).await;
    let mut slow = set(2, "v1");
    slow["spec"]["minReadySeconds"] = json!(600);
    api.create("apps/v1/statefulsets", slow).await;
    run_pods(&api, |_| false).await;
    let s = status(&api).await;
    assert_eq!(
        (pods(&api).await.as_str(), &s["readyReplicas"], &s["availableReplicas"]),
        ("s-0=v1", &json!(1), &json!(0))
    );
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    assert_eq!(pods(&api).await, "s-0=v1 s-1=v1");
    assert_eq!(status(&api).await["availableReplicas"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_rollout_ends_whichever_write_fails() {
    at_every_request(&[Failure::LostAnswer], async |api: Api| {
        api.namespace("n").await;
        let _running = run(&api, ME).await;
        api.create("apps/v1/statefulsets", set(2, "v1")).await;
        for image in ["v1", "v2"] {
            set_image(&api, image).await;
            for _ in 0..6 {
                tokio::time::sleep(std::time::Duration::from_secs(20)).await;
                run_pods(&api, |_| false).await;
            }
            assert_eq!(pods(&api).await, format!("s-0={image} s-1={image}"));
        }
        let s = status(&api).await;
        assert_eq!((&s["readyReplicas"], &s["updatedReplicas"]), (&json!(2), &json!(2)), "{s}");
        assert_eq!(s["currentRevision"], s["updateRevision"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_refuses_a_pod_is_asked_less_and_less() {
    let (api, _running) = start(ME).await;
    let mut bound = set(1, "v1");
    bound["spec"]["template"]["spec"]["nodeName"] = json!("n1");
    api.create("apps/v1/statefulsets", bound).await;
    for _ in 0..600 {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let pod = api.get("v1/pods", "n", "s-0").await;
        if pod.is_some_and(|p| p["status"]["phase"] == "Pending") {
            let status = json!({"status": {"phase": "Failed", "reason": "OutOfcpu", "message": "no room"}});
            api.patch("v1/pods", "n", "s-0", "status", status).await;
        }
    }
    let deleted = api.writes().iter().filter(|w| *w == "DELETE /api/v1/namespaces/n/pods/s-0").count();
    assert!((4..=7).contains(&deleted), "{deleted} pods in a minute");
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    assert_eq!(api.get("v1/pods", "n", "s-0").await.unwrap()["status"]["phase"], "Pending");
}
