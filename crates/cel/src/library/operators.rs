//! The operators. The evaluator itself implements those that may skip an argument.
use std::cmp::Ordering;

use super::row::{Row, elsewhere};
use crate::cost::Rule;
use crate::value::error::{EvalError, Result};
use crate::value::{Map, Value, equal, list};

const ONE: Rule = Rule::One;
const CMP: Rule = Rule::Compare;

pub(super) const ROWS: &[Row] = &[
    Row("conditional", "_?_:_(bool, A, A) -> A", elsewhere, Rule::Conditional),
    Row("logical_and", "_&&_(bool, bool) -> bool", elsewhere, Rule::Logical),
    Row("logical_or", "_||_(bool, bool) -> bool", elsewhere, Rule::Logical),
    Row("logical_not", "!_(bool) -> bool", not, ONE),
    Row("not_strictly_false", "@not_strictly_false(bool) -> bool", elsewhere, ONE),
    Row("equals", "_==_(A, A) -> bool", elsewhere, Rule::Equal),
    Row("not_equals", "_!=_(A, A) -> bool", elsewhere, CMP),
    Row("add_bytes", "_+_(bytes, bytes) -> bytes", add, Rule::AddText),
    Row("add_double", "_+_(double, double) -> double", add, ONE),
    Row("add_duration_duration", "_+_(duration, duration) -> duration", add, ONE),
    Row("add_duration_timestamp", "_+_(duration, timestamp) -> timestamp", add, ONE),
    Row("add_timestamp_duration", "_+_(timestamp, duration) -> timestamp", add, ONE),
    Row("add_int64", "_+_(int, int) -> int", add, ONE),
    Row("add_list", "_+_(list(A), list(A)) -> list(A)", add, Rule::AddList),
    Row("add_string", "_+_(string, string) -> string", add, Rule::AddText),
    Row("add_uint64", "_+_(uint, uint) -> uint", add, ONE),
    Row("divide_double", "_/_(double, double) -> double", divide, ONE),
    Row("divide_int64", "_/_(int, int) -> int", divide, ONE),
    Row("divide_uint64", "_/_(uint, uint) -> uint", divide, ONE),
    Row("modulo_int64", "_%_(int, int) -> int", modulo, ONE),
    Row("modulo_uint64", "_%_(uint, uint) -> uint", modulo, ONE),
    Row("multiply_double", "_*_(double, double) -> double", multiply, ONE),
    Row("multiply_int64", "_*_(int, int) -> int", multiply, ONE),
    Row("multiply_uint64", "_*_(uint, uint) -> uint", multiply, ONE),
    Row("negate_double", "-_(double) -> double", negate, ONE),
    Row("negate_int64", "-_(int) -> int", negate, ONE),
    Row("subtract_double", "_-_(double, double) -> double", subtract, ONE),
    Row("subtract_duration_duration", "_-_(duration, duration) -> duration", subtract, ONE),
    Row("subtract_int64", "_-_(int, int) -> int", subtract, ONE),
    Row("subtract_timestamp_duration", "_-_(timestamp, duration) -> timestamp", subtract, ONE),
    Row("subtract_timestamp_timestamp", "_-_(timestamp, timestamp) -> duration", subtract, ONE),
    Row("subtract_uint64", "_-_(uint, uint) -> uint", subtract, ONE),
    Row("less_bool", "_<_(bool, bool) -> bool", less, ONE),
    Row("less_int64", "_<_(int, int) -> bool", less, ONE),
    Row("less_int64_double", "_<_(int, double) -> bool", less, ONE),
    Row("less_int64_uint64", "_<_(int, uint) -> bool", less, ONE),
    Row("less_uint64", "_<_(uint, uint) -> bool", less, ONE),
    Row("less_uint64_double", "_<_(uint, double) -> bool", less, ONE),
    Row("less_uint64_int64", "_<_(uint, int) -> bool", less, ONE),
    Row("less_double", "_<_(double, double) -> bool", less, ONE),
    Row("less_double_int64", "_<_(double, int) -> bool", less, ONE),
    Row("less_double_uint64", "_<_(double, uint) -> bool", less, ONE),
    Row("less_string", "_<_(string, string) -> bool", less, CMP),
    Row("less_bytes", "_<_(bytes, bytes) -> bool", less, CMP),
    Row("less_timestamp", "_<_(timestamp, timestamp) -> bool", less, ONE),
    Row("less_duration", "_<_(duration, duration) -> bool", less, ONE),
    Row("less_equals_bool", "_<=_(bool, bool) -> bool", less_equals, ONE),
    Row("less_equals_int64", "_<=_(int, int) -> bool", less_equals, ONE),
    Row("less_equals_int64_double", "_<=_(int, double) -> bool", less_equals, ONE),
    Row("less_equals_int64_uint64", "_<=_(int, uint) -> bool", less_equals, ONE),
    Row("less_equals_uint64", "_<=_(uint, uint) -> bool", less_equals, ONE),
    Row("less_equals_uint64_double", "_<=_(uint, double) -> bool", less_equals, ONE),
    Row("less_equals_uint64_int64", "_<=_(uint, int) -> bool", less_equals, ONE),
    Row("less_equals_double", "_<=_(double, double) -> bool", less_equals, ONE),
    Row("less_equals_double_int64", "_<=_(double, int) -> bool", less_equals, ONE),
    Row("less_equals_double_uint64", "_<=_(double, uint) -> bool", less_equals, ONE),
    Row("less_equals_string", "_<=_(string, string) -> bool", less_equals, CMP),
    Row("less_equals_bytes", "_<=_(bytes, bytes) -> bool", less_equals, CMP),
    Row("less_equals_timestamp", "_<=_(timestamp, timestamp) -> bool", less_equals, ONE),
    Row("less_equals_duration", "_<=_(duration, duration) -> bool", less_equals, ONE),
    Row("greater_bool", "_>_(bool, bool) -> bool", greater, ONE),
    Row("greater_int64", "_>_(int, int) -> bool", greater, ONE),
    Row("greater_int64_double", "_>_(int, double) -> bool", greater, ONE),
    Row("greater_int64_uint64", "_>_(int, uint) -> bool", greater, ONE),
    Row("greater_uint64", "_>_(uint, uint) -> bool", greater, ONE),
    Row("greater_uint64_double", "_>_(uint, double) -> bool", greater, ONE),
    Row("greater_uint64_int64", "_>_(uint, int) -> bool", greater, ONE),
    Row("greater_double", "_>_(double, double) -> bool", greater, ONE),
    Row("greater_double_int64", "_>_(double, int) -> bool", greater, ONE),
    Row("greater_double_uint64", "_>_(double, uint) -> bool", greater, ONE),
    Row("greater_string", "_>_(string, string) -> bool", greater, CMP),
    Row("greater_bytes", "_>_(bytes, bytes) -> bool", greater, CMP),
    Row("greater_timestamp", "_>_(timestamp, timestamp) -> bool", greater, ONE),
    Row("greater_duration", "_>_(duration, duration) -> bool", greater, ONE),
    Row("greater_equals_bool", "_>=_(bool, bool) -> bool", greater_equals, ONE),
    Row("greater_equals_int64", "_>=_(int, int) -> bool", greater_equals, ONE),
    Row("greater_equals_int64_double", "_>=_(int, double) -> bool", greater_equals, ONE),
    Row("greater_equals_int64_uint64", "_>=_(int, uint) -> bool", greater_equals, ONE),
    Row("greater_equals_uint64", "_>=_(uint, uint) -> bool", greater_equals, ONE),
    Row("greater_equals_uint64_double", "_>=_(uint, double) -> bool", greater_equals, ONE),
    Row("greater_equals_uint64_int64", "_>=_(uint, int) -> bool", greater_equals, ONE),
    Row("greater_equals_double", "_>=_(double, double) -> bool", greater_equals, ONE),
    Row("greater_equals_double_int64", "_>=_(double, int) -> bool", greater_equals, ONE),
    Row("greater_equals_double_uint64", "_>=_(double, uint) -> bool", greater_equals, ONE),
    Row("greater_equals_string", "_>=_(string, string) -> bool", greater_equals, CMP),
    Row("greater_equals_bytes", "_>=_(bytes, bytes) -> bool", greater_equals, CMP),
    Row("greater_equals_timestamp", "_>=_(timestamp, timestamp) -> bool", greater_equals, ONE),
    Row("greater_equals_duration", "_>=_(duration, duration) -> bool", greater_equals, ONE),
    Row("index_list", "_[_](list(A), int) -> A", elsewhere, Rule::IndexList),
    Row("index_map", "_[_](map(A, B), A) -> B", elsewhere, Rule::IndexMap),
    Row("in_list", "@in(A, list(A)) -> bool", contained, Rule::InList),
    Row("in_map", "@in(A, map(A, B)) -> bool", contained, ONE),
    Row("@mapInsert_map_key_value", "cel.@mapInsert(map(K, V), K, V) -> map(K, V)", insert, ONE),
    Row("@mapInsert_map_map", "cel.@mapInsert(map(K, V), map(K, V)) -> map(K, V)", insert, ONE),
];

