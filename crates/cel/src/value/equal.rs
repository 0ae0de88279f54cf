//! Equality and order of values (`common/types` of cel-go, `common/valuesunstructured.go`).
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use super::data::{List, Map, Value};
use super::error::{EvalError, Result};
use super::list::{map_key, scalar};
use crate::types::decl::ListKind;

/// `==`. Values of different types are not equal, but numbers are compared by value.
pub(crate) fn equal<'a>(a: &Value<'a>, b: &Value<'a>) -> Result<bool> {
    Ok(match (a, b) {
        (Value::Null, other) | (other, Value::Null) => matches!(other, Value::Null),
        (Value::Bool(x), Value::Bool(y)) => x == y,
        (Value::Text(x), Value::Text(y)) => x == y,
        (Value::Int(x), Value::Int(y)) => x == y,
        (Value::Bytes(x), Value::Bytes(y)) => x == y,
        (Value::Timestamp(x), Value::Timestamp(y)) => x == y,
        (Value::Duration(x), Value::Duration(y)) => x == y,
        (Value::Type(x), Value::Type(y)) => x == y,
        (Value::List(x), Value::List(y)) => lists(x, y)?,
        (Value::Map(x), Value::Map(y)) => maps(x, y)?,
        (Value::Optional(x), Value::Optional(y)) => match (x, y) {
            (Some(x), Some(y)) => equal(x, y)?,
            (x, y) => x.is_none() && y.is_none(),
        },
        (Value::Opaque(x), Value::Opaque(y)) => x == y,
        (Value::Unknown(x), Value::Unknown(y)) => x == y,
        _ => matches!(numbers(a, b), Some(Ordering::Equal)),
    })
}

fn lists<'a>(a: &List<'a>, b: &List<'a>) -> Result<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }
    match a.kind() {
        ListKind::Atomic => {
            for (x, y) in a.iter().zip(b.iter()) {
                if !equal(&x?, &y?)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        ListKind::Set => {
            let set = a.iter().map(|v| Ok(scalar(&v?))).collect::<Result<HashSet<_>>>()?;
            for value in b.iter() {
                if !set.contains(&scalar(&value?)) {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        ListKind::Map(keys) => {
            let mut by_key = HashMap::with_capacity(a.len());
            for value in a.iter() {
                let value = value?;
                by_key.insert(map_key(&value, keys)?, value);
            }
            for value in b.iter() {
                let value = value?;
                match by_key.get(&map_key(&value, keys)?) {
                    Some(own) if equal(own, &value)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
    }
}

fn maps<'a>(a: &Map<'a>, b: &Map<'a>) -> Result<bool> {
    if let (Map::Object(x, decl), Map::Object(y, _)) = (a, b) {
        return objects(x, y, decl);
    }
    if let (Map::Struct(x), Map::Struct(y)) = (a, b)
        && x.name != y.name
    {
        return Ok(false);
    }
    if a.len() != b.len() {
        return Ok(false);
    }
    for key in a.keys() {
        match (a.find(&key)?, b.find(&key)?) {
            (Some(x), Some(y)) if equal(&x, &y)? => {}
            (None, None) => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

type JsonMap = serde_json::Map<String, serde_json::Value>;

/// Compares two objects of one declared type. Properties without a type in expressions are compared as JSON.
fn objects<'a>(a: &'a JsonMap, b: &'a JsonMap, decl: &'a crate::DeclType) -> Result<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for (name, value) in a {
        let field = crate::types::escape::escape(name).and_then(|n| decl.field(&n));
        let Some(field) = field else {
            if b.get(name).is_some_and(|other| other != value) {
                return Ok(false);
            }
            continue;
        };
        match (value, b.get(name).unwrap_or(&serde_json::Value::Null)) {
            (x, y) if x.is_null() || y.is_null() => {
                if x.is_null() != y.is_null() {
                    return Ok(false);
                }
            }
            (x, y) => {
                if !equal(&super::json::read(x, &field.decl)?, &super::json::read(y, &field.decl)?)? {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

/// Compares numbers of any types by value. `None` for NaN and for values that are not numbers.
pub(crate) fn numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    let whole = |v: &Value<'_>| match v {
        Value::Int(n) => Some(i128::from(*n)),
        Value::Uint(n) => Some(i128::from(*n)),
        _ => None,
    };
    match (a, b) {
        (Value::Double(x), Value::Double(y)) => x.partial_cmp(y),
        (Value::Double(x), other) => double_whole(*x, whole(other)?),
        (other, Value::Double(y)) => double_whole(*y, whole(other)?).map(Ordering::reverse),
        _ => Some(whole(a)?.cmp(&whole(b)?)),
    }
}

fn double_whole(d: f64, n: i128) -> Option<Ordering> {
    if d.is_nan() {
        return None;
    }
    // A double beyond this is larger than any 64-bit integer.
    if d.abs() > 1e20 {
        return Some(if d > 0.0 { Ordering::Greater } else { Ordering::Less });
    }
    let whole = d.trunc() as i128;
    Some(whole.cmp(&n).then_with(|| d.fract().partial_cmp(&0.0).unwrap_or(Ordering::Equal)))
}

/// The order of `<` and the other relations, which sorting and `min` also use.
pub(crate) fn compare<'a>(a: &Value<'a>, b: &Value<'a>) -> Result<Ordering> {
    Ok(match (a, b) {
        (Value::Int(x), Value::Int(y)) => x.cmp(y),
        (Value::Text(x), Value::Text(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        (Value::Bytes(x), Value::Bytes(y)) => x.cmp(y),
        (Value::Timestamp(x), Value::Timestamp(y)) => x.cmp(y),
        (Value::Duration(x), Value::Duration(y)) => x.cmp(y),
        (Value::Int(_) | Value::Uint(_) | Value::Double(_), Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
            numbers(a, b).ok_or_else(|| EvalError::new("NaN values cannot be ordered"))?
        }
        _ => return Err(EvalError::no_overload()),
    })
}

/// Whether a list has an element that equals the value.
pub(crate) fn contains<'a>(list: &List<'a>, value: &Value<'a>) -> Result<bool> {
    let mut fault = None;
    for element in list.iter() {
        match element.and_then(|e| equal(&e, value)) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(e) => fault = fault.or(Some(e)),
        }
    }
    fault.map_or(Ok(false), Err)
}
