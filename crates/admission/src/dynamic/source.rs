//! Stored configurations in decoded form, decoded again only when one of them has changed.
use std::sync::Arc;

use kelson_auth::Objects;
use parking_lot::Mutex;
use serde_json::Value;

use super::manifests::Manifests;
use super::matching::{GROUP, is_exempt_from_policies, is_exempt_from_webhooks};
use crate::Attributes;

/// The objects of one resource, each decoded once.
pub struct Source<T> {
    objects: Arc<dyn Objects>,
    group: &'static str,
    resource: &'static str,
    decode: Decode<T>,
    /// Reports which requests the stored objects do not apply to.
    exempt: fn(&Attributes<'_>) -> bool,
    known: Mutex<Arc<CachedItems<T>>>,
    /// Objects from files, which come first.
    manifests: Option<Arc<Manifests>>,
    fixed: Mutex<Arc<Fixed<T>>>,
    /// The last lists that were returned.
    joined: Mutex<[Items<T>; 3]>,
}

/// Decoded objects. The same list, compared by address, means that nothing has changed.
pub type Items<T> = Arc<Vec<Arc<T>>>;

/// The decoded objects of files and the stamp of their state.
struct Fixed<T> {
    stamp: u64,
    items: Items<T>,
}

type Decode<T> = Box<dyn Fn(&Value) -> T + Send + Sync>;

struct CachedItems<T> {
    /// The version of the resource when it was read.
    version: Option<u64>,
    /// The stamps of the objects, by their index in `items`.
    stamps: Vec<u64>,
    items: Items<T>,
}

impl<T> Source<T> {
    /// Creates a source of policies or of their bindings.
    pub fn of_policies(
        objects: &Arc<dyn Objects>,
        resource: &'static str,
        decode: impl Fn(&Value) -> T + Send + Sync + 'static,
    ) -> Self {
        Self { exempt: is_exempt_from_policies, ..Self::new(objects, GROUP, resource, decode) }
    }

    /// Creates a source for a cluster-scoped resource. The result of `decode` for an object is cached until that object
    /// changes.
    pub fn new(
        objects: &Arc<dyn Objects>,
        group: &'static str,
        resource: &'static str,
        decode: impl Fn(&Value) -> T + Send + Sync + 'static,
    ) -> Self {
        let known = CachedItems { version: None, stamps: Vec::new(), items: Arc::default() };
        let fixed = Fixed { stamp: 0, items: Arc::default() };
        Self {
            objects: Arc::clone(objects),
            group,
            resource,
            decode: Box::new(decode),
            exempt: is_exempt_from_webhooks,
            known: Mutex::new(Arc::new(known)),
            manifests: None,
            fixed: Mutex::new(Arc::new(fixed)),
            joined: Mutex::default(),
        }
    }

    /// Adds the objects of a directory.
    pub fn with_manifests(self, manifests: Option<Arc<Manifests>>) -> Self {
        Self { manifests, ..self }
    }

    /// Returns the objects that may apply to a request, as they are now: those of files, then the stored ones by name.
    /// Stored ones do not apply to configurations of admission, so that a broken one can always be repaired.
    pub fn of(&self, a: &Attributes<'_>) -> Items<T> {
        if self.manifests.is_none() {
            return if (self.exempt)(a) { Arc::default() } else { self.newest() };
        }
        let fixed = self.fixed();
        match ((self.exempt)(a), fixed.is_empty()) {
            (true, _) => fixed,
            (false, true) => self.newest(),
            (false, false) => self.joined(fixed),
        }
    }

    /// Joins objects of files and stored ones into one list.
    fn joined(&self, fixed: Items<T>) -> Items<T> {
        let newest = self.newest();
        let mut joined = self.joined.lock();
        if !Arc::ptr_eq(&joined[0], &fixed) || !Arc::ptr_eq(&joined[1], &newest) {
            let all = Arc::new(fixed.iter().chain(newest.iter()).cloned().collect());
            *joined = [fixed, newest, all];
        }
        Arc::clone(&joined[2])
    }

    /// Returns the objects of files.
    fn fixed(&self) -> Items<T> {
        let Some(manifests) = &self.manifests else { return Arc::default() };
        let loaded = manifests.current();
        let mut fixed = self.fixed.lock();
        if fixed.stamp != loaded.stamp {
            let items = loaded.of(self.resource).iter().map(|tree| Arc::new((self.decode)(tree))).collect();
            *fixed = Arc::new(Fixed { stamp: loaded.stamp, items: Arc::new(items) });
        }
        Arc::clone(&fixed.items)
    }

    /// Returns all stored objects, by name.
    fn newest(&self) -> Items<T> {
        let known = Arc::clone(&self.known.lock());
        // Read first: a change while the objects are read is seen by the next request.
        let version = self.objects.version(self.group, self.resource);
        if version.is_some() && version == known.version {
            return Arc::clone(&known.items);
        }
        let found = self.objects.stamped(self.group, self.resource, "");
        if version.is_none() && known.stamps.iter().eq(found.iter().map(|(stamp, _)| stamp)) {
            return Arc::clone(&known.items);
        }
        let kept = |stamp: u64| {
            let at = known.stamps.iter().position(|s| *s == stamp)?;
            known.items.get(at).cloned()
        };
        let read = |bytes: &[u8]| {
            let tree = kelson_meta::from_json(bytes);
            tree.unwrap_or_else(|error| {
                tracing::error!(resource = self.resource, %error, "decoding a stored object failed; ignoring it");
                Value::Null
            })
        };
        let items = found.iter().map(|(stamp, b)| kept(*stamp).unwrap_or_else(|| Arc::new((self.decode)(&read(b)))));
        let items: Items<T> = Arc::new(items.collect());
        let stamps = found.iter().map(|(stamp, _)| *stamp).collect();
        *self.known.lock() = Arc::new(CachedItems { version, stamps, items: Arc::clone(&items) });
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::world;
    use kelson_meta::tree::path::text;
    use serde_json::json;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn only_what_changed_is_decoded_again() {
        let named = |name: &str| json!({"metadata": {"name": name}});
        let world = world(&[("things//a", named("a")), ("things//b", named("b"))]);
        let decoded = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&decoded);
        let objects: Arc<dyn Objects> = world.clone();
        let source = Source::new(&objects, "", "things", move |tree| {
            counter.fetch_add(1, Ordering::Relaxed);
            text(tree, &["metadata", "name"]).to_owned()
        });
        let names = || source.newest().iter().map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!((names(), names()), (vec!["a".into(), "b".into()], vec!["a".into(), "b".into()]));
        assert_eq!(decoded.load(Ordering::Relaxed), 2);
        world.0.lock().insert("things//b".into(), named("c"));
        assert_eq!(names(), ["a", "c"]);
        assert_eq!(decoded.load(Ordering::Relaxed), 3);
        world.0.lock().remove("things//a");
        assert_eq!(names(), ["c"]);
        assert_eq!(decoded.load(Ordering::Relaxed), 3);
    }
}
