//! Autoscalers on the in-memory API server with a paused clock. A transport in front of it serves the metrics APIs.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use kelson_client::{Client, Request, Response, Transport, TransportError, full_body};
use kelson_simulation::{Api, DISTURBANCES, at_every_request};
use kelson_tasks::Tasks;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::cluster::run_pods;
use crate::{Config, Controllers, Running};

const AUTOSCALERS: &str = "autoscaling/v2/horizontalpodautoscalers";
const SETS: &str = "apps/v1/replicasets";

/// Answers of the metrics APIs by path, without the query.
#[derive(Clone, Default)]
struct Measured(Arc<Mutex<HashMap<String, (StatusCode, String)>>>);

impl Measured {
    fn set(&self, path: &str, answer: Value) {
        self.0.lock().insert(path.to_owned(), (StatusCode::OK, answer.to_string()));
    }

    fn fail(&self, path: &str, code: StatusCode, body: &str) {
        self.0.lock().insert(path.to_owned(), (code, body.to_owned()));
    }

    /// Every pod of the list uses so much.
    async fn usage(&self, api: &Api, cpu: &str) {
        let now = kelson_meta::format_seconds(kelson_meta::Clock::now(&api.clock));
        let one = |p: &Value| {
            json!({"metadata": {"name": p["metadata"]["name"]}, "timestamp": now, "window": "30s",
                "containers": [{"name": "c", "usage": {"cpu": cpu, "memory": "1Mi"}}]})
        };
        let items: Vec<Value> = api.list("v1/pods").await.iter().map(one).collect();
        self.set("/apis/metrics.k8s.io/v1beta1/namespaces/n/pods", json!({"items": items}));
    }
}

struct Front {
    inner: Arc<dyn Transport>,
    measured: Measured,
}

impl Transport for Front {
    fn send(&self, request: Request) -> futures::future::BoxFuture<'static, Result<Response, TransportError>> {
        let answer = self.measured.0.lock().get(request.uri().path()).cloned();
        match answer {
            Some((code, body)) => Box::pin(async move {
                let mut response = Response::new(full_body(body));
                *response.status_mut() = code;
                Ok(response)
            }),
            None => self.inner.send(request),
        }
    }
}

async fn start() -> (Api, Measured, Running) {
    let api = Api::start().await;
    let (measured, running) = start_on(&api).await;
    (api, measured, running)
}

