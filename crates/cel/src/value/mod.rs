//! The values of an evaluation. Values from JSON stay there: an element of a list or object is read when it is used.
mod data;
pub(crate) mod equal;
pub(crate) mod error;
pub(crate) mod json;
pub(crate) mod list;
pub(crate) mod map;
pub(crate) mod opaque;
mod show;
pub(crate) mod time;

use std::sync::Arc;

pub(crate) use data::Entries;
pub use data::{Key, List, Map, Struct, Text, Value};
use error::{EvalError, Result};
use opaque::{AccessRequest, Authorizer, Check, Opaque, Stage};

impl<'a> Value<'a> {
    /// Makes a string.
    pub fn text(s: impl Into<Arc<str>>) -> Value<'a> {
        Value::Text(Text::Shared(s.into()))
    }
    /// Makes a string that borrows from data.
    pub fn borrowed(s: &'a str) -> Value<'a> {
        Value::Text(Text::Borrowed(s))
    }
    /// Makes a list.
    pub fn list(values: Vec<Value<'a>>) -> Value<'a> {
        Value::List(List::values(values))
    }
    /// Makes a value from JSON without a type, such as admission's `object`.
    pub fn json(json: &'a serde_json::Value) -> Value<'a> {
        json::plain(json)
    }
    /// Makes a value from JSON of a declared type, or returns why it does not have that type. Only this level is checked; nested values are
    /// read when they are used.
    pub fn typed(json: &'a serde_json::Value, decl: &'a crate::DeclType) -> Result<Value<'a>> {
        json::read(json, decl)
    }
    /// Makes an optional with this value.
    pub fn some(value: Value<'a>) -> Value<'a> {
        Value::Optional(Some(Arc::new(value)))
    }
    /// Makes the value of the variable `authorizer`.
    pub fn authorizer(authorizer: &'a dyn Authorizer) -> Value<'a> {
        let request = Arc::new(AccessRequest::default());
        Value::Opaque(Opaque::Check(Check { authorizer, stage: Stage::Authorizer, request, decision: None }))
    }
    /// Makes `authorizer.requestResource`, with the resource, namespace and name of the request.
    pub fn request_resource(authorizer: &'a dyn Authorizer, request: AccessRequest) -> Value<'a> {
        let request = Arc::new(request);
        Value::Opaque(Opaque::Check(Check { authorizer, stage: Stage::Resource, request, decision: None }))
    }

    /// The boolean, if the value is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(b) => Some(*b),
            _ => None,
        }
    }
    /// The string, if the value is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(s) => Some(s),
            _ => None,
        }
    }
    /// The name of the value's type, as in `type(x)`.
    pub fn type_name(&self) -> &str {
        match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::Text(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::List(_) => "list",
            Value::Map(Map::Struct(s)) => &s.name,
            Value::Map(_) | Value::Variables => "map",
            Value::Optional(_) => "optional_type",
            Value::Type(_) => "type",
            Value::Opaque(o) => o.type_name(),
            Value::Unknown(_) => "unknown",
        }
    }

    /// The result of `size()`, if the type has one.
    pub(crate) fn size(&self) -> Option<usize> {
        match self {
            // The size of a string is its number of code points, and most strings are ASCII.
            Value::Text(s) => Some(if s.is_ascii() { s.len() } else { s.chars().count() }),
            Value::Bytes(b) => Some(b.len()),
            Value::List(l) => Some(l.len()),
            Value::Map(m) => Some(m.len()),
            Value::Opaque(o) => o.size(),
            _ => None,
        }
    }

    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Value::Null => true,
            Value::Bool(b) => !b,
            Value::Int(n) | Value::Duration(n) => *n == 0,
            Value::Uint(n) => *n == 0,
            Value::Timestamp(t) => t.is_first(),
            Value::Double(d) => *d == 0.0,
            Value::Text(s) => s.is_empty(),
            Value::Bytes(b) => b.is_empty(),
            Value::List(l) => l.is_empty(),
            Value::Map(m) => m.is_empty(),
            Value::Optional(o) => o.as_ref().is_none_or(|v| v.is_zero()),
            _ => false,
        }
    }

    /// The result of `[index]` or `.field`: the value, `None` if it is missing, or an error if the value has no elements.
    pub(crate) fn find(&self, key: &Value<'a>) -> Result<Option<Value<'a>>> {
        match self {
            Value::Map(map) => map.find(key),
            Value::List(list) => {
                let index = list::index(key)?;
                match usize::try_from(index).ok().filter(|i| *i < list.len()) {
                    Some(i) => list.get(i).map(Some),
                    None => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// The error for a missing key.
    pub(crate) fn missing(&self, key: &Value<'a>) -> EvalError {
        match self {
            Value::List(_) => EvalError::new(format!("index out of bounds: {key}")),
            _ => EvalError::new(format!("no such key: {key}")),
        }
    }

    /// The JSON of the value, or `None` if JSON cannot represent it. Timestamps, durations and bytes become strings, as in the API.
    pub fn to_json(&self) -> Option<serde_json::Value> {
        json::write(self)
    }
}
