//! Version 2 of cel-go's extended string library. Positions are counted in code points.
use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::value::Value;
use crate::value::error::{EvalError, Result};

pub(super) const ROWS: &[Row] = &[
    Row("string_char_at_int", "<string>.charAt(int) -> string", char_at, Rule::One),
    Row("string_index_of_string", "<string>.indexOf(string) -> int", index_of, Rule::Traverse),
    Row("string_index_of_string_int", "<string>.indexOf(string, int) -> int", index_of, Rule::Traverse),
    Row("string_last_index_of_string", "<string>.lastIndexOf(string) -> int", last_index_of, Rule::Traverse),
    Row("string_last_index_of_string_int", "<string>.lastIndexOf(string, int) -> int", last_index_of, Rule::Traverse),
    Row("string_lower_ascii", "<string>.lowerAscii() -> string", lower, Rule::Pass),
    Row("string_replace_string_string", "<string>.replace(string, string) -> string", replace, Rule::Replace),
    Row("string_replace_string_string_int", "<string>.replace(string, string, int) -> string", replace, Rule::Replace),
    Row("string_split_string", "<string>.split(string) -> list(string)", split, Rule::Split),
    Row("string_split_string_int", "<string>.split(string, int) -> list(string)", split, Rule::Split),
    Row("string_substring_int", "<string>.substring(int) -> string", substring, Rule::Pass),
    Row("string_substring_int_int", "<string>.substring(int, int) -> string", substring, Rule::Pass),
    Row("string_trim", "<string>.trim() -> string", trim, Rule::Pass),
    Row("string_upper_ascii", "<string>.upperAscii() -> string", upper, Rule::Pass),
    Row("strings_quote", "strings.quote(string) -> string", quote, Rule::Quote),
    Row("list_join", "<list(string)>.join() -> string", join, Rule::Join),
    Row("list_join_string", "<list(string)>.join(string) -> string", join, Rule::Join),
];

/// The most bytes that `replace` may produce, since the cost counts only its input.
const MADE: usize = 16 << 20;

fn outside(index: i64) -> EvalError {
    EvalError::new(format!("index out of range: {index}"))
}

fn char_at<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::Text(s), Value::Int(i)] = args else { return Err(not_for("charAt", args)) };
    let mut chars = s.chars();
    let found = usize::try_from(*i).ok().and_then(|i| chars.by_ref().nth(i));
    match found {
        Some(c) => Ok(Value::text(c.to_string())),
        None if *i >= 0 && s.chars().count() as i64 == *i => Ok(Value::text("")),
        None => Err(outside(*i)),
    }
}

/// The byte offset of a code point, or the length for the position after the last one.
fn byte_at(s: &str, place: usize) -> Option<usize> {
    if s.is_ascii() {
        return (place <= s.len()).then_some(place);
    }
    s.char_indices().map(|(i, _)| i).chain([s.len()]).nth(place)
}

fn index_of<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (s, part, from) = match args {
        [Value::Text(s), Value::Text(part)] => (s, part, 0),
        [Value::Text(s), Value::Text(part), Value::Int(from)] => (s, part, *from),
        _ => return Err(not_for("indexOf", args)),
    };
    if part.is_empty() {
        return Ok(Value::Int(from));
    }
    let place = usize::try_from(from).map_err(|_| outside(from))?;
    let Some(start) = byte_at(s, place) else { return Ok(Value::Int(-1)) };
    Ok(Value::Int(s[start..].find(&**part).map_or(-1, |at| (place + s[start..start + at].chars().count()) as i64)))
}

