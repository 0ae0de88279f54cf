//! Debug pages of priority and fairness (`/debug/api_priority_and_fairness/*`).
use http::StatusCode;

use crate::request::answer::{Answer, answer};
use crate::request::body::ApiBody;
use crate::shared::context::RequestContext;

const PREFIX: &str = "/debug/api_priority_and_fairness/";

/// The requested dump; `None` for another path, or if priority and fairness is off.
pub fn serve(cx: &RequestContext) -> Option<Answer> {
    let control = cx.server.fairness.as_ref()?;
    let text = match cx.uri.path().strip_prefix(PREFIX)? {
        "dump_priority_levels" => control.dump_priority_levels(),
        "dump_queues" => control.dump_queues(),
        "dump_requests" => control.dump_requests(!cx.query.text("includeRequestDetails").is_empty()),
        _ => return None,
    };
    Some(answer(StatusCode::OK, "text/plain; charset=utf-8", ApiBody::full(text)))
}
