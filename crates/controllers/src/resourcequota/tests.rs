//! Quotas on the API server in memory, with its admission.
use kelson_simulation::Api;
use serde_json::{Value, json};

use crate::cluster::start;

const ME: &[&str] = &["resourcequota-controller"];

async fn status(api: &Api, name: &str) -> Value {
    api.get("v1/resourcequotas", "n", name).await.unwrap()["status"].clone()
}

fn pod(name: &str, cpu: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"containers": [
        {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}})
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "n"}})
}

#[tokio::test(start_paused = true)]
async fn is_charged_refused_and_given_back() {
    let (api, _running) = start(ME).await;
    api.create("v1/configmaps", map("before")).await;
    let hard = json!({"pods": "2", "requests.cpu": "1", "count/configmaps": "3", "services.nodeports": "1"});
    api.create("v1/resourcequotas", json!({"metadata": {"name": "q", "namespace": "n"}, "spec": {"hard": hard}})).await;
    api.settle().await;
    let s = status(&api, "q").await;
    assert_eq!(s["hard"], hard);
    assert_eq!(
        s["used"],
        json!({"pods": "0", "requests.cpu": "0", "count/configmaps": "1", "services.nodeports": "0"})
    );

    api.create("v1/pods", pod("a", "600m")).await;
    assert_eq!(status(&api, "q").await["used"]["requests.cpu"], "600m", "charged before the answer");
    let refused = api.try_create("v1/pods", pod("b", "500m")).await.unwrap_err().to_string();
    let want = "pods \"b\" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1";
    assert!(refused.contains(want), "{refused}");
    let mut bare = pod("b", "1");
    bare["spec"]["containers"][0]["resources"] = json!({});
    let refused = api.try_create("v1/pods", bare).await.unwrap_err().to_string();
    assert!(refused.contains("failed quota: q: must specify requests.cpu for: c"), "{refused}");
    for name in ["c", "d"] {
        api.create("v1/configmaps", map(name)).await;
    }
    assert!(api.try_create("v1/configmaps", map("e")).await.unwrap_err().to_string().contains("exceeded quota: q"));

    api.remove("v1/pods", "n", "a").await;
    api.remove("v1/configmaps", "n", "c").await;
    api.settle().await;
    let used = status(&api, "q").await["used"].clone();
    assert_eq!(used, json!({"pods": "0", "requests.cpu": "0", "count/configmaps": "2", "services.nodeports": "0"}));
    api.create("v1/pods", pod("b", "1")).await;
    api.change("v1/pods", "n", "b", |p| p["status"]["phase"] = json!("Succeeded")).await;
    api.settle().await;
    assert_eq!(status(&api, "q").await["used"]["pods"], "0", "what has ended holds nothing");
}

#[tokio::test(start_paused = true)]
async fn scopes_and_changes_of_the_quota() {
    let (api, _running) = start(ME).await;
    let scoped = json!({"metadata": {"name": "ending", "namespace": "n"},
        "spec": {"hard": {"pods": "1"}, "scopes": ["Terminating"]}});
    api.create("v1/resourcequotas", scoped).await;
    api.settle().await;
    api.create("v1/pods", pod("a", "1")).await;
    let mut ending = pod("b", "1");
    ending["spec"]["activeDeadlineSeconds"] = json!(60);
    api.create("v1/pods", ending.clone()).await;
    ending["metadata"]["name"] = json!("c");
    assert!(api.try_create("v1/pods", ending).await.is_err());
    assert_eq!(status(&api, "ending").await["used"]["pods"], "1");
    api.change("v1/resourcequotas", "n", "ending", |q| q["spec"]["hard"] = json!({"pods": "5", "cpu": "3"})).await;
    api.settle().await;
    let s = status(&api, "ending").await;
    assert_eq!((&s["hard"], &s["used"]), (&json!({"pods": "5", "cpu": "3"}), &json!({"pods": "1", "cpu": "1"})));
}

#[tokio::test(start_paused = true)]
async fn many_writers_never_pass_it_while_it_is_counted() {
    let (api, _running) = start(ME).await;
    let quota = json!({"metadata": {"name": "q", "namespace": "n"}, "spec": {"hard": {"count/configmaps": "10"}}});
    api.create("v1/resourcequotas", quota).await;
    api.settle().await;
    for round in 0..5 {
        let made =
            futures::future::join_all((0..64).map(|i| api.try_create("v1/configmaps", map(&format!("m{i}"))))).await;
        let made: Vec<String> =
            made.into_iter().flatten().map(|m| m["metadata"]["name"].as_str().unwrap().to_owned()).collect();
        assert_eq!(made.len(), 10, "round {round}");
        assert_eq!(status(&api, "q").await["used"]["count/configmaps"], "10");
        for name in made {
            api.remove("v1/configmaps", "n", &name).await;
        }
        api.settle().await;
        assert_eq!(status(&api, "q").await["used"]["count/configmaps"], "0", "exact after the dust settles");
    }
}

#[tokio::test(start_paused = true)]
async fn claims_count_by_the_extended_resource_of_their_class() {
    let (api, _running) = start(ME).await;
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    api.create("resource.k8s.io/v1/deviceclasses", class).await;
    let hard = json!({"requests.example.com/gpu": "3", "requests.deviceclass.resource.kubernetes.io/gpu": "9"});
    api.create("v1/resourcequotas", json!({"metadata": {"name": "q", "namespace": "n"}, "spec": {"hard": hard}})).await;
    let mut asking = pod("p", "1");
    for list in ["requests", "limits"] {
        asking["spec"]["containers"][0]["resources"][list] = json!({"example.com/gpu": "1"});
    }
    api.create("v1/pods", asking).await;
    let claim = |name: &str, count: i64| {
        json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"devices": {"requests": [
            {"name": "r", "exactly": {"deviceClassName": "gpu", "count": count}}]}}})
    };
    api.settle().await;
    api.create("resource.k8s.io/v1/resourceclaims", claim("a", 2)).await;
    let refused = api.try_create("resource.k8s.io/v1/resourceclaims", claim("b", 1)).await.unwrap_err().to_string();
    let want = "exceeded quota: q, requested: requests.example.com/gpu=1, used: requests.example.com/gpu=3, limited: requests.example.com/gpu=3";
    assert!(refused.contains(want), "{refused}");
    let used = json!({"requests.example.com/gpu": "3", "requests.deviceclass.resource.kubernetes.io/gpu": "2"});
    assert_eq!(status(&api, "q").await["used"], used, "what the pod asks for and what the claim takes");

    api.remove("v1/pods", "n", "p").await;
    api.settle().await;
    assert_eq!(status(&api, "q").await["used"]["requests.example.com/gpu"], "2", "counted again without the pod");
    api.remove("resource.k8s.io/v1/resourceclaims", "n", "a").await;
    api.settle().await;
    assert_eq!(status(&api, "q").await["used"]["requests.example.com/gpu"], "0");
    api.create("resource.k8s.io/v1/resourceclaims", claim("b", 3)).await;
}
