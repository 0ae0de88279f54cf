//! Protobuf as Kubernetes writes it: the `k8s\0` envelope around `runtime.Unknown`, messages by the schema table, lists built
//! from already encoded items, and length-delimited watch frames.
mod decode;
mod encode;
mod list;
mod watch;
mod wire;

pub use list::ListEncoder;
pub use watch::{FRAME_BYTES_MAX, frame, watch_event, watch_frame};

use crate::{Budget, DecodeError, EncodeError, Limits, TypeMeta};
use kelson_schema::TypeId;
use serde_json::Value;
use wire::{Reader, RevBuf, Wire};

/// What every protobuf document of Kubernetes starts with.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// Whether the bytes are a protobuf document.
pub fn is_protobuf(data: &[u8]) -> bool {
    data.starts_with(MAGIC)
}

/// The envelope: `runtime.Unknown`.
#[derive(Debug, Default)]
pub(crate) struct Envelope<'a> {
    pub meta: TypeMeta,
    pub raw: &'a [u8],
    pub content_type: &'a str,
}

/// Reads the envelope of a document.
pub(crate) fn envelope(data: &[u8]) -> Result<Envelope<'_>, DecodeError> {
    if !is_protobuf(data) {
        let shown = &data[..data.len().min(MAGIC.len())];
        let message = format!(
            "provided data does not appear to be a protobuf message, expected prefix {MAGIC:?}, found {shown:?}"
        );
        return Err(DecodeError::Proto(message));
    }
    let mut out = Envelope::default();
    let mut reader = Reader::new(&data[MAGIC.len()..]);
    while let Some((number, wire)) = reader.tag()? {
        match (number, wire) {
            (1, Wire::Bytes) => {
                let mut meta = Reader::new(reader.bytes()?);
                while let Some((number, wire)) = meta.tag()? {
                    match (number, wire) {
                        (1, Wire::Bytes) => out.meta.api_version = meta.text()?.to_owned(),
                        (2, Wire::Bytes) => out.meta.kind = meta.text()?.to_owned(),
                        _ => meta.skip(wire)?,
                    }
                }
            }
            (2, Wire::Bytes) => out.raw = reader.bytes()?,
            (4, Wire::Bytes) => out.content_type = reader.text()?,
            _ => reader.skip(wire)?,
        }
    }
    Ok(out)
}

/// Reads what a document says it is.
pub fn peek(data: &[u8]) -> Result<TypeMeta, DecodeError> {
    Ok(envelope(data)?.meta)
}

/// Decodes a document whose type is built in; gives what it says it is and the canonical tree, `apiVersion` and `kind`
/// included.
pub fn decode(data: &[u8]) -> Result<(TypeMeta, Value), DecodeError> {
    decode_known(data, &mut Budget::new(Limits::TRUSTED))
}

/// See [`decode`].
fn decode_known(data: &[u8], budget: &mut Budget) -> Result<(TypeMeta, Value), DecodeError> {
    let meta = peek(data)?;
    let ty = meta.type_id().ok_or_else(|| {
        DecodeError::Proto(format!("no kind \"{}\" is registered for version \"{}\"", meta.kind, meta.api_version))
    })?;
    decode_within(ty, data, budget)
}

/// Decodes a document as the given type, whatever its envelope says. Whoever reads the document has bounded its size.
pub fn decode_as(ty: TypeId, data: &[u8]) -> Result<(TypeMeta, Value), DecodeError> {
    decode_within(ty, data, &mut Budget::new(Limits::TRUSTED))
}

/// Decodes a document as the given type and charges the budget for it.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode_within(ty: TypeId, data: &[u8], budget: &mut Budget) -> Result<(TypeMeta, Value), DecodeError> {
    let envelope = envelope(data)?;
    let mut map = decode::message(ty, envelope.raw, budget)?;
    if ty.is_kind() {
        for (key, text) in [("apiVersion", &envelope.meta.api_version), ("kind", &envelope.meta.kind)] {
            if !text.is_empty() {
                map.insert(key.into(), Value::from(text.as_str()));
            }
        }
    }
    Ok((envelope.meta, Value::Object(map)))
}

/// Decodes a bare message (an item of a list, say): no envelope, no `apiVersion` and `kind`.
pub fn decode_message(ty: TypeId, message: &[u8]) -> Result<Value, DecodeError> {
    Ok(Value::Object(decode::message(ty, message, &mut Budget::new(Limits::TRUSTED))?))
}

/// Encodes a document: envelope and message. `apiVersion` and `kind` are taken from the tree.
pub fn encode(ty: TypeId, value: &Value) -> Result<Vec<u8>, EncodeError> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or("");
    let (api_version, kind) = if ty.is_kind() { (text("apiVersion"), text("kind")) } else { ("", "") };
    let message = encode_message(ty, value)?;
    let (mut out, tail) = envelope_parts(api_version, kind, message.len());
    out.extend_from_slice(&message);
    out.extend_from_slice(&tail);
    Ok(out)
}

/// Wraps an encoded message in the envelope.
pub fn wrap(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let (mut out, tail) = envelope_parts(api_version, kind, message.len());
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

/// What stands before and after a message of this length.
fn envelope_parts(api_version: &str, kind: &str, length: usize) -> (Vec<u8>, [u8; 4]) {
    let mut buf = RevBuf::with_capacity(64 + length);
    buf.varint(length as u64);
    buf.tag(2, Wire::Bytes);
    let end = buf.mark();
    buf.text(2, kind);
    buf.text(1, api_version);
    buf.close(1, end);
    buf.raw(MAGIC);
    let mut head = Vec::with_capacity(64 + length);
    head.extend_from_slice(buf.as_slice());
    // contentEncoding and contentType, both empty.
    (head, [0x1a, 0x00, 0x22, 0x00])
}
