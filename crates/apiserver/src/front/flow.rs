//! Flow: lets requests run as there is room. Watches and streams are not counted: they hold no thread and little memory.
use http::Method;
use kelson_meta::Status;
use kelson_meta::url::Query;

use crate::request::body::{RETRY_AFTER_S, RequestBody, TOO_MANY};
use crate::request::route::RequestInfo;
use crate::shared::context::RequestContext;
use crate::shared::flow::{Admittance, FlowRequest, Permit};
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
    let request = FlowRequest { read, user: &cx.user, class, info: &cx.info };
    let permit = match cx.server.flow.admit(&request) {
        Admittance::Run(permit) => Some(permit),
        Admittance::Wait(turn) => turn.await,
        Admittance::Full => None,
    };
    permit.ok_or_else(|| {
        cx.server.metrics.turned_away(read);
        Status::too_many_requests(TOO_MANY, RETRY_AFTER_S)
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
