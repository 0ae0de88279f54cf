//! Starts traces: decides which requests are recorded, and passes ended spans to the queue.
use std::sync::Arc;

use http::HeaderMap;
use tokio_util::sync::CancellationToken;

use crate::context::{SpanContext, random, state_text};
use crate::otlp::{INTERNAL, Link, SERVER};
use crate::sink::Sink;
use crate::span::{Begun, Span};

/// The maximum sampling rate per million.
const ALL: u64 = 1_000_000;

/// The origin of a request, which decides whether its headers are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A trusted client: the request continues the trace in its headers, and is recorded if that trace is.
    Trusted,
    /// Any other client: the request starts a new trace with a link to the one in its headers.
    Public,
}

/// Starts the spans of requests and decides which of them are recorded. The sampling decision depends on the trace ID
/// and the configured rate, or on the caller for trusted clients. Recorded spans go to a bounded queue that an
/// exporter empties.
pub struct Tracer {
    /// The exclusive limit for the last 63 bits of the IDs of recorded traces. With `None`, only traces that a caller
    /// records are recorded.
    bound: Option<u64>,
    sink: Arc<Sink>,
    end: End,
}

/// The signals between the tracer and the export task at shutdown: the request to finish, and its completion.
#[derive(Clone, Default)]
pub(crate) struct End {
    pub asked: CancellationToken,
    pub done: CancellationToken,
}

impl Tracer {
    /// Creates a tracer that records `per_million` traces of a million, and puts their spans in a queue.
    pub(crate) fn new(per_million: i32, sink: Sink, end: End) -> Self {
        let bound = u64::try_from(per_million).ok().filter(|n| *n > 0).map(|n| match n >= ALL {
            true => 1 << 63,
            // Computes 2^63 times the ratio without overflow.
            false => (1u64 << 63) / ALL * n + ((1u64 << 63) % ALL) * n / ALL,
        });
        Self { bound, sink: Arc::new(sink), end }
    }

    /// Flushes the queue within a time limit. Spans that end later are dropped.
    pub async fn close(&self) {
        self.end.asked.cancel();
        self.end.done.cancelled().await;
    }

    /// Starts the span of an incoming request, which is the parent of the spans within it. It is recorded only if its
    /// trace is sampled.
    pub fn request(
        &self,
        headers: &HeaderMap,
        origin: Origin,
        name: impl FnOnce() -> String,
        attributes: impl FnOnce() -> Vec<crate::KeyValue>,
    ) -> Span {
        let named = SpanContext::of(headers);
        let (parent, linked) = match origin {
            Origin::Trusted => (named, None),
            Origin::Public => (None, named),
        };
        let (trace, state) = match &parent {
            Some(parent) => (parent.trace, parent.state.clone()),
            None => (random(), None),
        };
        let sampled = parent.as_ref().map_or_else(|| self.samples(&trace), |parent| parent.sampled);
        let context = SpanContext { trace, span: random(), sampled, state };
        if !sampled {
            return Span::unrecorded(context);
        }
        let links = linked.iter().map(|other| Link {
            trace_id: other.trace.to_vec(),
            span_id: other.span.to_vec(),
            trace_state: state_text(other),
            flags: u32::from(other.sampled) | crate::otlp::REMOTE_KNOWN | crate::otlp::REMOTE,
        });
        let begun = Begun {
            name: name(),
            kind: SERVER,
            attributes: attributes(),
            links: links.collect(),
            parent: parent.map(|parent| parent.span),
            remote: true,
        };
        Span::begin(&self.sink, context, begun)
    }

    /// Starts the first span of work that no request caused. It is recorded only if its trace is sampled.
    pub fn work(&self, name: &str, attributes: impl FnOnce() -> Vec<crate::KeyValue>) -> Span {
        let trace = random();
        let sampled = self.samples(&trace);
        let context = SpanContext { trace, span: random(), sampled, state: None };
        if !sampled {
            return Span::unrecorded(context);
        }
        let begun = Begun {
            name: name.to_owned(),
            kind: INTERNAL,
            attributes: attributes(),
            links: Vec::new(),
            parent: None,
            remote: false,
        };
        Span::begin(&self.sink, context, begun)
    }