fn last_index_of<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (s, part, from) = match args {
        [Value::Text(s), Value::Text(part)] => (s, part, None),
        [Value::Text(s), Value::Text(part), Value::Int(from)] => (s, part, Some(*from)),
        _ => return Err(not_for("lastIndexOf", args)),
    };
    let length = s.chars().count() as i64;
    if part.is_empty() {
        return Ok(Value::Int(from.unwrap_or(length)));
    }
    let end = match from {
        Some(from) if from < 0 => return Err(outside(from)),
        Some(from) if from >= length => return Ok(Value::Int(-1)),
        Some(from) => byte_at(s, from as usize).map_or(s.len(), |start| (start + part.len()).min(s.len())),
        None => s.len(),
    };
    // A match that begins at or before the position may extend beyond it.
    let end = (end..=s.len()).find(|i| s.is_char_boundary(*i)).unwrap_or(s.len());
    let found = s[..end].rfind(&**part);
    Ok(Value::Int(found.map_or(-1, |at| s[..at].chars().count() as i64)))
}

fn lower<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Text(s)] => Ok(Value::text(s.to_ascii_lowercase())),
        _ => Err(not_for("lowerAscii", args)),
    }
}
fn upper<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Text(s)] => Ok(Value::text(s.to_ascii_uppercase())),
        _ => Err(not_for("upperAscii", args)),
    }
}
fn trim<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Text(s)] => Ok(Value::text(s.trim())),
        _ => Err(not_for("trim", args)),
    }
}

fn replace<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (s, old, new, most) = match args {
        [Value::Text(s), Value::Text(old), Value::Text(new)] => (s, old, new, -1),
        [Value::Text(s), Value::Text(old), Value::Text(new), Value::Int(n)] => (s, old, new, *n),
        _ => return Err(not_for("replace", args)),
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let times = if old.is_empty() { s.len() + 1 } else { s.len() / old.len() };
    if times.min(most).saturating_mul(new.len()) > MADE {
        return Err(EvalError::CostLimit);
    }
    Ok(Value::text(s.replacen(&**old, new, most)))
}

fn split<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (s, separator, most) = match args {
        [Value::Text(s), Value::Text(separator)] => (s, separator, -1),
        [Value::Text(s), Value::Text(separator), Value::Int(n)] => (s, separator, *n),
        _ => return Err(not_for("split", args)),
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut parts: Vec<Value<'a>> = Vec::new();
    if most == 0 {
        return Ok(Value::list(parts));
    }
    if !separator.is_empty() {
        parts.extend(s.splitn(most, &**separator).map(Value::text));
        return Ok(Value::list(parts));
    }
    // With an empty separator each code point is a part, and the rest is the last part.
    let mut rest: &str = s;
    while let Some(c) = rest.chars().next() {
        if parts.len() + 1 == most {
            parts.push(Value::text(rest));
            break;
        }
        let (head, tail) = rest.split_at(c.len_utf8());
        parts.push(Value::text(head));
        rest = tail;
    }
    Ok(Value::list(parts))
}

fn substring<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (s, start, end) = match args {
        [Value::Text(s), Value::Int(start)] => (s, *start, None),
        [Value::Text(s), Value::Int(start), Value::Int(end)] => (s, *start, Some(*end)),
        _ => return Err(not_for("substring", args)),
    };
    if let Some(end) = end.filter(|end| start > *end) {
        return Err(EvalError::new(format!("invalid substring range. start: {start}, end: {end}")));
    }
    let byte =
        |place: i64| usize::try_from(place).ok().and_then(|place| byte_at(s, place)).ok_or_else(|| outside(place));
    let from = byte(start)?;
    let to = end.map_or(Ok(s.len()), byte)?;
    Ok(Value::text(&s[from..to]))
}

fn quote<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::Text(s)] = args else { return Err(not_for("strings.quote", args)) };
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(Value::text(out))
}

fn join<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (list, separator) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::Text(separator)] => (list, &**separator),
        _ => return Err(not_for("join", args)),
    };
    let mut out = String::new();
    for (i, value) in list.iter().enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        match value? {
            Value::Text(s) => out.push_str(&s),
            other => return Err(EvalError::new(format!("join: invalid input: {other}"))),
        }
    }
    Ok(Value::text(out))
}
