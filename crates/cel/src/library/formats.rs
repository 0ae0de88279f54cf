//! Formats by name (`format.dns1123Label().validate(s)`): what is wrong with a text, in upstream's words.
use std::sync::OnceLock;

use regex::Regex;

use super::{Row, not_for};
use crate::cost::Rule;
use crate::value::error::Result;
use crate::value::opaque::Opaque;
use crate::value::{Value, time};

pub(super) const ROWS: &[Row] = &[
    Row("format-named", "format.named(string) -> optional(kubernetes.NamedFormat)", named, Rule::Fixed(1)),
    Row(
        "format-validate",
        "<kubernetes.NamedFormat>.validate(string) -> optional(list(string))",
        validate,
        Rule::Validate,
    ),
];

/// Bytes of the pattern that checking a format is priced by.
pub(crate) fn pattern_size(_name: &str) -> u64 {
    0
}

fn named<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Err(not_for("format.named", args))
}
fn validate<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Err(not_for("validate", args))
}
