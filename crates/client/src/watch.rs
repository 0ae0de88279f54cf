//! Decodes the frames of a JSON watch. A frame is one line; the server ends the stream at its own time limit. A server in
//! the same process hands objects over instead, which all watchers of a change share.
use std::collections::VecDeque;
use std::marker::PhantomData;

use bytes::{Buf as _, BytesMut};
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use kelson_meta::Status;
use kelson_transport::{WatchItem, WatchItemStream};
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
    /// It was there before, and has changed.
    Modified(T),
    /// It is gone; the last state.
    Deleted(T),
    /// Everything up to this revision has been sent.
    Bookmark {
        /// The resourceVersion at which a following watch begins.
        resource_version: String,
        /// Ends the initial events of a watch-list.
        initial_end: bool,
    },
}

/// A running watch.
pub struct WatchStream<T> {
    body: Body,
    /// The items that a server in this process returns instead of the body.
    items: Option<WatchItemStream>,
    /// Items that have come and are not read yet.
    ready: VecDeque<WatchItem>,
    buffer: BytesMut,
    /// The number of bytes of the buffer without a line end.
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
    pub(crate) fn new(body: Body, items: Option<WatchItemStream>) -> Self {
        let ready = VecDeque::new();
        Self { body, items, ready, buffer: BytesMut::new(), scanned: 0, object: PhantomData }
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
            if let Some(items) = &mut self.items {
                match self.ready.pop_front() {
                    Some(WatchItem::Object { kind, object }) => return event(kind, object.read()).map(Some),
                    Some(WatchItem::Frames(frames)) => self.buffer.extend_from_slice(&frames),
                    None => match items.next().await {
                        Some(more) => self.ready.extend(more),
                        None => return Ok(None),
                    },
                }
                continue;
            }
            match self.body.frame().await {
                None if self.buffer.iter().all(u8::is_ascii_whitespace) => return Ok(None),
                None => return Err(TransportError("watch ended within a frame".into()).into()),
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// A change of the kind that its frame would name.
fn event<T>(kind: &str, object: Result<T, serde_json::Error>) -> Result<WatchEvent<T>, ClientError> {
    let object = object.map_err(|e| ClientError::Decode(format!("watched object: {e}")))?;
    match kind {
        "ADDED" => Ok(WatchEvent::Added(object)),
        "MODIFIED" => Ok(WatchEvent::Modified(object)),
        "DELETED" => Ok(WatchEvent::Deleted(object)),
        other => Err(ClientError::Decode(format!("watch event of unknown type {other:?}"))),
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

    #[tokio::test]
    async fn objects_of_the_process_come_in_order_with_frames() {
        #[derive(Deserialize, Debug)]
        struct Thing {
            a: i32,
        }
        let object = |kind, a: i32| WatchItem::Object {
            kind,
            object: kelson_transport::SharedObject::new(format!(r#"{{"a":{a}}}"#)),
        };
        let bookmark = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"5"}}}"#;
        let mut lines = bookmark.to_vec();
        lines.push(b'\n');
        let batches = vec![
            vec![object("ADDED", 1), WatchItem::Frames(lines.into()), object("MODIFIED", 2)],
            vec![object("DELETED", 3), object("OTHER", 4)],
        ];
        let items: WatchItemStream = Box::pin(futures::stream::iter(batches));
        let mut watch = WatchStream::<Thing>::new(crate::full_body(""), Some(items));
        let mut seen = Vec::new();
        while let Ok(Some(event)) = watch.next().await {
            seen.push(match event {
                WatchEvent::Added(t) => format!("added {}", t.a),
                WatchEvent::Modified(t) => format!("modified {}", t.a),
                WatchEvent::Deleted(t) => format!("deleted {}", t.a),
                WatchEvent::Bookmark { resource_version, .. } => format!("bookmark {resource_version}"),
            });
        }
        assert_eq!(seen, ["added 1", "bookmark 5", "modified 2", "deleted 3"]);
        assert!(matches!(watch.next().await, Ok(None)), "the end of the stream is the end of the watch");
    }
}
