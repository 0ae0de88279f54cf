//! Conversion between JSON and values by declared type (`common/valuesunstructured.go`). Only values that are used are converted.
use base64::Engine;
use serde_json::Value as Json;

use super::data::{List, Map, Text, Value};
use super::error::{EvalError, Result};
use super::time;
use crate::types::decl::{DeclKind, DeclType, Format, ListKind};

/// The type of JSON without a schema.
pub(crate) static PLAIN: DeclType =
    DeclType { kind: DeclKind::Dyn, max_elements: 0, min_serialized: 1, nullable: true };
static ATOMIC: ListKind = ListKind::Atomic;

/// Reads JSON without a schema.
pub(crate) fn plain(json: &Json) -> Value<'_> {
    match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => match n.as_i64() {
            Some(i) => Value::Int(i),
            None => Value::Double(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::Text(Text::Borrowed(s)),
        Json::Array(items) => Value::List(List::Json(items, &PLAIN, &ATOMIC)),
        Json::Object(map) => Value::Map(Map::Json(map, &PLAIN)),
    }
}

/// Go's name for the type of a JSON value, which upstream's messages contain.
fn go_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "<nil>",
        Json::Bool(_) => "bool",
        Json::Number(n) if n.is_i64() => "int64",
        Json::Number(_) => "float64",
        Json::String(_) => "string",
        Json::Array(_) => "[]interface {}",
        Json::Object(_) => "map[string]interface {}",
    }
}

/// Reads JSON of a declared type, or returns why it does not have that type.
pub(crate) fn read<'a>(json: &'a Json, decl: &'a DeclType) -> Result<Value<'a>> {
    if matches!(decl.kind, DeclKind::Dyn) {
        return Ok(plain(json));
    }
    if json.is_null() {
        return match decl.nullable {
            true => Ok(Value::Null),
            false => Err(EvalError::new("invalid data, got null for schema with nullable=false")),
        };
    }
    let not = |what: &str| EvalError::new(format!("invalid data, expected {what}, got {}", go_type(json)));
    match &decl.kind {
        DeclKind::Dyn | DeclKind::Named(_) => Ok(plain(json)),
        DeclKind::IntOrString => match json {
            Json::String(s) => Ok(Value::borrowed(s)),
            Json::Number(n) if n.is_i64() => Ok(plain(json)),
            _ => Err(EvalError::new("invalid data, expected XIntOrString value to be either a string or integer")),
        },
        DeclKind::Bool => json.as_bool().map(Value::Bool).ok_or_else(|| not("bool")),
        DeclKind::Int => json.as_i64().map(Value::Int).ok_or_else(|| not("int")),
        DeclKind::Uint => json.as_u64().map(Value::Uint).ok_or_else(|| not("uint")),
        DeclKind::Double => json.as_f64().map(Value::Double).ok_or_else(|| not("float")),
        DeclKind::String | DeclKind::Bytes | DeclKind::Duration | DeclKind::Timestamp(_) => {
            formatted(json.as_str().ok_or_else(|| not("string"))?, &decl.kind)
        }
        DeclKind::List(element, kind) => match json {
            Json::Array(items) => Ok(Value::List(List::Json(items, element, kind))),
            _ => Err(EvalError::new("invalid data, expected an array for the provided schema with type=array")),
        },
        DeclKind::Map(value) => match json {
            Json::Object(map) => Ok(Value::Map(Map::Json(map, value))),
            _ => Err(EvalError::new("invalid data, expected a map for the provided schema with type=object")),
        },
        DeclKind::Object(..) => match json {
            Json::Object(map) => Ok(Value::Map(Map::Object(map, decl))),
            _ => Err(EvalError::new("invalid data, expected a map for the provided schema with type=object")),
        },
    }
}

fn formatted<'a>(s: &'a str, kind: &DeclKind) -> Result<Value<'a>> {
    match kind {
        DeclKind::Bytes => base64::engine::general_purpose::STANDARD
            .decode(s)
            .map(|b| Value::Bytes(b.into()))
            .map_err(|_| EvalError::new(format!("Invalid byte formatted string {s}: illegal base64 data"))),
        DeclKind::Duration => time::lenient_duration(s)
            .map(Value::Duration)
            .ok_or_else(|| EvalError::new(format!("Invalid duration {s}: unable to parse {s} as duration"))),
        DeclKind::Timestamp(Format::Date) => time::date(s)
            .map(Value::Timestamp)
            .ok_or_else(|| EvalError::new(format!("Invalid date formatted string {s}: cannot parse"))),
        DeclKind::Timestamp(Format::DateTime) => time::lenient_timestamp(s)
            .map(Value::Timestamp)
            .ok_or_else(|| EvalError::new(format!("Invalid date-time formatted string {s}: cannot parse"))),
        _ => Ok(Value::borrowed(s)),
    }
}

/// The JSON of a value. Keys become strings. Values that are not data have no JSON.
pub(crate) fn write(value: &Value<'_>) -> Option<Json> {
    Some(match value {
        Value::Null => Json::Null,
        Value::Bool(b) => Json::Bool(*b),
        Value::Int(n) => (*n).into(),
        Value::Uint(n) => (*n).into(),
        Value::Double(d) => serde_json::Number::from_f64(*d)?.into(),
        Value::Text(s) => Json::String(s.to_string()),
        Value::Bytes(b) => Json::String(base64::engine::general_purpose::STANDARD.encode(b)),
        Value::Timestamp(t) => Json::String(t.to_string()),
        Value::Duration(d) => Json::String(time::duration_text(*d)),
        Value::List(list) => Json::Array(list.iter().map(|v| write(&v.ok()?)).collect::<Option<_>>()?),
        Value::Map(Map::Object(map, _)) => Json::Object((*map).clone()),
        Value::Map(Map::Struct(s)) => {
            let fields = s.fields.iter().map(|(name, value)| {
                let name = crate::types::escape::unescape(name).unwrap_or(name.as_ref().into());
                Some((name.into_owned(), write(value)?))
            });
            Json::Object(fields.collect::<Option<_>>()?)
        }
        Value::Map(map) => {
            let entries = map.keys().into_iter().map(|key| {
                let value = map.find(&key).ok()??;
                let name = match &key {
                    Value::Text(s) => s.to_string(),
                    other => other.to_string(),
                };
                Some((name, write(&value)?))
            });
            Json::Object(entries.collect::<Option<_>>()?)
        }
        Value::Optional(Some(inner)) => write(inner)?,
        Value::Unknown(json) => (*json).clone(),
        Value::Optional(None) | Value::Type(_) | Value::Opaque(_) | Value::Variables => return None,
    })
}
