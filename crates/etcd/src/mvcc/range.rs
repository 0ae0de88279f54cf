//! Ranges of keys.

use std::ops::Bound;

use bytes::Bytes;

/// A range of keys. The protocol encodes it as two byte strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRange {
    /// This key only.
    One(Bytes),
    /// The keys from the first one to before the second one. Empty if the second is not greater.
    Until(Bytes, Bytes),
    /// The keys from this one on.
    From(Bytes),
}

impl KeyRange {
    /// Decodes `key` and `range_end` of a request: no end means one key, an end of one zero byte means no end.
    pub fn new(key: &Bytes, range_end: &Bytes) -> Self {
        match range_end.as_ref() {
            [] => Self::One(key.clone()),
            [0] => Self::From(key.clone()),
            _ => Self::Until(key.clone(), range_end.clone()),
        }
    }

    /// Returns the first key that may be in it.
    pub fn start(&self) -> &Bytes {
        match self {
            Self::One(key) | Self::Until(key, _) | Self::From(key) => key,
        }
    }

    /// Reports whether it is empty.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Until(start, end) if end <= start)
    }

    /// Reports whether the key is in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::One(one) => one == key,
            Self::Until(start, end) => start.as_ref() <= key && key < end.as_ref(),
            Self::From(start) => start.as_ref() <= key,
        }
    }

    /// Reports whether both may have a key in common.
    pub fn meets(&self, other: &Self) -> bool {
        let before_end = |key: &Bytes, range: &Self| match range {
            Self::One(one) => key <= one,
            Self::Until(_, end) => key < end,
            Self::From(_) => true,
        };
        !self.is_empty() && !other.is_empty() && before_end(self.start(), other) && before_end(other.start(), self)
    }

    /// Returns the bounds for an ordered map; `None` if it is empty, for which such a map would panic.
    pub(super) fn bounds(&self) -> Option<(Bound<&[u8]>, Bound<&[u8]>)> {
        if self.is_empty() {
            return None;
        }
        let start = Bound::Included(self.start().as_ref());
        Some(match self {
            Self::One(_) => (start, start),
            Self::Until(_, end) => (start, Bound::Excluded(end.as_ref())),
            Self::From(_) => (start, Bound::Unbounded),
        })
    }
}
