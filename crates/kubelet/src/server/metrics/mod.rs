//! Statistics: `/stats/summary` (`summary`) and metrics in text format (`text`), from the same reading of the runtime (`usage`) and the
//! kernel (`machine`).
mod above;
mod columns;
mod machine;
mod network;
pub mod rates;
mod summary;
mod text;
mod usage;

use std::sync::Arc;

use super::answer::not_found;
use super::endpoint::{Answer, Call};
use super::state::ServerState;

/// Serves `/metrics` and the paths below it.
pub fn serve(state: Arc<ServerState>, call: Call) -> Answer {
    Box::pin(async move {
        let below: Vec<&str> = call.below.iter().map(String::as_str).collect();
        match below.as_slice() {
            [] => text::own(&state).await,
            ["resource"] => text::resource(&state).await,
            ["cadvisor"] => text::cadvisor(&state).await,
            ["probes"] => text::answer(state.metrics.probes_text()),
            _ => not_found(),
        }
    })
}

/// Serves `/stats/summary`: usage of pods and the node.
pub fn serve_stats(state: Arc<ServerState>, call: Call) -> Answer {
    Box::pin(async move {
        match call.below.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [] | ["summary"] => summary::answer(&state, call.query.is_on("only_cpu_and_memory")).await,
            _ => not_found(),
        }
    })
}
