//! Heavy requests compute for long. They run on their own threads, few at a time, in turns by user and with threads reserved for
//! nodes and the control plane. The size alone does not show the cost of a request: decoding, patching and validating megabytes
//! takes a core for hundreds of milliseconds, and so do the patterns of a small object. On a runtime thread, such work would delay
//! lease renewals and timeouts.
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
use crate::shared::pool::Class;

/// Bodies of this size or more are heavy for kinds with validation rules, each of which may compare all pairs of a list's items.
const RULED_BYTES_MIN: usize = 4 * 1024;

/// Whether a request computes for long.
fn is_heavy(cx: &RequestContext, body: &RequestBody) -> bool {
    let bytes = if let RequestBody::Whole(bytes) = body { bytes.len() } else { 0 };
    if bytes >= HEAVY_BYTES_MIN {
        return true;
    }
    match &cx.route {
        // OpenAPI documents of all kinds of one version, or of all versions, with the schemas of all definitions.
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

/// Whether the stored object that the request names is large.
fn is_large(cx: &RequestContext, served: &Served) -> bool {
    let name = &cx.info.name;
    let stored = || cx.server.store.get(served.store, cx.namespace(served), name);
    !name.is_empty() && served.options().stored && stored().is_some_and(|record| record.len() >= HEAVY_BYTES_MIN)
}

/// Whether the response to a read is the stored bytes unchanged, or not an object.
fn is_copied(cx: &RequestContext) -> bool {
    let as_stored =
        |a: crate::request::negotiate::Accepted| a.view == View::Whole && a.encoding == Encoding::Json && !a.pretty;
    cx.accepted.is_ok_and(as_stored) || cx.info.subresource == "log"
}

/// Runs an authorized request whose body has been read, when flow control admits it. A heavy request waits for a thread first, so
/// that it does not hold a seat meanwhile.
///
/// # Errors
/// 429, the handler's errors, and 500 if the handler panics.
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
    let answer = WithPatternBudget { budget: PatternBudget::default(), work: dispatch::dispatch(cx, body) }.await?;
    flow::hold(cx, class, permit, answer)
}

/// Work whose regular expressions are charged to the request's budget.
struct WithPatternBudget<F> {
    budget: PatternBudget,
    work: F,
}

impl<F: Future + Unpin> Future for WithPatternBudget<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { budget, work } = &mut *self;
        budget.within(|| Pin::new(work).poll(cx))
    }
}
