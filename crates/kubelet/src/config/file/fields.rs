//! Reads one object of the configuration document field by field. Reading is strict and collects all errors by field path. The caller
//! interprets the values.
use std::collections::BTreeSet;
use std::time::Duration;

use kelson_meta::{FieldError, FieldErrorKind, FieldErrors, FieldPath, parse_duration};
use serde_json::{Map, Value};

/// The fields of one object. Tracks which fields were read, so that `finish` can report the others.
pub(super) struct Fields<'a> {
    object: Option<&'a Map<String, Value>>,
    path: FieldPath,
    read: BTreeSet<&'static str>,
}

fn type_name(v: &Value) -> &'static str {
    match v {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn wrong_type(faults: &mut FieldErrors, path: &FieldPath, found: &Value, wanted: &str) {
    let detail = format!("must be {wanted}, not {}", type_name(found));
    faults.0.push(FieldError { kind: FieldErrorKind::TypeInvalid, path: path.to_string(), value: None, detail });
}

impl<'a> Fields<'a> {
    /// Reads the fields of `value`. If it is not an object, records an error and has no fields.
    pub fn of(value: &'a Value, path: FieldPath, faults: &mut FieldErrors) -> Self {
        if !value.is_object() && !value.is_null() {
            wrong_type(faults, &path, value, "an object");
        }
        Self { object: value.as_object(), path, read: BTreeSet::new() }
    }

    /// Returns the path of a field.
    pub fn at(&self, name: &str) -> FieldPath {
        self.path.child(name)
    }

    /// Returns a field that is set; `null` counts as absent.
    pub fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.read.insert(name);
        self.object?.get(name).filter(|v| !v.is_null())
    }

    /// Returns a field without marking it as read.
    pub fn peek(&self, name: &str) -> Option<&'a Value> {
        self.object?.get(name)
    }

    /// Reads a nested object.
    pub fn below(&mut self, name: &'static str, faults: &mut FieldErrors) -> Self {
        let value = self.get(name).unwrap_or(&Value::Null);
        Self::of(value, self.at(name), faults)
    }

    pub fn string(&mut self, name: &'static str, faults: &mut FieldErrors) -> Option<&'a str> {
        let value = self.get(name)?;
        let text = value.as_str();
        if text.is_none() {
            wrong_type(faults, &self.at(name), value, "a string");
        }
        text.filter(|t| !t.is_empty())
    }

    pub fn boolean(&mut self, name: &'static str, faults: &mut FieldErrors) -> Option<bool> {
        let value = self.get(name)?;
        if !value.is_boolean() {
            wrong_type(faults, &self.at(name), value, "a boolean");
        }
        value.as_bool()
    }

    /// Reads an integer within inclusive bounds.
    pub fn integer(&mut self, name: &'static str, bounds: (i64, i64), faults: &mut FieldErrors) -> Option<i64> {
        let value = self.get(name)?;
        let Some(n) = value.as_i64() else {
            wrong_type(faults, &self.at(name), value, "a whole number");
            return None;
        };
        let (min, max) = bounds;
        if n < min {
            faults.invalid(&self.at(name), n, format!("must be greater than or equal to {min}"));
        } else if n > max {
            faults.invalid(&self.at(name), n, format!("must be less than or equal to {max}"));
        }
        (min <= n && n <= max).then_some(n)
    }

    /// Reads a duration. Zero means the default and returns `None`.
    pub fn duration(&mut self, name: &'static str, faults: &mut FieldErrors) -> Option<Duration> {
        let text = self.string(name, faults)?;
        match parse_duration(text) {
            Ok(duration) => Some(duration).filter(|d| !d.is_zero()),
            Err(why) => {
                faults.invalid(&self.at(name), text, why.to_string());
                None
            }
        }
    }

    /// Reads a field of this shape; any other shape is an error and returns `None`.
    pub fn shaped(&mut self, name: &'static str, shape: Shape, faults: &mut FieldErrors) -> Option<&'a Value> {
        let before = faults.0.len();
        let value = self.get(name)?;
        match shape {
            Shape::Text => {
                self.string(name, faults);
            }
            Shape::Truth => {
                self.boolean(name, faults);
            }
            Shape::Whole(min, max) => {
                self.integer(name, (min, max), faults);
            }
            Shape::Span => {
                self.duration(name, faults);
            }
            Shape::Numbers => {
                for (path, other) in self.list(name, faults).into_iter().filter(|(_, v)| !v.is_number()) {
                    wrong_type(faults, &path, other, "a number");
                }
            }
            Shape::Number if !value.is_number() => wrong_type(faults, &self.at(name), value, "a number"),
            Shape::Object if !value.is_object() => wrong_type(faults, &self.at(name), value, "an object"),
            Shape::Number | Shape::Object => {}
        }
        (faults.0.len() == before).then_some(value)
    }

    /// Returns the elements of a list, each with its path.
    pub fn list(&mut self, name: &'static str, faults: &mut FieldErrors) -> Vec<(FieldPath, &'a Value)> {
        let Some(value) = self.get(name) else { return Vec::new() };
        if !value.is_array() {
            wrong_type(faults, &self.at(name), value, "a list");
        }
        let at = self.at(name);
        value.as_array().into_iter().flatten().enumerate().map(|(i, v)| (at.index(i), v)).collect()
    }

    pub fn strings(&mut self, name: &'static str, faults: &mut FieldErrors) -> Vec<(FieldPath, &'a str)> {
        let mut found = Vec::new();
        for (path, value) in self.list(name, faults) {
            match value.as_str() {
                Some(text) => found.push((path, text)),
                None => wrong_type(faults, &path, value, "a string"),
            }
        }
        found
    }

    /// Returns the entries of a map with string values.
    pub fn map(&mut self, name: &'static str, faults: &mut FieldErrors) -> Vec<(FieldPath, &'a str, &'a str)> {
        let Some(value) = self.get(name) else { return Vec::new() };
        if !value.is_object() {
            wrong_type(faults, &self.at(name), value, "an object");
        }
        let mut found = Vec::new();
        for (key, value) in value.as_object().into_iter().flatten() {
            let path = self.at(name).key(key);
            match value.as_str() {
                Some(text) => found.push((path, key.as_str(), text)),
                None => wrong_type(faults, &path, value, "a string"),
            }
        }
        found
    }

    /// Returns the fields of an object whose values are lists of strings, whatever the names.
    pub fn lists(&self, faults: &mut FieldErrors) -> Vec<(&'a str, Vec<&'a str>)> {
        let mut found = Vec::new();
        for (name, value) in self.object.into_iter().flatten().filter(|(_, v)| !v.is_null()) {
            let path = self.path.key(name);
            let Some(list) = value.as_array() else {
                wrong_type(faults, &path, value, "a list");
                continue;
            };
            for other in list.iter().filter(|v| !v.is_string()) {
                wrong_type(faults, &path, other, "a string");
            }
            found.push((name.as_str(), list.iter().filter_map(Value::as_str).collect()));
        }
        found
    }

    /// Ends reading. An unread field is an error; if `without_effect` lists it, it is returned when its value is not zero.
    pub fn finish(self, without_effect: &[&str], faults: &mut FieldErrors) -> Vec<String> {
        let mut ignored = Vec::new();
        for (name, value) in self.object.into_iter().flatten().filter(|(k, _)| !self.read.contains(k.as_str())) {
            if !without_effect.contains(&name.as_str()) {
                faults.forbidden(&self.at(name), "unknown field");
            } else if !is_zero(value) {
                ignored.push(self.at(name).to_string());
            }
        }
        ignored
    }
}

/// Expected shape of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Text,
    Truth,
    /// An integer within inclusive bounds.
    Whole(i64, i64),
    Number,
    Span,
    Numbers,
    Object,
}

/// Returns whether a value equals the serialized form of an unset field.
pub(super) fn is_zero(v: &Value) -> bool {
    match v {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty() || s == "0s" || s == "0",
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.values().all(is_zero),
    }
}
