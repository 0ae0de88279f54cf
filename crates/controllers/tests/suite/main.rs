//! Tests of controllers against the API server in this process, on a paused clock.
// Helpers of a test fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod history;
mod real_api;
mod waits;
