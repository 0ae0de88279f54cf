//! Field paths that cost nothing until a fault is found, and the collector of faults. What they print is `field`'s.
use crate::field::{FieldError, FieldErrorKind, FieldErrors, FieldPath};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A value as it is shown where upstream shows a struct of its own: by the names of Go's fields, in the order of their declaration.
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

/// A path linked through the stack: `spec` <- `containers` <- `[0]`. Rendered only when an error needs it.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    segment: Segment<'a>,
}

impl<'a> Path<'a> {
    /// A path that starts at the field `name`.
    pub const fn new(name: &'a str) -> Self {
        Self { parent: None, segment: Segment::Name(name) }
    }
    /// Whether this is the object itself, which has no name.
    pub fn is_root(&self) -> bool {
        self.parent.is_none() && matches!(self.segment, Segment::Name(""))
    }
    /// The field `name` below this path.
    pub fn child<'b>(&'b self, name: &'b str) -> Path<'b> {
        Path { parent: Some(self), segment: Segment::Name(name) }
    }
    /// Element `i` of the list at this path.
    pub fn index(&self, i: usize) -> Path<'_> {
        Path { parent: Some(self), segment: Segment::Index(i) }
    }
    /// Entry `key` of the map at this path.
    pub fn key<'b>(&'b self, key: &'b str) -> Path<'b> {
        Path { parent: Some(self), segment: Segment::Key(key) }
    }
    /// The path as the API's error types carry it.
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

/// Collects faults; the counterpart of `FieldErrors` that takes lazy paths.
#[derive(Default)]
pub struct Errors(FieldErrors);

impl Errors {
    /// Nothing found yet.
    pub fn new() -> Self {
        Self::default()
    }
    /// What was found.
    pub fn finish(self) -> FieldErrors {
        self.0
    }
    /// How many faults so far.
    pub fn len(&self) -> usize {
        self.0.0.len()
    }
    /// Whether none was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// All of another list.
    pub fn extend(&mut self, other: FieldErrors) {
        self.0.extend(other);
    }
    /// `Required value`.
    pub fn required(&mut self, p: &Path<'_>, detail: &str) {
        self.0.required(&p.field(), detail);
    }
    /// `Invalid value: <value>: detail`.
    pub fn invalid(&mut self, p: &Path<'_>, value: impl Serialize, detail: impl Into<String>) {
        self.0.invalid(&p.field(), value, detail);
    }
    /// `Invalid value: detail`, for values that say nothing to a reader.
    pub fn invalid_unseen(&mut self, p: &Path<'_>, detail: impl Into<String>) {
        let path = p.field().to_string();
        self.0.0.push(FieldError { kind: FieldErrorKind::Invalid, path, value: None, detail: detail.into() });
    }
    /// One `Invalid value` per reason of a name rule.
    pub fn invalid_each(&mut self, p: &Path<'_>, value: &str, rule: Result<(), Vec<String>>) {
        if let Err(why) = rule {
            for w in why {
                self.0.invalid(&p.field(), value, w);
            }
        }
    }
    /// `Duplicate value`, of the later one.
    pub fn duplicate(&mut self, p: &Path<'_>, value: impl Serialize) {
        self.0.duplicate(&p.field(), value);
    }
    /// `Not found`, of what a value refers to.
    pub fn not_found(&mut self, p: &Path<'_>, value: impl Serialize) {
        self.0.not_found(&p.field(), value);
    }
    /// `Unsupported value`, with the supported ones in the order given.
    pub fn not_supported(&mut self, p: &Path<'_>, value: impl Serialize, supported: &[&str]) {
        self.0.not_supported(&p.field(), value, supported);
    }
    /// `Forbidden`, with the reason for it.
    pub fn forbidden(&mut self, p: &Path<'_>, detail: impl Into<String>) {
        self.0.forbidden(&p.field(), detail);
    }
    /// `Too long`, with the limit in bytes.
    pub fn too_long(&mut self, p: &Path<'_>, max_bytes: usize) {
        self.0.too_long(&p.field(), max_bytes);
    }
    /// `Too many`, with how many there may be.
    pub fn too_many(&mut self, p: &Path<'_>, actual: usize, max: usize) {
        self.0.too_many(&p.field(), actual, max);
    }
    /// `Internal error`.
    pub fn internal(&mut self, p: &Path<'_>, detail: impl Into<String>) {
        let path = p.field().to_string();
        self.0.0.push(FieldError { kind: FieldErrorKind::Internal, path, value: None, detail: detail.into() });
    }
}
