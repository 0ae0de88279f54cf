//! A map of bounded size that evicts the least recently used entry.
use std::collections::{BTreeMap, HashMap};

/// The map; see the module.
pub(super) struct Lru<V> {
    max: usize,
    /// The number of uses so far; that of a value's last use is its key in `order`.
    uses: u64,
    values: HashMap<String, (u64, V)>,
    order: BTreeMap<u64, String>,
}

impl<V> Lru<V> {
    /// Creates a map with at most `max` values; `max` is at least one.
    pub fn new(max: usize) -> Self {
        Self { max: max.max(1), uses: 0, values: HashMap::new(), order: BTreeMap::new() }
    }

    /// Returns the value of a key, which counts as a use.
    pub fn get(&mut self, key: &str) -> Option<&mut V> {
        let (used, value) = self.values.get_mut(key)?;
        let key = self.order.remove(used)?;
        self.uses += 1;
        *used = self.uses;
        self.order.insert(self.uses, key);
        Some(value)
    }

    /// Stores a value for a key.
    pub fn insert(&mut self, key: &str, value: V) {
        if let Some((used, _)) = self.values.remove(key) {
            self.order.remove(&used);
        }
        if self.values.len() == self.max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.values.remove(&oldest);
        }
        self.uses += 1;
        self.order.insert(self.uses, key.to_owned());
        self.values.insert(key.to_owned(), (self.uses, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_used_goes() {
        let mut lru = Lru::new(2);
        lru.insert("a", 1);
        lru.insert("b", 2);
        assert_eq!(lru.get("a"), Some(&mut 1));
        lru.insert("c", 3);
        assert_eq!((lru.get("a").copied(), lru.get("b").copied(), lru.get("c").copied()), (Some(1), None, Some(3)));
        lru.insert("a", 4);
        lru.insert("d", 5);
        assert_eq!((lru.get("a").copied(), lru.get("c").copied()), (Some(4), None));
        assert_eq!((lru.values.len(), lru.order.len()), (2, 2));
    }
}
