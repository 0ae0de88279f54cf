//! Encodes a tree as protobuf like Kubernetes' generated code: fields in the order of their numbers, values that are not pointers
//! always written, map entries sorted by key. The buffer is filled from its end, so this code works backwards.
use super::wire::RevBuf;
use crate::{EncodeError, scalar};
use base64::{Engine, engine::general_purpose::STANDARD};
use kelson_schema::{Field, FieldType, Kind, TypeId};
use serde_json::{Map, Value};

pub(super) fn message(ty: TypeId, map: &Map<String, Value>, out: &mut RevBuf) -> Result<(), EncodeError> {
    for field in ty.fields().rev() {
        if field.number() == 0 {
            continue;
        }
        if field.is_inline() {
            if let Kind::Struct(inner) = field.ty().kind() {
                let mark = out.mark();
                message(inner, map, out)?;
                out.close(field.number(), mark);
            }
            continue;
        }
        match map.get(field.json()) {
            None | Some(Value::Null) if field.is_pointer() => {}
            None | Some(Value::Null) => absent(field.number(), field.ty(), out)?,
            Some(present) => value(field.number(), field.ty(), present, out).map_err(|e| locate(e, field))?,
        }
    }
    Ok(())
}

fn locate(error: EncodeError, field: Field) -> EncodeError {
    match error {
        EncodeError::Mismatch { path, expected } if path.is_empty() => {
            EncodeError::Mismatch { path: field.json().to_owned(), expected }
        }
        other => other,
    }
}

/// Encodes the zero value of an absent field. A field that is not a pointer is written even if nothing is set.
fn absent(number: u32, ty: FieldType, out: &mut RevBuf) -> Result<(), EncodeError> {
    match ty.kind() {
        Kind::Bool | Kind::Int32 | Kind::Int64 => out.int(number, 0),
        Kind::Double => out.double(number, 0.0),
        Kind::String => out.text(number, ""),
        Kind::Quantity => value(number, ty, &Value::from("0"), out)?,
        Kind::IntOrString => value(number, ty, &Value::from(0), out)?,
        Kind::Duration => value(number, ty, &Value::from("0s"), out)?,
        Kind::SchemaOrBool(_) => value(number, ty, &Value::from(false), out)?,
        Kind::Struct(id) => {
            let mark = out.mark();
            message(id, &Map::new(), out)?;
            out.close(number, mark);
        }
        Kind::Bytes | Kind::List(_) | Kind::Map(_) | Kind::WrappedList(_) | Kind::Any => {}
        _ => out.bytes(number, &[]),
    }
    Ok(())
}

fn mismatch(expected: &'static str) -> EncodeError {
    EncodeError::Mismatch { path: String::new(), expected }
}

fn value(number: u32, ty: FieldType, v: &Value, out: &mut RevBuf) -> Result<(), EncodeError> {
    let text = |expected| v.as_str().ok_or_else(|| mismatch(expected));
    match ty.kind() {
        Kind::Bool => out.int(number, i64::from(v.as_bool().ok_or_else(|| mismatch("bool"))?)),
        Kind::Int32 | Kind::Int64 => out.int(number, v.as_i64().ok_or_else(|| mismatch("integer"))?),
        Kind::Double => out.double(number, v.as_f64().ok_or_else(|| mismatch("number"))?),
        Kind::String => out.text(number, text("string")?),
        Kind::Bytes => out.bytes(number, &STANDARD.decode(text("base64")?).map_err(|_| mismatch("base64"))?),
        Kind::Struct(id) => {
            let map = v.as_object().ok_or_else(|| mismatch("object"))?;
            let mark = out.mark();
            message(id, map, out)?;
            out.close(number, mark);
        }
        Kind::List(elem) => list(number, elem, v, out)?,
        Kind::WrappedList(elem) => {
            let mark = out.mark();
            list(1, elem, v, out)?;
            out.close(number, mark);
        }
        Kind::Map(elem) => {
            let map = v.as_object().ok_or_else(|| mismatch("object"))?;
            for (key, v) in map.iter().rev() {
                let mark = out.mark();
                match v {
                    Value::Null => absent(2, elem, out)?,
                    v => value(2, elem, v, out)?,
                }
                out.text(1, key);
                out.close(number, mark);
            }
        }
        _ => {
            let mark = out.mark();
            special(ty.kind(), v, out)?;
            out.close(number, mark);
        }
    }
    Ok(())
}

fn list(number: u32, elem: FieldType, v: &Value, out: &mut RevBuf) -> Result<(), EncodeError> {
    let items = v.as_array().ok_or_else(|| mismatch("array"))?;
    for item in items.iter().rev() {
        match item {
            Value::Null => absent(number, elem, out)?,
            item => value(number, elem, item, out)?,
        }
    }
    Ok(())
}

/// Encodes messages whose JSON is not an object.
fn special(kind: Kind, v: &Value, out: &mut RevBuf) -> Result<(), EncodeError> {
    let text = |expected| v.as_str().ok_or_else(|| mismatch(expected));
    match kind {
        Kind::Time | Kind::MicroTime => {
            let micro = kind == Kind::MicroTime;
            let moment = scalar::parse_time(text("time")?, micro).map_err(|_| mismatch("time"))?;
            if !moment.is_zero() {
                out.int(2, if micro { i64::from(moment.nanos) } else { 0 });
                out.int(1, moment.seconds);
            }
        }
        Kind::Duration => {
            let nanos = scalar::parse_duration(text("duration")?).map_err(|_| mismatch("duration"))?;
            out.int(1, nanos);
        }
        Kind::Quantity => match v {
            Value::Number(n) => out.text(1, &n.to_string()),
            v => out.text(1, v.as_str().ok_or_else(|| mismatch("quantity"))?),
        },
        Kind::IntOrString => match v {
            Value::String(s) => {
                out.text(3, s);
                out.int(2, 0);
                out.int(1, 1);
            }
            v => {
                out.text(3, "");
                out.int(2, v.as_i64().ok_or_else(|| mismatch("int or string"))?);
                out.int(1, 0);
            }
        },
        Kind::SchemaOrBool(id) => match v {
            Value::Bool(allows) => out.int(1, i64::from(*allows)),
            v => {
                schema(2, id, v, out)?;
                out.int(1, 1);
            }
        },
        Kind::SchemaOrArray(id) => match v {
            Value::Array(schemas) => {
                for v in schemas.iter().rev() {
                    schema(2, id, v, out)?;
                }
            }
            v => schema(1, id, v, out)?,
        },
        Kind::SchemaOrStringArray(id) => match v {
            Value::Array(names) => {
                for v in names.iter().rev() {
                    out.text(2, v.as_str().ok_or_else(|| mismatch("string"))?);
                }
            }
            v => schema(1, id, v, out)?,
        },
        // RawExtension, FieldsV1, JSON: the value's JSON in field 1.
        _ => out.bytes(1, &crate::canonical_json(v)),
    }
    Ok(())
}

fn schema(number: u32, id: TypeId, v: &Value, out: &mut RevBuf) -> Result<(), EncodeError> {
    let mark = out.mark();
    message(id, v.as_object().ok_or_else(|| mismatch("JSON schema"))?, out)?;
    out.close(number, mark);
    Ok(())
}
