//! Functions for strings and their encodings. The input of a pipeline is the last argument.
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gotmpl::{Result, Value};
use rand::Rng as _;
use regex::Regex;
use sha2::{Digest as _, Sha256};

use super::arguments::{Arguments, Row, fault, string};
use super::convert::{list, text, to_json, to_template};

/// The maximum length of a generated string in bytes.
const LENGTH_MAX: usize = 1 << 20;

/// Quotes a string as JSON. Other values become their JSON in quotes.
fn quoted(value: &Value) -> String {
    let json = match value {
        Value::String(s) => return serde_json::Value::from(s.as_ref()).to_string(),
        other => to_json(other).to_string(),
    };
    serde_json::Value::from(json).to_string()
}

fn each(a: &Arguments<'_>, quote: fn(&Value) -> String) -> Value {
    let parts: Vec<_> = a.0.iter().filter(|v| !matches!(v, Value::Nil)).map(quote).collect();
    text(parts.join(" "))
}

/// Formats a value as YAML and indents each line by two spaces per level.
fn yaml(a: &Arguments<'_>) -> Result<Value> {
    let yaml = kelson_codec::encode(kelson_codec::Encoding::Yaml, None, &to_json(a.at(0)));
    let yaml = String::from_utf8(yaml.map_err(|e| fault(e.to_string()))?).map_err(|e| fault(e.to_string()))?;
    let steps = usize::try_from(a.integer(1)).unwrap_or(0).min(100);
    if steps == 0 {
        return Ok(text(yaml));
    }
    let pad = format!("\n{}", "  ".repeat(steps));
    Ok(text(format!("\n{yaml}").replace('\n', &pad)))
}

fn indented(a: &Arguments<'_>) -> String {
    let pad = " ".repeat(usize::try_from(a.integer(0)).unwrap_or(0).min(1000));
    let lines: Vec<_> = a.last_text().split('\n').map(|line| format!("{pad}{line}")).collect();
    lines.join("\n")
}

fn cut(a: &Arguments<'_>) -> Value {
    let (count, chars) = (a.integer(0), a.last_text().chars().collect::<Vec<_>>());
    let length = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX).min(chars.len());
    let kept = if count < 0 { &chars[chars.len() - length..] } else { &chars[..length] };
    text(kept.iter().collect::<String>())
}

fn part(a: &Arguments<'_>) -> Value {
    let chars: Vec<_> = a.last_text().chars().collect();
    let start = usize::try_from(a.integer(0)).unwrap_or(0).min(chars.len());
    let end = usize::try_from(a.integer(1)).unwrap_or(chars.len()).clamp(start, chars.len());
    text(chars[start..end].iter().collect::<String>())
}

fn repeated(a: &Arguments<'_>) -> Result<Value> {
    let (count, of) = (usize::try_from(a.integer(0)).unwrap_or(0), a.last_text());
    if count.saturating_mul(of.len()) > LENGTH_MAX {
        return Err(fault("the string is too long"));
    }
    Ok(text(of.repeat(count)))
}

fn titled(of: &str) -> String {
    let mut before = ' ';
    let title = |c: char| {
        let out = if before.is_alphanumeric() { c } else { c.to_uppercase().next().unwrap_or(c) };
        before = c;
        out
    };
    of.chars().map(title).collect()
}

/// Returns a random string of the given characters.
fn random(a: &Arguments<'_>, signs: &str) -> Result<Value> {
    let count = usize::try_from(a.integer(0)).unwrap_or(0);
    if count > LENGTH_MAX {
        return Err(fault("the string is too long"));
    }
    let signs = signs.as_bytes();
    let one = |_| char::from(signs[rand::rng().random_range(0..signs.len())]);
    Ok(text((0..count).map(one).collect::<String>()))
}

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

