//! Queries and percent-encoding of URLs.
//!
//! Decoding is as strict as Go's `net/url`: a `%` without two hexadecimal digits is an error.
use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode, utf8_percent_encode};

use crate::Status;

/// All characters except the unreserved ones of RFC 3986. The encoded form is valid in any part of a URL.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// All characters that are invalid in the name of an HTTP header (RFC 9110 `token`), and the percent sign.
const NO_HEADER_NAME: &AsciiSet = &RESERVED
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'^')
    .remove(b'`')
    .remove(b'|');

/// All characters that Go's `URL.EscapedPath` escapes in a path.
const NO_PATH: &AsciiSet = &RESERVED
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

/// Encodes a whole path and keeps its slashes.
pub fn encode_path(path: &[u8]) -> String {
    percent_encode(path, NO_PATH).to_string()
}

/// Encodes a string as one path segment, or as a name or value of a query.
pub fn encode(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, RESERVED).into()
}

/// Encodes a string as a part of a header's name, as for `X-Remote-Extra-` and `Impersonate-Extra-`.
pub fn encode_header_name(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, NO_HEADER_NAME).into()
}

/// Decodes percent-encoded bytes.
///
/// # Errors
/// Returns the first invalid escape: the characters after its percent sign.
pub fn decode_bytes(text: &str) -> Result<Cow<'_, [u8]>, &str> {
    match text.match_indices('%').find(|(at, _)| !is_escape(&text.as_bytes()[*at..])) {
        Some((at, _)) => {
            let end = text[at..].char_indices().map(|(i, c)| at + i + c.len_utf8()).take(3).last().unwrap_or(at + 1);
            Err(&text[at..end])
        }
        None => Ok(percent_decode_str(text).into()),
    }
}

fn is_escape(text: &[u8]) -> bool {
    text.get(1..3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// Decodes a path segment. Returns `None` for an invalid escape and for bytes that are not UTF-8.
pub fn decode(text: &str) -> Option<String> {
    String::from_utf8(decode_bytes(text).ok()?.into_owned()).ok()
}

/// Decodes a name or value of a query, in which a plus is a space.
fn decode_form(text: &str) -> Option<String> {
    if text.contains('+') { decode(&text.replace('+', " ")) } else { decode(text) }
}

/// Appends encoded pairs to a URL as its query.
pub fn append_query<'a>(uri: &mut String, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) {
    for (name, value) in pairs {
        uri.push(if uri.contains('?') { '&' } else { '?' });
        uri.extend(utf8_percent_encode(name, RESERVED));
        uri.push('=');
        uri.extend(utf8_percent_encode(value, RESERVED));
    }
}

/// A decoded query string. Its size is limited by the longest URI that the `http` crate accepts (64 KiB). Callers
/// interpret the names.
#[derive(Debug, Default, Clone)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes `a=b&c=d`. Pairs with an invalid escape or invalid UTF-8 are left out.
    pub fn parse(text: Option<&str>) -> Self {
        let pairs = text.unwrap_or_default().split('&').filter(|p| !p.is_empty());
        let decoded = pairs.filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode_form(name)?, decode_form(value)?))
        });
        Self(decoded.collect())
    }
    /// Returns all pairs in their order.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
    /// Returns the first value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs().find(|(n, _)| *n == name).map(|(_, value)| value)
    }
    /// Returns the first value of a name, or the empty string.
    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or("")
    }
    /// Returns all values of a name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs().filter(move |(n, _)| *n == name).map(|(_, value)| value)
    }
    /// Returns whether the name occurs.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
    /// Returns a boolean as API machinery parses it: present and neither `false` nor `0`.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|v| v != "0" && !v.eq_ignore_ascii_case("false"))
    }
    /// Returns a boolean as the servers of the kubelet and the runtime parse it: `1` or `true`.
    pub fn is_on(&self, name: &str) -> bool {
        matches!(self.text(name), "1" | "true")
    }
    /// Returns an integer, or `None` if it is missing or empty.
    ///
    /// # Errors
    /// Fails with 400 for an invalid integer.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, Status> {
        match self.text(name) {
            "" => Ok(None),
            v => v.parse().map(Some).map_err(|e| Status::bad_request(unread_number("ParseInt", v, &e))),
        }
    }
}

/// Returns Go's message for an invalid number. `function` is `ParseInt` or `ParseUint`.
pub fn unread_number(function: &str, text: &str, error: &std::num::ParseIntError) -> String {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    let why = if matches!(error.kind(), PosOverflow | NegOverflow) { "value out of range" } else { "invalid syntax" };
    format!("strconv.{function}: parsing {text:?}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs() {
        let q = Query::parse(Some("a=1&b=x%20y+z&a=2&c&d=%zz&e=%ff&command=echo+%22a%26b%22"));
        assert_eq!(q.get("a"), Some("1"));
        assert_eq!(q.all("a").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(q.text("b"), "x y z");
        assert_eq!(q.text("command"), "echo \"a&b\"");
        assert!(q.has("c") && q.flag("c") && !q.is_on("c"));
        assert!(!q.has("d") && !q.has("e"));
        assert!(q.is_on("a") && q.flag("a") && !q.flag("absent"));
        assert_eq!(q.integer("a").unwrap(), Some(1));
        assert_eq!(q.integer("c").unwrap(), None);
        assert_eq!(q.integer("b").unwrap_err().code, 400);
    }

    #[test]
    fn what_is_written_is_read() {
        for text in ["", "plain-1.2_3~", "a b+c/d?e=f&g%", "ü€", "system:node"] {
            assert_eq!(decode(&encode(text)).as_deref(), Some(text));
            assert_eq!(decode(&encode_header_name(text)).as_deref(), Some(text));
            let mut uri = "/x".to_owned();
            append_query(&mut uri, [(text, text), ("second", text)]);
            let query = Query::parse(uri.strip_prefix("/x?"));
            assert_eq!(query.pairs().collect::<Vec<_>>(), [(text, text), ("second", text)]);
        }
        assert_eq!(encode("a:b c"), "a%3Ab%20c");
        assert_eq!(encode_header_name("example.com/key|%"), "example.com%2Fkey|%25");
    }

    #[test]
    fn broken_escapes() {
        for (text, broken) in [("%", "%"), ("a%4", "%4"), ("%zz!", "%zz"), ("%41%g1x", "%g1"), ("%€uro", "%€u")] {
            assert_eq!(decode_bytes(text), Err(broken), "{text}");
        }
        assert_eq!(decode("%65xec+").as_deref(), Some("exec+"));
        assert_eq!(decode("%ff"), None);
    }
}
