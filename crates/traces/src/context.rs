//! The position of a request in a trace, and its headers (W3C Trace Context: `traceparent`, `tracestate`).
use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue};
use rand::RngCore as _;

const PARENT: HeaderName = HeaderName::from_static("traceparent");
const STATE: HeaderName = HeaderName::from_static("tracestate");
/// The maximum size of a `tracestate` in bytes. A longer one is dropped.
const STATE_BYTES_MAX: usize = 512;
/// The flag of a recorded trace. Other flags are dropped.
const SAMPLED: u8 = 1;

/// The identity of a span of this or another server, as its children refer to it: trace ID, span ID, the sampled flag
/// and the `tracestate`. Servers pass it on in headers, so that all spans of a request form one tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanContext {
    pub(crate) trace: [u8; 16],
    pub(crate) span: [u8; 8],
    pub(crate) sampled: bool,
    pub(crate) state: Option<HeaderValue>,
}

impl SpanContext {
    /// Reads the headers of a request. Returns `None` if the header is missing or invalid.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let (trace, span, flags) = read(headers.get(PARENT)?.as_bytes())?;
        let state = headers.get(STATE).filter(|value| !value.is_empty() && value.len() <= STATE_BYTES_MAX).cloned();
        Some(Self { trace, span, sampled: flags & SAMPLED != 0, state })
    }

    /// Writes the span to the headers of a request.
    pub fn put(&self, headers: &mut HeaderMap) {
        let text = format!("00-{}-{}-{:02x}", hex(&self.trace), hex(&self.span), u8::from(self.sampled));
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(PARENT, value);
        }
        if let Some(state) = &self.state {
            headers.insert(STATE, state.clone());
        }
    }

    /// Returns the trace ID in hexadecimal digits.
    pub fn trace_id(&self) -> String {
        hex(&self.trace)
    }
}

/// Returns a random ID that is not all zeros.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    while bytes.iter().all(|b| *b == 0) {
        rand::rng().fill_bytes(&mut bytes);
    }
    bytes
}

/// Returns the value of `tracestate` as a string.
pub(crate) fn state_text(context: &SpanContext) -> String {
    context.state.as_ref().and_then(|state| state.to_str().ok()).unwrap_or_default().to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

/// Parses `00-` and 32, 16 and 2 hexadecimal digits. Neither ID may be zero. Later versions may have more parts.
fn read(value: &[u8]) -> Option<([u8; 16], [u8; 8], u8)> {
    let text = str::from_utf8(value).ok()?;
    let parts: Vec<&str> = text.splitn(5, '-').collect();
    let [version, trace, span, flags, rest @ ..] = parts.as_slice() else { return None };
    let ([version], [flags]) = (bytes::<1>(version)?, bytes::<1>(flags)?);
    let (trace, span) = (bytes::<16>(trace)?, bytes::<8>(span)?);
    let known = match version {
        // Version 0 defines one more flag, and nothing may follow.
        0 => rest.is_empty() && flags <= 2,
        0xff => false,
        _ => true,
    };
    (known && trace != [0; 16] && span != [0; 8]).then_some((trace, span, flags))
}

/// Decodes lower-case hexadecimal digits, two for each byte.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut out = [0; N];
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn unreadable_values_are_ignored() {
        for (text, sound) in [
            (SOUND, true),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02", true),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03", false),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-09-more", true),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", false),
            ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false),
            ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", false),
            ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", false),
            ("00-4bf92f", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(PARENT, HeaderValue::from_static(text))]);
            assert_eq!(SpanContext::of(&headers).is_some(), sound, "{text}");
        }
    }

    #[test]
    fn it_is_written_as_it_was_read() {
        let mut headers = HeaderMap::from_iter([(PARENT, HeaderValue::from_static(SOUND))]);
        headers.insert(STATE, HeaderValue::from_static("a=b"));
        let mut out = HeaderMap::new();
        SpanContext::of(&headers).expect("sound").put(&mut out);
        assert_eq!(out, headers);
        headers.insert(STATE, HeaderValue::from_str(&"x".repeat(STATE_BYTES_MAX + 1)).expect("a value"));
        assert_eq!(SpanContext::of(&headers).expect("sound").state, None, "too long to be passed on");
    }
}
