//! Kubernetes' list library, for lists whose elements can be compared or added.
use std::cmp::Ordering;

use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::value::equal::{compare, equal};
use crate::value::error::{EvalError, Result};
use crate::value::{List, Value};

pub(super) const ROWS: &[Row] = &[
    Row("list_int_is_sorted_bool", "<list(int)>.isSorted() -> bool", is_sorted, Rule::Traverse),
    Row("list_uint_is_sorted_bool", "<list(uint)>.isSorted() -> bool", is_sorted, Rule::Traverse),
    Row("list_double_is_sorted_bool", "<list(double)>.isSorted() -> bool", is_sorted, Rule::Traverse),
    Row("list_bool_is_sorted_bool", "<list(bool)>.isSorted() -> bool", is_sorted, Rule::Traverse),
    Row("list_duration_is_sorted_bool", "<list(duration)>.isSorted() -> bool", is_sorted, Rule::Traverse),
    Row("list_timestamp_is_sorted_bool", "<list(timestamp)>.isSorted() -> bool", is_sorted, Rule::Traverse),
    Row("list_string_is_sorted_bool", "<list(string)>.isSorted() -> bool", is_sorted, Rule::Traverse),
    Row("list_bytes_is_sorted_bool", "<list(bytes)>.isSorted() -> bool", is_sorted, Rule::Traverse),
    Row("list_int_sum_int", "<list(int)>.sum() -> int", sum_int, Rule::Traverse),
    Row("list_uint_sum_uint", "<list(uint)>.sum() -> uint", sum_uint, Rule::Traverse),
    Row("list_double_sum_double", "<list(double)>.sum() -> double", sum_double, Rule::Traverse),
    Row("list_duration_sum_duration", "<list(duration)>.sum() -> duration", sum_duration, Rule::Traverse),
    Row("list_int_max_int", "<list(int)>.max() -> int", max, Rule::Traverse),
    Row("list_uint_max_uint", "<list(uint)>.max() -> uint", max, Rule::Traverse),
    Row("list_double_max_double", "<list(double)>.max() -> double", max, Rule::Traverse),
    Row("list_bool_max_bool", "<list(bool)>.max() -> bool", max, Rule::Traverse),
    Row("list_duration_max_duration", "<list(duration)>.max() -> duration", max, Rule::Traverse),
    Row("list_timestamp_max_timestamp", "<list(timestamp)>.max() -> timestamp", max, Rule::Traverse),
    Row("list_string_max_string", "<list(string)>.max() -> string", max, Rule::Traverse),
    Row("list_bytes_max_bytes", "<list(bytes)>.max() -> bytes", max, Rule::Traverse),
    Row("list_int_min_int", "<list(int)>.min() -> int", min, Rule::Traverse),
    Row("list_uint_min_uint", "<list(uint)>.min() -> uint", min, Rule::Traverse),
    Row("list_double_min_double", "<list(double)>.min() -> double", min, Rule::Traverse),
    Row("list_bool_min_bool", "<list(bool)>.min() -> bool", min, Rule::Traverse),
    Row("list_duration_min_duration", "<list(duration)>.min() -> duration", min, Rule::Traverse),
    Row("list_timestamp_min_timestamp", "<list(timestamp)>.min() -> timestamp", min, Rule::Traverse),
    Row("list_string_min_string", "<list(string)>.min() -> string", min, Rule::Traverse),
    Row("list_bytes_min_bytes", "<list(bytes)>.min() -> bytes", min, Rule::Traverse),
    Row("list_a_index_of_int", "<list(A)>.indexOf(A) -> int", index_of, Rule::Traverse),
    Row("list_a_last_index_of_int", "<list(A)>.lastIndexOf(A) -> int", last_index_of, Rule::Traverse),
];

fn list<'v, 'a>(function: &str, args: &'v [Value<'a>]) -> Result<&'v List<'a>> {
    match args {
        [Value::List(list), ..] => Ok(list),
        _ => Err(not_for(function, args)),
    }
}

fn is_sorted<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let mut before: Option<Value<'a>> = None;
    for value in list("isSorted", args)?.iter() {
        let value = value?;
        if let Some(before) = &before
            && compare(before, &value)? == Ordering::Greater
        {
            return Ok(Value::Bool(false));
        }
        before = Some(value);
    }
    Ok(Value::Bool(true))
}

fn sum<'a>(zero: Value<'a>, args: &[Value<'a>]) -> Result<Value<'a>> {
    list("sum", args)?.iter().try_fold(zero, |sum, value| super::operators::add(&[sum, value?]))
}
fn sum_int<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    sum(Value::Int(0), args)
}
fn sum_uint<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    sum(Value::Uint(0), args)
}
fn sum_double<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    sum(Value::Double(0.0), args)
}
fn sum_duration<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    sum(Value::Duration(0), args)
}

/// The smallest or largest element.
fn extreme<'a>(function: &str, args: &[Value<'a>], replaced_when: Ordering) -> Result<Value<'a>> {
    let mut best: Option<Value<'a>> = None;
    for value in list(function, args)?.iter() {
        let value = value?;
        let better = match &best {
            None => true,
            Some(best) => compare(best, &value)? == replaced_when,
        };
        if better {
            best = Some(value);
        }
    }
    best.ok_or_else(|| EvalError::new(format!("{function} called on empty list")))
}
fn max<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    extreme("max", args, Ordering::Less)
}
fn min<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    extreme("min", args, Ordering::Greater)
}

fn place<'a>(list: &List<'a>, value: &Value<'a>, mut places: impl Iterator<Item = usize>) -> Value<'a> {
    let found = places.find(|i| list.get(*i).and_then(|own| equal(&own, value)).unwrap_or(false));
    Value::Int(found.map_or(-1, |i| i as i64))
}
fn index_of<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let list = list("indexOf", args)?;
    let value = args.get(1).ok_or_else(|| not_for("indexOf", args))?;
    Ok(place(list, value, 0..list.len()))
}
fn last_index_of<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let list = list("lastIndexOf", args)?;
    let value = args.get(1).ok_or_else(|| not_for("lastIndexOf", args))?;
    Ok(place(list, value, (0..list.len()).rev()))
}