    /// Decides like OpenTelemetry's `TraceIDRatioBased`, so that all servers of a trace decide alike.
    fn samples(&self, trace: &[u8; 16]) -> bool {
        let [.., a, b, c, d, e, f, g, h] = *trace;
        self.bound.is_some_and(|bound| u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1 < bound)
    }
}

#[cfg(test)]
mod tests {
    use kelson_meta::SystemClock;
    use tokio::sync::mpsc::channel;

    use super::*;
    use crate::otlp::SpanData;

    fn tracer(per_million: i32, room: usize) -> (Tracer, tokio::sync::mpsc::Receiver<SpanData>) {
        let (queue, spans) = channel(room);
        let dropped = kelson_metrics::Registry::new().counter("dropped", "Dropped.");
        let sink = Sink { queue, dropped, clock: Arc::new(SystemClock) };
        (Tracer::new(per_million, sink, End::default()), spans)
    }

    #[tokio::test]
    async fn work_begins_a_separate_trace() {
        let (tracer, mut spans) = tracer(1_000_000, 9);
        let work = tracer.work("syncPod", || vec![crate::KeyValue::text("k8s.pod.name", "p")]);
        work.scope(async { drop(crate::client("call", Vec::new)) }).await;
        drop(work);
        let (call, work) = (spans.try_recv().expect("the call"), spans.try_recv().expect("the work"));
        assert_eq!((work.name.as_str(), work.kind, work.parent_span_id.len()), ("syncPod", INTERNAL, 0));
        assert_eq!((&call.parent_span_id, &call.trace_id), (&work.span_id, &work.trace_id));
        let (silent, mut spans) = self::tracer(0, 9);
        drop(silent.work("syncPod", || unreachable!("nothing is recorded")));
        assert!(spans.try_recv().is_err());
    }

    #[test]
    fn a_share_of_all_traces_is_sampled() {
        let with = |last: u64| {
            let mut trace = [1; 16];
            trace[8..].copy_from_slice(&last.to_be_bytes());
            trace
        };
        for (per_million, last, sampled) in [
            (0, 0, false),
            (1, 0, true),
            (1, 2 * 9_223_372_036_855, false),
            (1, 2 * 9_223_372_036_853, true),
            (500_000, u64::MAX / 2 - 1, true),
            (500_000, u64::MAX / 2 + 1, false),
            (1_000_000, u64::MAX, true),
        ] {
            assert_eq!(tracer(per_million, 1).0.samples(&with(last)), sampled, "{per_million} {last}");
        }
    }

    #[test]
    fn parents_decide_where_they_are_trusted() {
        let headers = |flags: &str| {
            let text = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
            HeaderMap::from_iter([("traceparent".parse().expect("a name"), text.parse().expect("a value"))])
        };
        for (per_million, flags, origin, recorded) in [
            (0, "01", Origin::Trusted, true),
            (1_000_000, "00", Origin::Trusted, false),
            (0, "01", Origin::Public, false),
            (1_000_000, "00", Origin::Public, true),
        ] {
            let (tracer, mut spans) = tracer(per_million, 1);
            let span = tracer.request(&headers(flags), origin, || "GET".to_owned(), Vec::new);
            let mut passed = HeaderMap::new();
            span.current().context().expect("there is one").put(&mut passed);
            let passed = passed["traceparent"].to_str().expect("text").to_owned();
            let same = passed.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-");
            assert_eq!(same, origin == Origin::Trusted, "{passed}");
            assert!(!passed.contains("00f067aa0ba902b7"), "whoever is asked on its behalf is a child of this span");
            assert_eq!(passed.ends_with("-01"), recorded);
            drop(span);
            let sent = spans.try_recv().ok();
            assert_eq!(sent.is_some(), recorded, "{per_million} {flags} {origin:?}");
            if let Some(sent) = sent {
                assert_eq!(sent.links.len(), usize::from(origin == Origin::Public));
                assert_eq!(sent.parent_span_id.is_empty(), origin == Origin::Public);
            }
        }
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let (tracer, mut spans) = tracer(1_000_000, 1);
        for _ in 0..3 {
            drop(tracer.request(&HeaderMap::new(), Origin::Public, || "GET".to_owned(), Vec::new));
        }
        assert!(spans.try_recv().is_ok() && spans.try_recv().is_err());
        assert_eq!(tracer.sink.dropped.get(), 2);
    }
}
