//! Conversions between types, `size`, `type` and `dyn`.
use super::row::Row;
use crate::cost::Rule;
use crate::value::error::{EvalError, Result};
use crate::value::time::{self, Timestamp};
use crate::value::{Text, Value};

const ONE: Rule = Rule::One;

pub(super) const ROWS: &[Row] = &[
    Row("bool_to_bool", "bool(bool) -> bool", to_bool, ONE),
    Row("string_to_bool", "bool(string) -> bool", to_bool, ONE),
    Row("bytes_to_bytes", "bytes(bytes) -> bytes", to_bytes, ONE),
    Row("string_to_bytes", "bytes(string) -> bytes", to_bytes, Rule::ToBytes),
    Row("double_to_double", "double(double) -> double", to_double, ONE),
    Row("int64_to_double", "double(int) -> double", to_double, ONE),
    Row("string_to_double", "double(string) -> double", to_double, ONE),
    Row("uint64_to_double", "double(uint) -> double", to_double, ONE),
    Row("duration_to_duration", "duration(duration) -> duration", to_duration, ONE),
    Row("int64_to_duration", "duration(int) -> duration", to_duration, ONE),
    Row("string_to_duration", "duration(string) -> duration", to_duration, ONE),
    Row("to_dyn", "dyn(A) -> dyn", to_dyn, ONE),
    Row("int64_to_int64", "int(int) -> int", to_int, ONE),
    Row("double_to_int64", "int(double) -> int", to_int, ONE),
    Row("duration_to_int64", "int(duration) -> int", to_int, ONE),
    Row("string_to_int64", "int(string) -> int", to_int, ONE),
    Row("timestamp_to_int64", "int(timestamp) -> int", to_int, ONE),
    Row("uint64_to_int64", "int(uint) -> int", to_int, ONE),
    Row("string_to_string", "string(string) -> string", to_string, ONE),
    Row("bool_to_string", "string(bool) -> string", to_string, ONE),
    Row("bytes_to_string", "string(bytes) -> string", to_string, Rule::ToText),
    Row("double_to_string", "string(double) -> string", to_string, ONE),
    Row("duration_to_string", "string(duration) -> string", to_string, ONE),
    Row("int64_to_string", "string(int) -> string", to_string, ONE),
    Row("timestamp_to_string", "string(timestamp) -> string", to_string, ONE),
    Row("uint64_to_string", "string(uint) -> string", to_string, ONE),
    Row("timestamp_to_timestamp", "timestamp(timestamp) -> timestamp", to_timestamp, ONE),
    Row("int64_to_timestamp", "timestamp(int) -> timestamp", to_timestamp, ONE),
    Row("string_to_timestamp", "timestamp(string) -> timestamp", to_timestamp, ONE),
    Row("uint64_to_uint64", "uint(uint) -> uint", to_uint, ONE),
    Row("double_to_uint64", "uint(double) -> uint", to_uint, ONE),
    Row("int64_to_uint64", "uint(int) -> uint", to_uint, ONE),
    Row("string_to_uint64", "uint(string) -> uint", to_uint, ONE),
    Row("type", "type(A) -> type(A)", type_of, ONE),
    Row("size_bytes", "size(bytes) -> int", size, ONE),
    Row("bytes_size", "<bytes>.size() -> int", size, ONE),
    Row("size_list", "size(list(A)) -> int", size, ONE),
    Row("list_size", "<list(A)>.size() -> int", size, ONE),
    Row("size_map", "size(map(A, B)) -> int", size, ONE),
    Row("map_size", "<map(A, B)>.size() -> int", size, ONE),
    Row("size_string", "size(string) -> int", size, ONE),
    Row("string_size", "<string>.size() -> int", size, ONE),
];

/// Whether the function converts types. Such a call with a constant argument is computed at compile time.
pub(crate) fn is_conversion(function: &str) -> bool {
    matches!(
        function,
        "bool" | "bytes" | "double" | "duration" | "dyn" | "int" | "string" | "timestamp" | "type" | "uint"
    )
}

fn wrong<'a>(args: &[Value<'a>], to: &str) -> Result<Value<'a>> {
    match args {
        [value] => Err(EvalError::new(format!("type conversion error from '{}' to '{to}'", value.type_name()))),
        _ => Err(EvalError::no_overload()),
    }
}

fn overflow(what: &'static str) -> impl Fn() -> EvalError {
    move || EvalError::new(what)
}

