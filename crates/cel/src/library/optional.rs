//! The functions of optional values.
use super::row::{Row, elsewhere};
use crate::cost::Rule;
use crate::value::Value;
use crate::value::error::{EvalError, Result};

const ONE: Rule = Rule::One;

pub(super) const ROWS: &[Row] = &[
    Row("optional_of", "optional.of(V) -> optional(V)", of, ONE),
    Row("optional_ofNonZeroValue", "optional.ofNonZeroValue(V) -> optional(V)", of_non_zero, ONE),
    Row("optional_none", "optional.none() -> optional(V)", none, ONE),
    Row("optional_value", "<optional(V)>.value() -> V", value, ONE),
    Row("optional_hasValue", "<optional(V)>.hasValue() -> bool", has_value, ONE),
    Row("optional_or_optional", "<optional(V)>.or(optional(V)) -> optional(V)", elsewhere, ONE),
    Row("optional_orValue_value", "<optional(V)>.orValue(V) -> V", elsewhere, ONE),
    Row("select_optional_field", "_?._(dyn, string) -> optional(V)", elsewhere, ONE),
    Row("list_optindex_optional_int", "_[?_](list(V), int) -> optional(V)", elsewhere, ONE),
    Row("optional_list_optindex_optional_int", "_[?_](optional(list(V)), int) -> optional(V)", elsewhere, ONE),
    Row("map_optindex_optional_value", "_[?_](map(K, V), K) -> optional(V)", elsewhere, ONE),
    Row("optional_map_optindex_optional_value", "_[?_](optional(map(K, V)), K) -> optional(V)", elsewhere, ONE),
    Row("optional_list_index_int", "_[_](optional(list(V)), int) -> optional(V)", elsewhere, ONE),
    Row("optional_map_index_value", "_[_](optional(map(K, V)), K) -> optional(V)", elsewhere, ONE),
    Row("list_last", "<list(V)>.last() -> optional(V)", last, ONE),
    Row("list_first", "<list(V)>.first() -> optional(V)", first, ONE),
    Row("optional_unwrap", "optional.unwrap(list(optional(V))) -> list(V)", unwrap, ONE),
    Row("optional_unwrapOpt", "<list(optional(V))>.unwrapOpt() -> list(V)", unwrap, ONE),
];

fn of<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [value] => Ok(Value::some(value.clone())),
        _ => Err(EvalError::no_overload()),
    }
}

fn of_non_zero<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [value] if value.is_zero() => Ok(Value::Optional(None)),
        _ => of(args),
    }
}

fn none<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Optional(None))
}

fn value<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Optional(Some(value))] => Ok((**value).clone()),
        [Value::Optional(None)] => Err(EvalError::new("optional.none() dereference")),
        _ => Err(super::row::not_for("value", args)),
    }
}

fn has_value<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Optional(value)] => Ok(Value::Bool(value.is_some())),
        _ => Err(super::row::not_for("hasValue", args)),
    }
}

fn end<'a>(args: &[Value<'a>], function: &str, place: fn(usize) -> usize) -> Result<Value<'a>> {
    match args {
        [Value::List(list)] if list.is_empty() => Ok(Value::Optional(None)),
        [Value::List(list)] => list.get(place(list.len())).map(Value::some),
        _ => Err(super::row::not_for(function, args)),
    }
}
fn last<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    end(args, "last", |len| len - 1)
}
fn first<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    end(args, "first", |_| 0)
}

fn unwrap<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::List(list)] = args else { return Err(super::row::not_for("unwrapOpt", args)) };
    if list.len() > crate::value::list::MOST {
        return Err(EvalError::CostLimit);
    }
    let mut values = Vec::new();
    for value in list.iter() {
        match value? {
            Value::Optional(Some(value)) => values.push((*value).clone()),
            Value::Optional(None) => {}
            other => return Err(EvalError::new(format!("value {other} is not optional"))),
        }
    }
    Ok(Value::list(values))
}
