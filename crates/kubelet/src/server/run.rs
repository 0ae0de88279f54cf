//! Endpoint `/run`: runs a command in a container and returns its output.
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Response, StatusCode};
use kelson_meta::url::Query;

use super::answer::{Body, not_found, text};
use super::endpoint::{Answer, Call};
use super::state::ServerState;
use super::target::running_container;

/// Timeout of a command.
const RUN_MAX: Duration = Duration::from_secs(120);

/// Serves `/run`: executes a command.
pub fn serve(state: Arc<ServerState>, call: Call) -> Answer {
    Box::pin(async move {
        let below: Vec<&str> = call.below.iter().map(String::as_str).collect();
        match below.as_slice() {
            _ if call.request.method() != Method::POST => not_found(),
            [namespace, pod, container] => run(&state, namespace, (pod, None), container, &call.query).await,
            [namespace, pod, uid, container] => run(&state, namespace, (pod, Some(uid)), container, &call.query).await,
            _ => not_found(),
        }
    })
}

async fn run(
    state: &ServerState,
    namespace: &str,
    pod: (&str, Option<&str>),
    container: &str,
    query: &Query,
) -> Response<Body> {
    let id = match running_container(state, namespace, pod, container).await {
        Ok(id) => id,
        Err(refusal) => return refusal,
    };
    let command: Vec<String> = query.text("cmd").split(' ').filter(|w| !w.is_empty()).map(str::to_owned).collect();
    match state.runtime.exec_sync(&id, command, RUN_MAX).await {
        Ok(out) => {
            let code = if out.exit_code == 0 { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
            let mut body = out.stdout;
            body.extend(out.stderr);
            text(code, body)
        }
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}
