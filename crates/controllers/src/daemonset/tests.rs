//! Daemon sets on the API server in memory, on a paused clock.
use kelson_simulation::{Api, Failure, at_every_request};
use serde_json::{Value, json};

use crate::cluster::{names, run, run_pods, start};

const ME: &[&str] = &["daemonset-controller"];

async fn node(api: &Api, name: &str, labels: Value) {
    api.create("v1/nodes", json!({"metadata": {"name": name, "labels": labels}})).await;
    // Admission taints a new node until it is ready.
    api.change("v1/nodes", "", name, |n| n["spec"]["taints"] = json!(null)).await;
}

fn set(image: &str, strategy: Value) -> Value {
    json!({"metadata": {"name": "d", "namespace": "n"}, "spec": {
        "selector": {"matchLabels": {"app": "d"}}, "updateStrategy": strategy, "revisionHistoryLimit": 1,
        "template": {"metadata": {"labels": {"app": "d"}},
            "spec": {"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "c", "image": image}]}}}})
}

fn rolling(unavailable: i32, surge: i32) -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}})
}

async fn set_image(api: &Api, image: &str) {
    let change = |v: &mut Value| v["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
    api.change("apps/v1/daemonsets", "n", "d", change).await;
}

async fn status(api: &Api) -> Value {
    api.get("apps/v1/daemonsets", "n", "d").await.unwrap()["status"].clone()
}

/// Node and image of every pod.
async fn pods(api: &Api) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let image = |p: &Value| text(&p["spec"]["containers"][0]["image"]);
    let all = api.list("v1/pods").await;
    let mut out: Vec<_> = all.iter().map(|p| (text(&p["spec"]["nodeName"]), image(p))).collect();
    out.sort();
    out
}

fn want(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(n, i)| ((*n).to_owned(), (*i).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn runs_where_it_fits_and_follows_the_nodes() {
    let (api, _running) = start(ME).await;
    for (name, disk) in [("a", "ssd"), ("b", "ssd"), ("c", "hdd")] {
        node(&api, name, json!({"disk": disk})).await;
    }
    api.create("apps/v1/daemonsets", set("v1", rolling(1, 0))).await;
    run_pods(&api, |_| false).await;
    assert_eq!(pods(&api).await, want(&[("a", "v1"), ("b", "v1")]));
    let expected = json!({"currentNumberScheduled": 2, "numberMisscheduled": 0, "desiredNumberScheduled": 2,
        "numberReady": 2, "observedGeneration": 1, "updatedNumberScheduled": 2, "numberAvailable": 2});
    assert_eq!(status(&api).await, expected);
    let pod = &api.list("v1/pods").await[0];
    let revision = &api.list("apps/v1/controllerrevisions").await[0];
    let hash = &revision["metadata"]["labels"]["controller-revision-hash"];
    assert_eq!(revision["metadata"]["name"], format!("d-{}", hash.as_str().unwrap()));
    assert_eq!(
        pod["metadata"]["labels"],
        json!({"app": "d", "controller-revision-hash": hash, "pod-template-generation": "1"})
    );
    assert!(pod["spec"]["tolerations"].as_array().unwrap().len() >= 6);

    api.change("v1/nodes", "", "c", |n| n["metadata"]["labels"]["disk"] = json!("ssd")).await;
    api.change("v1/nodes", "", "a", |n| n["metadata"]["labels"]["disk"] = json!("hdd")).await;
    run_pods(&api, |_| false).await;
    assert_eq!(pods(&api).await, want(&[("b", "v1"), ("c", "v1")]), "pods follow labels");
    api.change("v1/nodes", "", "b", |n| {
        n["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
    })
    .await;
    run_pods(&api, |_| false).await;
    assert_eq!(pods(&api).await.len(), 2, "a pod that is there stays");
    let s = status(&api).await;
    assert_eq!((&s["desiredNumberScheduled"], &s["numberMisscheduled"]), (&json!(1), &json!(1)));
    api.change("v1/nodes", "", "b", |n| n["spec"]["taints"] = json!(null)).await;
    api.settle().await;
    assert_eq!(status(&api).await["numberMisscheduled"], 0);
    assert!(api.events().await.iter().any(|e| e.starts_with("SuccessfulCreate Created pod: d-")));

    api.delete("apps/v1/daemonsets", "n", "d", json!({})).await;
    api.settle().await;
    assert_eq!(api.list("apps/v1/daemonsets").await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn rolls_and_rolls_back_within_its_limits() {
    let (api, _running) = start(ME).await;
    for name in ["a", "b", "c"] {
        node(&api, name, json!({"disk": "ssd"})).await;
    }
    api.create("apps/v1/daemonsets", set("v1", rolling(1, 0))).await;
    run_pods(&api, |_| false).await;
    // The new image never gets ready: one node is tried and no other.
    set_image(&api, "bad").await;
    run_pods(&api, |p| p["spec"]["containers"][0]["image"] == "bad").await;
    assert_eq!(pods(&api).await.iter().filter(|p| p.1 == "bad").count(), 1);
    let kept: Vec<String> = names(&api, "v1/pods").await;
    set_image(&api, "v1").await;
    run_pods(&api, |_| false).await;
    assert_eq!(pods(&api).await, want(&[("a", "v1"), ("b", "v1"), ("c", "v1")]));
    assert_eq!(names(&api, "v1/pods").await.iter().filter(|p| kept.contains(p)).count(), 2, "no needless restart");
    let numbers = |all: &[Value]| all.iter().map(|r| r["revision"].as_i64().unwrap()).collect::<Vec<_>>();
    let mut got = numbers(&api.list("apps/v1/controllerrevisions").await);
    got.sort_unstable();
    assert_eq!(got, [2, 3], "the first one came back as the third");
    for image in ["v4", "v5"] {
        set_image(&api, image).await;
        run_pods(&api, |_| false).await;
    }
    let mut got = numbers(&api.list("apps/v1/controllerrevisions").await);
    got.sort_unstable();
    assert_eq!(got, [4, 5], "one old revision is kept");
}

#[tokio::test(start_paused = true)]
async fn surges_without_a_gap_and_waits_on_delete() {
    let (api, _running) = start(ME).await;
    for name in ["a", "b"] {
        node(&api, name, json!({"disk": "ssd"})).await;
    }
    api.create("apps/v1/daemonsets", set("v1", rolling(0, 1))).await;
    run_pods(&api, |_| false).await;
    set_image(&api, "v2").await;
    run_pods(&api, |p| p["spec"]["containers"][0]["image"] == "v2").await;
    assert_eq!(pods(&api).await, want(&[("a", "v1"), ("a", "v2"), ("b", "v1")]), "old ones stay until new ones serve");
    run_pods(&api, |_| false).await;
    assert_eq!(pods(&api).await, want(&[("a", "v2"), ("b", "v2")]));

    api.change("apps/v1/daemonsets", "n", "d", |v| v["spec"]["updateStrategy"] = json!({"type": "OnDelete"})).await;
    set_image(&api, "v3").await;
    run_pods(&api, |_| false).await;
    assert_eq!(pods(&api).await, want(&[("a", "v2"), ("b", "v2")]));
    let first = names(&api, "v1/pods").await.remove(0);
    api.remove("v1/pods", "n", &first).await;
    run_pods(&api, |_| false).await;
    assert_eq!(pods(&api).await.iter().filter(|p| p.1 == "v3").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_pods_are_replaced_with_pauses() {
    let (api, _running) = start(ME).await;
    node(&api, "a", json!({"disk": "ssd"})).await;
    api.create("apps/v1/daemonsets", set("v1", rolling(1, 0))).await;
    run_pods(&api, |_| false).await;
    let mut seen = std::collections::HashSet::new();
    // A kubelet that rejects every pod, for two minutes.
    for _ in 0..1200 {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        for pod in api.list("v1/pods").await {
            let name = pod["metadata"]["name"].as_str().unwrap();
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                api.remove("v1/pods", "n", name).await;
            } else if seen.insert(name.to_owned()) {
                api.change("v1/pods", "n", name, |p| p["status"]["phase"] = json!("Failed")).await;
            }
        }
    }
    assert!((6..=9).contains(&seen.len()), "{} pods in two minutes", seen.len());
    assert!(api.events().await.iter().any(|e| e.starts_with("FailedDaemonPod Found failed daemon pod n/d-")));
}

#[tokio::test(start_paused = true)]
async fn equal_revisions_become_one_and_a_lost_one_is_made_again() {
    let (api, _running) = start(ME).await;
    node(&api, "a", json!({"disk": "ssd"})).await;
    let made = api.create("apps/v1/daemonsets", set("v1", rolling(1, 0))).await;
    run_pods(&api, |_| false).await;
    let pod = names(&api, "v1/pods").await;
    let first = api.list("apps/v1/controllerrevisions").await.remove(0);
    let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": made["metadata"]["uid"], "controller": true}]);
    let double = json!({"metadata": {"name": "d-double", "namespace": "n", "ownerReferences": owner,
        "labels": {"app": "d", "controller-revision-hash": "double"}}, "data": first["data"], "revision": 2});
    api.create("apps/v1/controllerrevisions", double).await;
    api.settle().await;
    assert_eq!(names(&api, "apps/v1/controllerrevisions").await.len(), 2, "one that somebody made stays for now");
    api.change("apps/v1/daemonsets", "n", "d", |v| v["spec"]["minReadySeconds"] = json!(1)).await;
    api.settle().await;
    assert_eq!(names(&api, "apps/v1/controllerrevisions").await, ["d-double"]);
    assert_eq!(names(&api, "v1/pods").await, pod, "the pod is relabelled, not replaced");
    assert_eq!(api.list("v1/pods").await[0]["metadata"]["labels"]["controller-revision-hash"], "double");
    api.remove("apps/v1/controllerrevisions", "n", "d-double").await;
    api.settle().await;
    assert_eq!(names(&api, "apps/v1/controllerrevisions").await.len(), 1);
    assert_eq!(names(&api, "v1/pods").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_rollout_ends_whichever_write_fails() {
    at_every_request(&[Failure::LostAnswer], async |api: Api| {
        api.namespace("n").await;
        let _running = run(&api, ME).await;
        for name in ["a", "b"] {
            node(&api, name, json!({"disk": "ssd"})).await;
        }
        api.create("apps/v1/daemonsets", set("v1", rolling(1, 0))).await;
        for image in ["v1", "v2"] {
            set_image(&api, image).await;
            // Longer than the expectations of a write whose response was lost (five minutes).
            for _ in 0..3 {
                tokio::time::sleep(std::time::Duration::from_secs(310)).await;
                run_pods(&api, |_| false).await;
            }
            assert_eq!(pods(&api).await, want(&[("a", image), ("b", image)]));
        }
        let s = status(&api).await;
        assert_eq!((&s["numberReady"], &s["updatedNumberScheduled"]), (&json!(2), &json!(2)), "{s}");
    })
    .await;
}
