//! Autoscalers, which wait before they scale down.
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use kelson_client::{Client, Request, Response, Transport, TransportError, full_body};
use kelson_simulation::Api;
use rand::Rng as _;
use serde_json::{Value, json};

use crate::history::{Cast, History, Noise, each};

const AUTOSCALERS: &str = "autoscaling/v2/horizontalpodautoscalers";
const SETS: &str = "apps/v1/replicasets";

/// Answers for the metrics API with what a ConfigMap of the cluster says: CPU of each pod.
struct Metrics {
    inner: Arc<dyn Transport>,
    api: Api,
}

impl Transport for Metrics {
    fn send(&self, request: Request) -> BoxFuture<'static, Result<Response, TransportError>> {
        if !request.uri().path().starts_with("/apis/metrics.k8s.io/v1beta1/namespaces/n/pods") {
            return self.inner.send(request);
        }
        let api = self.api.clone();
        Box::pin(async move {
            let load = api.get("v1/configmaps", "n", "load").await.unwrap();
            let now = kelson_meta::format_seconds(kelson_meta::Clock::now(&api.clock));
            let usage = json!({"cpu": load["data"]["cpu"], "memory": "1Mi"});
            let one = |p: &Value| {
                json!({"metadata": {"name": p["metadata"]["name"]}, "timestamp": now, "window": "30s",
                    "containers": [{"name": "c", "usage": usage}]})
            };
            let items: Vec<Value> = api.list("v1/pods").await.iter().map(one).collect();
            Ok(Response::new(full_body(json!({"items": items}).to_string())))
        })
    }
}

fn client(api: &Api, user: &str) -> Client {
    Client::new(Arc::new(Metrics { inner: api.transport(user), api: api.clone() }), "test")
}

/// Kubelets run the pods.
fn run(api: Api, _: u64) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        api.play_pods(|_| Some(kelson_simulation::Fate::Ready)).await;
    })
}

/// Four pods with as much load as is asked for, long enough that they count.
async fn loaded(history: &mut History, behavior: Value) {
    let api = history.api.clone();
    let load = json!({"metadata": {"name": "load", "namespace": "n"}, "data": {"cpu": "500m"}});
    api.create("v1/configmaps", load).await;
    let containers = json!([{"name": "c", "image": "c", "resources": {"requests": {"cpu": "1"}}}]);
    let template = json!({"metadata": {"labels": {"app": "w"}}, "spec": {"containers": containers}});
    let spec = json!({"replicas": 4, "selector": {"matchLabels": {"app": "w"}}, "template": template});
    api.create(SETS, json!({"metadata": {"name": "w", "namespace": "n"}, "spec": spec})).await;
    api.run_pods().await;
    let half = json!([{"type": "Resource", "resource":
        {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]);
    let mut spec = json!({"minReplicas": 1, "maxReplicas": 8, "metrics": half,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "w"}});
    if !behavior.is_null() {
        spec["behavior"] = behavior;
    }
    api.create(AUTOSCALERS, json!({"metadata": {"name": "w", "namespace": "n"}, "spec": spec})).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
}

async fn size(api: &Api) -> i64 {
    api.get(SETS, "n", "w").await.unwrap()["spec"]["replicas"].as_i64().unwrap()
}

const NOISES: [Noise; 5] = [
    Noise::Touch(AUTOSCALERS, "n", "w"),
    Noise::Touch(SETS, "n", "w"),
    Noise::Touch("v1/configmaps", "n", "load"),
    Noise::Fault,
    Noise::Do(run),
];

async fn scales_after(history: &mut History, window: u64, cpu: &str, to: i64) {
    history.api.patch("v1/configmaps", "n", "load", "", json!({"data": {"cpu": cpu}})).await;
    // The last look that asked for the old size is up to a period of 15 seconds ago, and the next up to one later.
    let due = history.now() + Duration::from_secs(window) - Duration::from_secs(15.min(window));
    let scaled = async |api: &Api| size(api).await == to;
    history.acts_between(due, due + Duration::from_secs(31), &NOISES, scaled, scaled).await;
    let events = history.api.events().await;
    assert_eq!(events.iter().filter(|e| e.starts_with("SuccessfulRescale")).count(), 1, "{events:?}");
}

const CONTROLLERS: &[&str] = &["replicaset-controller", "horizontal-pod-autoscaler-controller"];

#[test]
fn load_that_falls_scales_down_after_five_minutes() {
    each(Cast { client, ..Cast::of(CONTROLLERS) }, async |history: &mut History| {
        loaded(history, Value::Null).await;
        scales_after(history, 300, "100m", 1).await;
    });
}

#[test]
fn windows_of_a_behavior_hold_both_ways() {
    each(Cast { client, ..Cast::of(CONTROLLERS) }, async |history: &mut History| {
        let window = |seconds: u64| json!({"stabilizationWindowSeconds": seconds});
        loaded(history, json!({"scaleUp": window(120), "scaleDown": window(40)})).await;
        if history.rng.random_bool(0.5) {
            scales_after(history, 120, "900m", 8).await;
        } else {
            scales_after(history, 40, "100m", 1).await;
        }
    });
}
