//! Maps: JSON with arbitrary keys, objects with declared properties, and maps that expressions make.
use std::sync::Arc;

use super::data::{Entries, Key, Map, Text, Value};
use super::error::{EvalError, Result};
use super::json;
use crate::types::decl::DeclKind;
use crate::types::escape::escape;

impl<'a> Key<'a> {
    pub(crate) fn of(value: &Value<'a>) -> Option<Key<'a>> {
        match value {
            Value::Bool(b) => Some(Key::Bool(*b)),
            Value::Int(n) => Some(Key::Number(i128::from(*n))),
            Value::Uint(n) => Some(Key::Number(i128::from(*n))),
            Value::Double(d) if d.fract() == 0.0 && d.abs() < 1e20 => Some(Key::Number(*d as i128)),
            Value::Text(s) => Some(Key::Text(s.clone())),
            _ => None,
        }
    }
}

/// An entry of a map, with a string as its key.
pub(crate) fn entry<'a>(key: &'a str, value: Value<'a>) -> (Key<'a>, (Value<'a>, Value<'a>)) {
    (Key::Text(Text::Borrowed(key)), (Value::borrowed(key), value))
}

/// Makes a map of these entries.
pub(crate) fn place(entries: Entries<'_>) -> Value<'_> {
    Value::Map(Map::values(entries))
}

impl<'a> Map<'a> {
    pub(crate) fn values(entries: Entries<'a>) -> Map<'a> {
        Map::Values(Arc::new(entries))
    }
    /// The number of entries. In data, properties without a type also count.
    pub fn len(&self) -> usize {
        match self {
            Map::Json(map, _) | Map::Object(map, _) => map.len(),
            Map::Values(entries) | Map::Domains(entries) => entries.len(),
            Map::Struct(s) => s.fields.len(),
        }
    }
    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the map has the key.
    pub(crate) fn contains(&self, key: &Value<'a>) -> Result<bool> {
        match self {
            Map::Domains(entries) => Ok(Key::of(key).is_some_and(|k| entries.contains_key(&k))),
            _ => self.find(key).map(|found| found.is_some()),
        }
    }

    /// The value of a key of any type.
    pub(crate) fn find(&self, key: &Value<'a>) -> Result<Option<Value<'a>>> {
        match (self, key) {
            (Map::Values(entries), key) => {
                Ok(Key::of(key).and_then(|k| entries.get(&k)).map(|(_, value)| value.clone()))
            }
            (Map::Domains(entries), key) => {
                let found = Key::of(key).and_then(|k| entries.get(&k));
                Ok(Some(found.map_or_else(|| Value::Map(Map::values(Entries::new())), |(_, value)| value.clone())))
            }
            (_, Value::Text(name)) => self.field(name),
            // Plain JSON has no such key. For an object with declared properties the lookup is an error.
            (Map::Json(_, decl), _) if matches!(decl.kind, DeclKind::Dyn) => Ok(None),
            _ => Err(EvalError::no_overload()),
        }
    }

    /// The value of a string key or of a property.
    pub(crate) fn field(&self, name: &str) -> Result<Option<Value<'a>>> {
        match self {
            Map::Json(map, value) => map.get(name).map(|v| json::read(v, value)).transpose(),
            Map::Object(map, decl) => {
                let Some(field) = decl.field(name) else { return Ok(None) };
                // A property that is null counts as missing.
                match map.get(&field.json).filter(|v| !v.is_null()) {
                    Some(v) => json::read(v, &field.decl).map(Some),
                    None => Ok(None),
                }
            }
            Map::Values(entries) => {
                let key = Key::Text(Text::Shared(name.into()));
                Ok(entries.get(&key).map(|(_, value)| value.clone()))
            }
            Map::Domains(_) => self.find(&Value::text(name)),
            Map::Struct(s) => Ok(s.fields.iter().find(|(n, _)| **n == *name).map(|(_, v)| v.clone())),
        }
    }

    /// All keys that expressions can use.
    pub(crate) fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Map::Json(map, _) => map.keys().map(|k| Value::borrowed(k)).collect(),
            Map::Object(map, decl) => {
                let known = map.keys().filter_map(|k| escape(k)).filter(|k| decl.field(k).is_some());
                known.map(|k| Value::text(k.as_ref())).collect()
            }
            Map::Values(entries) | Map::Domains(entries) => entries.values().map(|(key, _)| key.clone()).collect(),
            Map::Struct(s) => s.fields.iter().map(|(n, _)| Value::text(n.clone())).collect(),
        }
    }

    /// `cel.@mapInsert`: the map with one more entry. It is changed in place if it is not shared.
    pub(crate) fn insert(self, key: Value<'a>, value: Value<'a>) -> Result<Map<'a>> {
        let unsupported = || EvalError::new(format!("unsupported key type: {}", key.type_name()));
        let found = Key::of(&key).ok_or_else(unsupported)?;
        let mut entries = match self {
            Map::Values(entries) => entries,
            other => Arc::new(other.entries()?),
        };
        if entries.contains_key(&found) {
            return Err(EvalError::new(format!("insert failed: key {key} already exists")));
        }
        match Arc::get_mut(&mut entries) {
            Some(own) => {
                own.insert(found, (key, value));
            }
            None => {
                let mut own = (*entries).clone();
                own.insert(found, (key, value));
                entries = Arc::new(own);
            }
        }
        Ok(Map::Values(entries))
    }

    fn entries(&self) -> Result<Entries<'a>> {
        let mut entries = Entries::new();
        for key in self.keys() {
            if let (Some(found), Some(value)) = (Key::of(&key), self.find(&key)?) {
                entries.insert(found, (key, value));
            }
        }
        Ok(entries)
    }
}