async fn start_on(api: &Api) -> (Measured, Running) {
    api.create("v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    api.create("v1/serviceaccounts", json!({"metadata": {"name": "default", "namespace": "n"}})).await;
    let measured = Measured::default();
    let (at, front) = (api.clone(), measured.clone());
    let factory = move |user: &str| {
        let inner = at.transport(user);
        Client::new(Arc::new(Front { inner, measured: front.clone() }), "test")
    };
    let controllers = ["replicaset-controller", "horizontal-pod-autoscaler-controller"].map(str::to_owned).into();
    let config = Config { controllers, ..Config::default() };
    let running = Controllers::start(config, Box::new(factory), Arc::new(api.clock), Tasks::root("controllers"));
    running.synced().await;
    (measured, running)
}

async fn workload(api: &Api, replicas: i32) {
    let set = json!({"metadata": {"name": "web", "namespace": "n"}, "spec": {"replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "example.com/c:1", "resources": {"requests": {"cpu": "1"}}}]}}}});
    api.create(SETS, set).await;
    run_pods(api, |_| false).await;
    for pod in crate::cluster::names(api, "v1/pods").await {
        api.change("v1/pods", "n", &pod, |p| p["status"]["startTime"] = json!("2025-12-31T00:00:00Z")).await;
    }
    api.settle().await;
}

fn autoscaler(spec: Value) -> Value {
    let mut a = json!({"metadata": {"name": "web", "namespace": "n"}, "spec": {"minReplicas": 1, "maxReplicas": 5,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web"}}});
    for (k, v) in spec.as_object().unwrap() {
        a["spec"][k] = v.clone();
    }
    a
}

async fn replicas(api: &Api) -> i64 {
    api.get(SETS, "n", "web").await.unwrap()["spec"]["replicas"].as_i64().unwrap()
}

async fn status(api: &Api) -> Value {
    api.get(AUTOSCALERS, "n", "web").await.unwrap()["status"].clone()
}

fn reason(status: &Value, kind: &str) -> String {
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|c| c["type"] == kind);
    found.map(|c| format!("{} {}", c["status"], c["reason"]).replace('"', "")).unwrap_or_default()
}

async fn wait(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn follows_the_cpu_up_and_slowly_down() {
    let (api, measured, _running) = start().await;
    workload(&api, 2).await;
    let half = json!([{"type": "Resource", "resource":
        {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]);
    measured.usage(&api, "900m").await;
    api.create(AUTOSCALERS, autoscaler(json!({"metrics": half}))).await;
    wait(5).await;
    assert_eq!(replicas(&api).await, 4);
    let s = status(&api).await;
    assert_eq!(
        s["currentMetrics"][0]["resource"]["current"],
        json!({"averageUtilization": 90, "averageValue": "900m"})
    );
    assert_eq!(
        (reason(&s, "AbleToScale"), reason(&s, "ScalingActive")),
        ("True SucceededRescale".into(), "True ValidMetricFound".into())
    );
    assert_eq!(reason(&s, "ScalingLimited"), "False DesiredWithinRange");
    let why = "SuccessfulRescale New size: 4; reason: cpu resource utilization (percentage of request) above target";
    assert!(api.events().await.contains(&why.to_owned()), "{:?}", api.events().await);

    run_pods(&api, |_| false).await;
    measured.usage(&api, "100m").await;
    wait(60).await;
    assert_eq!(replicas(&api).await, 4, "held back");
    assert_eq!(reason(&status(&api).await, "AbleToScale"), "True ScaleDownStabilized");
    wait(300).await;
    assert_eq!(replicas(&api).await, 1);
}

#[tokio::test(start_paused = true)]
async fn says_why_it_cannot() {
    let (api, _measured, _running) = start().await;
    let a = json!({"metrics": [{"type": "Resource", "resource":
        {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]});
    api.create(AUTOSCALERS, autoscaler(a)).await;
    wait(3).await;
    assert_eq!(reason(&status(&api).await, "AbleToScale"), "False FailedGetScale");
    workload(&api, 2).await;
    wait(20).await;
    let s = status(&api).await;
    assert_eq!(
        (reason(&s, "AbleToScale"), reason(&s, "ScalingActive")),
        ("True SucceededGetScale".into(), "False FailedGetResourceMetric".into())
    );
    let all = s["conditions"].as_array().unwrap();
    let said = all.iter().find(|c| c["type"] == "ScalingActive").unwrap();
    assert_eq!(
        said["message"],
        "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)",
    );
    assert_eq!(replicas(&api).await, 2);
}

/// The message of an adapter is shown. A 404 that is not a `Status` names the request, as upstream's client does.
#[tokio::test(start_paused = true)]
async fn an_adapters_own_words_are_shown() {
    let (api, measured, _running) = start().await;
    workload(&api, 2).await;
    let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue";
    let of = |message: &str| {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": 404}).to_string()
    };
    let metrics = json!([{"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "3"}}}]);
    api.create(AUTOSCALERS, autoscaler(json!({"metrics": metrics}))).await;
    for (body, want) in [
        (of("no metric gone"), "no metric gone"),
        (
            "404 page not found".to_owned(),
            "the server could not find the requested resource (get queue.external.metrics.k8s.io)",
        ),
    ] {
        measured.fail(path, StatusCode::NOT_FOUND, &body);
        wait(60).await;
        let s = status(&api).await;
        let conditions = s["conditions"].as_array().unwrap();
        let active = conditions.iter().find(|c| c["type"] == "ScalingActive").unwrap();
        assert_eq!(active["reason"], "FailedGetExternalMetric", "{body}");
        let message = active["message"].as_str().unwrap();
        assert!(message.ends_with(&format!("unable to fetch metrics from external metrics API: {want}")), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn custom_and_external_metrics() {
    let (api, measured, _running) = start().await;
    workload(&api, 2).await;
    measured.set("/apis/custom.metrics.k8s.io", json!({"versions": [{"version": "v1beta2"}]}));
    let value = json!({"describedObject": {"name": "front"}, "value": "9", "timestamp": "2026-01-01T00:00:00Z"});
    measured.set("/apis/custom.metrics.k8s.io/v1beta2/namespaces/n/services/front/hits", json!({"items": [value]}));
    measured.set(
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue",
        json!({"items": [{"value": "10"}, {"value": "2"}]}),
    );
    let metrics = json!([
        {"type": "Object", "object": {"describedObject": {"apiVersion": "v1", "kind": "Service", "name": "front"},
            "metric": {"name": "hits"}, "target": {"type": "Value", "value": "6"}}},
        {"type": "External", "external": {"metric": {"name": "queue", "selector": {"matchLabels": {"a": "b"}}},
            "target": {"type": "AverageValue", "averageValue": "3"}}}]);
    api.create(AUTOSCALERS, autoscaler(json!({"metrics": metrics}))).await;
    wait(5).await;
    assert_eq!(replicas(&api).await, 4);
    let s = status(&api).await;
    assert_eq!(s["currentMetrics"][0]["object"]["current"], json!({"value": "9"}));
    assert_eq!(s["currentMetrics"][1]["external"]["current"], json!({"averageValue": "6"}));
}

#[tokio::test(start_paused = true)]
async fn bounds_hold_without_any_metric() {
    let (api, _measured, _running) = start().await;
    workload(&api, 7).await;
    api.create(AUTOSCALERS, autoscaler(json!({"minReplicas": 2}))).await;
    wait(3).await;
    assert_eq!(replicas(&api).await, 5);
    api.change(SETS, "n", "web", |s| s["spec"]["replicas"] = json!(0)).await;
    wait(20).await;
    assert_eq!(
        (replicas(&api).await, reason(&status(&api).await, "ScalingActive")),
        (0, "False ScalingDisabled".into())
    );
    api.change(SETS, "n", "web", |s| s["spec"]["replicas"] = json!(1)).await;
    wait(20).await;
    assert_eq!(replicas(&api).await, 2);
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_it_gets_there_and_stays_within_its_bounds() {
    at_every_request(&DISTURBANCES, async |api: Api| {
        let (measured, _running) = start_on(&api).await;
        workload(&api, 2).await;
        measured.usage(&api, "900m").await;
        let half = json!([{"type": "Resource", "resource":
            {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]);
        api.create(AUTOSCALERS, autoscaler(json!({"metrics": half}))).await;
        for _ in 0..12 {
            wait(10).await;
            // As much work as before, for all pods that there are now: two of them were at nine tenths.
            run_pods(&api, |_| false).await;
            let now = replicas(&api).await;
            assert!((1..=5).contains(&now), "{now}");
            measured.usage(&api, &format!("{}m", 1800 / now)).await;
        }
        assert_eq!(replicas(&api).await, 4);
        let s = status(&api).await;
        assert_eq!((&s["desiredReplicas"], reason(&s, "ScalingActive")), (&json!(4), "True ValidMetricFound".into()));
    })
    .await;
}
