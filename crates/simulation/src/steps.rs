//! Repeats a scenario with a failure at each of its requests in turn, which shows systematically that a controller
//! survives a failure at every step.
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use kelson_apiserver::Config;

use crate::{Api, Failure};

/// The kinds of failure for each request: its sender knows no more than before, knows less than is true, or gets an
/// error that its knowledge is outdated.
pub const DISTURBANCES: [Failure; 3] = [Failure::Refused, Failure::LostAnswer, Failure::CONFLICT];

/// Runs `scenario` on a new API server without failures; then again for every write that its components sent and each
/// of `failures`, which happens at that write. The scenario itself checks the result. The panic of a failed scenario
/// names the failure.
pub async fn at_every_request(failures: &[Failure], scenario: impl AsyncFn(Api)) {
    at_every_request_with(&|_| {}, failures, scenario).await;
}

/// As [`at_every_request`], on API servers with changed settings.
pub async fn at_every_request_with(change: &dyn Fn(&mut Config), failures: &[Failure], scenario: impl AsyncFn(Api)) {
    let api = Api::with(change).await;
    scenario(api.clone()).await;
    let writes = api.writes();
    assert!(!writes.is_empty(), "nothing was written that could fail");
    for (n, write) in writes.iter().enumerate() {
        for failure in failures {
            let api = Api::with(change).await;
            api.faults.fail_write(n + 1, *failure);
            if AssertUnwindSafe(scenario(api.clone())).catch_unwind().await.is_err() {
                panic!("with {failure:?} at write {}, in the first run {write}", n + 1);
            }
        }
    }
}
