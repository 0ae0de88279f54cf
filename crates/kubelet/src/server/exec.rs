//! Endpoints `/exec` and `/attach`: runs a process in a container, or attaches to the container's own process.
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use kelson_cri::proto as cri;
use kelson_meta::url::Query;
use kelson_streams::{ExecOptions, negotiate};

use super::answer::{Body, not_found, refused_by_runtime, text};
use super::endpoint::{Answer, Call};
use super::state::ServerState;
use super::target::running_container;
use super::{command, translate};

/// Serves `/exec`: runs a command in a container.
pub fn serve(state: Arc<ServerState>, call: Call) -> Answer {
    Box::pin(async move {
        let opened = match open(&state, &call).await {
            Ok(opened) => opened,
            Err(refusal) => return refusal,
        };
        state.count_websocket("exec", negotiate::wants_stream_close(call.request.headers()));
        exec(&state, opened, &call.query, call.request).await
    })
}

/// Serves `/attach`: connects to the streams of a container's process.
pub fn serve_attach(state: Arc<ServerState>, call: Call) -> Answer {
    Box::pin(async move {
        let ExecSession { container_id, wanted } = match open(&state, &call).await {
            Ok(opened) => opened,
            Err(refusal) => return refusal,
        };
        state.count_websocket("attach", negotiate::wants_stream_close(call.request.headers()));
        let ExecOptions { stdin, stdout, stderr, tty } = wanted;
        let url = state.runtime.attach(cri::AttachRequest { container_id, stdin, tty, stdout, stderr }).await;
        carry(&state, url, wanted, call.request).await
    })
}

/// The container and the requested streams.
struct ExecSession {
    container_id: String,
    wanted: ExecOptions,
}

async fn open(state: &ServerState, call: &Call) -> Result<ExecSession, Response<Body>> {
    let below: Vec<&str> = call.below.iter().map(String::as_str).collect();
    let (namespace, pod, container) = match below.as_slice() {
        [namespace, pod, container] => (namespace, (*pod, None), container),
        [namespace, pod, uid, container] => (namespace, (*pod, Some(*uid)), container),
        _ => return Err(not_found()),
    };
    let on = |a: &str, b: &str| call.query.is_on(a) || call.query.is_on(b);
    let tty = call.query.is_on("tty");
    let wanted = ExecOptions {
        stdin: on("input", "stdin"),
        stdout: on("output", "stdout"),
        stderr: on("error", "stderr") && !tty,
        tty,
    };
    if !wanted.stdin && !wanted.stdout && !wanted.stderr {
        return Err(text(StatusCode::BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr"));
    }
    Ok(ExecSession { container_id: running_container(state, namespace, pod, container).await?, wanted })
}

async fn exec(
    state: &Arc<ServerState>,
    opened: ExecSession,
    query: &Query,
    request: Request<Incoming>,
) -> Response<Body> {
    let ExecSession { container_id, wanted } = opened;
    let cmd: Vec<String> = query.all("command").map(str::to_owned).collect();
    let ExecOptions { stdin, stdout, stderr, tty } = wanted;
    if let Some(command) = command::prepare(state, &container_id, &cmd, wanted).await {
        return command.serve(request);
    }
    let url = state.runtime.exec(cri::ExecRequest { container_id, cmd, tty, stdin, stdout, stderr }).await;
    carry(state, url, wanted, request).await
}

async fn carry(
    state: &ServerState,
    url: kelson_cri::CriResult<String>,
    wanted: ExecOptions,
    request: Request<Incoming>,
) -> Response<Body> {
    match url {
        Ok(url) => translate::exec(state, &url, wanted, request).await,
        Err(e) => refused_by_runtime(&e),
    }
}
