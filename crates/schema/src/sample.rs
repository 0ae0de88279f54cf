//! Objects in which every field is set, generated from the table alone. Tests of codecs, defaults and validation try
//! them for every type.
use serde_json::{Map, Value, json};

use crate::{FieldType, Kind, TypeId};

/// The number of times that a type may contain itself before it is left out.
const NESTED_MAX: usize = 2;

/// An object of this type with every field set, lists and maps with one element.
pub fn object(ty: TypeId) -> Map<String, Value> {
    filled(ty, &mut Vec::new())
}

fn filled(ty: TypeId, within: &mut Vec<TypeId>) -> Map<String, Value> {
    within.push(ty);
    let mut object = Map::new();
    // What has no number in protobuf is the kind of a nested object, which protobuf does not carry.
    for field in ty.json_fields().filter(|f| f.number() > 0) {
        if let Some(value) = value(field.ty(), field.json(), within) {
            object.insert(field.json().to_owned(), value);
        }
    }
    within.pop();
    object
}

/// Returns a value that differs from every default and zero; `None` where the type would recurse without end.
fn value(ty: FieldType, name: &str, within: &mut Vec<TypeId>) -> Option<Value> {
    let nested = |id: TypeId, within: &mut Vec<TypeId>| {
        let again = within.iter().filter(|t| **t == id).count();
        (again < NESTED_MAX).then(|| Value::Object(filled(id, within)))
    };
    Some(match ty.kind() {
        Kind::Bool => json!(true),
        Kind::Int32 => json!(17),
        Kind::Int64 => json!(5_000_000_000_i64),
        Kind::Double => json!(2.5),
        Kind::String => json!(format!("{name}-value")),
        Kind::Bytes => json!("AQID"),
        Kind::Time => json!("2026-01-02T03:04:05Z"),
        Kind::MicroTime => json!("2026-01-02T03:04:05.000006Z"),
        Kind::Duration => json!("1m30s"),
        Kind::Quantity => json!("1500m"),
        Kind::IntOrString => json!("25%"),
        Kind::RawExtension => json!({"apiVersion": "example.com/v1", "kind": "Sample", "text": name}),
        Kind::FieldsV1 => json!({"f:metadata": {"f:name": {}}}),
        Kind::Json => json!({"any": [1, "two", null]}),
        Kind::Any => return None,
        Kind::Struct(id) => nested(id, within)?,
        Kind::SchemaOrBool(id) | Kind::SchemaOrArray(id) | Kind::SchemaOrStringArray(id) => nested(id, within)?,
        Kind::List(item) | Kind::WrappedList(item) => Value::Array(vec![value(item, name, within)?]),
        Kind::Map(item) => json!({"key": value(item, name, within)?}),
    })
}
