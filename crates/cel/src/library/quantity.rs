//! The quantity library.
use std::cmp::Ordering;

use kelson_meta::Quantity;

use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::value::Value;
use crate::value::error::{EvalError, Result};
use crate::value::opaque::{Opaque, Semver};

const UNIT: Rule = Rule::Fixed(1);

pub(super) const ROWS: &[Row] = &[
    Row("string_to_quantity", "quantity(string) -> kubernetes.Quantity", quantity, Rule::Read(1.0)),
    Row("is_quantity_string", "isQuantity(string) -> bool", is_quantity, Rule::Read(1.0)),
    Row("quantity_sign", "sign(kubernetes.Quantity) -> int", sign, UNIT),
    Row(
        "quantity_is_greater_than",
        "<kubernetes.Quantity>.isGreaterThan(kubernetes.Quantity) -> bool",
        is_greater,
        UNIT,
    ),
    Row("quantity_is_less_than", "<kubernetes.Quantity>.isLessThan(kubernetes.Quantity) -> bool", is_less, UNIT),
    Row("quantity_compare_to", "<kubernetes.Quantity>.compareTo(kubernetes.Quantity) -> int", compare_to, UNIT),
    Row("quantity_get_float", "<kubernetes.Quantity>.asApproximateFloat() -> double", as_float, UNIT),
    Row("quantity_get_int", "<kubernetes.Quantity>.asInteger() -> int", as_integer, UNIT),
    Row("quantity_is_integer", "<kubernetes.Quantity>.isInteger() -> bool", is_integer, UNIT),
    Row("quantity_add", "<kubernetes.Quantity>.add(kubernetes.Quantity) -> kubernetes.Quantity", add, UNIT),
    Row("quantity_add_int", "<kubernetes.Quantity>.add(int) -> kubernetes.Quantity", add, UNIT),
    Row("quantity_sub", "<kubernetes.Quantity>.sub(kubernetes.Quantity) -> kubernetes.Quantity", sub, UNIT),
    Row("quantity_sub_int", "<kubernetes.Quantity>.sub(int) -> kubernetes.Quantity", sub, UNIT),
];

const NANO: i128 = 1_000_000_000;

fn quantity<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Text(s)] => match s.parse() {
            Ok(q) => Ok(Value::Opaque(Opaque::Quantity(q))),
            Err(e) => Err(EvalError::new(e.to_string())),
        },
        _ => Err(not_for("quantity", args)),
    }
}
fn is_quantity<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Text(s)] => Ok(Value::Bool(s.parse::<Quantity>().is_ok())),
        _ => Err(not_for("isQuantity", args)),
    }
}

fn own(function: &str, args: &[Value<'_>]) -> Result<Quantity> {
    match args {
        [Value::Opaque(Opaque::Quantity(q)), ..] => Ok(*q),
        _ => Err(not_for(function, args)),
    }
}

/// The receiver and a second argument of the same type. Quantities and versions have comparison functions of the same names.
pub(super) fn ordering(function: &str, args: &[Value<'_>]) -> Result<Ordering> {
    match args {
        [Value::Opaque(Opaque::Quantity(a)), Value::Opaque(Opaque::Quantity(b))] => Ok(a.cmp(b)),
        [Value::Opaque(Opaque::Semver(a)), Value::Opaque(Opaque::Semver(b))] => Ok(Semver::compare(a, b)),
        _ => Err(not_for(function, args)),
    }
}

fn sign<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Int(i64::from(own("sign", args)?.signum())))
}
pub(super) fn is_greater<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordering("isGreaterThan", args).map(|o| Value::Bool(o.is_gt()))
}
pub(super) fn is_less<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordering("isLessThan", args).map(|o| Value::Bool(o.is_lt()))
}
pub(super) fn compare_to<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordering("compareTo", args).map(|o| Value::Int(o as i64))
}

fn as_float<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let nanos = own("asApproximateFloat", args)?.nanos();
    // Whole units come first: a float represents them exactly.
    let whole = (nanos / NANO) as f64;
    let rest = nanos % NANO;
    Ok(Value::Double(if rest == 0 { whole } else { nanos as f64 / NANO as f64 }))
}

fn whole(q: Quantity) -> Option<i64> {
    (q.nanos() % NANO == 0).then(|| i64::try_from(q.nanos() / NANO).ok()).flatten()
}
fn as_integer<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let value = whole(own("asInteger", args)?);
    value.map(Value::Int).ok_or_else(|| EvalError::new("cannot convert value to integer"))
}
fn is_integer<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Bool(whole(own("isInteger", args)?).is_some()))
}

fn operand(function: &str, args: &[Value<'_>]) -> Result<Quantity> {
    match args.get(1) {
        Some(Value::Opaque(Opaque::Quantity(q))) => Ok(*q),
        Some(Value::Int(n)) => Ok(Quantity::from_i64(*n)),
        _ => Err(not_for(function, args)),
    }
}
fn add<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Quantity(own("add", args)?.plus(operand("add", args)?))))
}
fn sub<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Quantity(own("sub", args)?.minus(operand("sub", args)?))))
}
