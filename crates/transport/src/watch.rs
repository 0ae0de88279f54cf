//! Watches within one process: their events may go to the watcher as objects, without a frame that is encoded only to be
//! decoded again. A transport over a network carries neither of the two extensions, so its watchers get frames; what is
//! asked, authorized and seen is the same.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::de::value::MapDeserializer;
use serde_json::Value;

/// Extension of a request: the watcher reads [`WatchItems`] where the answer has them.
#[derive(Clone, Copy, Debug)]
pub struct TakesObjects;

/// An object as its readers in one process share it.
#[derive(Clone, Debug)]
pub enum SharedObject {
    /// The object's JSON as it was sent.
    Text(Bytes),
    /// The object as a tree that all readers share.
    Tree(Arc<Value>),
    /// The tree of an object of which its `meta.k8s.io` `PartialObjectMetadata` of this version is shown.
    Metadata(Arc<Value>, &'static str),
}

impl SharedObject {
    /// Reads the object as a type, as if it came as JSON.
    ///
    /// # Errors
    /// For what the type does not accept.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        match self {
            Self::Text(json) => serde_json::from_slice(json),
            Self::Tree(tree) => T::deserialize(&**tree),
            Self::Metadata(tree, version) => {
                let api_version = Value::from(format!("meta.k8s.io/{version}"));
                let kind = Value::from("PartialObjectMetadata");
                let members = [("apiVersion", &api_version), ("kind", &kind), ("metadata", &tree["metadata"])];
                T::deserialize(MapDeserializer::new(members.into_iter()))
            }
        }
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

/// Extension of a watch's answer: its events. The answer's body is empty then, and is kept for as long as they are read.
#[derive(Clone)]
pub struct WatchItems(Arc<Mutex<Option<WatchItemStream>>>);

impl WatchItems {
    /// Of a stream.
    pub fn new(items: impl Stream<Item = Vec<WatchItem>> + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::pin(items)))))
    }

    /// The stream, for whoever takes it first.
    pub fn take(&self) -> Option<WatchItemStream> {
        self.0.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Deserialize, Debug, Default, PartialEq)]
    #[serde(rename_all = "camelCase", default)]
    struct View {
        api_version: String,
        kind: String,
        metadata: Option<BTreeMap<String, Value>>,
        spec: Option<Vec<i64>>,
    }

    #[test]
    fn an_object_reads_the_same_in_every_form() {
        let tree =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": null}, "spec": [1, -2]});
        let text = SharedObject::Text(tree.to_string().into()).read::<View>().expect("from text");
        let shared = Arc::new(tree);
        assert_eq!(SharedObject::Tree(Arc::clone(&shared)).read::<View>().expect("from a tree"), text);
        let metadata = SharedObject::Metadata(Arc::clone(&shared), "v1").read::<View>().expect("metadata");
        let partial =
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": shared["metadata"]});
        assert_eq!(metadata, serde_json::from_value(partial).expect("from a tree of its own"));
        assert!(SharedObject::Tree(Arc::new(json!({"kind": 1}))).read::<View>().is_err());
    }
}
