//! Flow: admits requests as flow control allows. Watches are counted until they have begun. Streams are not counted, because they
//! hold no thread and little memory.
use std::sync::Arc;

use http::Method;
use kelson_meta::Status;
use kelson_meta::url::Query;

use crate::request::answer::Answer;
use crate::request::body::{RETRY_AFTER_S, RequestBody, TOO_MANY};
use crate::request::route::RequestInfo;
use crate::shared::context::RequestContext;
use crate::shared::flow::{Decision, FlowRequest, Permit};
use crate::shared::pool::{Class, PoolShare};

/// Whether the request may last long: it is not counted in flight and has no time limit.
pub fn is_long_running(info: &RequestInfo, query: &Query) -> bool {
    info.verb == "watch"
        || matches!(info.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy")
        || (info.subresource == "log" && query.flag("follow"))
}

/// Waits until flow control admits the request.
///
/// # Errors
/// 429 if all seats are taken and the request cannot wait.
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
        *cx.classification.lock() = admittance.classification;
        admittance.decision
    };
    let permit = match decision {
        Decision::Run(permit) => Ok(permit),
        Decision::Wait(turn) => turn.await,
        Decision::Full(busy) => Err(busy),
    };
    permit.map_err(|busy| {
        cx.server.metrics.count_rejected(read);
        Status::too_many_requests(TOO_MANY, busy.retry_after_s)
    })
}

/// Reads a request body from the network before the request takes a seat. A slow sender then holds only a connection, and the bytes
/// of all bodies together are bounded.
///
/// # Errors
/// 400, 413, 429, and 504 if the body does not arrive in time.
pub async fn read_body(cx: &RequestContext, body: RequestBody, bytes: &mut PoolShare) -> Result<RequestBody, Status> {
    if matches!(body, RequestBody::Whole(_)) || body.is_empty() {
        return Ok(body);
    }
    let read = body.read_within(|n| bytes.take(n));
    match tokio::time::timeout(cx.server.config.request_timeout, read).await {
        Ok(read) => read.map(RequestBody::Whole),
        Err(_) => Err(Status::timeout("the request's body did not come within the allowed duration", 0)),
    }
}

/// Complete responses of this size or more count towards the limit of responses until they have been sent.
const COUNTED_BYTES_MIN: u64 = 16 * 1024;

/// Keeps the permit of a streamed response until its last piece was taken, and counts the bytes of a complete response, whose reader may
/// be slow. If the limit of responses is reached, reads are rejected. The response to a write is sent in any case, because the client
/// must learn what the write did.
///
/// # Errors
/// 429 for a read above the limit.
pub fn hold(cx: &RequestContext, class: Class, permit: Permit, answer: Answer) -> Result<Answer, Status> {
    if !answer.body().is_whole() {
        let lent = permit.lend(&cx.server.tasks, cx.server.config.request_timeout);
        return Ok(answer.map(|body| body.hold(lent)));
    }
    let bytes = answer.body().own_bytes();
    if bytes < COUNTED_BYTES_MIN {
        return Ok(answer);
    }
    let mut reservation = cx.server.answers.share(Arc::clone(&cx.user), class);
    let reads = matches!(cx.info.verb, "get" | "list");
    if !reservation.take(usize::try_from(bytes).unwrap_or(usize::MAX)) && reads {
        return Err(Status::too_many_requests(TOO_MANY, RETRY_AFTER_S));
    }
    Ok(answer.map(|body| body.hold(reservation)))
}
