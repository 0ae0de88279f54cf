//! Answers of the kubelet's server.
use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;

/// A body that streams.
pub type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;

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
