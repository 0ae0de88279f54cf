//! Pods that become available, rollouts that make no progress, and slices that wait for more changes.
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use kelson_controllers::{BatchPeriods, Config};
use kelson_simulation::{Api, Fate};
use rand::Rng as _;
use serde_json::{Value, json};

use crate::history::{Cast, History, Noise, condition, condition_text, each, time};

const DEPLOYMENTS: &str = "apps/v1/deployments";
const SETS: &str = "apps/v1/replicasets";
const STATEFUL: &str = "apps/v1/statefulsets";
const DAEMONS: &str = "apps/v1/daemonsets";
const SLICES: &str = "discovery.k8s.io/v1/endpointslices";

fn workload(spec: Value) -> Value {
    let template = json!({"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "c", "image": "c"}]}});
    let mut object = json!({"metadata": {"name": "w", "namespace": "n"},
        "spec": {"selector": {"matchLabels": {"app": "w"}}, "template": template}});
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    object
}

/// Changes an annotation of each pod and of the node, and the reason of a condition that matters to nobody here.
fn touch_pods(api: Api, number: u64) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        for pod in api.list("v1/pods").await {
            let patch = json!({"metadata": {"annotations": {"example.com/touched": number.to_string()}}});
            api.patch("v1/pods", "n", pod["metadata"]["name"].as_str().unwrap(), "", patch).await;
        }
        let status = json!({"capacity": {"example.com/dongles": (number % 9).to_string()}});
        api.patch("v1/nodes", "", "node-1", "status", json!({"status": status})).await;
    })
}

/// Kubelets run the pods, none of which becomes ready.
fn run_unready(api: Api, _: u64) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        api.play_pods(|_| Some(Fate::Unready)).await;
    })
}

/// The node of all pods, ready for them.
async fn node(api: &Api) {
    api.create("v1/nodes", json!({"metadata": {"name": "node-1"}})).await;
    api.patch("v1/nodes", "", "node-1", "", json!({"spec": {"taints": []}})).await;
}

async fn ready_since(api: &Api) -> Timestamp {
    let pods = api.list("v1/pods").await;
    time(&condition(&pods[0], "Ready").unwrap()["lastTransitionTime"])
}

/// A pod is available when it has been ready for `minReadySeconds`.
async fn becomes_available(history: &mut History, resource: &'static str, field: &'static str, mut spec: Value) {
    let seconds = history.rng.random_range(1..200);
    spec["minReadySeconds"] = json!(seconds);
    node(&history.api).await;
    history.api.create(resource, workload(spec)).await;
    history.api.settle().await;
    history.api.play_pods(|_| Some(Fate::Unready)).await;
    tokio::time::sleep(Duration::from_secs(history.rng.random_range(1..30))).await;
    history.api.play_pods(|_| Some(Fate::Ready)).await;
    let due = ready_since(&history.api).await + Duration::from_secs(seconds);
    let noises = [Noise::Touch(resource, "n", "w"), Noise::Restart, Noise::Fault, Noise::Do(touch_pods)];
    let available = async |api: &Api| api.get(resource, "n", "w").await.unwrap()["status"][field] == 1;
    history.acts_at(due, &noises, available, available).await;
}

#[test]
fn pods_of_replica_sets_are_available_after_min_ready_seconds() {
    each(Cast::of(&["replicaset-controller"]), async |history: &mut History| {
        becomes_available(history, SETS, "availableReplicas", json!({"replicas": 1})).await;
    });
}

#[test]
fn pods_of_replication_controllers_are_available_after_min_ready_seconds() {
    each(Cast::of(&["replicationcontroller-controller"]), async |history: &mut History| {
        let spec = json!({"replicas": 1, "selector": {"app": "w"}});
        becomes_available(history, "v1/replicationcontrollers", "availableReplicas", spec).await;
    });
}

#[test]
fn pods_of_deployments_are_available_after_min_ready_seconds() {
    each(Cast::of(&["deployment-controller", "replicaset-controller"]), async |history: &mut History| {
        becomes_available(history, DEPLOYMENTS, "availableReplicas", json!({"replicas": 1})).await;
    });
}

#[test]
fn pods_of_stateful_sets_are_available_after_min_ready_seconds() {
    each(Cast::of(&["statefulset-controller"]), async |history: &mut History| {
        let spec = json!({"replicas": 1, "serviceName": "w"});
        becomes_available(history, STATEFUL, "availableReplicas", spec).await;
    });
}

#[test]
fn pods_of_daemon_sets_are_available_after_min_ready_seconds() {
    each(Cast::of(&["daemonset-controller"]), async |history: &mut History| {
        becomes_available(history, DAEMONS, "numberAvailable", json!({})).await;
    });
}

