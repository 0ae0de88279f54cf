//! The set library: lists as sets.
use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::value::equal::contains as has;
use crate::value::error::Result;
use crate::value::{List, Value};

pub(super) const ROWS: &[Row] = &[
    Row("list_sets_contains_list", "sets.contains(list(T), list(T)) -> bool", contains, Rule::Sets(1.0)),
    Row("list_sets_equivalent_list", "sets.equivalent(list(T), list(T)) -> bool", equivalent, Rule::Sets(2.0)),
    Row("list_sets_intersects_list", "sets.intersects(list(T), list(T)) -> bool", intersects, Rule::Sets(1.0)),
];

fn all_in<'a>(part: &List<'a>, whole: &List<'a>) -> Result<bool> {
    for value in part.iter() {
        if !has(whole, &value?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn contains<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::List(whole), Value::List(part)] => all_in(part, whole).map(Value::Bool),
        _ => Err(not_for("sets.contains", args)),
    }
}

fn equivalent<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::List(a), Value::List(b)] => Ok(Value::Bool(all_in(b, a)? && all_in(a, b)?)),
        _ => Err(not_for("sets.equivalent", args)),
    }
}

fn intersects<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::List(a), Value::List(b)] = args else { return Err(not_for("sets.intersects", args)) };
    for value in a.iter() {
        if has(b, &value?).unwrap_or(false) {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}
