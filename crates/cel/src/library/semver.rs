//! The semver library: versions according to semver.org.
use std::cmp::Ordering;
use std::sync::Arc;

use super::quantity::{compare_to, is_greater, is_less};
use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::value::Value;
use crate::value::error::{EvalError, Result};
use crate::value::opaque::{Opaque, Semver};

const UNIT: Rule = Rule::Fixed(1);
const READ: Rule = Rule::Read(1.0);

pub(super) const ROWS: &[Row] = &[
    Row("string_to_semver", "semver(string) -> kubernetes.Semver", semver, READ),
    Row("string_bool_to_semver", "semver(string, bool) -> kubernetes.Semver", semver, READ),
    Row("is_semver_string", "isSemver(string) -> bool", is_semver, READ),
    Row("is_semver_string_bool", "isSemver(string, bool) -> bool", is_semver, READ),
    Row("semver_is_greater_than", "<kubernetes.Semver>.isGreaterThan(kubernetes.Semver) -> bool", is_greater, UNIT),
    Row("semver_is_less_than", "<kubernetes.Semver>.isLessThan(kubernetes.Semver) -> bool", is_less, UNIT),
    Row("semver_compare_to", "<kubernetes.Semver>.compareTo(kubernetes.Semver) -> int", compare_to, UNIT),
    Row("semver_major", "<kubernetes.Semver>.major() -> int", major, UNIT),
    Row("semver_minor", "<kubernetes.Semver>.minor() -> int", minor, UNIT),
    Row("semver_patch", "<kubernetes.Semver>.patch() -> int", patch, UNIT),
];

fn number(part: &str, name: &str) -> std::result::Result<u64, String> {
    if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {} number {part:?}", name.to_lowercase()));
    }
    if part.len() > 1 && part.starts_with('0') {
        return Err(format!("{name} number must not contain leading zeroes {part:?}"));
    }
    part.parse().map_err(|_| format!("strconv.ParseUint: parsing {part:?}: value out of range"))
}

pub(crate) fn parse(s: &str) -> std::result::Result<Semver, String> {
    if s.is_empty() {
        return Err("Version string empty".into());
    }
    let mut parts = s.splitn(3, '.');
    let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
        return Err("No Major.Minor.Patch elements found".into());
    };
    let (major, minor) = (number(major, "Major")?, number(minor, "Minor")?);
    let (rest, build) = match rest.split_once('+') {
        Some((rest, build)) => (rest, Some(build)),
        None => (rest, None),
    };
    let (patch, pre) = match rest.split_once('-') {
        Some((patch, pre)) => (patch, Some(pre)),
        None => (rest, None),
    };
    let patch = number(patch, "Patch")?;
    let named = |part: &str| part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let mut version = Semver { numbers: [major, minor, patch], pre: Vec::new(), build: Vec::new() };
    for part in pre.into_iter().flat_map(|p| p.split('.')) {
        if part.is_empty() {
            return Err("Prerelease is empty".into());
        }
        if !named(part) {
            return Err(format!("Invalid character(s) found in prerelease {part:?}"));
        }
        if part.len() > 1 && part.starts_with('0') && part.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!("Numeric PreRelease version must not contain leading zeroes {part:?}"));
        }
        version.pre.push(part.into());
    }
    for part in build.into_iter().flat_map(|b| b.split('.')) {
        if part.is_empty() {
            return Err("Build meta data is empty".into());
        }
        if !named(part) {
            return Err(format!("Invalid character(s) found in build meta data {part:?}"));
        }
        version.build.push(part.into());
    }
    Ok(version)
}

/// Parses a version that may have a leading `v`, missing numbers and leading zeros.
fn normalized(s: &str) -> std::result::Result<Semver, String> {
    let s = s.strip_prefix('v').unwrap_or(s);
    let mut parts: Vec<String> = s
        .splitn(3, '.')
        .map(|part| {
            if part.len() <= 1 {
                return part.to_owned();
            }
            let trimmed = part.trim_start_matches('0');
            if trimmed.starts_with(|c: char| c.is_ascii_digit()) { trimmed.to_owned() } else { format!("0{trimmed}") }
        })
        .collect();
    if parts.len() < 3 && parts.last().is_some_and(|p| p.contains(['+', '-'])) {
        return Err("short version cannot contain PreRelease/Build meta data".into());
    }
    parts.resize(3.max(parts.len()), "0".into());
    parse(&parts.join("."))
}

impl Semver {
    /// Compares by the rules of semver.org: build metadata is ignored, and a pre-release comes before its release.
    pub(super) fn compare(a: &Semver, b: &Semver) -> Ordering {
        a.numbers.cmp(&b.numbers).then_with(|| match (a.pre.is_empty(), b.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                let parts = a.pre.iter().zip(&b.pre).map(|(a, b)| part_order(a, b));
                parts.fold(Ordering::Equal, Ordering::then).then(a.pre.len().cmp(&b.pre.len()))
            }
        })
    }
}

fn part_order(a: &str, b: &str) -> Ordering {
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    match (digits(a), digits(b)) {
        (true, true) => a.len().cmp(&b.len()).then_with(|| a.cmp(b)),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) => a.cmp(b),
    }
}

fn read(function: &str, args: &[Value<'_>]) -> Result<std::result::Result<Semver, String>> {
    match args {
        [Value::Text(s)] | [Value::Text(s), Value::Bool(false)] => Ok(parse(s)),
        [Value::Text(s), Value::Bool(true)] => Ok(normalized(s)),
        _ => Err(not_for(function, args)),
    }
}
fn semver<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let version = read("semver", args)?.map_err(EvalError::new)?;
    Ok(Value::Opaque(Opaque::Semver(Arc::new(version))))
}
fn is_semver<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    read("isSemver", args).map(|v| Value::Bool(v.is_ok()))
}

fn part<'a>(function: &str, args: &[Value<'a>], index: usize) -> Result<Value<'a>> {
    match args {
        [Value::Opaque(Opaque::Semver(v))] => Ok(Value::Int(v.numbers[index] as i64)),
        _ => Err(not_for(function, args)),
    }
}
fn major<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    part("major", args, 0)
}
fn minor<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    part("minor", args, 1)
}
fn patch<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    part("patch", args, 2)
}
