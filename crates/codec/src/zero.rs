//! When a field is written: what its absence looks like in canonical JSON and which values count as absent.
//! The rules are those of Go's JSON encoding of the published types.
use crate::budget::{member_bytes, tree_bytes};
use kelson_schema::{Field, FieldType, Kind, TypeId};
use serde_json::{Map, Value};

/// JSON of the zero value of a type.
pub(crate) fn zero(ty: FieldType) -> Value {
    match ty.kind() {
        Kind::Bool => Value::Bool(false),
        Kind::Int32 | Kind::Int64 | Kind::Double | Kind::IntOrString => Value::from(0),
        Kind::String => Value::String(String::new()),
        Kind::Duration => Value::from("0s"),
        Kind::Quantity => Value::from("0"),
        Kind::SchemaOrBool(_) => Value::Bool(false),
        Kind::Struct(id) => Value::Object(zero_struct(id)),
        _ => Value::Null,
    }
}

/// JSON of a struct in which nothing is set.
pub(crate) fn zero_struct(id: TypeId) -> Map<String, Value> {
    let mut map = Map::new();
    finish(id, &mut map);
    map
}

/// Types that are structs in Go: `omitempty` never leaves them out.
fn is_struct(ty: FieldType) -> bool {
    matches!(
        ty.kind(),
        Kind::Struct(_)
            | Kind::Time
            | Kind::MicroTime
            | Kind::Duration
            | Kind::Quantity
            | Kind::IntOrString
            | Kind::RawExtension
            | Kind::FieldsV1
            | Kind::Json
            | Kind::SchemaOrBool(_)
            | Kind::SchemaOrArray(_)
            | Kind::SchemaOrStringArray(_)
    )
}

/// How a decoded value is written.
pub(crate) enum Form {
    /// As it is.
    Value,
    /// Not at all.
    Absent,
    /// The field stays with the value null.
    Null,
}

/// How a field's value is written in canonical form.
pub(crate) fn form(field: Field, value: &Value) -> Form {
    if field.is_pointer() {
        // A zero time is written as null, and null is no pointer: who reads the document again finds nothing there.
        return if value.is_null() { Form::Absent } else { Form::Value };
    }
    let empty = match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_i64() == Some(0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    };
    if empty && (field.omit_zero() || field.omit_empty() && !is_struct(field.ty())) {
        return Form::Absent;
    }
    // Protobuf, which stores the published types, does not tell an empty list from none.
    if empty && matches!(field.ty().kind(), Kind::List(_) | Kind::Map(_)) {
        return Form::Null;
    }
    Form::Value
}

/// Puts a decoded value into its struct, unless the canonical form leaves it out.
pub(crate) fn store(map: &mut Map<String, Value>, field: Field, value: Value) {
    let value = match form(field, &value) {
        Form::Value => value,
        Form::Null => Value::Null,
        Form::Absent => {
            map.remove(field.json());
            return;
        }
    };
    map.insert(field.json().to_owned(), value);
}

/// Adds what the canonical form shows for fields that are not set. Gives the bytes of memory that this takes, estimated as
/// [`crate::Budget`] does: an empty object of two bytes may have to show many fields.
pub(crate) fn finish(id: TypeId, map: &mut Map<String, Value>) -> usize {
    let mut bytes = 0;
    for field in id.json_fields().filter(|f| f.shown_when_absent()) {
        if !map.contains_key(field.json()) {
            let value = if field.is_pointer() { Value::Null } else { zero(field.ty()) };
            bytes += member_bytes(map.len(), field.json()) + tree_bytes(&value);
            map.insert(field.json().to_owned(), value);
        }
    }
    bytes
}
