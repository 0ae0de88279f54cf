//! Endpoint `/containerLogs`: logs of containers.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use k8s_openapi::api::core::v1::Pod;
use kelson_cri::proto as cri;
use kelson_meta::url::Query;
use kelson_tasks::{FILES, OnPanic};

use super::answer::{Body, not_found, text};
use super::endpoint::{Answer, Call};
use super::state::ServerState;
use crate::logs::read::{self, Options};
use crate::pod;
use crate::runtime::labels;

/// Number of blocks that wait for the client; when it does not read, the file is not read further.
pub(super) const BLOCKS_MAX: usize = 4;

/// Parses the query.
///
/// # Errors
/// The invalid parameter.
fn options(query: &Query, now: jiff::Timestamp) -> Result<Options, String> {
    let number = |name: &str| -> Result<Option<u64>, String> {
        let Some(v) = query.get(name).filter(|v| !v.is_empty()) else { return Ok(None) };
        v.parse().map(Some).map_err(|_| format!("invalid {name}: {v:?}"))
    };
    // A value before the beginning of time means the whole log.
    let mut since = number("sinceSeconds")?.and_then(|s| now.checked_sub(Duration::from_secs(s)).ok());
    if let Some(t) = query.get("sinceTime").filter(|v| !v.is_empty()) {
        since = Some(t.parse().map_err(|_| format!("invalid sinceTime: {t:?}"))?);
    }
    let stream = match query.text("stream") {
        "" | "All" => None,
        "Stdout" => Some("stdout".to_owned()),
        "Stderr" => Some("stderr".to_owned()),
        other => return Err(format!("invalid stream: {other:?}")),
    };
    Ok(Options {
        follow: query.is_on("follow"),
        tail_lines: number("tailLines")?,
        since,
        timestamps: query.is_on("timestamps"),
        limit_bytes: number("limitBytes")?,
        stream,
    })
}

/// Serves the log of one container.
pub fn serve(state: Arc<ServerState>, call: Call) -> Answer {
    Box::pin(async move {
        let [namespace, pod, container] = call.below.as_slice() else { return not_found() };
        answer(&state, namespace, pod, container, &call.query).await
    })
}

async fn answer(state: &ServerState, namespace: &str, name: &str, container: &str, query: &Query) -> Response<Body> {
    let Some(pod) = state.known.find(namespace, name) else {
        return text(StatusCode::NOT_FOUND, format!("pod {name:?} not found\n"));
    };
    let options = match options(query, state.clock.now()) {
        Ok(o) => o,
        Err(e) => return text(StatusCode::UNPROCESSABLE_ENTITY, e),
    };
    if pod::member(&pod, container).is_none() {
        return text(StatusCode::NOT_FOUND, format!("container {container:?} not found in pod {name:?}\n"));
    }
    let previous = query.is_on("previous");
    let (id, path) = match log_of(state, &pod, container, previous).await {
        Ok(found) => found,
        Err(why) => return text(StatusCode::BAD_REQUEST, why),
    };
    let at = path.clone();
    let is_file = move || std::fs::symlink_metadata(at).is_ok_and(|found| found.is_file());
    if !FILES.run(is_file).await.unwrap_or(false) {
        return text(StatusCode::INTERNAL_SERVER_ERROR, format!("failed to open log file {:?}", path.display()));
    }
    let (sink, blocks) = tokio::sync::mpsc::channel::<Bytes>(BLOCKS_MAX);
    let runtime = Arc::clone(&state.runtime);
    state.tasks.spawn("log-stream", OnPanic::Contain, async move {
        let alive = || async {
            let status = runtime.container_status(&id, false).await;
            status.is_ok_and(|s| s.status.is_some_and(|s| s.state == cri::ContainerState::ContainerRunning as i32))
        };
        if let Err(e) = read::read(path, options, sink, alive).await {
            tracing::debug!(error = %e, "reading a container log failed");
        }
    });
    let stream =
        tokio_stream::wrappers::ReceiverStream::new(blocks).map(|b| Ok::<_, std::convert::Infallible>(Frame::data(b)));
    let mut response = Response::new(StreamBody::new(stream).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
    response
}

/// Finds the instance and its log file.
async fn log_of(state: &ServerState, pod: &Pod, container: &str, previous: bool) -> Result<(String, PathBuf), String> {
    let selector = [
        (labels::POD_UID.to_owned(), pod::uid(pod).to_owned()),
        (labels::CONTAINER_NAME.to_owned(), container.to_owned()),
    ];
    let filter = cri::ContainerFilter { label_selector: selector.into_iter().collect(), ..Default::default() };
    let mut list = state.runtime.list_containers(Some(filter)).await.map_err(|e| e.to_string())?;
    list.sort_by_key(|c| std::cmp::Reverse(c.created_at));
    let name = pod::name(pod);
    let created = cri::ContainerState::ContainerCreated as i32;
    let mut started = list.iter().filter(|c| c.state != created);
    let exited = cri::ContainerState::ContainerExited as i32;
    let waits = waiting_reason(pod, container);
    let chosen = if previous {
        // The newest instance is the previous one while its successor waits for its back-off.
        let skip = usize::from(waits.is_none());
        let found = started.filter(|c| c.state == exited || skip == 1).nth(skip);
        found.ok_or_else(|| format!("previous terminated container {container:?} in pod {name:?} not found"))?
    } else {
        started.next().ok_or_else(|| match waits.as_deref() {
            Some("ErrImagePull") => {
                format!("container {container:?} in pod {name:?} is waiting to start: image can't be pulled")
            }
            Some("ImagePullBackOff") => {
                format!("container {container:?} in pod {name:?} is waiting to start: trying and failing to pull image")
            }
            Some(reason) => format!("container {container:?} in pod {name:?} is waiting to start: {reason}"),
            None => format!("container {container:?} in pod {name:?} is waiting to start - no logs yet"),
        })?
    };
    let status = state.runtime.container_status(&chosen.id, false).await.map_err(|e| e.to_string())?;
    Ok((chosen.id.clone(), PathBuf::from(status.status.unwrap_or_default().log_path)))
}

fn waiting_reason(pod: &Pod, container: &str) -> Option<String> {
    let s = pod.status.as_ref()?;
    let lists = [&s.container_statuses, &s.init_container_statuses, &s.ephemeral_container_statuses];
    let status = lists.into_iter().flat_map(|l| l.iter().flatten()).find(|c| c.name == container)?;
    status.state.as_ref()?.waiting.as_ref()?.reason.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let now = jiff::Timestamp::from_second(100).expect("time");
        let get = |q: &str| options(&Query::parse(Some(q)), now);
        let o =
            get("follow=true&tailLines=5&sinceSeconds=40&timestamps=true&limitBytes=9&stream=Stderr").expect("options");
        assert!(o.follow && o.timestamps && o.tail_lines == Some(5) && o.limit_bytes == Some(9));
        assert_eq!((o.since.map(|t| t.as_second()), o.stream.as_deref()), (Some(60), Some("stderr")));
        let all = get("sinceSeconds=18446744073709551615").expect("a number");
        assert_eq!(all.since, None, "a time before all times");
        assert!(get("tailLines=x").is_err() && get("sinceTime=yesterday").is_err() && get("stream=x").is_err());
    }
}
