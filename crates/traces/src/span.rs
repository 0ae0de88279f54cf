//! Spans: parts of the work with a start, an end and a parent. Code in the scope of a span finds it with [`child`] at
//! any depth, as upstream's code finds it in its context.
use std::sync::Arc;

use futures::future::Either;
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::context::{SpanContext, random, state_text};
use crate::otlp::{CLIENT, FAILED, INTERNAL, KeyValue, Link, REMOTE, REMOTE_KNOWN, SpanData, SpanEvent, SpanStatus};
use crate::sink::Sink;

tokio::task_local! {
    static CURRENT: Arc<SpanState>;
}

/// The maximum number of attributes of a span. The first ones are kept.
const ATTRIBUTES_MAX: usize = 128;
/// The maximum number of events of a span. The last ones are kept.
const EVENTS_MAX: usize = 128;

/// The state of a span of this process, which may be recorded.
struct SpanState {
    context: SpanContext,
    recording: Option<Recording>,
}

/// The recorded data of a span until it ends.
struct Recording {
    sink: Arc<Sink>,
    begun: Instant,
    /// The data, which the end of the span takes.
    data: Mutex<Option<SpanData>>,
}

/// The values that a span starts with.
pub(crate) struct Begun {
    pub name: String,
    pub kind: i32,
    pub attributes: Vec<KeyValue>,
    pub links: Vec<Link>,
    pub parent: Option<[u8; 8]>,
    /// Whether the parent belongs to another process.
    pub remote: bool,
}

/// A span, which ends when this value is dropped. Without tracing it is empty and all its methods do nothing. Work
/// that runs in its [`scope`](Self::scope) finds it as the current span, and requests to other servers carry it in
/// their headers.
#[derive(Default)]
pub struct Span(Option<Arc<SpanState>>);

/// A reference to a span for work on its behalf. Dropping it does not end the span.
#[derive(Clone, Default)]
pub struct Current(Option<Arc<SpanState>>);

impl Span {
    /// Returns the position in a trace from the headers of a request that this server does not record. It is passed on
    /// unchanged.
    pub fn passed(headers: &HeaderMap) -> Self {
        SpanContext::of(headers).map_or_else(Self::default, Self::unrecorded)
    }

    pub(crate) fn unrecorded(context: SpanContext) -> Self {
        Self(Some(Arc::new(SpanState { context, recording: None })))
    }

    pub(crate) fn begin(sink: &Arc<Sink>, context: SpanContext, begun: Begun) -> Self {
        let now = sink.clock.now().as_nanosecond();
        let remote = if begun.remote && begun.parent.is_some() { REMOTE } else { 0 };
        let data = SpanData {
            trace_id: context.trace.to_vec(),
            span_id: context.span.to_vec(),
            trace_state: state_text(&context),
            parent_span_id: begun.parent.map(Vec::from).unwrap_or_default(),
            name: begun.name,
            kind: begun.kind,
            start_time_unix_nano: u64::try_from(now).unwrap_or(0),
            end_time_unix_nano: 0,
            attributes: begun.attributes,
            events: Vec::new(),
            dropped_events_count: 0,
            links: begun.links,
            status: None,
            flags: u32::from(context.sampled) | REMOTE_KNOWN | remote,
        };
        let recording = Recording { sink: Arc::clone(sink), begun: Instant::now(), data: Mutex::new(Some(data)) };
        Self(Some(Arc::new(SpanState { context, recording: Some(recording) })))
    }

    /// Returns a reference to the span for other work.
    pub fn current(&self) -> Current {
        Current(self.0.clone())
    }

    /// Adds attributes if the span is recorded.
    pub fn set(&self, attributes: impl FnOnce() -> Vec<KeyValue>) {
        self.change(|data| {
            let room = ATTRIBUTES_MAX.saturating_sub(data.attributes.len());
            data.attributes.extend(attributes().into_iter().take(room));
        });
    }

    /// Adds an event for a step of the work.
    pub fn event(&self, name: &str, attributes: impl FnOnce() -> Vec<KeyValue>) {
        if let Some(place) = &self.0 {
            place.event(name, attributes);
        }
    }

    /// Marks the span as failed, with a reason that may be empty.
    pub fn fail(&self, why: &str) {
        self.change(|data| data.status = Some(SpanStatus { message: why.to_owned(), code: FAILED }));
    }

