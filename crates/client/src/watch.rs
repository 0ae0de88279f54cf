//! Decodes the frames of a JSON watch. A frame is one line; the server ends the stream at its own time limit. A server in
//! the same process hands objects over instead, which all watchers of a change share.
use std::collections::VecDeque;
use std::marker::PhantomData;

use bytes::{Buf as _, Bytes, BytesMut};
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use kelson_meta::Status;
use kelson_transport::{SharedObject, WatchItem, WatchItemStream};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

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

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The object exists as of now.
    Added,
    /// The object was there before.
    Modified,
    /// The object is gone.
    Deleted,
}

/// An object of a watch that is not decoded yet.
#[derive(Debug)]
pub(crate) struct Undecoded {
    object: SharedObject,
    /// The frame, where the object was cut from it by its usual form alone.
    frame: Option<Bytes>,
}

impl Undecoded {
    /// Reads the object as a type.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        self.object
            .read()
            .or_else(|e| match self.careful() {
                Some(object) => object.read(),
                None => Err(e),
            })
            .map_err(|e| ClientError::Decode(format!("watched object: {e}")))
    }

    /// The object of a frame with an unusual form.
    fn careful(&self) -> Option<SharedObject> {
        let line = self.frame.as_ref()?;
        let frame: Frame<'_> = serde_json::from_slice(line).ok()?;
        Some(SharedObject::new(line.slice_ref(frame.object.get().as_bytes())))
    }
}

/// One event of a watch whose object is not decoded yet.
#[derive(Debug)]
pub(crate) enum RawEvent {
    /// A change of an object.
    Object(Kind, Undecoded),
    /// Everything up to this revision has been sent; see [`WatchEvent::Bookmark`].
    Bookmark {
        /// The resourceVersion at which a following watch begins.
        resource_version: String,
        /// Ends the initial events of a watch-list.
        initial_end: bool,
    },
}

/// A running watch, whatever the type of its objects: its code is in the program once.
pub(crate) struct RawWatch {
    body: Body,
    /// The items that a server in this process returns instead of the body.
    items: Option<WatchItemStream>,
    /// Items that have come and are not read yet.
    ready: VecDeque<WatchItem>,
    buffer: BytesMut,
    /// The number of bytes of the buffer without a line end.
    scanned: usize,
}

/// A running watch.
pub struct WatchStream<T> {
    raw: RawWatch,
    object: PhantomData<fn() -> T>,
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct BookmarkObject {
    metadata: kelson_meta::ObjectMeta,
}

impl<T: DeserializeOwned> WatchStream<T> {
    pub(crate) fn new(raw: RawWatch) -> Self {
        Self { raw, object: PhantomData }
    }

    /// The next event; `None` when the server ended the watch. An `ERROR` event is an error.
    pub async fn next(&mut self) -> Result<Option<WatchEvent<T>>, ClientError> {
        self.raw.next().await?.map(typed).transpose()
    }
}

fn typed<T: DeserializeOwned>(event: RawEvent) -> Result<WatchEvent<T>, ClientError> {
    Ok(match event {
        RawEvent::Bookmark { resource_version, initial_end } => WatchEvent::Bookmark { resource_version, initial_end },
        RawEvent::Object(kind, object) => {
            let object = object.read()?;
            match kind {
                Kind::Added => WatchEvent::Added(object),
                Kind::Modified => WatchEvent::Modified(object),
                Kind::Deleted => WatchEvent::Deleted(object),
            }
        }
    })
}

impl RawWatch {
    pub(crate) fn new(body: Body, items: Option<WatchItemStream>) -> Self {
        Self { body, items, ready: VecDeque::new(), buffer: BytesMut::new(), scanned: 0 }
    }

    /// The next event; `None` when the server ended the watch. An `ERROR` event is an error.
    pub(crate) async fn next(&mut self) -> Result<Option<RawEvent>, ClientError> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.scanned..]) {
                let line = self.buffer.split_to(self.scanned + at).freeze();
                self.buffer.advance(1);
                self.scanned = 0;
                return decode(&line).map(Some);
            }
            self.scanned = self.buffer.len();
            if self.scanned > FRAME_MAX_BYTES {
                return Err(ClientError::Decode(format!("watch frame over {FRAME_MAX_BYTES} bytes")));
            }
            if let Some(items) = &mut self.items {
                match self.ready.pop_front() {
                    Some(WatchItem::Object { kind, object }) => {
                        return Ok(Some(RawEvent::Object(named(kind)?, Undecoded { object, frame: None })));
                    }
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

/// The kind of change with this name.
fn named(kind: &str) -> Result<Kind, ClientError> {
    match kind {
        "ADDED" => Ok(Kind::Added),
        "MODIFIED" => Ok(Kind::Modified),
        "DELETED" => Ok(Kind::Deleted),
        other => Err(ClientError::Decode(format!("watch event of unknown type {other:?}"))),
    }
}

/// The change in a frame that is written as API servers write it, found without reading the object; `None` for all else,
/// which is read with more care.
fn decode_plain(line: &Bytes) -> Option<RawEvent> {
    let rest = line.strip_prefix(b"{\"type\":\"")?;
    let object = |kind: Kind, name: &str| {
        let object = rest.strip_prefix(name.as_bytes())?.strip_prefix(b"\",\"object\":")?.strip_suffix(b"}")?;
        let object = SharedObject::new(line.slice_ref(object));
        // In a frame with more members this is not one JSON value: then the frame is read as a whole.
        Some(RawEvent::Object(kind, Undecoded { object, frame: Some(line.clone()) }))
    };
    object(Kind::Modified, "MODIFIED")
        .or_else(|| object(Kind::Added, "ADDED"))
        .or_else(|| object(Kind::Deleted, "DELETED"))
}

fn decode(line: &Bytes) -> Result<RawEvent, ClientError> {
    if let Some(event) = decode_plain(line) {
        return Ok(event);
    }
    let bad = |e: serde_json::Error| ClientError::Decode(format!("watch frame: {e}"));
    let frame: Frame<'_> = serde_json::from_slice(line).map_err(bad)?;
    match frame.kind {
        "BOOKMARK" => {
            let b: BookmarkObject = serde_json::from_str(frame.object.get()).map_err(bad)?;
            let initial_end = b.metadata.annotations.get("k8s.io/initial-events-end").is_some_and(|v| v == "true");
            Ok(RawEvent::Bookmark { resource_version: b.metadata.resource_version, initial_end })
        }
        "ERROR" => {
            let s: Status = serde_json::from_str(frame.object.get()).map_err(bad)?;
            Err(ClientError::Status(Box::new(s)))
        }
        kind => {
            let object = SharedObject::new(line.slice_ref(frame.object.get().as_bytes()));
            Ok(RawEvent::Object(named(kind)?, Undecoded { object, frame: None }))
        }
    }
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
            let found = match decode(&Bytes::from_static(line.as_bytes())).and_then(typed::<Thing>) {
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
        let mut watch = WatchStream::<Thing>::new(RawWatch::new(crate::full_body(""), Some(items)));
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
