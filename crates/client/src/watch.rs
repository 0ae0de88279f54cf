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
            if let Some(at) = self.buffer[self.scanned..].iter().position(|&b| b == b'\n') {
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

fn decode<T: DeserializeOwned>(line: &[u8]) -> Result<WatchEvent<T>, ClientError> {
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
