//! Validates `type`, with `nullable` and the effect of a format.
use kelson_meta::path::Path;
use serde_json::{Number, Value};

use super::{Check, is_either};
use crate::schema::{Flags, Node, Type};

/// Returns the type of a value, as messages name it.
pub(super) fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Reports whether a float represents an integer: closer to one than a billionth of it, and exact in 53 bits.
pub(super) fn is_whole(float: f64) -> bool {
    const EXACT_MAX: f64 = 9_007_199_254_740_991.0;
    const CLOSE: f64 = 1e-9;
    if !float.is_finite() || float.abs() > EXACT_MAX {
        return false;
    }
    let whole = float.trunc();
    let apart = (float - whole).abs();
    float == whole || whole != 0.0 && apart / (float.abs() + whole.abs()).min(f64::MAX) < CLOSE
}

impl Check<'_> {
    pub(super) fn types(&mut self, value: &Value, node: &Node, path: &Path<'_>) {
        let either = is_either(node);
        let format = node.values().and_then(|v| v.format.as_ref()).map(|(_, name)| name.as_ref());
        let untyped = !either && node.ty() == Type::None;
        if untyped && format.is_none() {
            return;
        }
        let wanted = if either { "integer,string" } else { node.ty().word() };
        let is = |ty: Type| node.ty() == ty && !either || either && matches!(ty, Type::Integer | Type::String);
        let found = word(value);
        let fault = match (value, format) {
            (Value::Null, _) => (!untyped && !node.is(Flags::NULLABLE)).then_some((wanted, "null")),
            // A node with a format for strings accepts lists too.
            (Value::String(_) | Value::Array(_), Some(_)) if !is(Type::Number) && !is(Type::Integer) => None,
            _ => {
                let fits = is(Type::of(found)) || self.number_fits(value, is(Type::Integer), is(Type::Number));
                match (fits, format, value) {
                    (true, ..) => None,
                    (false, Some(format), Value::Number(n)) if !n.is_i64() => Some((format, "float64")),
                    (false, Some(format), Value::Number(_)) => Some((format, "int64")),
                    (false, Some(format), Value::Bool(_) | Value::Object(_)) => Some((format, "")),
                    _ => Some((wanted, found)),
                }
            }
        };
        if !value.is_null() {
            self.out.matched(1);
        }
        match fault {
            Some((wanted, found)) => self.faults.wrong_type(&mut self.out, path, wanted, found),
            None => self.out.matched(1),
        }
    }

    /// A whole float counts as an integer, and every integer as a number.
    fn number_fits(&self, value: &Value, integer: bool, number: bool) -> bool {
        let Value::Number(n) = value else { return false };
        if n.is_i64() { number } else { integer && as_float(n).is_some_and(is_whole) }
    }
}

pub(super) fn as_float(number: &Number) -> Option<f64> {
    number.as_f64()
}
