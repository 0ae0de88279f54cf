//! `/debug/flags`: flags that may be changed while the server runs, which is `v` alone (`PUT /debug/flags/v`, the body a number).
use http::{Method, StatusCode};
use kelson_meta::Status;

use crate::request::answer::{Answer, answer};
use crate::request::body::{ApiBody, RequestBody};
use crate::shared::context::RequestContext;

const TEXT: &str = "text/plain";
/// Any longer text is no number of a verbosity.
const NUMBER_BYTES_MAX: usize = 32;

/// Whether the path is one of these.
pub fn is_here(path: &str) -> bool {
    path == "/debug/flags" || path.starts_with("/debug/flags/")
}

/// Serves the path; whoever may `put` or `get` it has been asked for.
///
/// # Errors
/// When the body cannot be read.
pub async fn serve(cx: &RequestContext, body: RequestBody) -> Result<Answer, Status> {
    let said = |status, text: String| answer(status, TEXT, ApiBody::full(text + "\n"));
    let Some(set) = cx.server.config.verbosity.filter(|_| cx.uri.path() == "/debug/flags/v") else {
        return Ok(answer(StatusCode::OK, "text/html; charset=utf-8", ApiBody::full(LIST)));
    };
    if cx.method != Method::PUT {
        return Ok(said(StatusCode::NOT_ACCEPTABLE, "unsupported http method".to_owned()));
    }
    let body = body.read().await?;
    let text = String::from_utf8_lossy(&body[..body.len().min(NUMBER_BYTES_MAX)]);
    Ok(match set(&text) {
        Ok(told) => said(StatusCode::OK, told),
        Err(why) => said(StatusCode::BAD_REQUEST, why),
    })
}

/// The page that lists them.
const LIST: &str = "<html>\n<head><title>/debug/flags/</title></head>\n<body>\n<p>flags:</p>\n<ul>\n<li>v</li>\n</ul>\n</body>\n</html>\n";
