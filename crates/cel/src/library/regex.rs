//! Functions with RE2 patterns.
use regex::Regex;

use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::re2;
use crate::value::Value;
use crate::value::error::{EvalError, Result};

pub(super) const ROWS: &[Row] = &[
    Row("matches", "matches(string, string) -> bool", matches, Rule::One),
    Row("matches_string", "<string>.matches(string) -> bool", matches, Rule::Matches),
    Row("string_find_string", "<string>.find(string) -> string", find, Rule::Find),
    Row("string_find_all_string", "<string>.findAll(string) -> list(string)", find_all, Rule::Find),
    Row("string_find_all_string_int", "<string>.findAll(string, int) -> list(string)", find_all, Rule::Find),
];

/// Compiles a pattern, or returns the error.
pub(crate) fn compile(pattern: &str) -> std::result::Result<Regex, String> {
    re2::compile(pattern).map_err(|why| format!("error parsing regexp: {why}: `{pattern}`"))
}

/// Calls the function with a compiled pattern.
pub(crate) fn with<'a>(pattern: &Regex, function: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let Some(Value::Text(text)) = args.first() else { return Err(not_for(function, args)) };
    match function {
        "matches" => Ok(Value::Bool(pattern.is_match(text))),
        "find" => Ok(Value::text(pattern.find(text).map_or("", |m| m.as_str()))),
        _ => {
            let most = match args.get(2) {
                Some(Value::Int(n)) if *n >= 0 => *n as usize,
                Some(Value::Int(_)) | None => usize::MAX,
                _ => return Err(not_for(function, args)),
            };
            Ok(Value::list(pattern.find_iter(text).take(most).map(|m| Value::text(m.as_str())).collect()))
        }
    }
}

fn compiled<'a>(function: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    match args.get(1) {
        Some(Value::Text(pattern)) => match compile(pattern) {
            Ok(regex) => with(&regex, function, args),
            Err(why) if function == "matches" => Err(EvalError::new(why)),
            Err(why) => Err(EvalError::new(format!("Illegal regex: {why}"))),
        },
        _ => Err(not_for(function, args)),
    }
}

fn matches<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    compiled("matches", args)
}
fn find<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    compiled("find", args)
}
fn find_all<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    compiled("findAll", args)
}
