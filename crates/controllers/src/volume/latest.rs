//! The newest known state of objects that a controller writes often: that of the informer, or of the controller's own
//! write which the informer does not have yet. Without it, the binder could bind one claim to two volumes.
use std::collections::HashMap;
use std::sync::Arc;

use kelson_client::{Change, Object};
use kelson_meta::ObjectKey;
use parking_lot::Mutex;

use crate::shared::informers::SharedInformer;
use crate::views::Indexed;

/// An informer's objects overlaid with the controller's own writes. It has no more objects than the informer.
pub struct Latest<T> {
    informer: SharedInformer<T>,
    written: Arc<Mutex<HashMap<ObjectKey, Arc<T>>>>,
}

/// Returns the resourceVersion as a number, as versions are ordered (KEP-5504). A version that is not a number counts
/// as the oldest.
fn version<T: Object>(object: &T) -> u64 {
    object.resource_version().parse().unwrap_or(0)
}

impl<T: Indexed> Latest<T> {
    /// Returns an overlay without writes for `informer`.
    pub fn new(informer: SharedInformer<T>) -> Self {
        let written: Arc<Mutex<HashMap<ObjectKey, Arc<T>>>> = Arc::default();
        let overtaken = Arc::clone(&written);
        informer.on_change(move |change| {
            let now = change.object();
            let mut written = overtaken.lock();
            let gone = matches!(change, Change::Deleted(_));
            if written.get(&now.key()).is_some_and(|w| gone || version(&**now) >= version(&**w)) {
                written.remove(&now.key());
            }
        });
        Self { informer, written }
    }

    /// Returns the object as last observed or written.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        let seen = self.informer.get(key)?;
        Some(self.newer(seen))
    }

    fn newer(&self, seen: Arc<T>) -> Arc<T> {
        let written = self.written.lock();
        let own = written.get(&seen.key()).filter(|w| version(&***w) > version(&*seen));
        own.map_or(seen, Arc::clone)
    }

    /// Returns all objects.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.informer.list().into_iter().map(|seen| self.newer(seen)).collect()
    }

    /// Records the server's response to a write.
    pub fn put(&self, object: T) -> Arc<T> {
        let object = Arc::new(object);
        // The lock excludes an informer event between the comparison and the insertion.
        let mut written = self.written.lock();
        if self.informer.get(&object.key()).is_some_and(|seen| version(&*seen) < version(&*object)) {
            written.insert(object.key(), Arc::clone(&object));
        }
        object
    }
}
