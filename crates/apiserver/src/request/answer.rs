//! Answers: a status line, headers and a body in the form the client accepts. What an object looks like in each view is
//! `read`'s.
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode, header};
use kelson_codec::Encoding;
use kelson_meta::Status;
use serde_json::Value;

use crate::catalog::ObjectSchema;
use crate::request::body::ApiBody;
use crate::request::negotiate::{Accepted, View};
use crate::request::order;

pub type Answer = Response<ApiBody>;

/// An answer with a body of this type.
pub fn answer(code: StatusCode, content_type: &'static str, body: ApiBody) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The answer at a path that nobody serves. It is no `Status`: upstream's routes end there before any of the API.
pub fn nothing() -> Answer {
    answer(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", ApiBody::full("404 page not found\n"))
}

/// A `Status` as the answer. Its code is the answer's.
pub fn status(status: &Status, accepted: &Accepted) -> Answer {
    let mut value = serde_json::to_value(status).unwrap_or_default();
    move_continue(&mut value);
    let accepted = Accepted { view: View::Whole, ..*accepted };
    let code = if status.success { StatusCode::OK } else { status.http() };
    let retry = status.details.as_ref().map_or(0, |d| d.retry_after_seconds);
    let mut response = tree(code, &accepted, &ObjectSchema::status(), value).unwrap_or_else(|_| {
        let bytes = serde_json::to_vec(status).unwrap_or_default();
        answer(code, "application/json", ApiBody::full(bytes))
    });
    // What an audit event says of the answer.
    response.extensions_mut().insert(Arc::new(status.clone()));
    if retry > 0 {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(retry));
    }
    response
}

/// A `Status` that says what was done, as the answer.
///
/// # Errors
/// As [`tree`].
pub fn done(code: StatusCode, accepted: &Accepted, told: Value) -> Result<Answer, Status> {
    let status = serde_json::from_value::<Status>(told.clone()).ok();
    let accepted = Accepted { view: View::Whole, ..*accepted };
    let mut response = tree(code, &accepted, &ObjectSchema::status(), told)?;
    if let Some(status) = status {
        response.extensions_mut().insert(Arc::new(status));
    }
    Ok(response)
}

fn move_continue(value: &mut Value) {
    let Some(causes) = value.pointer_mut("/details/causes").and_then(Value::as_array_mut) else { return };
    let Some(at) = causes.iter().position(|c| c["reason"] == crate::request::version_param::CONTINUE_CAUSE) else {
        return;
    };
    let mut cause = causes.remove(at);
    value["metadata"] = serde_json::json!({"continue": cause["message"].take()});
    if let Some(o) = value.as_object_mut() {
        o.remove("details");
    }
}

/// Any tree that names its own kind.
///
/// # Errors
/// 406 when the type has no protobuf form and only that is accepted.
pub fn tree(code: StatusCode, accepted: &Accepted, schema: &ObjectSchema, value: Value) -> Result<Answer, Status> {
    let bytes = encode(accepted, schema, &value)?;
    Ok(answer(code, accepted.content_type(false), ApiBody::full(bytes)))
}

/// A tree's bytes as an answer carries them.
///
/// # Errors
/// 406 as [`tree`].
pub fn encode(accepted: &Accepted, schema: &ObjectSchema, value: &Value) -> Result<Bytes, Status> {
    if accepted.encoding == Encoding::Json {
        let mut bytes = compact(value);
        if accepted.pretty {
            // Without an end of the last line, upstream as well.
            return Ok(kelson_codec::json::indent(&bytes).into());
        }
        bytes.push(b'\n');
        return Ok(bytes.into());
    }
    match schema.encode(accepted.encoding, value) {
        Ok(bytes) => Ok(bytes.into()),
        Err(error) => {
            tracing::debug!(%error, "answer cannot be encoded as accepted");
            Err(Status::not_acceptable(&["application/json", "application/yaml"]))
        }
    }
}

/// Compact JSON with fields in upstream's order.
pub fn compact(value: &Value) -> Vec<u8> {
    match order::of(value) {
        Some(order) => serde_json::to_vec(&order::Ordered::new(value, order)).unwrap_or_default(),
        None => kelson_codec::declared_json(value),
    }
}

/// A `Warning: 299` header value; control characters are dropped and quotes escaped.
pub fn warning(text: &str) -> Option<HeaderValue> {
    let mut out = BytesMut::with_capacity(text.len() + 8);
    out.put_slice(b"299 - \"");
    for c in text.chars().filter(|c| !c.is_control()) {
        if matches!(c, '"' | '\\') {
            out.put_u8(b'\\');
        }
        let mut buffer = [0; 4];
        out.put_slice(c.encode_utf8(&mut buffer).as_bytes());
    }
    out.put_u8(b'"');
    HeaderValue::from_maybe_shared(out.freeze()).ok()
}
