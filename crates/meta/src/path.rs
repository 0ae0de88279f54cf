//! Field paths without allocation, and the list that collects errors with them. `field` formats both.
use crate::field::{FieldError, FieldErrorKind, FieldErrors, FieldPath};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A value that upstream prints as a Go struct: with Go's field names in the order of their declaration.
pub struct GoStruct<'a, const N: usize>(pub [(&'a str, &'a Value); N]);

impl<const N: usize> Serialize for GoStruct<'_, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0)
    }
}

#[derive(Clone, Copy)]
enum Segment<'a> {
    Name(&'a str),
    Index(usize),
    Key(&'a str),
}

/// A path as a linked list on the stack: `spec` <- `containers` <- `[0]`. It becomes a string only for an error.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    segment: Segment<'a>,
}

impl<'a> Path<'a> {
    /// Creates a path that starts at the field `name`.
    pub const fn new(name: &'a str) -> Self {
        Self { parent: None, segment: Segment::Name(name) }
    }
    /// Returns whether this is the path of the object itself, which has no name.
    pub fn is_root(&self) -> bool {
        self.parent.is_none() && matches!(self.segment, Segment::Name(""))
    }
    /// Returns the path of the field `name` below this path.
    pub fn child<'b>(&'b self, name: &'b str) -> Path<'b> {
        Path { parent: Some(self), segment: Segment::Name(name) }
    }
    /// Returns the path of element `i` of the list at this path.
    pub fn index(&self, i: usize) -> Path<'_> {
        Path { parent: Some(self), segment: Segment::Index(i) }
    }
    /// Returns the path of the entry `key` of the map at this path.
    pub fn key<'b>(&'b self, key: &'b str) -> Path<'b> {
        Path { parent: Some(self), segment: Segment::Key(key) }
    }
    /// Converts the path to the type of the API's errors.
    pub fn field(&self) -> FieldPath {
        match (self.parent, self.segment) {
            (None, Segment::Name(n)) => FieldPath::new(n),
            (None, Segment::Index(i)) => FieldPath::default().index(i),
            (None, Segment::Key(k)) => FieldPath::default().key(k),
            (Some(p), Segment::Name(n)) => p.field().child(n),
            (Some(p), Segment::Index(i)) => p.field().index(i),
            (Some(p), Segment::Key(k)) => p.field().key(k),
        }
    }
}

/// Collects field errors. Unlike `FieldErrors`, its methods take lazy paths.
#[derive(Default)]
pub struct Errors(FieldErrors);

impl Errors {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }
    /// Returns the collected errors.
    pub fn finish(self) -> FieldErrors {
        self.0
    }
    /// Returns the number of errors.
    pub fn len(&self) -> usize {
        self.0.0.len()
    }
    /// Returns whether there are no errors.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Adds all errors of another list.
    pub fn extend(&mut self, other: FieldErrors) {
        self.0.extend(other);
    }
    /// Adds `Required value`.
    pub fn required(&mut self, p: &Path<'_>, detail: &str) {
        self.0.required(&p.field(), detail);
    }
    /// Adds `Invalid value: <value>: detail`.
    pub fn invalid(&mut self, p: &Path<'_>, value: impl Serialize, detail: impl Into<String>) {
        self.0.invalid(&p.field(), value, detail);
    }
    /// Adds `Invalid value: detail`, for values that would not help a reader.
    pub fn invalid_unseen(&mut self, p: &Path<'_>, detail: impl Into<String>) {
        let path = p.field().to_string();
        self.0.0.push(FieldError { kind: FieldErrorKind::Invalid, path, value: None, detail: detail.into() });
    }
    /// Adds one `Invalid value` for each reason that a name rule returned.
    pub fn invalid_each(&mut self, p: &Path<'_>, value: &str, rule: Result<(), Vec<String>>) {
        if let Err(why) = rule {
            for w in why {
                self.0.invalid(&p.field(), value, w);
            }
        }
    }
    /// Adds `Duplicate value` for the later of two equal values.
    pub fn duplicate(&mut self, p: &Path<'_>, value: impl Serialize) {
        self.0.duplicate(&p.field(), value);
    }
    /// Adds `Not found` for a value that refers to a missing object.
    pub fn not_found(&mut self, p: &Path<'_>, value: impl Serialize) {
        self.0.not_found(&p.field(), value);
    }
    /// Adds `Unsupported value` with the supported values in the given order.
    pub fn not_supported(&mut self, p: &Path<'_>, value: impl Serialize, supported: &[&str]) {
        self.0.not_supported(&p.field(), value, supported);
    }
    /// Adds `Forbidden` with the reason.
    pub fn forbidden(&mut self, p: &Path<'_>, detail: impl Into<String>) {
        self.0.forbidden(&p.field(), detail);
    }
    /// Adds `Too long` with the limit in bytes.
    pub fn too_long(&mut self, p: &Path<'_>, max_bytes: usize) {
        self.0.too_long(&p.field(), max_bytes);
    }
    /// Adds `Too many` with the maximum number.
    pub fn too_many(&mut self, p: &Path<'_>, actual: usize, max: usize) {
        self.0.too_many(&p.field(), actual, max);
    }
    /// Adds `Internal error`.
    pub fn internal(&mut self, p: &Path<'_>, detail: impl Into<String>) {
        let path = p.field().to_string();
        self.0.0.push(FieldError { kind: FieldErrorKind::Internal, path, value: None, detail: detail.into() });
    }
}