fn uuid() -> String {
    let n: u128 = rand::rng().random();
    // Sets version 4 and the variant of RFC 9562.
    let n = n & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{n:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn pattern(a: &Arguments<'_>) -> Result<Regex> {
    Regex::new(&a.text(0)).map_err(|e| fault(e.to_string()))
}

fn trimmed(a: &Arguments<'_>, trim: fn(&str, &str) -> String) -> Value {
    text(trim(&a.last_text(), &a.text(0)))
}

/// Replaces matches of a pattern. The replacement refers to groups as `${1}`, as in Go.
fn replaced(a: &Arguments<'_>) -> Result<Value> {
    Ok(text(pattern(a)?.replace_all(&a.text(1), a.text(2).as_str())))
}

/// The functions for strings: name, minimum number of arguments, implementation.
pub const ROWS: &[Row] = &[
    ("Quote", 1, |a| Ok(text(quoted(a.at(0))))),
    ("YAML", 1, yaml),
    ("toYaml", 1, |a| yaml(&Arguments(&a.0[..1]))),
    ("toJson", 1, |a| Ok(text(to_json(a.at(0)).to_string()))),
    ("toPrettyJson", 1, |a| Ok(text(serde_json::to_string_pretty(&to_json(a.at(0))).unwrap_or_default()))),
    ("fromJson", 1, |a| Ok(serde_json::from_str(&a.text(0)).map_or(Value::Nil, |v| to_template(&v)))),
    ("quote", 0, |a| Ok(each(a, |v| format!("{:?}", string(v))))),
    ("squote", 0, |a| Ok(each(a, |v| format!("'{}'", string(v))))),
    ("cat", 0, |a| Ok(each(a, string))),
    ("toString", 1, |a| Ok(text(a.text(0)))),
    ("upper", 1, |a| Ok(text(a.text(0).to_uppercase()))),
    ("lower", 1, |a| Ok(text(a.text(0).to_lowercase()))),
    ("title", 1, |a| Ok(text(titled(&a.text(0))))),
    ("trim", 1, |a| Ok(text(a.text(0).trim()))),
    ("nospace", 1, |a| Ok(text(a.text(0).split_whitespace().collect::<String>()))),
    ("trimAll", 2, |a| Ok(trimmed(a, |s, set| s.trim_matches(|c| set.contains(c)).to_owned()))),
    ("trimPrefix", 2, |a| Ok(trimmed(a, |s, p| s.strip_prefix(p).unwrap_or(s).to_owned()))),
    ("trimSuffix", 2, |a| Ok(trimmed(a, |s, p| s.strip_suffix(p).unwrap_or(s).to_owned()))),
    ("hasPrefix", 2, |a| Ok(Value::Bool(a.text(1).starts_with(&a.text(0))))),
    ("hasSuffix", 2, |a| Ok(Value::Bool(a.text(1).ends_with(&a.text(0))))),
    ("contains", 2, |a| Ok(Value::Bool(a.text(1).contains(&a.text(0))))),
    ("replace", 3, |a| Ok(text(a.text(2).replace(&a.text(0), &a.text(1))))),
    ("repeat", 2, repeated),
    ("trunc", 2, |a| Ok(cut(a))),
    ("substr", 3, |a| Ok(part(a))),
    ("indent", 2, |a| Ok(text(indented(a)))),
    ("nindent", 2, |a| Ok(text(format!("\n{}", indented(a))))),
    ("splitList", 2, |a| Ok(list(a.text(1).split(&a.text(0)).map(text)))),
    ("b64enc", 1, |a| Ok(text(STANDARD.encode(a.text(0))))),
    ("b64dec", 1, |a| {
        let bytes = STANDARD.decode(a.text(0)).map_err(|e| fault(e.to_string()))?;
        Ok(text(String::from_utf8_lossy(&bytes)))
    }),
    ("sha256sum", 1, |a| Ok(text(format!("{:x}", Sha256::digest(a.text(0)))))),
    ("regexMatch", 2, |a| Ok(Value::Bool(pattern(a)?.is_match(&a.text(1))))),
    ("regexFind", 2, |a| Ok(text(pattern(a)?.find(&a.text(1)).map_or("", |m| m.as_str())))),
    ("regexReplaceAll", 3, replaced),
    ("uuidv4", 0, |_| Ok(text(uuid()))),
    ("randAlphaNum", 1, |a| random(a, &format!("{LETTERS}0123456789"))),
    ("randAlpha", 1, |a| random(a, LETTERS)),
    ("randNumeric", 1, |a| random(a, "0123456789")),
    ("fail", 1, |a| Err(fault(a.text(0)))),
];
