//! Functions for numbers. Integer arithmetic wraps; a value that is no number counts as 0.
use gotmpl::{Result, Value};
use rand::Rng as _;

use super::arguments::{Arguments, Row, fault, integer, number};

/// Folds all arguments with a function.
fn folded(a: &Arguments<'_>, with: fn(i64, i64) -> i64) -> Value {
    let mut numbers = a.0.iter().map(integer);
    let first = numbers.next().unwrap_or(0);
    Value::Int(numbers.fold(first, with))
}

fn divided(a: &Arguments<'_>, with: fn(i64, i64) -> Option<i64>) -> Result<Value> {
    with(a.integer(0), a.integer(1)).map(Value::Int).ok_or_else(|| fault("division by zero"))
}

/// Rounds to a number of decimal places, half up.
fn rounded(a: &Arguments<'_>) -> Value {
    let scale = 10f64.powi(i32::try_from(a.integer(1)).unwrap_or(0).clamp(-300, 300));
    Value::Float((a.number(0) * scale).round() / scale)
}

fn random(a: &Arguments<'_>) -> Result<Value> {
    let (least, most) = (a.integer(0), a.integer(1));
    if least >= most {
        return Err(fault("the second number must be greater than the first"));
    }
    Ok(Value::Int(rand::rng().random_range(least..most)))
}

/// The functions for numbers: name, minimum number of arguments, implementation.
pub const ROWS: &[Row] = &[
    ("int", 1, |a| Ok(Value::Int(a.integer(0)))),
    ("int64", 1, |a| Ok(Value::Int(a.integer(0)))),
    ("atoi", 1, |a| Ok(Value::Int(a.integer(0)))),
    ("float64", 1, |a| Ok(Value::Float(a.number(0)))),
    ("add", 0, |a| Ok(folded(a, i64::saturating_add))),
    ("add1", 1, |a| Ok(Value::Int(a.integer(0).saturating_add(1)))),
    ("sub", 2, |a| Ok(folded(a, i64::saturating_sub))),
    ("mul", 1, |a| Ok(folded(a, i64::saturating_mul))),
    ("div", 2, |a| divided(a, i64::checked_div)),
    ("mod", 2, |a| divided(a, i64::checked_rem)),
    ("max", 1, |a| Ok(folded(a, i64::max))),
    ("min", 1, |a| Ok(folded(a, i64::min))),
    ("addf", 0, |a| Ok(Value::Float(a.0.iter().map(number).sum()))),
    ("mulf", 1, |a| Ok(Value::Float(a.0.iter().map(number).product()))),
    ("floor", 1, |a| Ok(Value::Float(a.number(0).floor()))),
    ("ceil", 1, |a| Ok(Value::Float(a.number(0).ceil()))),
    ("round", 2, |a| Ok(rounded(a))),
    ("randInt", 2, random),
];
