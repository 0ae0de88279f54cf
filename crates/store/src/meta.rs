//! The values that the store keeps of an object beside its bytes: the UID, the labels and the selectable fields, in a compact form.
//!
//! The caller extracts these values from the object; the store only keeps and returns them. A field that the object does not have is
//! absent here too, so that a reader can fall back to the bytes.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

/// An object's UID. A UUID in its usual spelling takes 16 bytes; any other string is kept as it is.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub enum Uid {
    /// There is no UID. This is for internal records and tests.
    #[default]
    None,
    /// A lower-case hyphenated UUID.
    Uuid([u8; 16]),
    /// Any other string.
    Other(Box<str>),
}

impl Uid {
    /// Parses a UID. The empty string is [`Uid::None`].
    #[must_use]
    pub fn new(text: &str) -> Self {
        if text.is_empty() {
            return Self::None;
        }
        if let Ok(uuid) = Uuid::try_parse(text) {
            let mut buffer = Uuid::encode_buffer();
            if *uuid.hyphenated().encode_lower(&mut buffer) == *text {
                return Self::Uuid(uuid.into_bytes());
            }
        }
        Self::Other(text.into())
    }

    /// Whether there is no UID.
    #[must_use]
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Uuid(bytes) => write!(f, "{}", Uuid::from_bytes(*bytes).hyphenated()),
            Self::Other(text) => f.write_str(text),
        }
    }
}
impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uid({self})")
    }
}

/// An object's labels, sorted by key, in one allocation. Records of the store with equal labels share it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Labels(pub(crate) Arc<[u8]>);

impl Default for Labels {
    fn default() -> Self {
        Self(Arc::from([]))
    }
}

impl Labels {
    /// Packs labels. Of duplicate keys the last one wins.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut pairs: Vec<_> = pairs.into_iter().collect();
        pairs.sort_by(|a, b| a.0.cmp(b.0));
        let mut packed = Vec::with_capacity(pairs.iter().map(|(k, v)| k.len() + v.len() + 2).sum());
        for (i, (key, value)) in pairs.iter().enumerate() {
            if pairs.get(i + 1).is_some_and(|next| next.0 == *key) {
                continue;
            }
            pack(&mut packed, key);
            pack(&mut packed, value);
        }
        Self(packed.into())
    }

    /// The value of a label.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        let (mut rest, key) = (&*self.0, key.as_bytes());
        while let (Some(k), Some(value)) = (take_bytes(&mut rest), take_bytes(&mut rest)) {
            match k.cmp(key) {
                Ordering::Less => {}
                Ordering::Equal => return std::str::from_utf8(value).ok(),
                Ordering::Greater => return None,
            }
        }
        None
    }

    /// Whether both are the same allocation, and so equal. Records of the store with equal labels share it.
    #[must_use]
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// All labels in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut texts = PackedTexts(&self.0);
        std::iter::from_fn(move || Some((texts.next()?, texts.next()?)))
    }

    /// Whether there are no labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// The names of a resource's selectable fields. They are made once per kind and shared by all its records.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FieldNames(Arc<[Box<str>]>);

impl Default for FieldNames {
    fn default() -> Self {
        Self(Arc::from([]))
    }
}

impl FieldNames {
    /// Makes a list of names such as `spec.nodeName`, in the order in which the values will be given. `metadata.name` and
    /// `metadata.namespace` need not be in it, since they are in the key.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self(names.into_iter().map(Box::from).collect())
    }

    /// The names in their order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|name| &**name)
    }

    /// The number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The values of an object's selectable fields, with their shared names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Fields {
    pub(crate) names: FieldNames,
    pub(crate) values: Box<[u8]>,
}

impl Fields {
    /// Packs values in the order of `names`. Missing values at the end are empty, and surplus values are dropped.
    pub fn new<'a>(names: &FieldNames, values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut packed = Vec::new();
        let mut values = values.into_iter();
        for _ in 0..names.len() {
            pack(&mut packed, values.next().unwrap_or(""));
        }
        Self { names: names.clone(), values: packed.into() }
    }

    /// The value of a field (empty if unset), or `None` if the record has no such field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// All fields in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.names.iter().zip(PackedTexts(&self.values))
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// The values of an object that the store keeps beside its bytes.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct RecordMeta {
    /// `metadata.uid`, which preconditions compare.
    pub uid: Uid,
    /// `metadata.labels`, which label selectors compare.
    pub labels: Labels,
    /// The values that field selectors compare.
    pub fields: Fields,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// The time at which the store deletes the record, in seconds since the Unix epoch; 0 for never.
    pub expires_at_s: u64,
}

impl RecordMeta {
    /// Metadata with only a UID.
    #[must_use]
    pub fn with_uid(uid: &str) -> Self {
        Self { uid: Uid::new(uid), ..Self::default() }
    }
}

/// Appends a string after its length (LEB128).
pub(crate) fn pack(into: &mut Vec<u8>, text: &str) {
    pack_number(into, text.len() as u64);
    into.extend_from_slice(text.as_bytes());
}

/// Appends a number as LEB128.
pub(crate) fn pack_number(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push((number as u8 & 0x7f) | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// Takes a LEB128 number off the front. Returns `None` if the bytes end early or the number does not fit.
#[inline]
pub(crate) fn take_number(from: &mut &[u8]) -> Option<u64> {
    // Most numbers have one byte.
    if let [byte @ 0..0x80, rest @ ..] = *from {
        *from = rest;
        return Some(u64::from(*byte));
    }
    take_long_number(from)
}

fn take_long_number(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Takes a packed string off the front.
pub(crate) fn take_text<'a>(from: &mut &'a [u8]) -> Option<&'a str> {
    let bytes = take_bytes(from)?;
    std::str::from_utf8(bytes).ok()
}

/// Takes length-prefixed bytes off the front.
pub(crate) fn take_bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(take_number(from)?).ok()?;
    let (bytes, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(bytes)
}

/// Iterates over packed strings. It ends early at invalid bytes.
struct PackedTexts<'a>(&'a [u8]);

impl<'a> Iterator for PackedTexts<'a> {
    type Item = &'a str;
    fn next(&mut self) -> Option<&'a str> {
        take_text(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uid_keeps_its_spelling() {
        for text in ["8f2c1f0e-6c1e-4b8a-9d8e-0123456789ab", "8F2C1F0E-6C1E-4B8A-9D8E-0123456789AB", "abc", ""] {
            assert_eq!(Uid::new(text).to_string(), text);
        }
        assert!(matches!(Uid::new("8f2c1f0e-6c1e-4b8a-9d8e-0123456789ab"), Uid::Uuid(_)));
        assert!(matches!(Uid::new("8f2c1f0e6c1e4b8a9d8e0123456789ab"), Uid::Other(_)));
    }

    #[test]
    fn labels_are_sorted_and_found() {
        let labels = Labels::new([("b", "2"), ("a", "1"), ("c", ""), ("a", "3")]);
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", "3"), ("b", "2"), ("c", "")]);
        assert_eq!((labels.get("b"), labels.get("c"), labels.get("aa")), (Some("2"), Some(""), None));
    }

    #[test]
    fn long_values_survive_packing() {
        let long = "x".repeat(70_000);
        let names = FieldNames::new(["spec.a", "spec.b", "spec.c"]);
        let fields = Fields::new(&names, [long.as_str(), "y"]);
        assert_eq!(fields.get("spec.a"), Some(long.as_str()));
        assert_eq!((fields.get("spec.c"), fields.get("spec.d")), (Some(""), None));
    }
}
