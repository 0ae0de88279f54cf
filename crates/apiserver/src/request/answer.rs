//! Answers: status code, headers and a body in an encoding that the client accepts. `read` converts objects into views such as tables.
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

/// A response with this status code, content type and body.
pub fn answer(code: StatusCode, content_type: &'static str, body: ApiBody) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The response at a path that is not served. It is plain text, not a `Status`, because upstream's router answers before the API does.
pub fn not_found_page() -> Answer {
    answer(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", ApiBody::full("404 page not found\n"))
}

/// A response with this `Status` as the body, and its code.
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
    // For the audit event.
    response.extensions_mut().insert(Arc::new(status.clone()));
    if retry > 0 {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(retry));
    }
    response
}

/// A success `Status` as the response.
///
/// # Errors
/// See [`tree`].
pub fn success(code: StatusCode, accepted: &Accepted, status_tree: Value) -> Result<Answer, Status> {
    let status = serde_json::from_value::<Status>(status_tree.clone()).ok();
    let accepted = Accepted { view: View::Whole, ..*accepted };
    let mut response = tree(code, &accepted, &ObjectSchema::status(), status_tree)?;
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

/// A response with any tree that contains its kind.
///
/// # Errors
/// 406 when the client accepts only protobuf and the type has no protobuf form.
pub fn tree(code: StatusCode, accepted: &Accepted, schema: &ObjectSchema, value: Value) -> Result<Answer, Status> {
    let bytes = encode(accepted, schema, &value)?;
    Ok(answer(code, accepted.content_type(false), ApiBody::full(bytes)))
}

/// Encodes a tree for a response.
///
/// # Errors
/// 406, see [`tree`].
pub fn encode(accepted: &Accepted, schema: &ObjectSchema, value: &Value) -> Result<Bytes, Status> {
    if accepted.encoding == Encoding::Json {
        let mut bytes = compact(value);
        if accepted.pretty {
            // No newline at the end, as in upstream.
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
    match order::document_order(value) {
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
