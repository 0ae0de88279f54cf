//! For tests: controllers on the in-memory API server, and a substitute for the scheduler and the kubelets.
use kelson_meta::{Clock as _, format_seconds};
use kelson_simulation::Api;
use serde_json::{Value, json};

use crate::{Config, Running, testing};

/// The maximum number of rounds until pods no longer change.
const ROUNDS_MAX: usize = 100;

/// Starts an API server with these controllers and a namespace `n` for pods.
pub async fn start(controllers: &[&str]) -> (Api, Running) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    let api = Api::start().await;
    api.create("v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    api.create("v1/serviceaccounts", json!({"metadata": {"name": "default", "namespace": "n"}})).await;
    let running = run(&api, controllers).await;
    (api, running)
}

/// Starts these controllers as they are configured by default.
pub async fn run(api: &Api, controllers: &[&str]) -> Running {
    testing::run(api, controllers, Config::default()).await
}

/// Binds pods to the node of their affinity or to `n1`, makes them ready, and removes deleted ones, until nothing
/// changes. Pods for which `held` returns true are bound and never ready.
pub async fn run_pods(api: &Api, held: impl Fn(&Value) -> bool) {
    for _ in 0..ROUNDS_MAX {
        api.settle().await;
        let mut changed = false;
        for pod in api.list("v1/pods").await {
            changed |= advance(api, &pod, held(&pod)).await;
        }
        if !changed {
            return;
        }
    }
    panic!("pods never come to rest");
}

async fn advance(api: &Api, pod: &Value, held: bool) -> bool {
    let name = pod["metadata"]["name"].as_str().unwrap();
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return api.remove("v1/pods", "n", name).await;
    }
    if pod["spec"]["nodeName"].is_null() {
        let pinned = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0";
        let node = pod.pointer(pinned).and_then(Value::as_str).unwrap_or("n1");
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": "n"},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
        let path = format!("/api/v1/namespaces/n/pods/{name}/binding");
        let body = bytes::Bytes::from(binding.to_string());
        api.client().call(http::Method::POST, &path, "application/json", body).await.unwrap();
        return true;
    }
    let is_ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
    let ready = pod["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(is_ready));
    if held || ready || pod["status"]["phase"] == "Failed" || pod["status"]["phase"] == "Succeeded" {
        return false;
    }
    let now = format_seconds(api.clock.now());
    api.change("v1/pods", "n", name, |p| {
        p["status"]["phase"] = json!("Running");
        p["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "lastTransitionTime": now}]);
    })
    .await;
    true
}

/// Names of all objects of a resource, in order.
pub async fn names(api: &Api, resource: &str) -> Vec<String> {
    api.list(resource).await.iter().map(|o| o["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}
