//! The rules for absent fields: what canonical JSON shows for them, and which values count as absent. They are the rules of Go's JSON
//! encoding of the published types.
use crate::budget::{member_bytes, tree_bytes};
use kelson_schema::{Field, FieldType, Kind, TypeId};
use serde_json::{Map, Value};

/// The JSON of the zero value of a type.
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

/// The JSON of a struct without any values set.
pub(crate) fn zero_struct(id: TypeId) -> Map<String, Value> {
    let mut map = Map::new();
    finish(id, &mut map);
    map
}

/// Whether the type is a struct in Go, which `omitempty` never omits.
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

/// The form in which a decoded value is written.
pub(crate) enum FieldForm {
    /// The value is written.
    Value,
    /// The field is omitted.
    Absent,
    /// The field is written with the value null.
    Null,
}

/// Returns the form in which a field's value is written in canonical JSON.
pub(crate) fn form(field: Field, value: &Value) -> FieldForm {
    if field.is_pointer() {
        // A zero time is written as null, but a null is no pointer value: when the document is read again, the field is absent.
        return if value.is_null() { FieldForm::Absent } else { FieldForm::Value };
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
        return FieldForm::Absent;
    }
    // Protobuf, in which the published types are stored, does not distinguish an empty list from none.
    if empty && matches!(field.ty().kind(), Kind::List(_) | Kind::Map(_)) {
        return FieldForm::Null;
    }
    FieldForm::Value
}

/// Adds a decoded value to its struct, unless the canonical form omits it.
pub(crate) fn store(map: &mut Map<String, Value>, field: Field, value: Value) {
    let value = match form(field, &value) {
        FieldForm::Value => value,
        FieldForm::Null => Value::Null,
        FieldForm::Absent => {
            map.remove(field.json());
            return;
        }
    };
    map.insert(field.json().to_owned(), value);
}

/// Adds what the canonical form shows for fields that are not set. Returns the bytes of memory that this takes, estimated as in
/// [`crate::Budget`], since an empty object of two bytes may have many such fields.
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
