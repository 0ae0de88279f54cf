//! Watches within one process: their events may go to the watcher as objects, without a frame that is encoded only to be
//! decoded again. A transport over a network carries neither of the two extensions, so its watchers get frames; what is
//! asked, authorized and seen is the same.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

/// Extension of a request: the watcher reads [`WatchItems`] where the answer has them.
#[derive(Clone, Copy, Debug)]
pub struct TakesObjects {
    /// Whether `metadata.managedFields` are wanted; objects may come without them else.
    pub managed_fields: bool,
}

/// An object as its readers in one process share it: its JSON. Each decodes the few fields that it needs; a tree that all of
/// them read would take ten times the memory, and be cold when they come to it.
#[derive(Clone, Debug)]
pub struct SharedObject(Bytes);

impl SharedObject {
    /// Makes an item of an object's JSON.
    pub fn new(json: impl Into<Bytes>) -> Self {
        Self(json.into())
    }

    /// Reads the object as a type.
    ///
    /// # Errors
    /// For what the type does not accept.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        kelson_meta::from_json(&self.0)
    }
}

/// A piece of a watch.
#[derive(Clone, Debug)]
pub enum WatchItem {
    /// Whole frames, one a line.
    Frames(Bytes),
    /// An object was added, changed or removed.
    Object {
        /// `ADDED`, `MODIFIED` or `DELETED`.
        kind: &'static str,
        /// The object after it; for a deletion, its last state.
        object: SharedObject,
    },
}

/// The events of a watch, in order; ends with the watch.
pub type WatchItemStream = Pin<Box<dyn Stream<Item = Vec<WatchItem>> + Send>>;

/// The extension of a watch response with its events. The response's body is then empty and must be kept while the
/// events are read.
#[derive(Clone)]
pub struct WatchItems(Arc<Mutex<Option<WatchItemStream>>>);

impl WatchItems {
    /// Makes a watch of a stream.
    pub fn new(items: impl Stream<Item = Vec<WatchItem>> + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::pin(items)))))
    }

    /// Takes the stream. Later calls return `None`.
    pub fn take(&self) -> Option<WatchItemStream> {
        self.0.lock().take()
    }
}
