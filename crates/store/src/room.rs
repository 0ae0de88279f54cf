//! What records take in memory, all together and by namespace, and what they may take.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::StoreError;
use crate::record::Record;

/// The used and allowed memory of records, in bytes of [`Record::cost`].
pub(crate) struct Room {
    used: usize,
    max: usize,
    /// The bytes of namespaces with records. Cluster-scoped resources count only in `used`.
    namespaces: HashMap<Arc<str>, usize>,
    namespace_max: usize,
}

/// The changes by the accepted writes of a batch that is not stored yet.
#[derive(Default)]
pub(crate) struct BatchRoom {
    used: isize,
    namespaces: HashMap<Arc<str>, isize>,
}

impl BatchRoom {
    /// An accepted write puts `bytes` in the place of `held`.
    pub fn accept(&mut self, namespace: &Arc<str>, bytes: usize, held: usize) {
        let change = bytes.cast_signed() - held.cast_signed();
        self.used += change;
        if !namespace.is_empty() {
            *self.namespaces.entry(Arc::clone(namespace)).or_default() += change;
        }
    }
}

impl Room {
    pub fn new(max: usize, namespace_max: usize) -> Self {
        Self { used: 0, max, namespaces: HashMap::new(), namespace_max }
    }

    /// Counts a record that is there already.
    pub fn add(&mut self, record: &Record) {
        self.change(&record.key().namespace, record.cost(), 0);
    }

    /// Counts bytes whose namespace is not known.
    pub fn add_bytes(&mut self, bytes: usize) {
        self.used += bytes;
    }

    /// A stored write puts `bytes` in the place of `held`.
    pub fn change(&mut self, namespace: &Arc<str>, bytes: usize, held: usize) {
        self.used = (self.used + bytes).saturating_sub(held);
        if namespace.is_empty() {
            return;
        }
        let of_namespace = self.namespaces.entry(Arc::clone(namespace)).or_default();
        *of_namespace = (*of_namespace + bytes).saturating_sub(held);
        if *of_namespace == 0 {
            self.namespaces.remove(namespace);
        }
    }

    /// Whether a body of so many bytes fits in the place of `held`, after the writes that the batch accepted before.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::NamespaceFull`].
    pub fn check(&self, batch: &BatchRoom, namespace: &str, bytes: usize, held: usize) -> Result<(), StoreError> {
        let after = |used: usize, change: isize| used.saturating_add_signed(change);
        let used = after(self.used, batch.used);
        if used.saturating_sub(held).saturating_add(bytes) > self.max {
            return Err(StoreError::Full { bytes: used, limit: self.max });
        }
        if namespace.is_empty() {
            return Ok(());
        }
        let used = self.namespaces.get(namespace).copied().unwrap_or(0);
        let used = after(used, batch.namespaces.get(namespace).copied().unwrap_or(0));
        if used.saturating_sub(held).saturating_add(bytes) > self.namespace_max {
            let namespace = namespace.to_owned();
            return Err(StoreError::NamespaceFull { namespace, bytes: used, limit: self.namespace_max });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_namespace_leaves_room_for_others() {
        let (a, b, none): (Arc<str>, Arc<str>, Arc<str>) = ("a".into(), "b".into(), "".into());
        let mut room = Room::new(100, 50);
        room.change(&a, 30, 0);
        let mut batch = BatchRoom::default();
        assert!(room.check(&batch, "a", 20, 0).is_ok());
        batch.accept(&a, 20, 0);
        let full = room.check(&batch, "a", 1, 0).unwrap_err();
        assert!(matches!(full, StoreError::NamespaceFull { bytes: 50, limit: 50, .. }), "{full}");
        assert!(room.check(&batch, "a", 20, 20).is_ok() && room.check(&batch, "b", 50, 0).is_ok());
        room.change(&a, 20, 0);
        room.change(&b, 40, 0);
        let batch = BatchRoom::default();
        assert!(matches!(room.check(&batch, "b", 11, 0), Err(StoreError::Full { bytes: 90, limit: 100 })));
        assert!(room.check(&batch, "", 10, 0).is_ok(), "what is cluster-scoped has no namespace's limit");
        room.change(&none, 5, 0);
        room.change(&a, 0, 50);
        assert!(room.check(&batch, "a", 50, 0).is_ok() && !room.namespaces.contains_key("a"));
    }
}