fn overflow() -> EvalError {
    EvalError::new("integer overflow")
}
fn unsigned_overflow() -> EvalError {
    EvalError::new("unsigned integer overflow")
}
fn duration_overflow() -> EvalError {
    EvalError::new("duration overflow")
}
fn timestamp_overflow() -> EvalError {
    EvalError::new("timestamp overflow")
}
fn none<'a>() -> Result<Value<'a>> {
    Err(EvalError::no_overload())
}

fn not<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Bool(b)] => Ok(Value::Bool(!b)),
        _ => none(),
    }
}

pub(super) fn add<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(match args {
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_add(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => Value::Uint(a.checked_add(*b).ok_or_else(unsigned_overflow)?),
        [Value::Double(a), Value::Double(b)] => Value::Double(a + b),
        [Value::Text(a), Value::Text(b)] => {
            let mut joined = String::with_capacity(a.len() + b.len());
            joined.push_str(a);
            joined.push_str(b);
            Value::text(joined)
        }
        [Value::Bytes(a), Value::Bytes(b)] => Value::Bytes([&a[..], &b[..]].concat().into()),
        [Value::List(a), Value::List(b)] => Value::List(a.clone().add(b.clone())?),
        [Value::Duration(a), Value::Duration(b)] => Value::Duration(a.checked_add(*b).ok_or_else(duration_overflow)?),
        [Value::Timestamp(t), Value::Duration(d)] | [Value::Duration(d), Value::Timestamp(t)] => {
            Value::Timestamp(t.plus(*d).ok_or_else(timestamp_overflow)?)
        }
        _ => return none(),
    })
}

