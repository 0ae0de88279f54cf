//! Answers of the kubelet's server.
use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use kelson_cri::CriError;
use tonic::Code;

/// A body that streams.
pub type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// How long a runtime keeps streams that were asked for and not fetched: then it takes new ones again.
const TOKENS_LIVE_SECONDS: &str = "60";

/// A text answer.
pub fn text(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    typed(code, "text/plain; charset=utf-8", body)
}

/// An answer of a media type.
pub fn typed(code: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(http_body_util::Full::new(body.into()).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

/// An answer as JSON.
pub fn json(value: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(b) => typed(StatusCode::OK, "application/json", b),
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}

/// What the runtime refused, in the status that upstream gives it: clients tell by it what is gone from what is broken.
pub fn refused_by_runtime(error: &CriError) -> Response<Body> {
    let code = match error.code {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut response = text(code, error.to_string());
    if code == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(header::RETRY_AFTER, http::HeaderValue::from_static(TOKENS_LIVE_SECONDS));
    }
    response
}

/// An upgrade that is refused.
pub fn refused(refusal: Response<String>) -> Response<Body> {
    let (head, message) = refusal.into_parts();
    let mut response = text(head.status, message);
    response.headers_mut().extend(head.headers);
    response
}

/// No such path.
pub fn not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_told_from_what_is_broken() {
        for (code, status, again) in [
            (Code::NotFound, 404, None),
            (Code::ResourceExhausted, 429, Some("60")),
            (Code::Internal, 500, None),
            (Code::Unavailable, 500, None),
        ] {
            let answer = refused_by_runtime(&CriError::new("Exec", code, "no container"));
            assert_eq!(answer.status(), status, "{code:?}");
            let after = answer.headers().get(header::RETRY_AFTER).map(|v| v.to_str().expect("text"));
            assert_eq!(after, again, "{code:?}");
        }
    }
}
