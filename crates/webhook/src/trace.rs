//! The trace that a request belongs to (W3C Trace Context: `traceparent`, `tracestate`), passed on to the servers that are asked
//! on its behalf, so that theirs is found beside it. Nothing is recorded here: as upstream without a tracing configuration.
use http::{HeaderMap, HeaderName, HeaderValue};

const PARENT: HeaderName = HeaderName::from_static("traceparent");
const STATE: HeaderName = HeaderName::from_static("tracestate");
/// Bytes of a `tracestate` that must be passed on; a longer one is left out.
const STATE_BYTES_MAX: usize = 512;

tokio::task_local! {
    static TRACE: Trace;
}

/// A place in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    parent: HeaderValue,
    state: Option<HeaderValue>,
}

impl Trace {
    /// The trace that a request's headers name; `None` without one, or when what is there cannot be read.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let parent = headers.get(PARENT).filter(|value| is_sound(value.as_bytes()))?.clone();
        let state = headers.get(STATE).filter(|value| value.len() <= STATE_BYTES_MAX).cloned();
        Some(Self { parent, state })
    }
    /// Does some work in the trace.
    pub async fn scope<F: Future>(self, work: F) -> F::Output {
        TRACE.scope(self, work).await
    }
    /// Names the trace that the work is done in, if any, in the headers of a request to another server.
    pub fn pass_on(headers: &mut HeaderMap) {
        let current = TRACE.try_with(Self::clone);
        if let Ok(Self { parent, state }) = current {
            headers.insert(PARENT, parent);
            state.and_then(|state| headers.insert(STATE, state));
        }
    }
}

/// `00-` and 32, 16 and 2 hexadecimal digits, the first two numbers not zero; later versions may say more behind that.
fn is_sound(value: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(value) else { return false };
    let parts: Vec<&str> = text.splitn(5, '-').collect();
    let [version, trace, span, flags, rest @ ..] = parts.as_slice() else { return false };
    let hex = |part: &str, digits: usize| {
        part.len() == digits && part.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'))
    };
    let zero = |part: &str| part.bytes().all(|b| b == b'0');
    hex(version, 2)
        && *version != "ff"
        && (rest.is_empty() || *version != "00")
        && hex(trace, 32)
        && !zero(trace)
        && hex(span, 16)
        && !zero(span)
        && hex(flags, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_cannot_be_read_is_no_trace() {
        for (text, sound) in [
            (SOUND, true),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", true),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", false),
            ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false),
            ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", false),
            ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", false),
            ("00-4bf92f", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(PARENT, HeaderValue::from_static(text))]);
            assert_eq!(Trace::of(&headers).is_some(), sound, "{text}");
        }
    }

    #[tokio::test]
    async fn it_goes_along_with_the_work_alone() {
        let mut headers = HeaderMap::from_iter([(PARENT, HeaderValue::from_static(SOUND))]);
        headers.insert(STATE, HeaderValue::from_static("a=b"));
        let trace = Trace::of(&headers).expect("sound");
        let passed = async || {
            let mut out = HeaderMap::new();
            Trace::pass_on(&mut out);
            out
        };
        assert_eq!(trace.scope(passed()).await, headers);
        assert_eq!(passed().await, HeaderMap::new());
    }
}
