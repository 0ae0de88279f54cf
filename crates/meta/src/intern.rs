//! Interning: equal values share one allocation. Thousands of pods of one template have the same labels, tolerations
//! and ports, so the memory of a cache grows with the number of templates instead of pods.
use std::borrow::Borrow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The minimum size of a table that is searched for unused values.
const SWEEP_AT_MIN: usize = 1024;

/// A table of shared values. Whenever the table has doubled in size, it drops the values that have no other reference.
pub struct Interner<T: ?Sized> {
    values: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self { values: HashSet::new(), sweep_at: SWEEP_AT_MIN }
    }
}

impl<T: ?Sized + Hash + Eq> Interner<T> {
    /// Returns the shared value that is equal to this one, or shares this one.
    pub fn share<V>(&mut self, value: V) -> Arc<T>
    where
        V: Borrow<T> + Into<Arc<T>>,
    {
        if let Some(held) = self.values.get(value.borrow()) {
            return Arc::clone(held);
        }
        if self.values.len() >= self.sweep_at {
            self.values.retain(|held| Arc::strong_count(held) > 1);
            self.sweep_at = (self.values.len() * 2).max(SWEEP_AT_MIN);
        }
        let value = value.into();
        self.values.insert(Arc::clone(&value));
        value
    }
    /// Returns the number of values in the table, including unused ones.
    pub fn len(&self) -> usize {
        self.values.len()
    }
    /// Returns whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// A type with a process-wide table for [`Interned`].
pub trait Intern: Hash + Eq + Sized + 'static {
    /// Returns the process-wide table of this type.
    fn table() -> &'static Mutex<Interner<Self>>;
}

/// Defines the tables of types: `intern_table!(Vec<Toleration>, Vec<ContainerView>);`
#[macro_export]
macro_rules! intern_table {
    ($($type:ty),+ $(,)?) => {$(
        impl $crate::Intern for $type {
            fn table() -> &'static std::sync::Mutex<$crate::Interner<Self>> {
                static TABLE: std::sync::LazyLock<std::sync::Mutex<$crate::Interner<$type>>> =
                    std::sync::LazyLock::new(std::sync::Mutex::default);
                &TABLE
            }
        }
    )+};
}

/// A value that shares its allocation with all equal values. It decodes like the value; JSON `null` decodes to the
/// default.
pub struct Interned<T>(Arc<T>);

impl<T: Intern> From<T> for Interned<T> {
    fn from(value: T) -> Self {
        // A panic leaves no inconsistent table, so a poisoned lock is still usable.
        Self(T::table().lock().unwrap_or_else(PoisonError::into_inner).share(value))
    }
}
impl<T> Clone for Interned<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
impl<T: Intern + Default> Default for Interned<T> {
    fn default() -> Self {
        T::default().into()
    }
}
impl<T> Deref for Interned<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
impl<T: fmt::Debug> fmt::Debug for Interned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl<T: PartialEq> PartialEq for Interned<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}
impl<T: PartialEq> PartialEq<T> for Interned<T> {
    fn eq(&self, other: &T) -> bool {
        *self.0 == *other
    }
}
impl<T: Eq> Eq for Interned<T> {}
impl PartialEq<&str> for Interned<String> {
    fn eq(&self, other: &&str) -> bool {
        self.0.as_str() == *other
    }
}
impl<T: fmt::Display> fmt::Display for Interned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl<T: Serialize> Serialize for Interned<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}
impl<'de, T: Intern + Default + Deserialize<'de>> Deserialize<'de> for Interned<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        crate::null_default::<D, T>(d).map(Into::into)
    }
}

/// The labels of an object, with equal maps shared.
pub type LabelMap = Interned<BTreeMap<String, String>>;

impl Intern for BTreeMap<String, String> {
    fn table() -> &'static Mutex<Interner<Self>> {
        static TABLE: LazyLock<Mutex<Interner<BTreeMap<String, String>>>> = LazyLock::new(Mutex::default);
        &TABLE
    }
}

/// Strings with few distinct values, such as phases and condition types.
impl Intern for String {
    fn table() -> &'static Mutex<Interner<Self>> {
        static TABLE: LazyLock<Mutex<Interner<String>>> = LazyLock::new(Mutex::default);
        &TABLE
    }
}

impl FromIterator<(String, String)> for LabelMap {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(labels: I) -> Self {
        BTreeMap::from_iter(labels).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_are_one_and_the_unused_are_forgotten() {
        let mut table = Interner::<str>::default();
        let kept = table.share("a");
        assert!(Arc::ptr_eq(&kept, &table.share("a")));
        for n in 0..SWEEP_AT_MIN * 3 {
            drop(table.share(format!("unused {n}")));
        }
        assert!(table.len() <= SWEEP_AT_MIN, "{}", table.len());
        assert!(Arc::ptr_eq(&kept, &table.share("a")), "what is held stays");
    }

    #[test]
    fn labels_read_null_and_share() {
        let read = |text: &str| serde_json::from_str::<LabelMap>(text).unwrap();
        assert!(read("null").is_empty());
        let (a, b) = (read(r#"{"app":"x"}"#), read(r#"{"app":"x"}"#));
        assert!(Arc::ptr_eq(&a.0, &b.0));
        assert_eq!(serde_json::to_string(&a).unwrap(), r#"{"app":"x"}"#);
        assert_ne!(a, read(r#"{"app":"y"}"#));
    }
}
