//! The two forms of an object that can be encoded: a tree of values, and the stored text.
use std::borrow::Cow;

use serde_json::Value;

use crate::json::tape::Cursor;

/// A value of an object. It reads backwards, as [`RevBuf`](super::wire::RevBuf) is written.
pub(super) trait Tree<'t>: Copy {
    fn is_null(self) -> bool;
    fn as_bool(self) -> Option<bool>;
    fn as_i64(self) -> Option<i64>;
    fn as_f64(self) -> Option<f64>;
    fn as_str(self) -> Option<&'t str>;
    /// The text of a number.
    fn number(self) -> Option<Cow<'t, str>>;
    fn get(self, key: &str) -> Option<Self>;
    /// The members of an object, the last one first; `None` for other values.
    fn members(self) -> Option<impl Iterator<Item = (&'t str, Self)>>;
    /// The items of an array, the last one first; `None` for other values.
    fn items(self) -> Option<impl Iterator<Item = Self>>;
    /// Compact JSON with sorted keys.
    fn json(self) -> Cow<'t, [u8]>;

    fn is_object(self) -> bool {
        self.members().is_some()
    }
}

impl<'t> Tree<'t> for &'t Value {
    fn is_null(self) -> bool {
        Value::is_null(self)
    }

    fn as_bool(self) -> Option<bool> {
        Value::as_bool(self)
    }

    fn as_i64(self) -> Option<i64> {
        Value::as_i64(self)
    }

    fn as_f64(self) -> Option<f64> {
        Value::as_f64(self)
    }

    fn as_str(self) -> Option<&'t str> {
        Value::as_str(self)
    }

    fn number(self) -> Option<Cow<'t, str>> {
        self.as_number().map(|number| Cow::Owned(number.to_string()))
    }

    fn get(self, key: &str) -> Option<Self> {
        Value::get(self, key)
    }

    fn members(self) -> Option<impl Iterator<Item = (&'t str, Self)>> {
        Some(self.as_object()?.iter().rev().map(|(key, value)| (key.as_str(), value)))
    }

    fn items(self) -> Option<impl Iterator<Item = Self>> {
        Some(self.as_array()?.iter().rev())
    }

    fn json(self) -> Cow<'t, [u8]> {
        Cow::Owned(crate::canonical_json(self))
    }
}

/// The stored text has sorted keys and no space already, so its parts are copied.
impl<'t> Tree<'t> for Cursor<'t> {
    fn is_null(self) -> bool {
        Cursor::is_null(self)
    }

    fn as_bool(self) -> Option<bool> {
        Cursor::as_bool(self)
    }

    fn as_i64(self) -> Option<i64> {
        Cursor::number(self)?.parse().ok()
    }

    fn as_f64(self) -> Option<f64> {
        Cursor::number(self)?.parse().ok()
    }

    fn as_str(self) -> Option<&'t str> {
        Cursor::as_str(self)
    }

    fn number(self) -> Option<Cow<'t, str>> {
        Cursor::number(self).map(Cow::Borrowed)
    }

    fn get(self, key: &str) -> Option<Self> {
        Cursor::get(self, key)
    }

    fn members(self) -> Option<impl Iterator<Item = (&'t str, Self)>> {
        Cursor::is_object(self).then(|| Cursor::members(self))
    }

    fn items(self) -> Option<impl Iterator<Item = Self>> {
        self.is_array().then(|| Cursor::items(self))
    }

    fn json(self) -> Cow<'t, [u8]> {
        Cow::Borrowed(Cursor::json(self).as_bytes())
    }
}
