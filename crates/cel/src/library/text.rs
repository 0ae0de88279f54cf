//! The string functions of the standard library.
use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::value::Value;
use crate::value::error::Result;

pub(super) const ROWS: &[Row] = &[
    Row("contains_string", "<string>.contains(string) -> bool", contains, Rule::Contains),
    Row("ends_with_string", "<string>.endsWith(string) -> bool", ends_with, Rule::Affix),
    Row("starts_with_string", "<string>.startsWith(string) -> bool", starts_with, Rule::Affix),
];

fn both<'a>(function: &str, args: &[Value<'a>], holds: fn(&str, &str) -> bool) -> Result<Value<'a>> {
    match args {
        [Value::Text(a), Value::Text(b)] => Ok(Value::Bool(holds(a, b))),
        _ => Err(not_for(function, args)),
    }
}

fn contains<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    both("contains", args, |a, b| a.contains(b))
}
fn ends_with<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    both("endsWith", args, |a, b| a.ends_with(b))
}
fn starts_with<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    both("startsWith", args, |a, b| a.starts_with(b))
}
