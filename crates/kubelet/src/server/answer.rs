//! Responses of the kubelet's server.
use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use kelson_cri::CriError;
use tonic::Code;

/// A streaming body.
pub type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// The time for which a runtime keeps stream URLs that were requested and not used; after that it accepts new requests.
const TOKENS_LIVE_SECONDS: &str = "60";

/// Creates a plain text response.
pub fn text(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    typed(code, "text/plain; charset=utf-8", body)
}

/// Creates a response with a media type.
pub fn typed(code: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(http_body_util::Full::new(body.into()).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

/// Creates a JSON response.
pub fn json(value: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(b) => typed(StatusCode::OK, "application/json", b),
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}

/// Converts a runtime error to upstream's status code, by which clients distinguish a missing container from a failure.
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

/// Converts a rejected upgrade to a response.
pub fn refused(refusal: Response<String>) -> Response<Body> {
    let (head, message) = refusal.into_parts();
    let mut response = text(head.status, message);
    response.headers_mut().extend(head.headers);
    response
}

/// Creates the response for an unknown path.
pub fn not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_found_is_distinguished_from_failures() {
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
