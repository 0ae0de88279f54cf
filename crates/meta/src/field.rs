//! Validation errors by field path, in the words of upstream's `field.Error` (apimachinery `util/validation/field`).
use std::collections::HashSet;
use std::fmt;

/// The path of a field, such as `spec.containers[0].name` or `metadata.labels[app]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldPath(String);

impl FieldPath {
    /// Creates a path that starts at `name`. The empty string is the object itself.
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }
    /// Returns the path of the field `name` below this path.
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { Self(format!("{}.{name}", self.0)) }
    }
    /// Returns the path of element `i` of the list at this path.
    pub fn index(&self, i: usize) -> Self {
        Self(format!("{}[{i}]", self.0))
    }
    /// Returns the path of the entry `key` of the map at this path.
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
    /// Returns the path as a string. It is empty for the object itself, which messages show as `<nil>`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

/// The kind of a field error. Its names in messages and in `causes` are part of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// `Not found`: the object that a value refers to does not exist.
    NotFound,
    /// `Required value`: the field is missing.
    Required,
    /// `Duplicate value`: the value occurs twice.
    Duplicate,
    /// `Invalid value`: the value breaks a rule.
    Invalid,
    /// `Unsupported value`: the value is not in the list of supported values.
    NotSupported,
    /// `Forbidden`: the field must not be set or changed.
    Forbidden,
    /// `Too long`: a string or data exceeds its maximum size.
    TooLong,
    /// `Too many`: a list or map exceeds its maximum number of items.
    TooMany,
    /// `Internal error`: validation failed.
    Internal,
    /// `Invalid value` with the cause `FieldValueTypeInvalid`: the value has the wrong type.
    TypeInvalid,
}

impl FieldErrorKind {
    /// Returns the first words of the message.
    pub fn words(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }
    /// Returns the `reason` for `status.details.causes`.
    pub fn cause(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }
}

/// An error of one field. Clients see it in the message of a 422 response and as an entry of `status.details.causes`,
/// so both its messages and its order match upstream's `field.Error`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The kind of the error. It decides the cause's reason and the first words of the message.
    pub kind: FieldErrorKind,
    /// The path from the object's root: `spec.containers[0].image`.
    pub path: String,
    /// The invalid value as upstream prints it (strings are quoted). It is `None` for kinds that show no value.
    pub value: Option<String>,
    /// Why the value is invalid.
    pub detail: String,
}

impl FieldError {
    /// Returns the message without the path, as in `causes[].message`.
    pub fn body(&self) -> String {
        let mut s = self.kind.words().to_owned();
        if let Some(v) = &self.value {
            s.push_str(": ");
            s.push_str(v);
        }
        if !self.detail.is_empty() {
            s.push_str(": ");
            s.push_str(&self.detail);
        }
        s
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

/// The errors of one object in the order of validation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldErrors(pub Vec<FieldError>);

impl FieldErrors {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }
    /// Returns whether there are no errors.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    fn push(&mut self, kind: FieldErrorKind, path: &FieldPath, value: Option<String>, detail: impl Into<String>) {
        self.0.push(FieldError { kind, path: path.to_string(), value, detail: detail.into() });
    }
    /// Adds `Required value` with a detail, which may be empty.
    pub fn required(&mut self, path: &FieldPath, detail: impl Into<String>) {
        self.push(FieldErrorKind::Required, path, None, detail);
    }
    /// Adds `Invalid value: <value>: detail`. Strings are quoted, other values are printed as JSON.
    pub fn invalid(&mut self, path: &FieldPath, value: impl serde::Serialize, detail: impl Into<String>) {
        self.push(FieldErrorKind::Invalid, path, Some(print(&value)), detail);
    }
    /// Adds `Duplicate value: <value>`.
    pub fn duplicate(&mut self, path: &FieldPath, value: impl serde::Serialize) {
        self.push(FieldErrorKind::Duplicate, path, Some(print(&value)), "");
    }
    /// Adds `Not found: <value>`.
    pub fn not_found(&mut self, path: &FieldPath, value: impl serde::Serialize) {
        self.push(FieldErrorKind::NotFound, path, Some(print(&value)), "");
    }
    /// Adds `Unsupported value: <value>: supported values: "A", "B"`. The list is printed in the given order.
    pub fn not_supported(&mut self, path: &FieldPath, value: impl serde::Serialize, supported: &[&str]) {
        let detail = if supported.is_empty() {
            String::new()
        } else {
            let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
            format!("supported values: {}", list.join(", "))
        };
        self.push(FieldErrorKind::NotSupported, path, Some(print(&value)), detail);
    }
    /// Adds `Forbidden: detail`, for a field that must not be set or changed here, although its value is valid.
    pub fn forbidden(&mut self, path: &FieldPath, detail: impl Into<String>) {
        self.push(FieldErrorKind::Forbidden, path, None, detail);
    }
    /// Adds `Too long: may not be more than N bytes`.
    pub fn too_long(&mut self, path: &FieldPath, max_bytes: usize) {
        self.push(FieldErrorKind::TooLong, path, None, too_long_detail(max_bytes));
    }
    /// Adds `Too many: N: must have at most M items`.
    pub fn too_many(&mut self, path: &FieldPath, actual: usize, max: usize) {
        self.push(FieldErrorKind::TooMany, path, Some(actual.to_string()), too_many_detail(max));
    }
    /// Adds all errors of another list.
    pub fn extend(&mut self, other: FieldErrors) {
        self.0.extend(other.0);
    }
}