    /// Runs work in the scope of the span.
    pub fn scope<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        self.current().scope(work)
    }

    /// Writes the span, or otherwise the current span, to the headers of a request to another server.
    pub fn pass_on(&self, headers: &mut HeaderMap) {
        match &self.0 {
            Some(place) => place.context.put(headers),
            None => pass_on(headers),
        }
    }

    fn change(&self, change: impl FnOnce(&mut SpanData)) {
        if let Some(place) = &self.0 {
            place.change(|data, _| change(data));
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(recording) = self.0.as_ref().and_then(|place| place.recording.as_ref()) else { return };
        let Some(mut data) = recording.data.lock().take() else { return };
        data.end_time_unix_nano = recording.now(&data);
        recording.sink.ended(data);
    }
}

impl Current {
    /// Runs work in the scope of the span. Without a span, the work runs unchanged.
    pub fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> + use<F> {
        match self.0 {
            // This case is rare and boxed, so that the futures of other requests stay small.
            Some(place) => Either::Left(Box::pin(CURRENT.scope(place, work))),
            None => Either::Right(work),
        }
    }

    /// Starts a child span, or an empty one if nothing is recorded.
    pub fn child(&self, name: &str, attributes: impl FnOnce() -> Vec<KeyValue>) -> Span {
        self.0.as_ref().map_or_else(Span::default, |place| place.part(name, INTERNAL, attributes))
    }

    /// Returns the position in the trace, if there is a trace.
    pub fn context(&self) -> Option<&SpanContext> {
        self.0.as_ref().map(|place| &place.context)
    }
}

impl Recording {
    /// Returns the current time in nanoseconds, measured from the span's start, so that changes of the wall clock have
    /// no effect.
    fn now(&self, data: &SpanData) -> u64 {
        let took = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        data.start_time_unix_nano.saturating_add(took)
    }
}

impl SpanState {
    /// Changes the recorded data, with the current time, if the span is recorded and has not ended.
    fn change(&self, change: impl FnOnce(&mut SpanData, u64)) {
        let Some(recording) = &self.recording else { return };
        if let Some(data) = recording.data.lock().as_mut() {
            let now = recording.now(data);
            change(data, now);
        }
    }

    fn event(&self, name: &str, attributes: impl FnOnce() -> Vec<KeyValue>) {
        self.change(|data, now| {
            if data.events.len() == EVENTS_MAX {
                data.events.remove(0);
                data.dropped_events_count += 1;
            }
            data.events.push(SpanEvent { time_unix_nano: now, name: name.to_owned(), attributes: attributes() });
        });
    }

    fn part(&self, name: &str, kind: i32, attributes: impl FnOnce() -> Vec<KeyValue>) -> Span {
        let Some(recording) = &self.recording else { return Span::default() };
        let context = SpanContext { span: random(), ..self.context.clone() };
        let parent = Some(self.context.span);
        let begun =
            Begun { name: name.to_owned(), kind, attributes: attributes(), links: Vec::new(), parent, remote: false };
        Span::begin(&recording.sink, context, begun)
    }
}

/// Starts a child of the current span, or an empty span if nothing is recorded.
pub fn child(name: &str, attributes: impl FnOnce() -> Vec<KeyValue>) -> Span {
    CURRENT.try_with(|place| place.part(name, INTERNAL, attributes)).unwrap_or_default()
}

/// Adds an event to the current span.
pub fn event(name: &str, attributes: impl FnOnce() -> Vec<KeyValue>) {
    let _absent = CURRENT.try_with(|place| place.event(name, attributes));
}

/// Starts a child of the current span for a request to another server.
pub fn client(name: &str, attributes: impl FnOnce() -> Vec<KeyValue>) -> Span {
    CURRENT.try_with(|place| place.part(name, CLIENT, attributes)).unwrap_or_default()
}

/// Writes the current span, if any, to the headers of a request to another server.
pub fn pass_on(headers: &mut HeaderMap) {
    let _absent = CURRENT.try_with(|place| place.context.put(headers));
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[tokio::test]
    async fn a_place_goes_along_with_the_work_alone() {
        let trace = HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let headers = HeaderMap::from_iter([(HeaderName::from_static("traceparent"), trace)]);
        let passed = async || {
            let mut out = HeaderMap::new();
            pass_on(&mut out);
            out
        };
        let span = Span::passed(&headers);
        assert_eq!(span.scope(passed()).await, headers);
        assert_eq!(passed().await, HeaderMap::new());
        let part = span.scope(async { child("Get", || unreachable!("nothing is recorded")) }).await;
        assert!(part.current().context().is_none());
    }
}
