//! Decodes the frames of a JSON watch. A frame is one line; the server ends the stream at its own time limit.
use std::marker::PhantomData;

use bytes::{Buf as _, BytesMut};
use http_body_util::BodyExt as _;
use kelson_meta::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{Body, ClientError, TransportError};

/// Longest frame: an object of the largest size plus its envelope.
const FRAME_MAX_BYTES: usize = 8 << 20;

/// One event of a watch.
#[derive(Debug)]
pub enum WatchEvent<T> {
    /// The object exists as of now.
    Added(T),
    /// It changed.
    Modified(T),
    /// It is gone; the last state.
    Deleted(T),
    /// Everything up to this revision has been sent.
    Bookmark {
        /// The position.
        resource_version: String,
        /// Ends the initial events of a watch-list.
        initial_end: bool,
    },
}

/// A running watch.
pub struct WatchStream<T> {
    body: Body,
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line end.
    scanned: usize,
    object: PhantomData<fn() -> T>,
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a serde_json::value::RawValue,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct BookmarkObject {
    metadata: kelson_meta::ObjectMeta,
}

impl<T: DeserializeOwned> WatchStream<T> {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new(), scanned: 0, object: PhantomData }
    }

    /// The next event; `None` when the server ended the watch. An `ERROR` event is an error.
    pub async fn next(&mut self) -> Result<Option<WatchEvent<T>>, ClientError> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.scanned..]) {
                let end = self.scanned + at;
                let event = decode(&self.buffer[..end]);
                self.buffer.advance(end + 1);
                self.scanned = 0;
                return event.map(Some);
            }
            self.scanned = self.buffer.len();
            if self.scanned > FRAME_MAX_BYTES {
                return Err(ClientError::Decode(format!("watch frame over {FRAME_MAX_BYTES} bytes")));
            }
            match self.body.frame().await {
                None if self.buffer.iter().all(u8::is_ascii_whitespace) => return Ok(None),
                None => return Err(TransportError("watch ended inside a frame".into()).into()),
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// The object in a frame of this kind that is written as API servers write it, found without reading the object.
fn object_in<'a>(line: &'a [u8], kind: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(b"{\"type\":\"")?.strip_prefix(kind.as_bytes())?;
    std::str::from_utf8(rest.strip_prefix(b"\",\"object\":")?.strip_suffix(b"}")?).ok()
}

/// A change in a frame as API servers write it; `None` for all else, which is read with more care.
fn decode_plain<T: DeserializeOwned>(line: &[u8]) -> Option<WatchEvent<T>> {
    let object = |kind| object_in(line, kind).and_then(|object| serde_json::from_str(object).ok());
    object("MODIFIED")
        .map(WatchEvent::Modified)
        .or_else(|| object("ADDED").map(WatchEvent::Added))
        .or_else(|| object("DELETED").map(WatchEvent::Deleted))
}

fn decode<T: DeserializeOwned>(line: &[u8]) -> Result<WatchEvent<T>, ClientError> {
    if let Some(event) = decode_plain(line) {
        return Ok(event);
    }
    let bad = |e: serde_json::Error| ClientError::Decode(format!("watch frame: {e}"));
    let frame: Frame<'_> = serde_json::from_slice(line).map_err(bad)?;
    let object = || serde_json::from_str(frame.object.get()).map_err(bad);
    Ok(match frame.kind {
        "ADDED" => WatchEvent::Added(object()?),
        "MODIFIED" => WatchEvent::Modified(object()?),
        "DELETED" => WatchEvent::Deleted(object()?),
        "BOOKMARK" => {
            let b: BookmarkObject = serde_json::from_str(frame.object.get()).map_err(bad)?;
            let initial_end = b.metadata.annotations.get("k8s.io/initial-events-end").is_some_and(|v| v == "true");
            WatchEvent::Bookmark { resource_version: b.metadata.resource_version, initial_end }
        }
        "ERROR" => {
            let s: Status = serde_json::from_str(frame.object.get()).map_err(bad)?;
            return Err(ClientError::Status(Box::new(s)));
        }
        other => return Err(ClientError::Decode(format!("watch event of unknown type {other:?}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spelling_of_a_frame_does_not_matter() {
        #[derive(Deserialize, Debug)]
        struct Thing {
            a: i32,
        }
        let cases = [
            (r#"{"type":"ADDED","object":{"a":1}}"#, Some(("added", 1))),
            (r#"{"type":"MODIFIED","object":{"a":2,"type":"}"}}"#, Some(("modified", 2))),
            (r#"{"type":"DELETED","object":{"a":3}}"#, Some(("deleted", 3))),
            (r#" { "object": {"a":4} , "type": "ADDED" } "#, Some(("added", 4))),
            (r#"{"type":"ADDED","object":{"a":5},"more":{}}"#, Some(("added", 5))),
            (r#"{"type":"ADDED","object":{"a":"x"}}"#, None),
            (r#"{"type":"ADDED","object":{"a":1}"#, None),
            (r#"{"type":"OTHER","object":{"a":1}}"#, None),
        ];
        for (line, expected) in cases {
            let found = match decode::<Thing>(line.as_bytes()) {
                Ok(WatchEvent::Added(t)) => Some(("added", t.a)),
                Ok(WatchEvent::Modified(t)) => Some(("modified", t.a)),
                Ok(WatchEvent::Deleted(t)) => Some(("deleted", t.a)),
                _ => None,
            };
            assert_eq!(found, expected, "{line}");
        }
    }
}
