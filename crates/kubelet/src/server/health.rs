//! Endpoint `/healthz`: a response shows that the process works.
use std::sync::Arc;

use http::StatusCode;

use super::answer::{not_found, text};
use super::endpoint::{Answer, Call};
use super::state::ServerState;

/// Responds with `ok`.
pub fn serve(_: Arc<ServerState>, call: Call) -> Answer {
    Box::pin(async move {
        match call.below.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [] | ["ping" | "log" | "syncloop"] => text(StatusCode::OK, "ok"),
            _ => not_found(),
        }
    })
}
