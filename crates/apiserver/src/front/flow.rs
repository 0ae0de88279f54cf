//! Flow: lets requests run as there is room. Watches are counted until they have begun, streams not at all: they hold no thread
//! and little memory.
use http::Method;
use kelson_codec::Encoding;
use kelson_meta::Status;
use kelson_meta::url::Query;

use crate::request::answer::Answer;
use crate::request::body::{RequestBody, TOO_MANY};
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
/// 429.
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
            streamed: cx.accepted.is_some_and(|a| a.encoding == Encoding::Json),
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

/// Keeps the permit of a request whose answer is made in pieces until the last of them was taken.
pub fn hold(cx: &RequestContext, permit: Permit, answer: Answer) -> Answer {
    if answer.body().is_whole() {
        return answer;
    }
    let lent = permit.lend(&cx.server.tasks, cx.server.config.request_timeout);
    answer.map(|body| body.holding(lent))
}
