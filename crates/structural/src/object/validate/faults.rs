//! The errors of validation, with upstream's messages.
use kelson_meta::path::Path;
use kelson_meta::{FieldError, FieldErrorKind, too_long_detail, too_many_detail};
use serde::Serialize;
use serde_json::Value;

/// The maximum number of errors reported for one object; messages repeat paths that the client chose.
const FAULTS_MAX: usize = 1000;

/// The errors of a check, and how much matched: of several alternatives that fail, the one that matches best is
/// reported.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub errors: Vec<FieldError>,
    failed: bool,
    matches: u64,
    /// Whether only the presence of errors matters.
    quiet: bool,
}

impl Outcome {
    /// Creates an empty outcome; with `quiet`, errors are counted and not reported.
    pub fn new(quiet: bool) -> Self {
        Self { quiet, ..Self::default() }
    }
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }
    pub fn is_valid(&self) -> bool {
        !self.failed
    }
    /// Reports whether further checks cannot change the result.
    pub fn full(&self) -> bool {
        self.errors.len() >= FAULTS_MAX || self.quiet && self.failed
    }
    /// Records an error. Returns whether it need not be reported.
    fn fail(&mut self) -> bool {
        self.failed = true;
        self.full()
    }
    pub fn matches(&self) -> u64 {
        self.matches
    }
    pub fn matched(&mut self, checks: u64) {
        self.matches += checks;
    }
    pub fn merge(&mut self, other: Self) {
        self.failed |= other.failed;
        self.matches += other.matches;
        for error in other.errors {
            self.add(error);
        }
    }
    /// Adds an error unless it exists already.
    fn add(&mut self, error: FieldError) {
        if !self.fail() && !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }
}

/// Formats a path. Empty for the validated value itself.
pub(super) fn text_of(path: &Path<'_>) -> String {
    path.field().as_str().to_owned()
}

/// Formats a float like Go's `%v`.
pub(super) fn go_float(float: f64) -> String {
    let magnitude = float.abs();
    if magnitude != 0.0 && !(1e-4..1e21).contains(&magnitude) {
        let text = format!("{float:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    float.to_string()
}

/// Creates errors of the value at `at` in its object. Messages contain paths inside the value, errors whole paths.
pub(super) struct Faults<'a> {
    at: &'a str,
}

impl<'a> Faults<'a> {
    pub fn new(at: &'a str) -> Self {
        Self { at }
    }

    fn whole(&self, path: &str) -> String {
        match (self.at, path) {
            ("", "") => "<nil>".to_owned(),
            ("", path) => path.to_owned(),
            (at, "") => at.to_owned(),
            (at, path) => format!("{at}.{path}"),
        }
    }

    fn add(&self, out: &mut Outcome, kind: FieldErrorKind, path: &str, value: Option<String>, detail: String) {
        out.add(FieldError { kind, path: self.whole(path), value, detail });
    }

    fn reported(&self, out: &mut Outcome, kind: FieldErrorKind, path: &Path<'_>, value: impl Serialize, why: &str) {
        if out.fail() {
            return;
        }
        let at = text_of(path);
        self.add(out, kind, &at, Some(print(&value)), format!("{at} in body {why}"));
    }

    /// Adds the error of a value that violates a keyword.
    pub fn invalid(&self, out: &mut Outcome, path: &Path<'_>, value: impl Serialize, why: &str) {
        self.reported(out, FieldErrorKind::Invalid, path, value, why);
    }
    /// Adds the error of a value of the wrong type or format. `found` is its type, or the string without the format.
    pub fn wrong_type(&self, out: &mut Outcome, path: &Path<'_>, wanted: &str, found: &str) {
        self.reported(out, FieldErrorKind::TypeInvalid, path, found, &format!("must be of type {wanted}: {found:?}"));
    }
    pub fn required(&self, out: &mut Outcome, path: &Path<'_>) {
        if out.fail() {
            return;
        }
        self.add(out, FieldErrorKind::Required, &text_of(path), None, String::new());
    }
    pub fn too_long(&self, out: &mut Outcome, path: &Path<'_>, max: i64) {
        if out.fail() {
            return;
        }
        let detail = usize::try_from(max).map_or_else(|_| "value is too long".to_owned(), too_long_detail);
        self.add(out, FieldErrorKind::TooLong, &text_of(path), None, detail);
    }
    pub fn too_many(&self, out: &mut Outcome, path: &Path<'_>, actual: usize, max: i64) {
        if out.fail() {
            return;
        }
        let detail = usize::try_from(max).map_or_else(|_| "has too many items".to_owned(), too_many_detail);
        self.add(out, FieldErrorKind::TooMany, &text_of(path), Some(actual.to_string()), detail);
    }
    pub fn not_supported(&self, out: &mut Outcome, path: &Path<'_>, value: &Value, allowed: &[Value]) {
        if out.fail() {
            return;
        }
        let words: Vec<String> = allowed
            .iter()
            .map(|v| match v {
                Value::String(s) => format!("{s:?}"),
                other => format!("{:?}", other.to_string()),
            })
            .collect();
        let detail = format!("supported values: {}", words.join(", "));
        self.add(out, FieldErrorKind::NotSupported, &text_of(path), Some(print(value)), detail);
    }
    pub fn unknown(&self, out: &mut Outcome, path: &Path<'_>, key: &str) {
        if out.fail() {
            return;
        }
        let at = text_of(path);
        let detail = format!("{at}.{key} in body is a forbidden property");
        self.add(out, FieldErrorKind::Invalid, &at, Some(print(&key)), detail);
    }
    pub fn no_factor(&self, out: &mut Outcome, path: &Path<'_>, factor: &str) {
        if out.fail() {
            return;
        }
        let at = text_of(path);
        let detail = format!("factor MultipleOf declared for {at} must be positive: {factor}");
        self.add(out, FieldErrorKind::Invalid, &at, Some(factor.to_owned()), detail);
    }
    /// Adds an error that upstream reports without its field.
    pub fn plain(&self, out: &mut Outcome, path: &Path<'_>, why: impl FnOnce(&str) -> String) {
        if out.fail() {
            return;
        }
        let detail = why(&text_of(path));
        self.add(out, FieldErrorKind::Invalid, "", Some("\"\"".to_owned()), detail);
    }
    pub fn clause(&self, out: &mut Outcome, path: &Path<'_>, why: &str) {
        self.plain(out, path, |at| format!("{at:?} {why}"));
    }
    /// Reports that the object requires too many checks.
    pub fn too_much(&self, out: &mut Outcome) {
        let detail = "the object needs too many checks to be validated against its schema".to_owned();
        self.add(out, FieldErrorKind::Internal, "", None, detail);
    }
}

fn print(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
