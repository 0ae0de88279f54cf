//! The scheduler with an API server in this process: pods are bound, rejected ones get conditions and events, and are
//! retried when something changes.
// Helpers of a test fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kelson_apiserver::{ApiServer, Config as ApiConfig};
use kelson_auth::{UserInfo, user};
use kelson_client::{Client, DeleteOptions, ListParams};
use kelson_meta::SystemClock;
use kelson_scheduler::{Config, Running, Scheduler};
use kelson_store::{Store, StoreOptions};
use serde_json::{Value, json};

/// The maximum wait for something that should happen immediately.
const PATIENCE: Duration = Duration::from_secs(20);

async fn cluster() -> (Client, Running) {
    let mut config = ApiConfig::new(Store::in_memory(StoreOptions::default()));
    // No controllers run here to create service accounts and to remove the taint of new nodes.
    config.admission.disable = vec!["ServiceAccount".into(), "TaintNodesByCondition".into()];
    let server = ApiServer::start(config).await.unwrap();
    server.ready().await;
    let admin = UserInfo::new("admin", [user::MASTERS, user::AUTHENTICATED]);
    let client = Client::new(server.in_process(admin), "test");
    let scheduler = UserInfo::new("system:kube-scheduler", [user::AUTHENTICATED]);
    let scheduler = Client::new(server.in_process(scheduler), "scheduler");
    let config = Config { seed: Some(7), ..Config::default() };
    (client, Scheduler::start(config, scheduler, Arc::new(SystemClock), None, &kelson_tasks::Tasks::root("test")))
}

async fn node(client: &Client, name: &str, cpu: &str, taints: Value) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}});
    client.create::<Node>("", &node).await.unwrap();
    let resources = json!({"cpu": cpu, "memory": "8Gi", "pods": "110"});
    let mut body = serde_json::to_value(client.get::<Node>("", name).await.unwrap()).unwrap();
    body["status"] = json!({"capacity": resources, "allocatable": resources});
    client.update::<Node>("", name, "status", &body).await.unwrap();
}

async fn pod(client: &Client, name: &str, spec: Value) {
    let mut body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "automountServiceAccountToken": false,
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "600m"}}}],
    }});
    for (k, v) in spec.as_object().unwrap() {
        body["spec"][k] = v.clone();
    }
    client.create::<Pod>("default", &body).await.unwrap();
}

async fn until(client: &Client, name: &str, what: &str, done: impl Fn(&Pod) -> bool) -> Pod {
    let wait = async {
        let params = ListParams::default().with_fields(format!("metadata.name={name}"));
        let mut watch = client.watch::<Pod>("default", &params, true).await.unwrap();
        while let Some(event) = watch.next().await.unwrap() {
            if let kelson_client::WatchEvent::Added(p) | kelson_client::WatchEvent::Modified(p) = event
                && done(&p)
            {
                return p;
            }
        }
        panic!("the watch ended");
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{name}: not {what} in time"))
}

fn node_of(p: &Pod) -> Option<&str> {
    p.spec.as_ref()?.node_name.as_deref()
}

fn condition<'a>(p: &'a Pod, reason: &str) -> Option<&'a str> {
    let all = p.status.as_ref()?.conditions.as_ref()?;
    all.iter().find(|c| c.type_ == "PodScheduled" && c.reason.as_deref() == Some(reason))?.message.as_deref()
}

#[tokio::test]
async fn pods_are_bound_or_get_a_reason() {
    let (client, scheduler) = cluster().await;
    pod(&client, "early", json!({})).await;
    let reported = until(&client, "early", "told", |p| condition(p, "Unschedulable").is_some()).await;
    assert_eq!(condition(&reported, "Unschedulable"), Some("no nodes available to schedule pods"));
    let written_for = |p: &Pod| p.status.as_ref()?.conditions.as_ref()?.first()?.observed_generation;
    assert_eq!(written_for(&reported), reported.metadata.generation);
    assert!(reported.metadata.generation.is_some());

    node(&client, "n1", "1", json!([])).await;
    node(&client, "n2", "4", json!([{"key": "k", "value": "v", "effect": "NoSchedule"}])).await;
    let bound = until(&client, "early", "bound", |p| node_of(p).is_some()).await;
    assert_eq!(node_of(&bound), Some("n1"));

    pod(&client, "late", json!({})).await;
    let reported = until(&client, "late", "told", |p| condition(p, "Unschedulable").is_some()).await;
    let message = condition(&reported, "Unschedulable").unwrap();
    assert!(
        message.starts_with("0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)."),
        "{message}"
    );
    client.delete::<Pod>("default", "early", &DeleteOptions::default().with_grace(0)).await.unwrap();
    let bound = until(&client, "late", "bound", |p| node_of(p).is_some()).await;
    assert_eq!(node_of(&bound), Some("n1"));

    pod(&client, "tolerant", json!({"tolerations": [{"operator": "Exists"}], "nodeSelector": {}})).await;
    until(&client, "tolerant", "on n2", |p| node_of(p) == Some("n2")).await;

    pod(&client, "foreign", json!({"schedulerName": "other"})).await;
    pod(&client, "gated", json!({"schedulingGates": [{"name": "g"}], "tolerations": [{"operator": "Exists"}]})).await;
    until(&client, "gated", "gated", |p| condition(p, "SchedulingGated").is_some()).await;
    let foreign = client.get::<Pod>("default", "foreign").await.unwrap();
    assert_eq!((node_of(&foreign), condition(&foreign, "Unschedulable")), (None, None));

    scheduler.shutdown().await;
    event(&client, "Scheduled", "Successfully assigned default/early to n1").await;
    event(&client, "FailedScheduling", "no nodes available to schedule pods").await;
}

#[tokio::test]
async fn the_more_important_pod_gets_the_room() {
    let (client, scheduler) = cluster().await;
    node(&client, "n1", "1", json!([])).await;
    pod(&client, "low", json!({})).await;
    until(&client, "low", "bound", |p| node_of(p).is_some()).await;
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "high"}, "value": 1000});
    client.create::<k8s_openapi::api::scheduling::v1::PriorityClass>("", &class).await.unwrap();
    pod(&client, "high", json!({"priorityClassName": "high", "priority": 1000})).await;
    until(&client, "high", "nominated or bound", |p| {
        node_of(p).is_some() || p.status.as_ref().is_some_and(|s| s.nominated_node_name.as_deref() == Some("n1"))
    })
    .await;
    // No kubelet ends the victim here; a forced delete has the same effect.
    until(&client, "low", "leaving", |p| p.metadata.deletion_timestamp.is_some()).await;
    client.delete::<Pod>("default", "low", &DeleteOptions::default().with_grace(0)).await.unwrap();
    until(&client, "high", "bound", |p| node_of(p) == Some("n1")).await;
    scheduler.shutdown().await;
    let uid = client.get::<Pod>("default", "high").await.unwrap().metadata.uid.unwrap();
    event(&client, "Preempted", &format!("Preempted by pod {uid} on node n1")).await;
}

async fn event(client: &Client, reason: &str, text: &str) {
    let wait = async {
        let mut watch = client.watch::<Event>("default", &ListParams::default(), true).await.unwrap();
        while let Some(seen) = watch.next().await.unwrap() {
            if let kelson_client::WatchEvent::Added(e) = seen
                && e.reason.as_deref() == Some(reason)
                && e.message.as_deref() == Some(text)
            {
                return;
            }
        }
        panic!("the watch ended");
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("no event {reason}: {text}"));
}
