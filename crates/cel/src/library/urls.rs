//! The URL library. URLs are parsed as Go's `net/url` does: absolute ones, and paths that begin with a slash.
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use kelson_meta::url::{decode_bytes, encode_path};

use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::value::error::{EvalError, Result};
use crate::value::opaque::{Opaque, Url};
use crate::value::{Key, Map, Value};

const UNIT: Rule = Rule::Fixed(1);

pub(super) const ROWS: &[Row] = &[
    Row("string_to_url", "url(string) -> kubernetes.URL", url, Rule::Pass),
    Row("url_get_scheme", "<kubernetes.URL>.getScheme() -> string", scheme, UNIT),
    Row("url_get_host", "<kubernetes.URL>.getHost() -> string", host, UNIT),
    Row("url_get_hostname", "<kubernetes.URL>.getHostname() -> string", hostname, UNIT),
    Row("url_get_port", "<kubernetes.URL>.getPort() -> string", port, UNIT),
    Row("url_get_escaped_path", "<kubernetes.URL>.getEscapedPath() -> string", escaped_path, UNIT),
    Row("url_get_query", "<kubernetes.URL>.getQuery() -> map(string, list(string))", query, UNIT),
    Row("is_url_string", "isURL(string) -> bool", is_url, Rule::One),
];

/// The error that [`super::formats`] reports for an invalid URL.
pub(super) fn fault(s: &str) -> Option<String> {
    parse(s).err().map(|why| format!("parse {s:?}: {why}"))
}

fn parse(s: &str) -> std::result::Result<Url, String> {
    if s.is_empty() {
        return Err("empty url".into());
    }
    if s.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return Err("net/url: invalid control character in URL".into());
    }
    let (scheme, rest) = split_scheme(s)?;
    if scheme.is_empty() && !rest.starts_with('/') {
        return Err("invalid URI for request".into());
    }
    let without_fragment = rest.split('#').next().unwrap_or_default();
    let (before_query, query) = without_fragment.split_once('?').unwrap_or((without_fragment, ""));
    let (host, path) = match before_query.strip_prefix("//") {
        Some(after) if !scheme.is_empty() || !before_query.starts_with("///") => {
            let end = after.find('/').unwrap_or(after.len());
            // The user information is not part of the host.
            let authority = after[..end].rsplit('@').next().unwrap_or_default();
            (checked_host(authority)?, &after[end..])
        }
        _ => (String::new(), before_query),
    };
    if !path.starts_with('/') && host.is_empty() {
        // An opaque URL such as `mailto:a@b` is valid in Go, but has none of the parts.
        return Ok(Url { text: s.into(), scheme, host, path: String::new(), query: query.into() });
    }
    let path = escape_path(path)?;
    Ok(Url { text: s.into(), scheme, host, path, query: query.into() })
}

fn split_scheme(s: &str) -> std::result::Result<(String, &str), String> {
    for (i, c) in s.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if i > 0 => {}
            ':' if i == 0 => return Err("missing protocol scheme".into()),
            ':' => return Ok((s[..i].to_ascii_lowercase(), &s[i + 1..])),
            _ => break,
        }
    }
    // Other parsers would read a colon in the first segment as the end of a scheme.
    if s.split('/').next().is_some_and(|first| first.contains(':')) {
        return Err("first path segment in URL cannot contain colon".into());
    }
    Ok((String::new(), s))
}

fn checked_host(host: &str) -> std::result::Result<String, String> {
    let port = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or("missing ']' in host")?.1,
        None => host.rfind(':').map_or("", |i| &host[i..]),
    };
    let plain = port.is_empty() || port.strip_prefix(':').is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit()));
    if !plain {
        return Err(format!("invalid port {port:?} after host"));
    }
    if let Some(c) = host.chars().find(|c| " \\^`{}|".contains(*c)) {
        return Err(format!("invalid character {:?} in host name", c.to_string()));
    }
    unescape(host, false)
}

/// The path as it is sent: existing escapes stay, and characters that need an escape get one.
fn escape_path(path: &str) -> std::result::Result<String, String> {
    unescape(path, false)?;
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@!'()*%[]".contains(&b);
    if path.bytes().all(fine) {
        return Ok(path.to_owned());
    }
    Ok(encode_path(&unescape_bytes(path, false)?))
}

fn unescape(s: &str, plus: bool) -> std::result::Result<String, String> {
    unescape_bytes(s, plus).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn unescape_bytes(s: &str, plus: bool) -> std::result::Result<Vec<u8>, String> {
    let spaced = if plus { Cow::from(s.replace('+', " ")) } else { Cow::from(s) };
    match decode_bytes(&spaced) {
        Ok(bytes) => Ok(bytes.into_owned()),
        Err(broken) => Err(format!("invalid URL escape {broken:?}")),
    }
}

fn url<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::Text(s)] = args else { return Err(not_for("url", args)) };
    match parse(s) {
        Ok(url) => Ok(Value::Opaque(Opaque::Url(Arc::new(url)))),
        Err(why) => {
            Err(EvalError::new(format!("URL parse error during conversion from string: parse {:?}: {why}", &**s)))
        }
    }
}
fn is_url<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Text(s)] => Ok(Value::Bool(parse(s).is_ok())),
        _ => Err(not_for("isURL", args)),
    }
}

fn own<'v>(function: &str, args: &'v [Value<'_>]) -> Result<&'v Url> {
    match args {
        [Value::Opaque(Opaque::Url(url))] => Ok(url),
        _ => Err(not_for(function, args)),
    }
}

/// The host without its brackets, and the port.
fn host_and_port(host: &str) -> (&str, &str) {
    if let Some((inner, rest)) = host.strip_prefix('[').and_then(|h| h.split_once(']')) {
        return (inner, rest.strip_prefix(':').unwrap_or_default());
    }
    host.rsplit_once(':').unwrap_or((host, ""))
}

fn scheme<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    own("getScheme", args).map(|u| Value::text(u.scheme.as_str()))
}
fn host<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    own("getHost", args).map(|u| Value::text(u.host.as_str()))
}
fn hostname<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    own("getHostname", args).map(|u| Value::text(host_and_port(&u.host).0))
}
fn port<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    own("getPort", args).map(|u| Value::text(host_and_port(&u.host).1))
}
fn escaped_path<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    own("getEscapedPath", args).map(|u| Value::text(u.path.as_str()))
}

fn query<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let url = own("getQuery", args)?;
    let mut found: BTreeMap<String, Vec<Value<'a>>> = BTreeMap::new();
    for pair in url.query.split('&').filter(|p| !p.is_empty() && !p.contains(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Ok(key), Ok(value)) = (unescape(key, true), unescape(value, true)) {
            found.entry(key).or_default().push(Value::text(value));
        }
    }
    let entries = found.into_iter().filter_map(|(key, values)| {
        let key = Value::text(key);
        Some((Key::of(&key)?, (key, Value::list(values))))
    });
    Ok(Value::Map(Map::values(entries.collect())))
}
