//! Static pods and their mirror pods, with an API server that has another pod of a mirror's name.
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kelson_client::{Request, Response, full_body};
use kelson_kubelet::config::thresholds::Pressure;
use kelson_kubelet::pods::inbox::{ManagerInbox, ManifestSource};
use kelson_kubelet::pods::known::PodRegistry;
use kelson_kubelet::pods::manager::PodManager;
use kelson_tasks::scoped;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::common::world;

/// The other pod of the mirror's name, and the number of attempts to create the mirror.
#[derive(Default)]
struct Names {
    stranger: Option<Value>,
    asked: usize,
}

fn answer(names: &Mutex<Names>, request: &Request) -> Option<Response> {
    let path = request.uri().path();
    let mut names = names.lock();
    if request.method() == http::Method::POST && path.ends_with("/namespaces/n/pods") {
        names.asked += 1;
        if names.stranger.is_some() {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "AlreadyExists",
                "message": "pods \"p-n1\" already exists", "code": 409});
            let mut answer = Response::new(full_body(status.to_string()));
            *answer.status_mut() = http::StatusCode::CONFLICT;
            return Some(answer);
        }
        return Some(Response::new(full_body(String::from_utf8_lossy(request.body()).into_owned())));
    }
    let stranger = names.stranger.as_ref().filter(|_| path.ends_with("/namespaces/n/pods/p-n1"))?;
    (request.method() == http::Method::GET).then(|| Response::new(full_body(stranger.to_string())))
}

#[tokio::test(start_paused = true)]
async fn a_mirror_is_created_after_the_other_pod_of_its_name_is_gone() {
    let world = world();
    let other = json!({"metadata": {"name": "p-n1", "namespace": "n", "uid": "other"}, "spec": {"containers": []}});
    let names = Arc::new(Mutex::new(Names { stranger: Some(other), asked: 0 }));
    let seen = Arc::clone(&names);
    *world.api.first.lock() = Some(Box::new(move |request| answer(&seen, request)));
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1", "uid": "n1"}})).expect("node");
    let (node, node_now) = watch::channel(Some(Arc::new(node)));
    let (pressure, pressure_now) = watch::channel(Pressure::default());
    let (shutdown, shutdown_now) = watch::channel(false);
    let inbox = ManagerInbox::default();
    let manager = PodManager::new(
        Arc::clone(&world.parts),
        node_now,
        (pressure_now, shutdown_now),
        inbox.clone(),
        PodRegistry::default(),
    );
    let _manager = scoped("manager", manager.run());
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p-n1", "namespace": "n", "uid": "static",
        "annotations": {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "static"}},
        "spec": {"containers": [{"name": "a", "image": "x:1"}]}}))
    .expect("pod");
    inbox.found(Vec::new());
    inbox.synced();
    inbox.statics(ManifestSource::Files, vec![Arc::new(pod)]);
    tokio::time::sleep(Duration::from_secs(300)).await;
    let asked = names.lock().asked;
    assert!(asked > 1, "it is tried again: {asked}");
    names.lock().stranger = None;
    tokio::time::sleep(Duration::from_secs(300)).await;
    let after = names.lock().asked;
    assert_eq!(after, asked + 1, "and made when the name is free");
    drop((node, pressure, shutdown));
}
