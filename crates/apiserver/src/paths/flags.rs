//! `/debug/flags`: flags that can be changed at runtime. There is only `v` (`PUT /debug/flags/v` with a number as the body).
use http::{Method, StatusCode};
use kelson_meta::Status;

use crate::request::answer::{Answer, answer};
use crate::request::body::{ApiBody, RequestBody};
use crate::shared::context::RequestContext;

const TEXT: &str = "text/plain";
/// A longer string is not a valid verbosity.
const NUMBER_BYTES_MAX: usize = 32;

/// Whether the path belongs to this file.
pub fn is_flags_path(path: &str) -> bool {
    path == "/debug/flags" || path.starts_with("/debug/flags/")
}

/// Serves the path. The request is already authorized.
///
/// # Errors
/// The body cannot be read.
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
        Ok(message) => said(StatusCode::OK, message),
        Err(why) => said(StatusCode::BAD_REQUEST, why),
    })
}

/// The page with the list of flags.
const LIST: &str = "<html>\n<head><title>/debug/flags/</title></head>\n<body>\n<p>flags:</p>\n<ul>\n<li>v</li>\n</ul>\n</body>\n</html>\n";
