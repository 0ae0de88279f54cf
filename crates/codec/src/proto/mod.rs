//! Protobuf as Kubernetes writes it: the `k8s\0` envelope with `runtime.Unknown`, messages by the schema table, lists from encoded
//! items, and length-delimited watch frames.
mod decode;
mod encode;
mod envelope;
mod list;
mod metadata;
mod tree;
mod watch;
mod wire;

pub use decode::decode_within;
pub use envelope::{MAGIC, is_protobuf, peek};
pub use list::ListEncoder;
pub use metadata::MetadataEncoder;
pub use watch::{FRAME_BYTES_MAX, frame, watch_event, watch_frame};

use crate::json::tape::{Cursor, Tape};
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
    out.reserve_exact(message.len() + tail.len());
    out.extend_from_slice(&message);
    out.extend_from_slice(&tail);
    Ok(out)
}

/// Wraps an encoded message in the envelope.
pub fn wrap(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let (mut out, tail) = envelope::around(api_version, kind, message.len());
    out.reserve_exact(message.len() + tail.len());
    out.extend_from_slice(message);
    out.extend_from_slice(&tail);
    out
}

/// Encodes a bare message.
pub fn encode_message(ty: TypeId, value: &Value) -> Result<Vec<u8>, EncodeError> {
    if !ty.has_proto() {
        return Err(EncodeError::NoProtobuf);
    }
    let mut buf = RevBuf::with_capacity(1024);
    encode::message(ty, Some(value), &mut buf)?;
    Ok(buf.into_vec())
}

/// Encodes a document with envelope and message from the text of a stored object. The result is that of [`encode`] with the object's
/// tree; no tree is built.
///
/// # Errors
/// As [`encode_stored`].
pub fn encode_stored_document(ty: TypeId, text: &str) -> Result<Vec<u8>, EncodeError> {
    if !ty.has_proto() {
        return Err(EncodeError::NoProtobuf);
    }
    let tape = Tape::parse(text).map_err(EncodeError::Stored)?;
    let root = tape.root();
    let text_of = |key: &str| root.get(key).filter(|_| ty.is_kind()).and_then(Cursor::as_str).unwrap_or("");
    let mut buf = RevBuf::with_capacity(text.len());
    envelope::surround(text_of("apiVersion"), text_of("kind"), &mut buf, |buf| encode::message(ty, Some(root), buf))?;
    Ok(buf.into_vec())
}

/// Encodes a bare message from the text of a stored object, which has sorted keys and no space. The result is that of
/// [`encode_message`] with the object's tree; no tree is built.
///
/// # Errors
/// The type has no protobuf form, or the text is not JSON of this type.
pub fn encode_stored(ty: TypeId, text: &str) -> Result<Vec<u8>, EncodeError> {
    if !ty.has_proto() {
        return Err(EncodeError::NoProtobuf);
    }
    let tape = Tape::parse(text).map_err(EncodeError::Stored)?;
    // The message is shorter than the text.
    let mut buf = RevBuf::with_capacity(text.len());
    encode::message(ty, Some(tape.root()), &mut buf)?;
    Ok(buf.into_vec())
}
