//! Watch streams in protobuf: each event is a bare `WatchEvent` message after its length in four bytes, big-endian.
use super::wire::RevBuf;
use crate::DecodeError;

/// The size limit of one frame in bytes. It is upstream's limit for length-delimited frames.
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A `WatchEvent` message with an encoded document, which includes its envelope.
pub fn watch_event(event_type: &str, document: &[u8]) -> Vec<u8> {
    let mut buf = RevBuf::with_capacity(document.len() + 64);
    let mark = buf.mark();
    buf.bytes(1, document);
    buf.close(2, mark);
    buf.text(1, event_type);
    buf.into_vec()
}

/// One frame of a watch stream: the length and the event.
pub fn watch_frame(event_type: &str, document: &[u8]) -> Vec<u8> {
    let event = watch_event(event_type, document);
    let mut out = Vec::with_capacity(event.len() + 4);
    out.extend_from_slice(&(event.len() as u32).to_be_bytes());
    out.extend_from_slice(&event);
    out
}

/// Splits the first complete frame off a buffer. Returns its body and the number of bytes to consume, or `None` if it is not complete.
pub fn frame(buffer: &[u8]) -> Result<Option<(&[u8], usize)>, DecodeError> {
    let Some(head) = buffer.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*head) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(DecodeError::TooLarge);
    }
    Ok(buffer.get(4..4 + length).map(|body| (body, 4 + length)))
}
