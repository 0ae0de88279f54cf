//! Named formats (`format.dns1123Label().validate(s)`). Their errors have upstream's messages.
use base64::Engine;
use kelson_meta::{is_dns1035_label, is_dns1123_label, is_dns1123_subdomain, is_label_value, is_qualified_name};

use super::row::{Row, not_for};
use super::urls;
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
    Row("format.dns1123Label", "format.dns1123Label() -> kubernetes.NamedFormat", dns1123_label, Rule::One),
    Row("format.dns1123Subdomain", "format.dns1123Subdomain() -> kubernetes.NamedFormat", dns1123_subdomain, Rule::One),
    Row("format.dns1035Label", "format.dns1035Label() -> kubernetes.NamedFormat", dns1035_label, Rule::One),
    Row("format.qualifiedName", "format.qualifiedName() -> kubernetes.NamedFormat", qualified_name, Rule::One),
    Row(
        "format.dns1123LabelPrefix",
        "format.dns1123LabelPrefix() -> kubernetes.NamedFormat",
        dns1123_label_prefix,
        Rule::One,
    ),
    Row(
        "format.dns1123SubdomainPrefix",
        "format.dns1123SubdomainPrefix() -> kubernetes.NamedFormat",
        dns1123_subdomain_prefix,
        Rule::One,
    ),
    Row(
        "format.dns1035LabelPrefix",
        "format.dns1035LabelPrefix() -> kubernetes.NamedFormat",
        dns1035_label_prefix,
        Rule::One,
    ),
    Row("format.labelValue", "format.labelValue() -> kubernetes.NamedFormat", label_value, Rule::One),
    Row("format.uri", "format.uri() -> kubernetes.NamedFormat", uri, Rule::One),
    Row("format.uuid", "format.uuid() -> kubernetes.NamedFormat", uuid, Rule::One),
    Row("format.byte", "format.byte() -> kubernetes.NamedFormat", byte, Rule::One),
    Row("format.date", "format.date() -> kubernetes.NamedFormat", date, Rule::One),
    Row("format.datetime", "format.datetime() -> kubernetes.NamedFormat", datetime, Rule::One),
];

/// All formats, each with the pattern size in bytes that determines the cost of a check.
const FORMATS: [(&str, u64); 13] = [
    ("dns1123Label", 30),
    ("dns1123Subdomain", 60),
    ("dns1035Label", 30),
    ("qualifiedName", 60),
    ("dns1123LabelPrefix", 30),
    ("dns1123SubdomainPrefix", 60),
    ("dns1035LabelPrefix", 30),
    ("labelValue", 40),
    ("uri", 1103),
    ("uuid", 78),
    ("byte", 84),
    ("date", 77),
    ("datetime", 77),
];

/// The pattern size in bytes that determines the cost of checking a format.
pub(crate) fn pattern_size(name: &str) -> u64 {
    FORMATS.iter().find(|(n, _)| *n == name).map_or(0, |(_, size)| *size)
}

fn dns1123_label<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Format("dns1123Label")))
}
fn dns1123_subdomain<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Format("dns1123Subdomain")))
}
fn dns1035_label<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Format("dns1035Label")))
}
fn qualified_name<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Format("qualifiedName")))
}
fn dns1123_label_prefix<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Format("dns1123LabelPrefix")))
}
fn dns1123_subdomain_prefix<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Format("dns1123SubdomainPrefix")))
}
fn dns1035_label_prefix<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Format("dns1035LabelPrefix")))
}
fn label_value<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Format("labelValue")))
}
fn uri<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Format("uri")))
}
fn uuid<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Format("uuid")))
}
fn byte<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Format("byte")))
}
fn date<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Format("date")))
}
fn datetime<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Opaque(Opaque::Format("datetime")))
}

fn named<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::Text(name)] = args else { return Err(not_for("format.named", args)) };
    Ok(match FORMATS.iter().find(|(n, _)| *n == &**name) {
        Some((name, _)) => Value::some(Value::Opaque(Opaque::Format(name))),
        None => Value::Optional(None),
    })
}

fn validate<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::Opaque(Opaque::Format(name)), Value::Text(s)] = args else { return Err(not_for("validate", args)) };
    let faults = faults(name, s);
    Ok(match faults.is_empty() {
        true => Value::Optional(None),
        false => Value::some(Value::list(faults.into_iter().map(Value::text).collect())),
    })
}

fn faults(name: &str, s: &str) -> Vec<String> {
    let simple = |right: bool, why: &str| if right { Vec::new() } else { vec![why.to_owned()] };
    match name {
        "dns1123Label" => label(s),
        "dns1123LabelPrefix" => label(&masked(s)),
        "dns1123Subdomain" => why(is_dns1123_subdomain(s)),
        "dns1123SubdomainPrefix" => why(is_dns1123_subdomain(&masked(s))),
        "dns1035Label" => why(is_dns1035_label(s)),
        "dns1035LabelPrefix" => why(is_dns1035_label(&masked(s))),
        "qualifiedName" => why(is_qualified_name(s)),
        "labelValue" => why(is_label_value(s)),
        "uri" => urls::fault(s).into_iter().collect(),
        "uuid" => simple(is_uuid(s), "does not match the UUID format"),
        "byte" => {
            let right = !s.is_empty() && base64::engine::general_purpose::STANDARD.decode(s).is_ok();
            simple(right, "invalid base64")
        }
        "date" => simple(time::date(s).is_some(), "invalid date"),
        _ => simple(is_datetime(s), "invalid datetime"),
    }
}

/// Replaces a hyphen at the end, after which something will be appended.
fn masked(s: &str) -> String {
    match s.len() > 1 && s.ends_with('-') && s.is_char_boundary(s.len() - 2) {
        true => format!("{}a", &s[..s.len() - 2]),
        false => s.to_owned(),
    }
}

/// The errors of a label. A name with dots is often meant as a subdomain, so the last error says that there must be no dots.
fn label(s: &str) -> Vec<String> {
    let mut faults = why(is_dns1123_label(s));
    if s.contains('.')
        && is_dns1123_subdomain(s).is_ok()
        && let Some(last) = faults.last_mut()
    {
        *last = "must not contain dots".into();
    }
    faults
}

fn why(judged: std::result::Result<(), Vec<String>>) -> Vec<String> {
    judged.err().unwrap_or_default()
}

/// Whether the string is five groups of hexadecimal digits. The hyphens between them are optional.
fn is_uuid(s: &str) -> bool {
    let mut rest = s;
    for (i, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if i > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        match rest.get(..length) {
            Some(group) if group.bytes().all(|b| b.is_ascii_hexdigit()) => rest = &rest[length..],
            _ => return false,
        }
    }
    rest.is_empty()
}

/// Whether the string is RFC 3339 with a zone, in letters of any case.
fn is_datetime(s: &str) -> bool {
    time::timestamp(&s.to_uppercase()).is_some()
}
