//! Arguments of a function: read by place, with sprig's lenience about types.
use std::collections::BTreeMap;
use std::sync::Arc;

use gotmpl::{Result, TemplateError, Value};

use crate::value::duration;

/// A function of templates.
pub type Function = fn(&Arguments<'_>) -> Result<Value>;
/// A function, its name, and the least number of arguments that it takes.
pub type Row = (&'static str, usize, Function);

/// What a function was called with.
pub struct Arguments<'a>(pub &'a [Value]);

/// A fault of a call.
pub fn fault(why: impl Into<String>) -> TemplateError {
    TemplateError::Exec(why.into())
}

impl<'a> Arguments<'a> {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// One of them, or nothing.
    pub fn at(&self, place: usize) -> &'a Value {
        self.0.get(place).unwrap_or(&Value::Nil)
    }

    /// The last one, which pipelines give.
    pub fn last(&self) -> &'a Value {
        self.0.last().unwrap_or(&Value::Nil)
    }

    /// An argument as templates print it; empty where there is none.
    pub fn text(&self, place: usize) -> String {
        string(self.at(place))
    }

    /// The last one as text.
    pub fn last_text(&self) -> String {
        string(self.last())
    }

    /// As a whole number; what is none is nought.
    pub fn integer(&self, place: usize) -> i64 {
        integer(self.at(place))
    }

    /// As a number.
    pub fn number(&self, place: usize) -> f64 {
        number(self.at(place))
    }

    /// A list's items; nothing has none.
    pub fn list(&self, place: usize) -> Result<&'a [Value]> {
        match self.at(place) {
            Value::List(items) => Ok(items),
            Value::Nil => Ok(&[]),
            other => Err(fault(format!("must be a list, got {}", other.type_name()))),
        }
    }

    /// A map's entries; nothing has none.
    pub fn map(&self, place: usize) -> Result<BTreeMap<Arc<str>, Value>> {
        match self.at(place) {
            Value::Map(map) => Ok((**map).clone()),
            Value::Nil => Ok(BTreeMap::new()),
            other => Err(fault(format!("must be a mapping, got {}", other.type_name()))),
        }
    }
}

/// A value as it is printed; nothing is empty.
pub fn string(value: &Value) -> String {
    match value {
        Value::Nil => String::new(),
        other => other.to_string(),
    }
}

/// A value as a whole number: numbers are cut, texts are read, nought is what has none.
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

/// A value as a number.
pub fn number(value: &Value) -> f64 {
    match value {
        Value::Float(n) => *n,
        Value::String(s) => s.parse().unwrap_or(0.0),
        #[expect(clippy::cast_precision_loss, reason = "as sprig does")]
        other => integer(other) as f64,
    }
}

/// A duration of nanoseconds, or as Go writes them.
pub fn nanoseconds(value: &Value) -> Option<jiff::SignedDuration> {
    match value {
        Value::String(s) => duration(s),
        other => Some(jiff::SignedDuration::from_nanos(integer(other))),
    }
}
