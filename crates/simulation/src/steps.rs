//! The same scenario again and again, with a failure at each of its requests in turn: what a controller must survive at
//! every step, found without luck.
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use kelson_apiserver::Config;

use crate::{Api, Failure};

/// The ways in which each request fails: its writer does not know more afterwards than before, knows less than is true, or
/// is told that it knew something old.
pub const DISTURBANCES: [Failure; 3] = [Failure::Refused, Failure::LostAnswer, Failure::CONFLICT];

/// Runs `scenario` on an API server of its own, undisturbed; then again for every write that its components sent and each
/// of `failures`, which happens at that write. The scenario checks by itself that all came out well. A failure that fails
/// the scenario is named in the panic.
pub async fn at_every_request(failures: &[Failure], scenario: impl AsyncFn(Api)) {
    at_every_request_with(&|_| {}, failures, scenario).await;
}

/// The same on API servers with some settings changed.
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
