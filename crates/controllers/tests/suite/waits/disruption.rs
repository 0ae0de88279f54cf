//! Disruptions that do not come, and devices with taints.
use std::time::Duration;

use kelson_simulation::Api;
use rand::Rng as _;
use serde_json::json;

use crate::history::{Cast, History, Noise, condition_text, each, is_going, time};

const BUDGETS: &str = "policy/v1/poddisruptionbudgets";
const CLAIMS: &str = "resource.k8s.io/v1/resourceclaims";
const SLICES: &str = "resource.k8s.io/v1/resourceslices";
const POD: Noise = Noise::Touch("v1/pods", "n", "p");

async fn protected_pod(history: &mut History) {
    let api = history.api.clone();
    let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "c"}]});
    let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    let metadata = json!({"name": "p", "namespace": "n", "labels": {"app": "w"}});
    api.create("v1/pods", json!({"metadata": metadata, "spec": spec, "status": status})).await;
    let spec = json!({"minAvailable": 0, "selector": {"matchLabels": {"app": "w"}}});
    api.create(BUDGETS, json!({"metadata": {"name": "b", "namespace": "n"}, "spec": spec})).await;
    api.settle().await;
    tokio::time::sleep(Duration::from_secs(history.rng.random_range(1..50))).await;
}

const NOISES: [Noise; 4] = [POD, Noise::Touch(BUDGETS, "n", "b"), Noise::Restart, Noise::Fault];

#[test]
fn an_eviction_that_does_not_come_is_forgotten_after_two_minutes() {
    each(Cast::of(&["disruption-controller"]), async |history: &mut History| {
        protected_pod(history).await;
        let since = history.seconds();
        let status = json!({"disruptedPods": {"p": since}});
        history.api.patch(BUDGETS, "n", "b", "status", json!({"status": status})).await;
        let due = time(&json!(since)) + Duration::from_secs(120);
        let counts = async |api: &Api| {
            let status = api.get(BUDGETS, "n", "b").await.unwrap()["status"].clone();
            status["disruptedPods"].as_object().is_none_or(serde_json::Map::is_empty) && status["currentHealthy"] == 1
        };
        history.acts_at(due, &NOISES, counts, counts).await;
    });
}

#[test]
fn a_pod_that_says_it_will_be_disrupted_says_so_for_two_minutes() {
    each(Cast::of(&["disruption-controller"]), async |history: &mut History| {
        protected_pod(history).await;
        let since = history.seconds();
        history
            .api
            .change("v1/pods", "n", "p", |p| {
                let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                    "lastTransitionTime": since});
                p["status"]["conditions"].as_array_mut().unwrap().push(target);
            })
            .await;
        let due = time(&json!(since)) + Duration::from_secs(120);
        let taken_back = async |api: &Api| {
            let pod = api.get("v1/pods", "n", "p").await.unwrap();
            condition_text(&pod, "DisruptionTarget").starts_with("False")
        };
        history.acts_at(due, &NOISES, taken_back, taken_back).await;
    });
}

#[test]
fn a_pod_loses_a_device_when_its_claim_has_tolerated_the_taint_for_its_seconds() {
    each(Cast::of(&["device-taint-eviction-controller"]), async |history: &mut History| {
        let api = history.api.clone();
        let spec = json!({"driver": "d.example.com", "nodeName": "n1", "devices": [{"name": "x"}],
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}});
        api.create(SLICES, json!({"metadata": {"name": "s"}, "spec": spec})).await;
        let request = json!({"name": "r", "exactly": {"deviceClassName": "any"}});
        let spec = json!({"devices": {"requests": [request]}});
        api.create(CLAIMS, json!({"metadata": {"name": "c", "namespace": "n"}, "spec": spec})).await;
        let container = json!({"name": "c", "image": "c", "resources": {"claims": [{"name": "gpu"}]}});
        let spec = json!({"nodeName": "n1", "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
            "containers": [container]});
        let pod = api.create("v1/pods", json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})).await;
        let seconds = history.rng.random_range(1..300);
        let tolerations =
            json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]);
        let result =
            json!({"request": "r", "driver": "d.example.com", "pool": "p", "device": "x", "tolerations": tolerations});
        let finalizers = json!({"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}});
        api.patch(CLAIMS, "n", "c", "", finalizers).await;
        let user = json!({"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]});
        let status = json!({"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]});
        api.patch(CLAIMS, "n", "c", "status", json!({"status": status})).await;
        tokio::time::sleep(Duration::from_secs(history.rng.random_range(1..100))).await;
        let added = history.seconds();
        let taint = json!([{"key": "k", "effect": "NoExecute", "timeAdded": added}]);
        api.change(SLICES, "", "s", |s| s["spec"]["devices"][0]["taints"] = taint.clone()).await;
        let due = time(&json!(added)) + Duration::from_secs(seconds);
        let noises = [POD, Noise::Touch(CLAIMS, "n", "c"), Noise::Touch(SLICES, "", "s"), Noise::Restart, Noise::Fault];
        let going = async |api: &Api| is_going(api, "v1/pods", "n", "p").await;
        history.acts_at(due, &noises, going, going).await;
        assert_eq!(history.writes("DELETE", "/pods/p"), 1);
    });
}
