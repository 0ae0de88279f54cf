//! Spans: pieces of work with a beginning, an end and a parent. Whatever is done within the scope of one finds it by
//! [`child`], however deep, as upstream's finds it in its context.
use std::sync::Arc;

use futures::future::Either;
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::context::{SpanContext, random, state_text};
use crate::otlp::{CLIENT, FAILED, INTERNAL, KeyValue, Link, REMOTE, REMOTE_KNOWN, SpanData, SpanEvent, SpanStatus};
use crate::sink::Sink;

tokio::task_local! {
    static CURRENT: Arc<Place>;
}

/// Attributes of one span, of which the first are kept.
const ATTRIBUTES_MAX: usize = 128;
/// Events of one span, of which the last are kept.
const EVENTS_MAX: usize = 128;

/// A span of this process, which may be recorded.
struct Place {
    context: SpanContext,
    recording: Option<Recording>,
}

/// What is recorded of a span until it ends.
struct Recording {
    sink: Arc<Sink>,
    begun: Instant,
    /// Taken by whoever ends it.
    data: Mutex<Option<SpanData>>,
}

/// With what a span begins.
pub(crate) struct Begun {
    pub name: String,
    pub kind: i32,
    pub attributes: Vec<KeyValue>,
    pub links: Vec<Link>,
    pub parent: Option<[u8; 8]>,
    /// The parent is another process's.
    pub remote: bool,
}

/// A span, which ends when this is dropped; or nothing, where nobody traces.
#[derive(Default)]
pub struct Span(Option<Arc<Place>>);

/// A span as those know it who work on its behalf: it does not end with them.
#[derive(Clone, Default)]
pub struct Current(Option<Arc<Place>>);

impl Span {
    /// The place in a trace that a request's headers name, where this server records none: it is passed on as it came.
    pub fn passed(headers: &HeaderMap) -> Self {
        SpanContext::of(headers).map_or_else(Self::default, Self::unrecorded)
    }

    pub(crate) fn unrecorded(context: SpanContext) -> Self {
        Self(Some(Arc::new(Place { context, recording: None })))
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
        Self(Some(Arc::new(Place { context, recording: Some(recording) })))
    }

    /// The span for those who work on its behalf.
    pub fn current(&self) -> Current {
        Current(self.0.clone())
    }

    /// Adds attributes, where it is recorded.
    pub fn set(&self, attributes: impl FnOnce() -> Vec<KeyValue>) {
        self.change(|data| {
            let room = ATTRIBUTES_MAX.saturating_sub(data.attributes.len());
            data.attributes.extend(attributes().into_iter().take(room));
        });
    }

    /// A step of the work is done, or begins.
    pub fn event(&self, name: &str, attributes: impl FnOnce() -> Vec<KeyValue>) {
        if let Some(place) = &self.0 {
            place.event(name, attributes);
        }
    }

    /// Says that the work failed, and why where there is something to say.
    pub fn fail(&self, why: &str) {
        self.change(|data| data.status = Some(SpanStatus { message: why.to_owned(), code: FAILED }));
    }

    /// Does some work on the span's behalf.
    pub fn scope<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        self.current().scope(work)
    }

    /// Names it in the headers of a request to another server; without it the span that the work is done in.
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
    /// Does some work on the span's behalf. Without one the work is done as it is.
    pub fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> + use<F> {
        match self.0 {
            // Rare, and boxed, so that it does not widen other requests.
            Some(place) => Either::Left(Box::pin(CURRENT.scope(place, work))),
            None => Either::Right(work),
        }
    }

    /// A part of the work; nothing where nothing is recorded.
    pub fn child(&self, name: &str, attributes: impl FnOnce() -> Vec<KeyValue>) -> Span {
        self.0.as_ref().map_or_else(Span::default, |place| place.part(name, INTERNAL, attributes))
    }

    /// Its place in its trace, if there is a trace.
    pub fn context(&self) -> Option<&SpanContext> {
        self.0.as_ref().map(|place| &place.context)
    }
}

impl Recording {
    /// Now, in nanoseconds of the time in which the span began: no change of the clock comes between them.
    fn now(&self, data: &SpanData) -> u64 {
        let took = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        data.start_time_unix_nano.saturating_add(took)
    }
}

impl Place {
    /// Changes what is recorded, if it is and has not ended; the time goes along.
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

/// A part of the work that is being done, in the span in whose scope it is; nothing where nothing is recorded.
pub fn child(name: &str, attributes: impl FnOnce() -> Vec<KeyValue>) -> Span {
    CURRENT.try_with(|place| place.part(name, INTERNAL, attributes)).unwrap_or_default()
}

/// A step of the work that is being done, in the span in whose scope it is.
pub fn event(name: &str, attributes: impl FnOnce() -> Vec<KeyValue>) {
    let _absent = CURRENT.try_with(|place| place.event(name, attributes));
}

/// A request to another server, as [`child`].
pub fn client(name: &str, attributes: impl FnOnce() -> Vec<KeyValue>) -> Span {
    CURRENT.try_with(|place| place.part(name, CLIENT, attributes)).unwrap_or_default()
}

/// Names the span that the work is done in, if any, in the headers of a request to another server.
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
