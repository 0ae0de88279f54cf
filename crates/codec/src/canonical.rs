//! Brings a tree into canonical form in place. A patched object is already canonical except where the patch changed it, so most values
//! are only checked; decoding the object's JSON again would rebuild every value.
//!
//! This code does not handle rare cases (an unknown field, a value of a wrong type, a number in an unusual spelling).
//! For those the caller decodes the tree's JSON, which handles them and reports the usual errors. A partly converted
//! tree does not affect that, since decoding would do each of these steps too.
use crate::{scalar, zero};
use base64::{Engine, engine::general_purpose::STANDARD};
use kelson_schema::{Field, FieldType, Kind, TypeId};
use serde_json::{Map, Number, Value};

/// The nesting depth up to which trees are converted in place. Deeper trees are decoded.
const DEPTH_MAX: usize = 64;
/// Whole floats below this are written as integers, without a point.
const WHOLE_FLOAT_LIMIT: u64 = 1 << 53;

/// Converts the tree. Returns whether it is in canonical form now; if not, it must be decoded, which may report an error.
pub(crate) fn in_place(ty: TypeId, value: &mut Value) -> bool {
    match value {
        Value::Object(map) => object(ty, map, 0),
        _ => false,
    }
}

fn object(ty: TypeId, map: &mut Map<String, Value>, depth: usize) -> bool {
    if depth > DEPTH_MAX {
        return false;
    }
    let mut absent: Vec<Field> = Vec::new();
    for (key, value) in map.iter_mut() {
        let Some(field) = ty.field_by_json(key) else { return false };
        match presence(field, value, depth) {
            Presence::Kept => {}
            Presence::Absent => absent.push(field),
            Presence::Unsure => return false,
        }
    }
    for field in absent {
        map.remove(field.json());
    }
    zero::finish(ty, map);
    true
}

enum Presence {
    /// The value stays and is in canonical form.
    Kept,
    /// The field counts as absent.
    Absent,
    Unsure,
}

fn presence(field: Field, value: &mut Value, depth: usize) -> Presence {
    if value.is_null() {
        // A null that represents an absent field is added again when the struct is finished.
        let stays = field.shown_when_absent()
            && (field.is_pointer()
                || matches!(field.ty().kind(), Kind::Time | Kind::MicroTime | Kind::List(_) | Kind::Map(_)));
        return if stays { Presence::Kept } else { Presence::Absent };
    }
    if !any(field.ty(), value, depth) {
        return Presence::Unsure;
    }
    match zero::form(field, value) {
        zero::FieldForm::Value => Presence::Kept,
        zero::FieldForm::Absent => Presence::Absent,
        zero::FieldForm::Null => {
            *value = Value::Null;
            Presence::Kept
        }
    }
}

/// Converts a value that is not null.
fn any(ty: FieldType, value: &mut Value, depth: usize) -> bool {
    match (ty.kind(), value) {
        (Kind::Struct(id), Value::Object(map)) => object(id, map, depth + 1),
        (Kind::String, Value::String(_)) | (Kind::Bool, Value::Bool(_)) | (Kind::IntOrString, Value::String(_)) => true,
        (Kind::Int32 | Kind::IntOrString, Value::Number(n)) => n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
        (Kind::Int64, Value::Number(n)) => n.is_i64(),
        (Kind::Double, Value::Number(n)) => is_plain_number(n, false),
        (Kind::Bytes, Value::String(text)) => STANDARD.decode(text.as_bytes()).is_ok(),
        (Kind::List(elem) | Kind::WrappedList(elem), Value::Array(items)) => {
            depth < DEPTH_MAX && items.iter_mut().all(|item| element(elem, item, depth + 1))
        }
        (Kind::Map(of), Value::Object(map)) => {
            depth < DEPTH_MAX && map.values_mut().all(|value| entry(of, value, depth + 1))
        }
        (Kind::Time, Value::String(text)) => time(text, false),
        (Kind::MicroTime, Value::String(text)) => time(text, true),
        (Kind::Duration, Value::String(text)) => {
            scalar::parse_duration(text).map(|nanos| put(text, scalar::format_duration(nanos))).is_ok()
        }
        (Kind::Quantity, Value::String(text)) => scalar::quantity(text).map(|canonical| put(text, canonical)).is_ok(),
        (Kind::RawExtension | Kind::FieldsV1 | Kind::Json | Kind::Any, value) => is_plain(value, depth + 1),
        _ => false,
    }
}

fn element(ty: FieldType, value: &mut Value, depth: usize) -> bool {
    if value.is_null() {
        *value = zero::zero(ty);
        return true;
    }
    any(ty, value, depth)
}

fn entry(ty: FieldType, value: &mut Value, depth: usize) -> bool {
    if value.is_null() && ty.kind() == Kind::Bytes {
        // Protobuf has no absent byte strings in a map.
        *value = Value::String(String::new());
        return true;
    }
    element(ty, value, depth)
}

fn put(text: &mut String, canonical: String) {
    if *text != canonical {
        *text = canonical;
    }
}

fn time(text: &mut String, micro: bool) -> bool {
    match scalar::parse_time(text, micro) {
        Ok(moment) if !moment.is_zero() => {
            put(text, scalar::format_time(moment, micro));
            true
        }
        _ => false,
    }
}

/// Whether untyped JSON is as decoding would produce it. Only numbers have more than one spelling.
fn is_plain(value: &Value, depth: usize) -> bool {
    if depth > DEPTH_MAX {
        return false;
    }
    match value {
        Value::Number(number) => is_plain_number(number, true),
        Value::Array(items) => items.iter().all(|item| is_plain(item, depth + 1)),
        Value::Object(map) => map.values().all(|value| is_plain(value, depth + 1)),
        _ => true,
    }
}

/// Whether a number is in canonical form. `large` says whether integers may be too large for a float.
fn is_plain_number(number: &Number, large: bool) -> bool {
    match (number.as_i64(), number.as_f64()) {
        (Some(n), _) => large || n.unsigned_abs() < WHOLE_FLOAT_LIMIT,
        (None, Some(float)) => number.is_f64() && float.fract() != 0.0,
        _ => false,
    }
}
