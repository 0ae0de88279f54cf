//! Arguments of template functions, converted between types as loosely as sprig does.
use std::collections::BTreeMap;
use std::sync::Arc;

use gotmpl::{Result, TemplateError, Value};

use crate::value::duration;

/// The implementation of a template function.
pub type Function = fn(&Arguments<'_>) -> Result<Value>;
/// The name of a function, its minimum number of arguments, and its implementation.
pub type Row = (&'static str, usize, Function);

/// The arguments of one call.
pub struct Arguments<'a>(pub &'a [Value]);

/// Creates the error of a call.
pub fn fault(why: impl Into<String>) -> TemplateError {
    TemplateError::Exec(why.into())
}

impl<'a> Arguments<'a> {
    /// Returns the number of arguments.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the argument at a position, or nil if there is none.
    pub fn at(&self, place: usize) -> &'a Value {
        self.0.get(place).unwrap_or(&Value::Nil)
    }

    /// Returns the last argument, which is the input in a pipeline.
    pub fn last(&self) -> &'a Value {
        self.0.last().unwrap_or(&Value::Nil)
    }

    /// Returns the argument as templates print it. A missing argument is empty.
    pub fn text(&self, place: usize) -> String {
        string(self.at(place))
    }

    /// Returns the last argument as a string.
    pub fn last_text(&self) -> String {
        string(self.last())
    }

    /// Returns the argument as an integer, or 0 if it is no number.
    pub fn integer(&self, place: usize) -> i64 {
        integer(self.at(place))
    }

    /// Returns the argument as a floating-point number.
    pub fn number(&self, place: usize) -> f64 {
        number(self.at(place))
    }

    /// Returns the items of a list. Nil is an empty list.
    pub fn list(&self, place: usize) -> Result<&'a [Value]> {
        match self.at(place) {
            Value::List(items) => Ok(items),
            Value::Nil => Ok(&[]),
            other => Err(fault(format!("must be a list, got {}", other.type_name()))),
        }
    }

    /// Returns the entries of a map. Nil is an empty map.
    pub fn map(&self, place: usize) -> Result<BTreeMap<Arc<str>, Value>> {
        match self.at(place) {
            Value::Map(map) => Ok((**map).clone()),
            Value::Nil => Ok(BTreeMap::new()),
            other => Err(fault(format!("must be a mapping, got {}", other.type_name()))),
        }
    }
}

/// Formats a value as templates print it. Nil is the empty string.
pub fn string(value: &Value) -> String {
    match value {
        Value::Nil => String::new(),
        other => other.to_string(),
    }
}

/// Converts a value to an integer: floats are truncated, strings are parsed, and other values are 0.
pub fn integer(value: &Value) -> i64 {
    match value {
        Value::Int(n) => *n,
        Value::Uint(n) => i64::try_from(*n).unwrap_or(i64::MAX),
        #[expect(clippy::cast_possible_truncation, reason = "saturates, which is what is wanted")]
        Value::Float(n) => *n as i64,
        Value::Bool(b) => i64::from(*b),
        Value::String(s) => s.parse().unwrap_or(0),
        _ => 0,
    }
}

/// Converts a value to a floating-point number.
pub fn number(value: &Value) -> f64 {
    match value {
        Value::Float(n) => *n,
        Value::String(s) => s.parse().unwrap_or(0.0),
        #[expect(clippy::cast_precision_loss, reason = "as sprig does")]
        other => integer(other) as f64,
    }
}

/// Parses a duration: nanoseconds as a number, or a string in Go's format.
pub fn nanoseconds(value: &Value) -> Option<jiff::SignedDuration> {
    match value {
        Value::String(s) => duration(s),
        other => Some(jiff::SignedDuration::from_nanos(integer(other))),
    }
}
