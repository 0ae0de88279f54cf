//! Validates values with their schema, keyword by keyword, with the messages and the order of upstream (`kube-openapi`
//! `pkg/validation/validate`, `apiextensions-apiserver` `pkg/apiserver/validation`). On update, unchanged values are
//! not rejected (KEP-4008).
mod clauses;
mod faults;
mod numbers;
mod types;

use kelson_meta::FieldErrors;
use kelson_meta::path::Path;
use serde_json::{Map, Value};

use self::faults::{Faults, Outcome};
use super::correlate::Old;
use super::formats;
use crate::schema::{Additional, Flags, Node, Values, pattern};

/// The maximum number of checks of one value and one position in a validation. A schema with many alternatives could
/// require as many as it has positions times the number of values of the object; above the limit the object is
/// rejected.
const STEPS_MAX: u64 = 20_000_000;

/// Returns the errors of a value. `at` is the path of the value in its object. With `old`, errors of unchanged parts
/// are ignored.
pub fn validate(value: &Value, node: &Node, old: Option<Old<'_>>, at: &Path<'_>) -> FieldErrors {
    let at = at.field();
    let mut check = Check { faults: Faults::new(at.as_str()), steps: STEPS_MAX, out: Outcome::default() };
    check.matched(value, node, old, &Path::new(""));
    if check.steps == 0 {
        check.faults.too_much(&mut check.out);
    }
    FieldErrors(check.out.errors)
}

pub(super) struct Check<'a> {
    faults: Faults<'a>,
    steps: u64,
    out: Outcome,
}

impl Check<'_> {
    /// Validates a value that may have an old one. An unchanged value has no errors.
    fn matched(&mut self, value: &Value, node: &Node, old: Option<Old<'_>>, path: &Path<'_>) {
        if old.is_some_and(|old| old.equals(value)) {
            return;
        }
        self.place(value, node, old, path);
    }

    /// Validates a value by all keywords of a node.
    fn place(&mut self, value: &Value, node: &Node, old: Option<Old<'_>>, path: &Path<'_>) {
        if self.steps == 0 || self.enough() {
            return;
        }
        self.steps -= 1;
        self.types(value, node, path);
        if value.is_null() {
            return self.allowed(value, node.values(), path);
        }
        self.clauses(value, node, old, path);
        match value {
            Value::String(text) => self.string(text, node, path),
            Value::Number(number) => self.number(number, node, path),
            Value::Array(list) => self.list(list, node, old, path),
            _ => {}
        }
        self.out.matched(1);
        self.allowed(value, node.values(), path);
        if let Value::Object(fields) = value {
            self.out.matched(1);
            self.object(fields, node, old, path);
        }
        self.out.matched(1);
    }

    /// Reports whether further checks cannot change the result.
    fn enough(&self) -> bool {
        self.out.full()
    }

    fn string(&mut self, text: &str, node: &Node, path: &Path<'_>) {
        self.out.matched(1);
        let Some(values) = node.values() else { return };
        self.lengths(text, values, path);
        if let Some((format, name)) = &values.format {
            self.out.matched(1);
            if !formats::is_valid(*format, text) {
                self.faults.wrong_type(&mut self.out, path, name, text);
            }
        }
    }

    /// Validates length and pattern; only the first error is reported.
    fn lengths(&mut self, text: &str, values: &Values, path: &Path<'_>) {
        if values.max_length.is_some() || values.min_length.is_some() {
            let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
            if let Some(max) = values.max_length.filter(|max| length > *max) {
                return self.faults.too_long(&mut self.out, path, max);
            }
            if let Some(min) = values.min_length.filter(|min| length < *min) {
                let why = format!("should be at least {min} chars long");
                return self.faults.invalid(&mut self.out, path, text, &why);
            }
        }
        let Some(wanted) = &values.pattern else { return };
        match pattern::matches(wanted, text) {
            Ok(true) => {}
            Ok(false) => self.faults.invalid(&mut self.out, path, text, &format!("should match '{wanted}'")),
            Err(why) => {
                let why = format!("should match '{wanted}, but pattern is invalid: {why}'");
                self.faults.invalid(&mut self.out, path, text, &why);
            }
        }
    }

    fn list(&mut self, list: &[Value], node: &Node, old: Option<Old<'_>>, path: &Path<'_>) {
        self.out.matched(1);
        if let Some(items) = node.items() {
            let elements = old.and_then(Old::elements);
            for (i, element) in list.iter().enumerate() {
                let old = elements.as_ref().and_then(|e| e.get(element));
                self.matched(element, items, old, &path.index(i));
            }
        }
        if let Some(values) = node.values() {
            let size = i64::try_from(list.len()).unwrap_or(i64::MAX);
            if let Some(min) = values.min_items.filter(|min| size < *min) {
                let why = format!("should have at least {min} items");
                self.faults.invalid(&mut self.out, path, size, &why);
            }
            if let Some(max) = values.max_items.filter(|max| size > *max) {
                self.faults.too_many(&mut self.out, path, list.len(), max);
            }
        }
        self.out.matched(1);
    }

    fn allowed(&mut self, value: &Value, values: Option<&Values>, path: &Path<'_>) {
        let Some(values) = values.filter(|v| !v.allowed.is_empty()) else { return };
        self.steps = self.steps.saturating_sub(values.allowed.len() as u64);
        let same = |one: &Value| match (one, value) {
            (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
            (one, value) => !one.is_null() && one == value,
        };
        if !values.allowed.iter().any(same) {
            self.faults.not_supported(&mut self.out, path, value, &values.allowed);
        }
    }

    fn object(&mut self, fields: &Map<String, Value>, node: &Node, old: Option<Old<'_>>, path: &Path<'_>) {
        let size = i64::try_from(fields.len()).unwrap_or(i64::MAX);
        if let Some(min) = node.values().and_then(|v| v.min_properties).filter(|min| size < *min) {
            let why = format!("should have at least {min} properties");
            self.faults.invalid(&mut self.out, path, size, &why);
        }
        if let Some(max) = node.values().and_then(|v| v.max_properties).filter(|max| size > *max) {
            self.faults.too_many(&mut self.out, path, fields.len(), max);
        }
        let root = path.is_root();
        for (key, value) in fields {
            let known = match (node.property(key), node.additional()) {
                (Some(_), _) => continue,
                (None, Additional::Schema(values)) => values,
                (None, Additional::No) => {
                    self.faults.unknown(&mut self.out, path, key);
                    continue;
                }
                (None, _) => continue,
            };
            self.matched(value, known, self.old_of(old, key, root), &path.child(key));
        }
        for (name, property) in node.properties() {
            let Some(value) = fields.get(name.as_ref()) else { continue };
            self.matched(value, property, self.old_of(old, name, root), &path.child(name));
        }
        for name in node.values().map_or(&[][..], |v| &v.required) {
            if !fields.contains_key(name.as_ref()) {
                self.faults.required(&mut self.out, &path.child(name));
            }
        }
    }

    /// Returns the old value of a field. The kind and version of the object itself are those of the request, new and
    /// old alike.
    fn old_of<'o>(&self, old: Option<Old<'o>>, key: &str, root: bool) -> Option<Old<'o>> {
        if root && matches!(key, "kind" | "apiVersion") { None } else { old?.key(key) }
    }
}

/// Reports whether a node accepts an integer or a string without a `type`.
fn is_either(node: &Node) -> bool {
    node.is(Flags::INT_OR_STRING)
}
