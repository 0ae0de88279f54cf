//! Version 3 of cel-go's list library: functions that make new lists. Their cost is charged before, which also bounds the size of the
//! result.
use std::cmp::Ordering;

use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::value::equal::{compare, equal};
use crate::value::error::{EvalError, Result};
use crate::value::list::MOST;
use crate::value::{List, Value};

pub(super) const ROWS: &[Row] = &[
    Row("list_slice", "<list(T)>.slice(int, int) -> list(T)", slice, Rule::Slice),
    Row("list_flatten", "<list(list(T))>.flatten() -> list(T)", flatten, Rule::Flatten),
    Row("list_flatten_int", "<list(dyn)>.flatten(int) -> list(dyn)", flatten, Rule::Flatten),
    Row("list_int_sort", "<list(int)>.sort() -> list(int)", sort, Rule::Sort(false)),
    Row("list_uint_sort", "<list(uint)>.sort() -> list(uint)", sort, Rule::Sort(false)),
    Row("list_double_sort", "<list(double)>.sort() -> list(double)", sort, Rule::Sort(false)),
    Row("list_bool_sort", "<list(bool)>.sort() -> list(bool)", sort, Rule::Sort(false)),
    Row("list_google.protobuf.Duration_sort", "<list(duration)>.sort() -> list(duration)", sort, Rule::Sort(false)),
    Row("list_google.protobuf.Timestamp_sort", "<list(timestamp)>.sort() -> list(timestamp)", sort, Rule::Sort(false)),
    Row("list_string_sort", "<list(string)>.sort() -> list(string)", sort, Rule::Sort(true)),
    Row("list_bytes_sort", "<list(bytes)>.sort() -> list(bytes)", sort, Rule::Sort(true)),
    Row(
        "list_int_sortByAssociatedKeys",
        "<list(T)>.@sortByAssociatedKeys(list(int)) -> list(T)",
        sort_by,
        Rule::SortBy(false),
    ),
    Row(
        "list_uint_sortByAssociatedKeys",
        "<list(T)>.@sortByAssociatedKeys(list(uint)) -> list(T)",
        sort_by,
        Rule::SortBy(false),
    ),
    Row(
        "list_double_sortByAssociatedKeys",
        "<list(T)>.@sortByAssociatedKeys(list(double)) -> list(T)",
        sort_by,
        Rule::SortBy(false),
    ),
    Row(
        "list_bool_sortByAssociatedKeys",
        "<list(T)>.@sortByAssociatedKeys(list(bool)) -> list(T)",
        sort_by,
        Rule::SortBy(false),
    ),
    Row(
        "list_google.protobuf.Duration_sortByAssociatedKeys",
        "<list(T)>.@sortByAssociatedKeys(list(duration)) -> list(T)",
        sort_by,
        Rule::SortBy(false),
    ),
    Row(
        "list_google.protobuf.Timestamp_sortByAssociatedKeys",
        "<list(T)>.@sortByAssociatedKeys(list(timestamp)) -> list(T)",
        sort_by,
        Rule::SortBy(false),
    ),
    Row(
        "list_string_sortByAssociatedKeys",
        "<list(T)>.@sortByAssociatedKeys(list(string)) -> list(T)",
        sort_by,
        Rule::SortBy(true),
    ),
    Row(
        "list_bytes_sortByAssociatedKeys",
        "<list(T)>.@sortByAssociatedKeys(list(bytes)) -> list(T)",
        sort_by,
        Rule::SortBy(true),
    ),
    Row("lists_range", "lists.range(int) -> list(int)", range, Rule::Range),
    Row("list_reverse", "<list(T)>.reverse() -> list(T)", reverse, Rule::Reverse),
    Row("list_distinct", "<list(T)>.distinct() -> list(T)", distinct, Rule::Distinct),
];

