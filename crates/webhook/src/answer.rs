//! Converts an HTTP response to its body, or to the error that client-go would make of it
//! (`rest.Request.transformResponse`, `errors.NewGenericServerResponse`).
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use kelson_meta::{Reason, Status, StatusCause, StatusDetails};

use crate::CallError;

/// The maximum number of bytes of a response body that an error message repeats.
const REPEATED_BYTES_MAX: usize = 2048;

/// Returns the body of a successful response. Every other response becomes an error.
pub(crate) fn judge(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Result<Bytes, CallError> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("").trim();
    if (200..=206).contains(&status.as_u16()) {
        if body.is_empty() {
            let code = status.as_u16();
            let why = format!("0-length response with status code: {code} and content type: {content_type}");
            return Err(CallError::Transport(why));
        }
        return Ok(body);
    }
    if let Ok(failure) = kelson_meta::from_json::<Status>(&body)
        && failure.code >= 400
        && !failure.success
        && !failure.message.is_empty()
    {
        return Err(CallError::Status(Box::new(failure)));
    }
    let text = content_type.is_empty() || content_type.starts_with("text/");
    let shown = &body[..body.len().min(REPEATED_BYTES_MAX)];
    let message = if text { String::from_utf8_lossy(shown).trim().to_owned() } else { "unknown".to_owned() };
    let mut made = generic(status.as_u16(), &message);
    let retry = headers.get(header::RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok()).unwrap_or(0);
    let cause = StatusCause { reason: "UnexpectedServerResponse".to_owned(), message, field: String::new() };
    made.details =
        Some(Box::new(StatusDetails { causes: vec![cause], retry_after_seconds: retry, ..StatusDetails::default() }));
    Err(CallError::Status(Box::new(made)))
}

/// Builds the error for a response to a POST from its status code alone, when the body is no `Status`.
fn generic(code: u16, said: &str) -> Status {
    let (reason, message) = match code {
        400 => (Reason::BadRequest, "the server rejected our request for an unknown reason"),
        401 => (Reason::Unauthorized, "the server has asked for the client to provide credentials"),
        403 => (Reason::Forbidden, said),
        404 => (Reason::NotFound, "the server could not find the requested resource"),
        405 => (Reason::MethodNotAllowed, "the server does not allow this method on the requested resource"),
        406 if said.is_empty() || said == "unknown" => {
            (Reason::NotAcceptable, "the server was unable to respond with a content type that the client supports")
        }
        406 => (Reason::NotAcceptable, said),
        409 => (Reason::AlreadyExists, "the server reported a conflict"),
        415 => (Reason::UnsupportedMediaType, said),
        422 => (Reason::Invalid, "the server rejected our request due to an error in our request"),
        429 => {
            (Reason::TooManyRequests, "the server has received too many requests and has asked us to try again later")
        }
        503 => (Reason::ServiceUnavailable, "the server is currently unable to handle the request"),
        504 => (
            Reason::Timeout,
            "the server was unable to return a response in the time allotted, but may still be processing the request",
        ),
        500.. => {
            let message = format!("an error on the server ({said:?}) has prevented the request from succeeding");
            return Status::failure(code, Reason::InternalError, message);
        }
        _ => {
            let message =
                format!("the server responded with the status code {code} but did not return more information");
            return Status::failure(code, Reason::Unknown, message);
        }
    };
    Status::failure(code, reason, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let judged = |code: u16, kind: &'static str, body: &'static str| {
            let mut headers = HeaderMap::new();
            if !kind.is_empty() {
                headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            }
            let judged = judge(StatusCode::from_u16(code).unwrap(), &headers, Bytes::from_static(body.as_bytes()));
            judged.map(|b| String::from_utf8(b.to_vec()).unwrap()).map_err(|e| (e.code(), e.to_string()))
        };
        for (code, kind, body, want) in [
            (200, "application/json", "{}", Ok("{}".to_owned())),
            (
                200,
                "text/plain",
                "no json, but that is the reader's to say",
                Ok("no json, but that is the reader's to say".to_owned()),
            ),
            (
                200,
                "application/json",
                "",
                Err((503, "0-length response with status code: 200 and content type: application/json".to_owned())),
            ),
            (
                302,
                "",
                "elsewhere",
                Err((
                    302,
                    "the server responded with the status code 302 but did not return more information".to_owned(),
                )),
            ),
            (404, "text/plain", "404 page", Err((404, "the server could not find the requested resource".to_owned()))),
            (403, "text/plain; charset=utf-8", " not you\n", Err((403, "not you".to_owned()))),
            (
                500,
                "application/json",
                "{",
                Err((500, "an error on the server (\"unknown\") has prevented the request from succeeding".to_owned())),
            ),
            (
                502,
                "text/html",
                "<a>",
                Err((502, "an error on the server (\"<a>\") has prevented the request from succeeding".to_owned())),
            ),
            (
                500,
                "application/json",
                r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"denied by policy","code":422}"#,
                Err((422, "denied by policy".to_owned())),
            ),
        ] {
            assert_eq!(judged(code, kind, body), want, "{code} {body}");
        }
    }
}
