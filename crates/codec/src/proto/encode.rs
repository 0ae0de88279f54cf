//! Encodes a tree as protobuf like Kubernetes' generated code: fields in the order of their numbers, values that are not pointers
//! always written, map entries sorted by key. The buffer is filled from its end, so this code works backwards.
use super::tree::Tree;
use super::wire::RevBuf;
use crate::{EncodeError, scalar};
use base64::{Engine, engine::general_purpose::STANDARD};
use kelson_schema::{Field, FieldType, Kind, TypeId};
use serde_json::Value;

/// Encodes an object, or an empty one for `None`.
pub(super) fn message<'t, T: Tree<'t>>(ty: TypeId, object: Option<T>, out: &mut RevBuf) -> Result<(), EncodeError> {
    for field in ty.fields().rev() {
        if field.number() == 0 {
            continue;
        }
        if field.is_inline() {
            if let Kind::Struct(inner) = field.ty().kind() {
                let mark = out.mark();
                message(inner, object, out)?;
                out.close(field.number(), mark);
            }
            continue;
        }
        self::field(field, object.and_then(|object| object.get(field.json())), out)?;
    }
    Ok(())
}

/// Encodes one field of a message: its zero value for `None` or null.
pub(super) fn field<'t, T: Tree<'t>>(field: Field, present: Option<T>, out: &mut RevBuf) -> Result<(), EncodeError> {
    match present.filter(|value| !value.is_null()) {
        None if field.is_pointer() => Ok(()),
        None => absent(field.number(), field.ty(), out),
        Some(present) => value(field.number(), field.ty(), present, out).map_err(|e| locate(e, field)),
    }
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
            message(id, None::<&Value>, out)?;
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

fn value<'t, T: Tree<'t>>(number: u32, ty: FieldType, v: T, out: &mut RevBuf) -> Result<(), EncodeError> {
    let text = |expected| v.as_str().ok_or_else(|| mismatch(expected));
    match ty.kind() {
        Kind::Bool => out.int(number, i64::from(v.as_bool().ok_or_else(|| mismatch("bool"))?)),
        Kind::Int32 | Kind::Int64 => out.int(number, v.as_i64().ok_or_else(|| mismatch("integer"))?),
        Kind::Double => out.double(number, v.as_f64().ok_or_else(|| mismatch("number"))?),
        Kind::String => out.text(number, text("string")?),
        Kind::Bytes => out.bytes(number, &STANDARD.decode(text("base64")?).map_err(|_| mismatch("base64"))?),
        Kind::Struct(id) => {
            let object = Some(v).filter(|v| v.is_object()).ok_or_else(|| mismatch("object"))?;
            let mark = out.mark();
            message(id, Some(object), out)?;
            out.close(number, mark);
        }
        Kind::List(elem) => list(number, elem, v, out)?,
        Kind::WrappedList(elem) => {
            let mark = out.mark();
            list(1, elem, v, out)?;
            out.close(number, mark);
        }
        Kind::Map(elem) => {
            for (key, v) in v.members().ok_or_else(|| mismatch("object"))? {
                let mark = out.mark();
                if v.is_null() {
                    absent(2, elem, out)?
                } else {
                    value(2, elem, v, out)?
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

fn list<'t, T: Tree<'t>>(number: u32, elem: FieldType, v: T, out: &mut RevBuf) -> Result<(), EncodeError> {
    for item in v.items().ok_or_else(|| mismatch("array"))? {
        if item.is_null() { absent(number, elem, out)? } else { value(number, elem, item, out)? }
    }
    Ok(())
}

/// Encodes messages whose JSON is not an object.
fn special<'t, T: Tree<'t>>(kind: Kind, v: T, out: &mut RevBuf) -> Result<(), EncodeError> {
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
        Kind::Quantity => match v.number() {
            Some(number) => out.text(1, &number),
            None => out.text(1, text("quantity")?),
        },
        Kind::IntOrString => match v.as_str() {
            Some(s) => {
                out.text(3, s);
                out.int(2, 0);
                out.int(1, 1);
            }
            None => {
                out.text(3, "");
                out.int(2, v.as_i64().ok_or_else(|| mismatch("int or string"))?);
                out.int(1, 0);
            }
        },
        Kind::SchemaOrBool(id) => match v.as_bool() {
            Some(allows) => out.int(1, i64::from(allows)),
            None => {
                schema(2, id, v, out)?;
                out.int(1, 1);
            }
        },
        Kind::SchemaOrArray(id) => match v.items() {
            Some(schemas) => {
                for v in schemas {
                    schema(2, id, v, out)?;
                }
            }
            None => schema(1, id, v, out)?,
        },
        Kind::SchemaOrStringArray(id) => match v.items() {
            Some(names) => {
                for v in names {
                    out.text(2, v.as_str().ok_or_else(|| mismatch("string"))?);
                }
            }
            None => schema(1, id, v, out)?,
        },
        // RawExtension, FieldsV1, JSON: the value's JSON in field 1.
        _ => out.bytes(1, &v.json()),
    }
    Ok(())
}

fn schema<'t, T: Tree<'t>>(number: u32, id: TypeId, v: T, out: &mut RevBuf) -> Result<(), EncodeError> {
    let mark = out.mark();
    let object = Some(v).filter(|v| v.is_object()).ok_or_else(|| mismatch("JSON schema"))?;
    message(id, Some(object), out)?;
    out.close(number, mark);
    Ok(())
}
