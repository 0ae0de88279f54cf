//! The envelope of a protobuf document: `k8s\0`, then `runtime.Unknown` with the API version, the kind and the message.
use super::wire::{Reader, RevBuf, Wire};
use crate::{DecodeError, EncodeError, TypeMeta};

/// The first bytes of every protobuf document of Kubernetes.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// Whether the bytes are a protobuf document.
pub fn is_protobuf(data: &[u8]) -> bool {
    data.starts_with(MAGIC)
}

/// `runtime.Unknown`.
#[derive(Debug, Default)]
pub(super) struct Envelope<'a> {
    pub meta: TypeMeta,
    pub raw: &'a [u8],
    pub content_type: &'a str,
}

/// Reads the envelope of a document.
pub(super) fn read(data: &[u8]) -> Result<Envelope<'_>, DecodeError> {
    if data.is_empty() || data == MAGIC.as_slice() {
        let what = if data.is_empty() { "empty data" } else { "empty body" };
        return Err(DecodeError::Proto(what.to_owned()));
    }
    if !is_protobuf(data) {
        let prefix = MAGIC.map(|byte| byte.to_string()).join(" ");
        let message = format!("provided data does not appear to be a protobuf message, expected prefix [{prefix}]");
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

/// Reads the API version and kind of a document.
pub fn peek(data: &[u8]) -> Result<TypeMeta, DecodeError> {
    Ok(read(data)?.meta)
}

/// The bytes after a message: contentEncoding and contentType, both empty.
const TAIL: [u8; 4] = [0x1a, 0x00, 0x22, 0x00];

/// The bytes before and after a message of this length. They have no room for it, because a list is never in memory as a whole.
pub(super) fn around(api_version: &str, kind: &str, length: usize) -> (Vec<u8>, [u8; 4]) {
    let mut buf = RevBuf::with_capacity(64 + api_version.len() + kind.len());
    begin(api_version, kind, length, &mut buf);
    (buf.into_vec(), TAIL)
}

/// Writes the bytes before a message of this length.
fn begin(api_version: &str, kind: &str, length: usize, buf: &mut RevBuf) {
    buf.varint(length as u64);
    buf.tag(2, Wire::Bytes);
    let end = buf.mark();
    buf.text(2, kind);
    buf.text(1, api_version);
    buf.close(1, end);
    buf.raw(MAGIC);
}

/// Writes a document whose message `message` writes.
pub(super) fn surround(
    api_version: &str,
    kind: &str,
    buf: &mut RevBuf,
    message: impl FnOnce(&mut RevBuf) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    buf.raw(&TAIL);
    let end = buf.mark();
    message(buf)?;
    begin(api_version, kind, buf.mark() - end, buf);
    Ok(())
}
