//! Endpoints `/pods` (the kubelet's pods) and `/runningpods` (pods in the runtime).
use std::sync::Arc;

use http::{Response, StatusCode};
use kelson_cri::proto as cri;
use serde_json::json;

use super::answer::{Body, json as json_body, text};
use super::endpoint::{Answer, Call};
use super::state::ServerState;
use crate::runtime::labels;

/// Serves `/pods`: the pods that the kubelet should run.
pub fn serve(state: Arc<ServerState>, _: Call) -> Answer {
    Box::pin(async move { pods(&state) })
}

/// Serves `/runningpods`: the pods that run in the runtime.
pub fn serve_running(state: Arc<ServerState>, _: Call) -> Answer {
    Box::pin(async move { running(&state).await })
}

fn pods(state: &ServerState) -> Response<Body> {
    let items: Vec<_> = state.known.list();
    let items: Vec<&k8s_openapi::api::core::v1::Pod> = items.iter().map(|p| &**p).collect();
    json_body(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

async fn running(state: &ServerState) -> Response<Body> {
    let filter = cri::ContainerFilter {
        state: Some(cri::ContainerStateValue { state: cri::ContainerState::ContainerRunning as i32 }),
        ..Default::default()
    };
    let containers = match state.runtime.list_containers(Some(filter)).await {
        Ok(c) => c,
        Err(e) => return text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    };
    let mut items: std::collections::BTreeMap<String, serde_json::Value> = std::collections::BTreeMap::new();
    for c in containers {
        let get = |k: &str| c.labels.get(k).cloned().unwrap_or_default();
        let image = c.image.as_ref().map(|i| i.image.clone()).unwrap_or_default();
        let pod = items.entry(get(labels::POD_UID)).or_insert_with(|| {
            json!({"metadata": {"name": get(labels::POD_NAME), "namespace": get(labels::POD_NAMESPACE),
                "uid": get(labels::POD_UID)}, "spec": {"containers": []}, "status": {}})
        });
        if let Some(list) = pod["spec"]["containers"].as_array_mut() {
            list.push(json!({"name": get(labels::CONTAINER_NAME), "image": image, "resources": {}}));
        }
    }
    let items: Vec<_> = items.into_values().collect();
    json_body(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}
