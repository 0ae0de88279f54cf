//! Endpoint `/logs`: files below the node's log directory, and logs of its services if `enableSystemLogQuery` is set. Authorized by the
//! subresource `log` of nodes.
use std::sync::Arc;

use http::{Method, Response, StatusCode};
use kelson_meta::url::Query;

use super::answer::{Body, not_found, text};
use super::endpoint::{Answer, Call};
use super::node_files::answer;
use super::node_journal;
use super::node_query::NodeLogQuery;
use super::state::ServerState;

/// Directory of the served files.
const ROOT: &str = "/var/log";

/// Serves a file, a directory listing, or the result of a query.
pub fn serve(state: Arc<ServerState>, call: Call) -> Answer {
    Box::pin(async move {
        let server = &state.config.server;
        if !server.system_logs {
            return text(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.\n");
        }
        if call.request.method() != Method::GET {
            return not_found();
        }
        let path = call.below.join("/");
        if server.system_log_query { queried(path, &call.query).await } else { answer(ROOT, path).await }
    })
}

async fn queried(path: String, query: &Query) -> Response<Body> {
    let query = match NodeLogQuery::parse(query) {
        Ok(query) => query,
        Err(faults) => return text(StatusCode::BAD_REQUEST, format!("{faults}\n")),
    };
    if let Err(faults) = query.validate() {
        return text(StatusCode::NOT_ACCEPTABLE, format!("{faults}\n"));
    }
    if !query.services.is_empty() || path == "journal" {
        return node_journal::answer(ROOT, query).await;
    }
    match query.files.first() {
        // Clients on Windows use backslashes.
        Some(file) => answer(ROOT, file.replace('\\', "/")).await,
        None => answer(ROOT, path).await,
    }
}