fn slice<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args else { return Err(not_for("slice", args)) };
    let wrong = |why: String| Err(EvalError::new(format!("cannot slice({start}, {end}), {why}")));
    if *start < 0 || *end < 0 {
        return wrong("negative indexes not supported".into());
    }
    if start > end {
        return wrong("start index must be less than or equal to end index".into());
    }
    if (list.len() as i64) < *end {
        return wrong(format!("list is length {}", list.len()));
    }
    let values = (*start as usize..*end as usize).map(|i| list.get(i)).collect::<Result<_>>()?;
    Ok(Value::list(values))
}

fn flatten<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (list, depth) = match args {
        [Value::List(list)] => (list, 1),
        [Value::List(list), Value::Int(depth)] => (list, *depth),
        _ => return Err(not_for("flatten", args)),
    };
    if depth < 0 {
        return Err(EvalError::new("level must be non-negative"));
    }
    let mut values = Vec::new();
    flat(list, depth, &mut values)?;
    Ok(Value::list(values))
}

fn flat<'a>(list: &List<'a>, depth: i64, out: &mut Vec<Value<'a>>) -> Result<()> {
    for value in list.iter() {
        match value? {
            Value::List(inner) if depth > 0 => flat(&inner, depth - 1, out)?,
            value => out.push(value),
        }
        // The cost depends only on the outer list, and the inner lists may all be the same one.
        if out.len() > MOST {
            return Err(EvalError::CostLimit);
        }
    }
    Ok(())
}

fn sort<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::List(list)] => sorted(list, list),
        _ => Err(not_for("sort", args)),
    }
}

fn sort_by<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::List(list), Value::List(keys)] => sorted(list, keys),
        _ => Err(not_for("@sortByAssociatedKeys", args)),
    }
}

fn sorted<'a>(list: &List<'a>, keys: &List<'a>) -> Result<Value<'a>> {
    if list.len() != keys.len() {
        let message = format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} \
             elements respectively",
            list.len(),
            keys.len()
        );
        return Err(EvalError::new(message));
    }
    let mut pairs = Vec::with_capacity(list.len());
    for (key, value) in keys.iter().zip(list.iter()) {
        pairs.push((key?, value?));
    }
    if let Some((first, _)) = pairs.first() {
        if !is_nan(first) {
            compare(first, first).map_err(|_| EvalError::new("list elements must be comparable"))?;
        }
        if pairs.iter().any(|(key, _)| key.type_name() != first.type_name()) {
            return Err(EvalError::new("list elements must have the same type"));
        }
    }
    pairs.sort_by(|(a, _), (b, _)| order(a, b));
    Ok(Value::list(pairs.into_iter().map(|(_, value)| value).collect()))
}

/// The order of values of one type, which is that of `<`. NaN, which `<` cannot order, comes after all other numbers, since a sort by
/// an order that is not total may panic.
fn order(a: &Value<'_>, b: &Value<'_>) -> Ordering {
    match (is_nan(a), is_nan(b)) {
        (false, false) => compare(a, b).unwrap_or(Ordering::Equal),
        (a, b) => a.cmp(&b),
    }
}

fn is_nan(value: &Value<'_>) -> bool {
    matches!(value, Value::Double(d) if d.is_nan())
}

fn range<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Int(n)] => Ok(Value::list((0..*n).map(Value::Int).collect())),
        _ => Err(not_for("lists.range", args)),
    }
}

fn reverse<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::List(list)] => Ok(Value::list((0..list.len()).rev().map(|i| list.get(i)).collect::<Result<_>>()?)),
        _ => Err(not_for("reverse", args)),
    }
}

fn distinct<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::List(list)] = args else { return Err(not_for("distinct", args)) };
    let mut found: Vec<Value<'a>> = Vec::new();
    for value in list.iter() {
        let value = value?;
        if !found.iter().any(|other| equal(&value, other).unwrap_or(false)) {
            found.push(value);
        }
    }
    Ok(Value::list(found))
}
