//! Heavy: requests with large bodies, for the largest document, and for lists that are made in one piece are served on threads of
//! their own, few at a time. Decoding, patching and validating a body of megabytes takes a core for hundreds of milliseconds, in
//! which a thread of the runtime renews nobody's lease and notices no time limit.
use std::sync::Arc;

use kelson_codec::Encoding;
use kelson_meta::Status;
use kelson_tasks::Lane;

use crate::front::dispatch;
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::shared::context::RequestContext;

/// Bytes from which on a body is large.
const HEAVY_BODY_BYTES_MIN: usize = 64 * 1024;
/// As many as a small machine has cores; the others wait for their turn within their own time limit.
static HEAVY: Lane = Lane::new("heavy requests", 2);

/// Whether the answer is a list that is built as one tree (YAML): it takes as long as a large body.
fn is_made_whole(cx: &RequestContext) -> bool {
    let form = cx.accepted.filter(|_| cx.info.verb == "list");
    form.is_some_and(|a| a.encoding == Encoding::Yaml)
}

/// Serves an authorized request whose body has been read.
///
/// # Errors
/// Whatever the handler refuses; 500 when it panics.
pub async fn dispatch(cx: &Arc<RequestContext>, body: RequestBody) -> Result<Answer, Status> {
    let large = matches!(&body, RequestBody::Whole(bytes) if bytes.len() >= HEAVY_BODY_BYTES_MIN);
    // One document of all kinds, with the schemas of all definitions.
    if !large && !is_made_whole(cx) && cx.uri.path() != "/openapi/v2" {
        return dispatch::dispatch(cx, body).await;
    }
    let cx = Arc::clone(cx);
    let served = HEAVY.drive(async move { dispatch::dispatch(&cx, body).await }).await;
    served.unwrap_or_else(|error| Err(Status::internal(error)))
}