fn subtract<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(match args {
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_sub(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => Value::Uint(a.checked_sub(*b).ok_or_else(unsigned_overflow)?),
        [Value::Double(a), Value::Double(b)] => Value::Double(a - b),
        [Value::Duration(a), Value::Duration(b)] => Value::Duration(a.checked_sub(*b).ok_or_else(duration_overflow)?),
        [Value::Timestamp(t), Value::Duration(d)] => {
            let d = d.checked_neg().ok_or_else(timestamp_overflow)?;
            Value::Timestamp(t.plus(d).ok_or_else(timestamp_overflow)?)
        }
        [Value::Timestamp(a), Value::Timestamp(b)] => Value::Duration(a.minus(*b).ok_or_else(duration_overflow)?),
        _ => return none(),
    })
}

fn multiply<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(match args {
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_mul(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => Value::Uint(a.checked_mul(*b).ok_or_else(unsigned_overflow)?),
        [Value::Double(a), Value::Double(b)] => Value::Double(a * b),
        _ => return none(),
    })
}

fn divide<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            return Err(EvalError::new("division by zero"));
        }
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_div(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => Value::Uint(a / b),
        [Value::Double(a), Value::Double(b)] => Value::Double(a / b),
        _ => return none(),
    })
}

fn modulo<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            return Err(EvalError::new("modulus by zero"));
        }
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_rem(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => Value::Uint(a % b),
        _ => return none(),
    })
}

fn negate<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(match args {
        [Value::Int(a)] => Value::Int(a.checked_neg().ok_or_else(overflow)?),
        [Value::Double(a)] => Value::Double(-a),
        _ => return none(),
    })
}

fn ordered<'a>(args: &[Value<'a>], holds: fn(Ordering) -> bool) -> Result<Value<'a>> {
    match args {
        [a, b] => equal::compare(a, b).map(|o| Value::Bool(holds(o))),
        _ => none(),
    }
}
fn less<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordered(args, Ordering::is_lt)
}
fn less_equals<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordered(args, Ordering::is_le)
}
fn greater<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordered(args, Ordering::is_gt)
}
fn greater_equals<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordered(args, Ordering::is_ge)
}

fn contained<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [_, Value::List(list)] if list.len() > list::MOST => Err(EvalError::CostLimit),
        [value, Value::List(list)] => equal::contains(list, value).map(Value::Bool),
        [key, Value::Map(map)] => map.contains(key).map(Value::Bool),
        _ => none(),
    }
}

/// Inserts into a map that a loop builds. The evaluator passes a map that is not shared, so that it is not copied.
fn insert<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Map(map), key, value] => Ok(Value::Map(map.clone().insert(key.clone(), value.clone())?)),
        [Value::Map(map), Value::Map(more)] => insert_all(map.clone(), more),
        _ => none(),
    }
}

fn insert_all<'a>(mut map: Map<'a>, more: &Map<'a>) -> Result<Value<'a>> {
    for key in more.keys() {
        if let Some(value) = more.find(&key)? {
            map = map.insert(key, value)?;
        }
    }
    Ok(Value::Map(map))
}
