//! Disruption budgets, and evictions that ask them, against the API server in memory on a paused clock.
use std::time::Duration;

use kelson_simulation::{Api, Failure, at_every_request};
use serde_json::{Value, json};

use crate::cluster::{run, run_pods, start};

const BUDGETS: &str = "policy/v1/poddisruptionbudgets";
const CONTROLLERS: &[&str] = &["disruption-controller", "replicaset-controller"];

fn set(replicas: i32) -> Value {
    json!({"metadata": {"name": "web", "namespace": "n"}, "spec": {"replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "example.com/c:1"}]}}}})
}

fn budget(spec: Value) -> Value {
    let mut b = json!({"metadata": {"name": "web", "namespace": "n"}, "spec": spec});
    b["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
    b
}

async fn status(api: &Api) -> Value {
    api.get(BUDGETS, "n", "web").await.unwrap()["status"].clone()
}

/// Asks to evict a pod: nothing, or the code and the causes' messages.
async fn evict(api: &Api, pod: &str, options: Value) -> Result<(), (u16, String)> {
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "n"},
        "deleteOptions": options});
    let path = format!("/api/v1/namespaces/n/pods/{pod}/eviction");
    let sent = api.client().call(http::Method::POST, &path, "application/json", body.to_string().into()).await;
    sent.map(|_| ()).map_err(|e| {
        let s = e.status().unwrap();
        let causes = s.details.iter().flat_map(|d| &d.causes).map(|c| c.message.as_str());
        (s.code, causes.collect::<Vec<_>>().join("; "))
    })
}

async fn names(api: &Api) -> Vec<String> {
    crate::cluster::names(api, "v1/pods").await
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_never_exceeded() {
    let (api, _running) = start(CONTROLLERS).await;
    api.create(BUDGETS, budget(json!({"maxUnavailable": 1}))).await;
    api.create("apps/v1/replicasets", set(3)).await;
    run_pods(&api, |_| false).await;
    let s = status(&api).await;
    let numbers = ["expectedPods", "desiredHealthy", "currentHealthy", "disruptionsAllowed"].map(|f| s[f].as_i64());
    assert_eq!(numbers, [Some(3), Some(2), Some(3), Some(1)]);
    assert_eq!(s["conditions"][0]["reason"], "SufficientPods");

    let pods = names(&api).await;
    evict(&api, &pods[0], json!({"dryRun": ["All"]})).await.unwrap();
    assert_eq!(status(&api).await["disruptionsAllowed"], 1, "a trial takes nothing");
    evict(&api, &pods[0], json!({})).await.unwrap();
    assert_eq!(
        evict(&api, &pods[1], json!({})).await,
        Err((429, "The disruption budget web does not allow evicting pods currently".to_owned())),
    );
    api.settle().await;
    assert_eq!(
        evict(&api, &pods[1], json!({})).await,
        Err((429, "The disruption budget web needs 2 healthy pods and has 2 currently".to_owned())),
    );
    run_pods(&api, |_| false).await;
    assert_eq!(status(&api).await["disruptionsAllowed"], 1, "it was replaced");
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_not_healthy_go_as_the_policy_says() {
    let (api, _running) = start(CONTROLLERS).await;
    api.create(BUDGETS, budget(json!({"minAvailable": 3}))).await;
    api.create("apps/v1/replicasets", set(3)).await;
    run_pods(&api, |_| true).await;
    let pods = names(&api).await;
    for pod in &pods {
        api.change("v1/pods", "n", pod, |p| p["status"]["phase"] = json!("Running")).await;
    }
    api.settle().await;
    let (code, why) = evict(&api, &pods[0], json!({})).await.unwrap_err();
    assert_eq!((code, why.as_str()), (429, "The disruption budget web needs 3 healthy pods and has 0 currently"));
    api.change(BUDGETS, "n", "web", |b| b["spec"]["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow")).await;
    api.settle().await;
    evict(&api, &pods[0], json!({})).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_budgets_of_one_pod_allow_nothing() {
    let (api, _running) = start(CONTROLLERS).await;
    api.create(BUDGETS, budget(json!({"minAvailable": 0}))).await;
    let mut second = budget(json!({"minAvailable": 0}));
    second["metadata"]["name"] = json!("second");
    api.create(BUDGETS, second).await;
    api.create("apps/v1/replicasets", set(1)).await;
    run_pods(&api, |_| false).await;
    let pod = &names(&api).await[0];
    assert_eq!(evict(&api, pod, json!({})).await.unwrap_err().0, 500);
    assert!(api.events().await.iter().any(|e| e.starts_with("MultiplePodDisruptionBudgets")));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_counted_is_said() {
    let (api, _running) = start(CONTROLLERS).await;
    let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}]);
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "labels": {"app": "web"}, "ownerReferences": owner},
        "spec": {"containers": [{"name": "c", "image": "example.com/c:1"}]}});
    api.create("v1/pods", pod).await;
    api.create(BUDGETS, budget(json!({"maxUnavailable": 1}))).await;
    api.settle().await;
    let s = status(&api).await;
    let c = &s["conditions"][0];
    let why = "jobs.batch does not implement the scale subresource";
    assert_eq!((&c["reason"], &c["message"], &s["disruptionsAllowed"]), (&json!("SyncFailed"), &json!(why), &json!(0)));
}

#[tokio::test(start_paused = true)]
async fn a_disruption_that_never_came_is_taken_back() {
    let (api, _running) = start(CONTROLLERS).await;
    api.create("apps/v1/replicasets", set(1)).await;
    run_pods(&api, |_| false).await;
    let pod = names(&api).await.remove(0);
    let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
        "lastTransitionTime": kelson_meta::format_seconds(kelson_meta::Clock::now(&api.clock))});
    api.change("v1/pods", "n", &pod, |p| p["status"]["conditions"].as_array_mut().unwrap().push(target.clone())).await;
    let said = async || {
        let p = api.get("v1/pods", "n", &pod).await.unwrap();
        let all = p["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == "DisruptionTarget").unwrap()
    };
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(said().await["status"], "True");
    tokio::time::sleep(Duration::from_secs(25)).await;
    let c = said().await;
    assert_eq!((&c["status"], &c["reason"]), (&json!("False"), &Value::Null));
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_never_exceeded_whichever_write_fails() {
    at_every_request(&[Failure::LostAnswer], async |api: Api| {
        api.namespace("n").await;
        let _running = run(&api, CONTROLLERS).await;
        api.create("apps/v1/replicasets", set(3)).await;
        api.create(BUDGETS, budget(json!({"minAvailable": 2}))).await;
        let mut evicted = 0;
        for _ in 0..2 {
            // Longer than what was expected of a write is waited for whose answer was lost (five minutes).
            tokio::time::sleep(Duration::from_secs(310)).await;
            run_pods(&api, |_| false).await;
            api.settle().await;
            assert_eq!(status(&api).await["disruptionsAllowed"], 1);
            let mut gone = 0;
            for name in names(&api).await {
                gone += usize::from(evict(&api, &name, json!({})).await.is_ok());
            }
            assert_eq!(gone, 1, "one of three may go at a time");
            evicted += gone;
        }
        assert_eq!(evicted, 2);
    })
    .await;
}