#[test]
fn the_next_pod_of_a_stateful_set_waits_for_the_one_before_it() {
    each(Cast::of(&["statefulset-controller"]), async |history: &mut History| {
        let seconds = history.rng.random_range(1..200);
        let spec = json!({"replicas": 2, "serviceName": "w", "minReadySeconds": seconds});
        history.api.create("v1/nodes", json!({"metadata": {"name": "node-1"}})).await;
        history.api.create(STATEFUL, workload(spec)).await;
        history.api.settle().await;
        history.api.play_pods(|_| Some(Fate::Ready)).await;
        let due = ready_since(&history.api).await + Duration::from_secs(seconds);
        let noises = [Noise::Touch(STATEFUL, "n", "w"), Noise::Restart, Noise::Fault, Noise::Do(touch_pods)];
        let two = async |api: &Api| api.list("v1/pods").await.len() == 2;
        history.acts_at(due, &noises, two, two).await;
    });
}

#[test]
fn a_rollout_fails_at_its_progress_deadline() {
    each(Cast::of(&["deployment-controller", "replicaset-controller"]), async |history: &mut History| {
        let deadline = history.rng.random_range(5..300);
        history.api.create("v1/nodes", json!({"metadata": {"name": "node-1"}})).await;
        let spec = json!({"replicas": 2, "progressDeadlineSeconds": deadline});
        history.api.create(DEPLOYMENTS, workload(spec)).await;
        history.api.settle().await;
        let deployment = history.api.get(DEPLOYMENTS, "n", "w").await.unwrap();
        let progress = time(&condition(&deployment, "Progressing").unwrap()["lastUpdateTime"]);
        let noises = [
            Noise::Touch(DEPLOYMENTS, "n", "w"),
            Noise::Restart,
            Noise::Fault,
            Noise::Do(touch_pods),
            Noise::Do(run_unready),
        ];
        let failed = async |api: &Api| {
            let deployment = api.get(DEPLOYMENTS, "n", "w").await.unwrap();
            condition_text(&deployment, "Progressing") == "False ProgressDeadlineExceeded"
        };
        history.acts_at(progress + Duration::from_secs(deadline), &noises, failed, failed).await;
    });
}

/// Kubelets fail every pod at once, as one that rejects the set's pods does.
fn reject(api: Api, _: u64) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        api.play_pods(|_| Some(Fate::Failed(1))).await;
    })
}

#[test]
fn failed_pods_of_a_daemon_set_are_replaced_after_twice_as_long_each_time() {
    each(Cast::of(&["daemonset-controller"]), async |history: &mut History| {
        node(&history.api).await;
        history.api.create(DAEMONS, workload(json!({}))).await;
        history.api.settle().await;
        reject(history.api.clone(), 0).await;
        history.api.settle().await;
        for n in 1..8_u32 {
            // A failed pod goes at once when it is deleted, and another one is made.
            assert_eq!(history.writes("DELETE", ""), n as usize, "failure {n}");
            let deleted = time(&history.api.list("v1/pods").await[0]["metadata"]["creationTimestamp"]);
            reject(history.api.clone(), 0).await;
            let due = history.now().max(deleted + Duration::from_secs(1 << (n - 1)));
            let noises = [Noise::Touch(DAEMONS, "n", "w"), Noise::Do(touch_pods)];
            let replaced =
                async |api: &Api| api.list("v1/pods").await.iter().any(|p| p["status"]["phase"] == "Pending");
            history.acts_at(due, &noises, replaced, replaced).await;
        }
    });
}

/// A pod of the service comes.
fn another_pod(api: Api, number: u64) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let ip = format!("10.42.{}.{}", number / 250 % 250, 2 + number % 250);
        let status = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}]});
        let metadata = json!({"generateName": "p-", "namespace": "n", "labels": {"app": "w"}});
        let spec = json!({"nodeName": "node-1", "containers": [{"name": "c", "image": "c"}]});
        api.create("v1/pods", json!({"metadata": metadata, "spec": spec, "status": status})).await;
    })
}

#[test]
fn slices_are_written_once_in_a_batch_period() {
    let config = || {
        let batch_periods = BatchPeriods { slices: Duration::from_secs(60), ..BatchPeriods::default() };
        Config { batch_periods, ..Config::default() }
    };
    let cast = Cast { config, ..Cast::of(&["endpointslice-controller"]) };
    each(cast, async |history: &mut History| {
        history.api.create("v1/nodes", json!({"metadata": {"name": "node-1"}})).await;
        let spec = json!({"selector": {"app": "w"}, "ports": [{"port": 80}]});
        history.api.create("v1/services", json!({"metadata": {"name": "w", "namespace": "n"}, "spec": spec})).await;
        history.api.settle().await;
        let first = history.rng.random();
        another_pod(history.api.clone(), first).await;
        let due = history.now() + Duration::from_secs(60);
        let shown = async |api: &Api| {
            let slices = api.list(SLICES).await;
            slices.iter().any(|s| s["endpoints"].as_array().is_some_and(|e| !e.is_empty()))
        };
        history.acts_at(due, &[Noise::Do(another_pod)], shown, shown).await;
        let writes = history.api.writes();
        let written = writes.iter().filter(|w| w.starts_with("POST") && w.contains("/endpointslices")).count();
        assert!(written <= 2, "one for the service and one for all pods of the period: {writes:?}");
    });
}
