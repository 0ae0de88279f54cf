//! YAML output in the layout of `sigs.k8s.io/yaml`: block style, sequences at the indentation of their key, sorted keys.
use super::resolve::{Scalar, resolve};
use serde_json::Value;

/// A longer key, in bytes, is written after `? `, as Go's emitter does. Readers look only 1,024 characters ahead for
/// the colon of a simple key (YAML 1.2.2, section 7.4.2) and reject a longer one.
const SIMPLE_KEY_BYTES_MAX: usize = 128;

/// Formats a tree as a YAML document.
pub fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => mapping(&mut out, map, 0, false),
        Value::Array(items) if !items.is_empty() => sequence(&mut out, items, 0),
        scalar => {
            inline(&mut out, scalar, 0);
            out.push('\n');
        }
    }
    out
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

/// Writes a mapping. With `first_inline` the first key continues the current line, after `- `.
fn mapping(out: &mut String, map: &serde_json::Map<String, Value>, indent: usize, first_inline: bool) {
    for (i, (key, value)) in map.iter().enumerate() {
        if i > 0 || !first_inline {
            pad(out, indent);
        }
        if key.len() > SIMPLE_KEY_BYTES_MAX {
            out.push_str("? ");
            text(out, key, indent, true);
            out.push('\n');
            pad(out, indent);
            out.push_str(": ");
            element(out, value, indent);
            continue;
        }
        text(out, key, indent, true);
        out.push(':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.push('\n');
                mapping(out, inner, indent + 2, false);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                sequence(out, items, indent);
            }
            scalar => {
                out.push(' ');
                inline(out, scalar, indent + 2);
                out.push('\n');
            }
        }
    }
}

fn sequence(out: &mut String, items: &[Value], indent: usize) {
    for item in items {
        pad(out, indent);
        out.push_str("- ");
        element(out, item, indent);
    }
}

fn element(out: &mut String, item: &Value, indent: usize) {
    match item {
        Value::Object(map) if !map.is_empty() => mapping(out, map, indent + 2, true),
        Value::Array(items) if !items.is_empty() => {
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    pad(out, indent + 2);
                }
                out.push_str("- ");
                element(out, item, indent + 2);
            }
        }
        scalar => {
            inline(out, scalar, indent + 2);
            out.push('\n');
        }
    }
}

fn inline(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => out.push_str(&n.to_string()),
        Value::String(s) => text(out, s, indent, false),
        Value::Array(_) => out.push_str("[]"),
        Value::Object(_) => out.push_str("{}"),
    }
}

fn text(out: &mut String, s: &str, indent: usize, key: bool) {
    let printable = s
        .chars()
        .all(|c| c == '\n' || c == '\t' || !c.is_control() && c != '\u{feff}' && c != '\u{2028}' && c != '\u{2029}');
    if !key
        && printable
        && s.contains('\n')
        && !s.starts_with([' ', '\n', '\t'])
        && !s.contains(" \n")
        && !s.ends_with(' ')
    {
        return literal(out, s, indent);
    }
    if !printable || s.contains(['\n', '\t']) {
        out.push_str(&Value::from(s).to_string());
    } else if is_plain(s) {
        out.push_str(s);
    } else if resolve(s) != Scalar::Text || looks_like_time_or_base60(s) {
        out.push_str(&Value::from(s).to_string());
    } else {
        out.push('\'');
        out.push_str(&s.replace('\'', "''"));
        out.push('\'');
    }
}

fn literal(out: &mut String, s: &str, indent: usize) {
    let body = s.trim_end_matches('\n');
    let breaks = s.len() - body.len();
    out.push_str(match breaks {
        0 => "|-",
        1 => "|",
        _ => "|+",
    });
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            pad(out, indent.max(2));
            out.push_str(line);
        }
    }
    out.extend(std::iter::repeat_n('\n', breaks.saturating_sub(1)));
}

fn looks_like_time_or_base60(s: &str) -> bool {
    s.as_bytes().first().is_some_and(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-'))
        && s.bytes().all(|b| b.is_ascii_digit() || matches!(b, b':' | b'-' | b'+' | b'T' | b'Z' | b'.' | b' ' | b'_'))
        && s.contains([':', '-'])
        && s.bytes().any(|b| b.is_ascii_digit())
}

/// Whether a string can be written without quotes and is read as a string again.
fn is_plain(s: &str) -> bool {
    if s.is_empty() || resolve(s) != Scalar::Text || looks_like_time_or_base60(s) {
        return false;
    }
    let first_bad =
        ['-', '?', ':', ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@', '`', ' ', '='];
    let mut chars = s.chars();
    let first = chars.next().unwrap_or(' ');
    let second_space = s.chars().nth(1).is_none_or(|c| c == ' ');
    if first_bad.contains(&first) && (!matches!(first, '-' | '?' | ':') || second_space) {
        return false;
    }
    if s.starts_with("---") || s.starts_with("...") || s.ends_with([' ', ':']) {
        return false;
    }
    !s.contains(": ") && !s.contains(" #")
}