fn to_bool<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(match args {
        [Value::Bool(b)] => Value::Bool(*b),
        [Value::Text(s)] => match &**s {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Value::Bool(true),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Value::Bool(false),
            _ => return wrong(args, "bool"),
        },
        _ => return wrong(args, "bool"),
    })
}

fn to_bytes<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(match args {
        [Value::Bytes(b)] => Value::Bytes(b.clone()),
        [Value::Text(s)] => Value::Bytes(s.as_bytes().into()),
        _ => return wrong(args, "bytes"),
    })
}

fn to_double<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Double(match args {
        [Value::Double(d)] => *d,
        [Value::Int(n)] => *n as f64,
        [Value::Uint(n)] => *n as f64,
        [Value::Text(s)] => match s.parse() {
            Ok(d) => d,
            Err(_) => return wrong(args, "double"),
        },
        _ => return wrong(args, "double"),
    }))
}

fn to_duration<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Duration(match args {
        [Value::Duration(d) | Value::Int(d)] => *d,
        [Value::Text(s)] => match time::duration(s) {
            Some(d) => d,
            None => return wrong(args, "google.protobuf.Duration"),
        },
        _ => return wrong(args, "google.protobuf.Duration"),
    }))
}

fn to_dyn<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    args.first().cloned().ok_or_else(EvalError::no_overload)
}

fn to_int<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let too_large = overflow("integer overflow");
    Ok(Value::Int(match args {
        [Value::Int(n) | Value::Duration(n)] => *n,
        [Value::Uint(n)] => i64::try_from(*n).map_err(|_| too_large())?,
        // A double at the very bound cannot be distinguished from one beyond it.
        [Value::Double(d)] if *d > i64::MIN as f64 && *d < i64::MAX as f64 => *d as i64,
        [Value::Double(_)] => return Err(too_large()),
        [Value::Timestamp(t)] => t.seconds,
        [Value::Text(s)] => match s.parse() {
            Ok(n) => n,
            Err(_) => return wrong(args, "int"),
        },
        _ => return wrong(args, "int"),
    }))
}

fn to_uint<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let too_large = overflow("unsigned integer overflow");
    Ok(Value::Uint(match args {
        [Value::Uint(n)] => *n,
        [Value::Int(n)] => u64::try_from(*n).map_err(|_| too_large())?,
        [Value::Double(d)] if *d >= 0.0 && *d < u64::MAX as f64 => *d as u64,
        [Value::Double(_)] => return Err(too_large()),
        [Value::Text(s)] => match s.parse::<u64>() {
            Ok(n) if !s.starts_with('+') => n,
            _ => return wrong(args, "uint"),
        },
        _ => return wrong(args, "uint"),
    }))
}

pub(super) fn to_string<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Text(s)] => Ok(Value::Text(s.clone())),
        [Value::Bytes(b)] => match std::str::from_utf8(b) {
            Ok(s) => Ok(Value::text(s)),
            Err(_) => Err(EvalError::new("invalid UTF-8 in bytes, cannot convert to string")),
        },
        [
            value @ (Value::Bool(_)
            | Value::Int(_)
            | Value::Uint(_)
            | Value::Double(_)
            | Value::Timestamp(_)
            | Value::Duration(_)
            | Value::Type(_)),
        ] => Ok(Value::text(value.to_string())),
        _ => wrong(args, "string"),
    }
}

fn to_timestamp<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let outside = overflow("timestamp overflow");
    Ok(Value::Timestamp(match args {
        [Value::Timestamp(t)] => *t,
        [Value::Int(n)] => Timestamp::new(*n, 0).ok_or_else(outside)?,
        [Value::Text(s)] => match time::timestamp(s) {
            Some(t) => Timestamp { offset: t.offset, ..Timestamp::new(t.seconds, t.nanos).ok_or_else(outside)? },
            None => return wrong(args, "google.protobuf.Timestamp"),
        },
        _ => return wrong(args, "google.protobuf.Timestamp"),
    }))
}

fn type_of<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [value] => Ok(Value::Type(Text::Shared(value.type_name().into()))),
        _ => Err(EvalError::no_overload()),
    }
}

fn size<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [value @ (Value::Text(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_))] => {
            Ok(Value::Int(value.size().unwrap_or(0) as i64))
        }
        _ => Err(EvalError::no_overload()),
    }
}
