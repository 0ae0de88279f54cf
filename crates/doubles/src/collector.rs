//! An OpenTelemetry collector (OTLP over gRPC) within a test, which keeps the spans that it receives.
//!
//! It has separate message definitions, so that tests find wrong field numbers of the exporter.
#![allow(clippy::disallowed_methods, reason = "it belongs to a test's runtime")]
#![allow(clippy::expect_used, reason = "a test's helper fails by panicking")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kelson_tasks::{OnPanic, Tasks};
use prost::Message as _;
use tokio::sync::watch;

/// The gRPC method that exporters call.
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// The size of the flag and the length before a message.
const PREFIX_BYTES: usize = 5;

/// A received span. IDs are in hexadecimal digits, attributes are strings.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// The name of the span.
    pub name: String,
    /// The kind of the span: 1 within the process, 2 an incoming request, 3 a request to another server.
    pub kind: i32,
    /// The ID of the trace.
    pub trace: String,
    /// The ID of the span.
    pub span: String,
    /// The ID of the parent; empty for the first span of a trace.
    pub parent: String,
    /// The attributes of the span.
    pub attributes: BTreeMap<String, String>,
    /// The events with their attributes: `NAME key=value`.
    pub events: Vec<String>,
    /// The code of the status.
    pub status: i32,
    /// The IDs of linked traces.
    pub links: Vec<String>,
    /// The duration in nanoseconds.
    pub nanos: u64,
    /// The `service.name` of the sender.
    pub service: String,
}

/// A running collector, which ends with the runtime of its test.
pub struct Collector {
    endpoint: String,
    spans: watch::Receiver<Vec<Collected>>,
    refusals: Arc<AtomicUsize>,
}

impl Collector {
    /// Starts a collector on a free port.
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = listener.local_addr().expect("its address").to_string();
        let (reported, spans) = watch::channel(Vec::new());
        let (reported, refusals) = (Arc::new(reported), Arc::new(AtomicUsize::new(0)));
        let left = Arc::clone(&refusals);
        let tasks = Tasks::root("collector");
        let calls = tasks.clone();
        tasks.spawn("collector", OnPanic::Contain, async move {
            while let Ok((io, _)) = listener.accept().await {
                let (reported, left) = (Arc::clone(&reported), Arc::clone(&left));
                let answer = service_fn(move |request| serve(Arc::clone(&reported), Arc::clone(&left), request));
                let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let connection = http.serve_connection(TokioIo::new(io), answer);
                calls.spawn("collector-connection", OnPanic::Contain, async move {
                    // A connection that the client aborts does not fail the test.
                    let _ = connection.await;
                });
            }
        });
        Self { endpoint, spans, refusals }
    }

    /// Returns the address as `HOST:PORT`.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Rejects the given number of calls with a status that allows a retry.
    pub fn refuse(&self, calls: usize) {
        self.refusals.store(calls, Ordering::SeqCst);
    }

    /// Waits until the spans satisfy a condition, and returns them.
    pub async fn when(&mut self, enough: impl FnMut(&Vec<Collected>) -> bool) -> Vec<Collected> {
        self.spans.wait_for(enough).await.expect("the collector runs").clone()
    }

    /// Returns all spans so far.
    pub fn spans(&self) -> Vec<Collected> {
        self.spans.borrow().clone()
    }
}

async fn serve(
    reported: Arc<watch::Sender<Vec<Collected>>>,
    refusals: Arc<AtomicUsize>,
    request: Request<Incoming>,
) -> Result<Response<http_body_util::combinators::BoxBody<Bytes, Infallible>>, Infallible> {
    assert_eq!(request.uri().path(), EXPORT);
    let sent = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let refused = refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
    if !refused {
        let message = sent.get(PREFIX_BYTES..).unwrap_or_default();
        let found = spans(&ExportRequest::decode(message).expect("the protocol's message"));
        reported.send_modify(|all| all.extend(found));
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(if refused { "14" } else { "0" }));
    let body = Full::new(Bytes::from_static(&[0; PREFIX_BYTES])).with_trailers(async move { Some(Ok(trailers)) });
    let mut response = Response::new(body.boxed());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}

fn spans(request: &ExportRequest) -> Vec<Collected> {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let mut found = Vec::new();
    for of in &request.resource_spans {
        let resource = of.resource.as_ref().map(|r| texts(&r.attributes)).unwrap_or_default();
        for span in of.scope_spans.iter().flat_map(|scope| &scope.spans) {
            found.push(Collected {
                name: span.name.clone(),
                kind: span.kind,
                trace: hex(&span.trace_id),
                span: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                attributes: texts(&span.attributes),
                events: span.events.iter().map(step).collect(),
                status: span.status.as_ref().map_or(0, |status| status.code),
                links: span.links.iter().map(|link| hex(&link.trace_id)).collect(),
                nanos: span.end_time_unix_nano - span.start_time_unix_nano,
                service: resource.get("service.name").cloned().unwrap_or_default(),
            });
        }
    }
    found
}

/// Formats an event as `NAME key=value …`.
fn step(event: &Event) -> String {
    let said = texts(&event.attributes);
    said.iter().fold(event.name.clone(), |all, (key, value)| format!("{all} {key}={value}"))
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |of: &KeyValue| match of.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Scalar::Text(text)) => text.clone(),
        Some(Scalar::Int(number)) => number.to_string(),
        None => String::new(),
    };
    attributes.iter().map(|of| (of.key.clone(), text(of))).collect()
}

/// The fields of `ExportTraceServiceRequest` (`opentelemetry.proto.collector.trace.v1`) that tests use.
#[derive(Clone, PartialEq, prost::Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
    #[prost(message, repeated, tag = "13")]
    links: Vec<Link>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Event {
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Link {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AnyValue {
    #[prost(oneof = "Scalar", tags = "1, 3")]
    value: Option<Scalar>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Scalar {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Int(i64),
}
