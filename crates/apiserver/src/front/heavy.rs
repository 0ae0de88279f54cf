//! Heavy: requests that compute for long are served on threads of their own, few at a time, with users in turns and places kept for
//! nodes and the control plane. What a request costs is not to be seen from its size alone: decoding, patching and validating
//! megabytes takes a core for hundreds of milliseconds, and so do the patterns of a small object. A thread of the runtime would renew
//! nobody's lease meanwhile, and notice no time limit.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use kelson_cel::re2::PatternBudget;
use kelson_codec::Encoding;
use kelson_meta::Status;
use kelson_tasks::FairError;
use kelson_traces::child;

use crate::catalog::Served;
use crate::front::{dispatch, flow};
use crate::request::answer::Answer;
use crate::request::body::{RETRY_AFTER_S, RequestBody, TOO_MANY};
use crate::request::negotiate::View;
use crate::request::routes::Route;
use crate::shared::HEAVY_BYTES_MIN;
use crate::shared::context::RequestContext;
use crate::shared::room::Class;

/// Bytes from which on a body is large for rules: each may look at all pairs of what a list holds.
const RULED_BYTES_MIN: usize = 4 * 1024;

/// Whether a request computes for long.
fn is_heavy(cx: &RequestContext, body: &RequestBody) -> bool {
    let bytes = if let RequestBody::Whole(bytes) = body { bytes.len() } else { 0 };
    if bytes >= HEAVY_BYTES_MIN {
        return true;
    }
    match &cx.route {
        // Documents of all kinds of a version, or of all, with the schemas of all definitions.
        None => cx.uri.path() == "/openapi/v2" || cx.uri.path().starts_with("/openapi/v3/"),
        Some(Route::Remote(_)) => false,
        Some(Route::Stored(served)) => match cx.info.verb {
            "create" | "update" | "patch" => {
                served.options().expressions
                    || bytes >= RULED_BYTES_MIN && served.strategy.has_rules()
                    || is_large(cx, served)
            }
            "delete" => is_large(cx, served),
            "get" => !is_copied(cx) && is_large(cx, served),
            _ => false,
        },
    }
}

/// Whether the stored object that a request is about is large.
fn is_large(cx: &RequestContext, served: &Served) -> bool {
    let name = &cx.info.name;
    let stored = || cx.server.store.get(served.store, cx.namespace(served), name);
    !name.is_empty() && served.options().stored && stored().is_some_and(|record| record.len() >= HEAVY_BYTES_MIN)
}

/// Whether the answer to a read is the stored bytes as they are, or no object.
fn is_copied(cx: &RequestContext) -> bool {
    let as_stored =
        |a: crate::request::negotiate::Accepted| a.view == View::Whole && a.encoding == Encoding::Json && !a.pretty;
    cx.accepted.is_ok_and(as_stored) || cx.info.subresource == "log"
}

/// Lets an authorized request run whose body has been read, when flow control has room for it. A heavy one waits for its turn before
/// that: it holds no seat of those that need none of its threads.
///
/// # Errors
/// 429, whatever the handler refuses, and 500 when it panics.
pub async fn serve(cx: &Arc<RequestContext>, class: Class, body: RequestBody) -> Result<Answer, Status> {
    if !is_heavy(cx, &body) {
        return run(cx, class, body).await;
    }
    let of_work = Arc::clone(cx);
    let work = cx.trace.clone().scope(async move { run(&of_work, class, body).await });
    match cx.server.heavy.drive(class.turns(&cx.user), work).await {
        Ok(answer) => answer,
        Err(FairError::Full(_)) => Err(Status::too_many_requests(TOO_MANY, RETRY_AFTER_S)),
        Err(FairError::Lane(error)) => Err(Status::internal(error)),
    }
}

async fn run(cx: &RequestContext, class: Class, body: RequestBody) -> Result<Answer, Status> {
    let permit = child("priorityandfairness", Vec::new).scope(flow::enter(cx, class)).await?;
    let answer = Charged { budget: PatternBudget::default(), work: dispatch::dispatch(cx, body) }.await?;
    flow::hold(cx, class, permit, answer)
}

/// Work whose patterns are charged to the request.
struct Charged<F> {
    budget: PatternBudget,
    work: F,
}

impl<F: Future + Unpin> Future for Charged<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { budget, work } = &mut *self;
        budget.within(|| Pin::new(work).poll(cx))
    }
}
