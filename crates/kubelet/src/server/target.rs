//! Finds the container that a request names.
use http::{Response, StatusCode};
use kelson_cri::proto as cri;

use super::answer::{Body, refused_by_runtime, text};
use super::state::ServerState;
use crate::pod;
use crate::runtime::labels;

/// Returns the ID of the running instance of a container. A request may also name the pod's UID.
///
/// # Errors
/// The error response.
pub async fn running_container(
    state: &ServerState,
    namespace: &str,
    (pod, uid): (&str, Option<&str>),
    container: &str,
) -> Result<String, Response<Body>> {
    let found = state.find_pod(namespace, pod, uid);
    let found = found.ok_or_else(|| text(StatusCode::NOT_FOUND, "pod does not exist"))?;
    let selector = [
        (labels::POD_UID.to_owned(), pod::uid(&found).to_owned()),
        (labels::CONTAINER_NAME.to_owned(), container.to_owned()),
    ];
    let filter = cri::ContainerFilter {
        label_selector: selector.into_iter().collect(),
        state: Some(cri::ContainerStateValue { state: cri::ContainerState::ContainerRunning as i32 }),
        ..Default::default()
    };
    let list = state.runtime.list_containers(Some(filter)).await;
    let list = list.map_err(|e| refused_by_runtime(&e))?;
    let newest = list.into_iter().max_by_key(|c| c.created_at);
    newest
        .map(|c| c.id)
        .ok_or_else(|| text(StatusCode::INTERNAL_SERVER_ERROR, format!("container not found ({container:?})")))
}
