//! Protobuf as Kubernetes writes it: the `k8s\0` envelope with `runtime.Unknown`, messages by the schema table, lists from encoded
//! items, and length-delimited watch frames.
mod decode;
mod encode;
mod envelope;
mod list;
mod watch;
mod wire;

pub use decode::decode_within;
pub use envelope::{MAGIC, is_protobuf, peek};
pub use list::ListEncoder;
pub use watch::{FRAME_BYTES_MAX, frame, watch_event, watch_frame};

use crate::{Budget, DecodeError, EncodeError, Limits, TypeMeta};
use kelson_schema::TypeId;
use serde_json::Value;
use wire::RevBuf;

/// Decodes a document whose type is built in. Returns its API version and kind, and the canonical tree, which includes both.
pub fn decode(data: &[u8]) -> Result<(TypeMeta, Value), DecodeError> {
    decode::known(data, &mut Budget::new(Limits::TRUSTED))
}

/// Decodes a document as the given type, whatever its envelope states. The caller has bounded the document's size.
pub fn decode_as(ty: TypeId, data: &[u8]) -> Result<(TypeMeta, Value), DecodeError> {
    decode_within(ty, data, &mut Budget::new(Limits::TRUSTED))
}

/// Decodes a bare message, such as an item of a list. It has no envelope, no `apiVersion` and no `kind`.
pub fn decode_message(ty: TypeId, message: &[u8]) -> Result<Value, DecodeError> {
    Ok(Value::Object(decode::message(ty, message, &mut Budget::new(Limits::TRUSTED))?))
}

/// Encodes a document with envelope and message. `apiVersion` and `kind` are taken from the tree.
pub fn encode(ty: TypeId, value: &Value) -> Result<Vec<u8>, EncodeError> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or("");
    let (api_version, kind) = if ty.is_kind() { (text("apiVersion"), text("kind")) } else { ("", "") };
    let message = encode_message(ty, value)?;
    let (mut out, tail) = envelope::around(api_version, kind, message.len());
    out.extend_from_slice(&message);
    out.extend_from_slice(&tail);
    Ok(out)
}

/// Wraps an encoded message in the envelope.
pub fn wrap(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let (mut out, tail) = envelope::around(api_version, kind, message.len());
    out.extend_from_slice(message);
    out.extend_from_slice(&tail);
    out
}

/// Encodes a bare message.
pub fn encode_message(ty: TypeId, value: &Value) -> Result<Vec<u8>, EncodeError> {
    if !ty.has_proto() {
        return Err(EncodeError::NoProtobuf);
    }
    let empty = serde_json::Map::new();
    let mut buf = RevBuf::with_capacity(1024);
    encode::message(ty, value.as_object().unwrap_or(&empty), &mut buf)?;
    Ok(buf.into_vec())
}
