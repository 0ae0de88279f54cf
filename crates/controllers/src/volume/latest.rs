//! The newest known state of objects that one controller writes often: what the informer shows, or what the controller
//! itself wrote and the informer has yet to show. Without it a binder would give one claim two volumes.
use std::collections::HashMap;
use std::sync::Arc;

use kelson_client::{Change, Object};
use kelson_meta::ObjectKey;
use parking_lot::Mutex;

use crate::shared::informers::SharedInformer;
use crate::views::Indexed;

/// An informer's objects with the controller's own writes laid over them; never more of them than the informer has.
pub struct Latest<T> {
    informer: SharedInformer<T>,
    written: Arc<Mutex<HashMap<ObjectKey, Arc<T>>>>,
}

/// Resource versions are ordered numbers (KEP-5504); one that is none is older than all.
fn version<T: Object>(object: &T) -> u64 {
    object.resource_version().parse().unwrap_or(0)
}

impl<T: Indexed> Latest<T> {
    /// Over this informer.
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

    /// The object as last seen or written.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        let seen = self.informer.get(key)?;
        Some(self.newer(seen))
    }

    fn newer(&self, seen: Arc<T>) -> Arc<T> {
        let written = self.written.lock();
        let own = written.get(&seen.key()).filter(|w| version(&***w) > version(&*seen));
        own.map_or(seen, Arc::clone)
    }

    /// All of them.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.informer.list().into_iter().map(|seen| self.newer(seen)).collect()
    }

    /// Notes what the server answered to a write.
    pub fn put(&self, object: T) -> Arc<T> {
        let object = Arc::new(object);
        // Under the lock, so that the informer's word cannot come between the look and the note.
        let mut written = self.written.lock();
        if self.informer.get(&object.key()).is_some_and(|seen| version(&*seen) < version(&*object)) {
            written.insert(object.key(), Arc::clone(&object));
        }
        object
    }
}