impl fmt::Display for FieldErrors {
    /// Formats one error by itself, and several as `[a, b]` without duplicates, like upstream's aggregate.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seen = HashSet::new();
        let texts: Vec<String> =
            self.0.iter().map(ToString::to_string).filter(|text| seen.insert(text.clone())).collect();
        match texts.as_slice() {
            [one] => f.write_str(one),
            many => write!(f, "[{}]", many.join(", ")),
        }
    }
}

/// Returns the detail of `Too long`.
pub fn too_long_detail(max_bytes: usize) -> String {
    format!("may not be more than {max_bytes} byte{}", if max_bytes == 1 { "" } else { "s" })
}
/// Returns the detail of `Too many`.
pub fn too_many_detail(max: usize) -> String {
    format!("must have at most {max} item{}", if max == 1 { "" } else { "s" })
}

/// Formats a value as Go does: strings in Go's quotes, other values as HTML-safe JSON.
fn print(value: &impl serde::Serialize) -> String {
    let json = serde_json::to_string(value).unwrap_or_else(|_| "<unprintable>".to_owned());
    if json.starts_with('"') {
        return if json.contains("\\u") || json.contains("\\b") || json.contains("\\f") { quoted(&json) } else { json };
    }
    if !json.contains(['<', '>', '&']) {
        return json;
    }
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Converts a JSON string literal to Go's escapes for control characters.
fn quoted(json: &str) -> String {
    let text: String = serde_json::from_str(json).unwrap_or_default();
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_upstream() {
        let mut e = FieldErrors::new();
        let p = FieldPath::new("spec").child("containers").index(0).child("name");
        e.required(&p, "");
        assert_eq!(e.to_string(), "spec.containers[0].name: Required value");
        e.invalid(&FieldPath::new("spec").child("replicas"), -1, "must be greater than or equal to 0");
        assert_eq!(
            e.to_string(),
            "[spec.containers[0].name: Required value, spec.replicas: Invalid value: -1: must be greater than or equal to 0]"
        );
        let mut e = FieldErrors::new();
        e.not_supported(&FieldPath::new("type"), "X", &["A", "B"]);
        assert_eq!(e.to_string(), "type: Unsupported value: \"X\": supported values: \"A\", \"B\"");
    }

    #[test]
    fn what_was_found_twice_is_said_once() {
        let mut e = FieldErrors::new();
        for _ in 0..2 {
            e.forbidden(&FieldPath::new("a"), "no");
        }
        assert_eq!((e.0.len(), e.to_string()), (2, "a: Forbidden: no".to_owned()));
    }

    #[test]
    fn values_are_spelled_as_in_go() {
        for (value, want) in [
            (serde_json::json!("a\u{1}\u{7}\n\"é"), "\"a\\x01\\a\\n\\\"é\""),
            (serde_json::json!("a < b"), "\"a < b\""),
            (serde_json::json!({"rule": "a > b && c"}), "{\"rule\":\"a \\u003e b \\u0026\\u0026 c\"}"),
            (serde_json::json!([1, "x"]), "[1,\"x\"]"),
        ] {
            assert_eq!(print(&value), want);
        }
    }
}
