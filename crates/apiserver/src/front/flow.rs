//! Flow: lets requests run as there is room. Watches are counted until they have begun, streams not at all: they hold no thread
//! and little memory.
use std::sync::Arc;

use http::Method;
use kelson_meta::Status;
use kelson_meta::url::Query;

use crate::request::answer::Answer;
use crate::request::body::{RETRY_AFTER_S, RequestBody, TOO_MANY};
use crate::request::route::RequestInfo;
use crate::shared::context::RequestContext;
use crate::shared::flow::{Decision, FlowRequest, Permit};
use crate::shared::room::{Class, Place};

/// Whether the request may last: it is not counted in flight and has no time limit.
pub fn is_long_running(info: &RequestInfo, query: &Query) -> bool {
    info.verb == "watch"
        || matches!(info.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy")
        || (info.subresource == "log" && query.flag("follow"))
}

/// Waits for the request's turn, where flow control lets it wait.
///
/// # Errors
/// 429 where the requests of others have all places.
pub async fn enter(cx: &RequestContext, class: Class) -> Result<Permit, Status> {
    let read = matches!(cx.method, Method::GET | Method::HEAD | Method::OPTIONS);
    let decision = {
        let request = FlowRequest {
            read,
            user: &cx.user,
            class,
            info: &cx.info,
            path: cx.uri.path(),
            query: &cx.query,
            route: cx.route.as_ref(),
        };
        let admittance = cx.server.flow.admit(&request);
        *cx.sorted.lock() = admittance.sorted;
        admittance.decision
    };
    let permit = match decision {
        Decision::Run(permit) => Ok(permit),
        Decision::Wait(turn) => turn.await,
        Decision::Full(busy) => Err(busy),
    };
    permit.map_err(|busy| {
        cx.server.metrics.turned_away(read);
        Status::too_many_requests(TOO_MANY, busy.retry_after_s)
    })
}

/// Reads a body that comes over the network before the request takes its turn: whoever sends it slowly holds nothing but a
/// connection, and the bytes of all bodies together are bounded.
///
/// # Errors
/// 400, 413, 429, and 504 for a body that does not come.
pub async fn read_body(cx: &RequestContext, body: RequestBody, bytes: &mut Place) -> Result<RequestBody, Status> {
    if matches!(body, RequestBody::Whole(_)) || body.is_empty() {
        return Ok(body);
    }
    let read = body.read_within(|n| bytes.take(n));
    match tokio::time::timeout(cx.server.config.request_timeout, read).await {
        Ok(read) => read.map(RequestBody::Whole),
        Err(_) => Err(Status::timeout("the request's body did not come within the allowed duration", 0)),
    }
}

/// Bytes from which on an answer that is there whole is counted until it was sent.
const COUNTED_BYTES_MIN: u64 = 16 * 1024;

/// Keeps the permit of a request whose answer is made in pieces until the last of them was taken, and counts the bytes of one that
/// is there whole: its reader may take them slowly, or never. Of those without room, reads are refused; what a write has done is told.
///
/// # Errors
/// 429.
pub fn hold(cx: &RequestContext, class: Class, permit: Permit, answer: Answer) -> Result<Answer, Status> {
    if !answer.body().is_whole() {
        let lent = permit.lend(&cx.server.tasks, cx.server.config.request_timeout);
        return Ok(answer.map(|body| body.holding(lent)));
    }
    let bytes = answer.body().own_bytes();
    if bytes < COUNTED_BYTES_MIN {
        return Ok(answer);
    }
    let mut place = cx.server.answers.enter(Arc::clone(&cx.user), class);
    let reads = matches!(cx.info.verb, "get" | "list");
    if !place.take(usize::try_from(bytes).unwrap_or(usize::MAX)) && reads {
        return Err(Status::too_many_requests(TOO_MANY, RETRY_AFTER_S));
    }
    Ok(answer.map(|body| body.holding(place)))
}
