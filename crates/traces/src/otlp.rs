//! The messages of the OpenTelemetry protocol (`opentelemetry.proto.collector.trace.v1`) with the published field
//! numbers and types. Only sent fields are defined.

/// The gRPC method that receives spans.
pub(crate) const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// The kind of a span within this process.
pub(crate) const INTERNAL: i32 = 1;
/// The kind of a span for an incoming request.
pub(crate) const SERVER: i32 = 2;
/// The kind of a span for a request to another server.
pub(crate) const CLIENT: i32 = 3;
/// The status code of a failed span.
pub(crate) const FAILED: i32 = 2;
/// The flag of a span that says whether `REMOTE` is known, and the flag of a parent in another process.
pub(crate) const REMOTE_KNOWN: u32 = 0x100;
pub(crate) const REMOTE: u32 = 0x200;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub error_message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<SpanData>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A `Span` of the protocol.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SpanData {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<SpanEvent>,
    #[prost(uint32, tag = "12")]
    pub dropped_events_count: u32,
    #[prost(message, repeated, tag = "13")]
    pub links: Vec<Link>,
    #[prost(message, optional, tag = "15")]
    pub status: Option<SpanStatus>,
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

/// An `Event` of the protocol: a step within a span.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SpanEvent {
    #[prost(fixed64, tag = "1")]
    pub time_unix_nano: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "3")]
    pub attributes: Vec<KeyValue>,
}

/// A `Link` of the protocol: a related span of another trace.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Link {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub trace_state: String,
    #[prost(fixed32, tag = "6")]
    pub flags: u32,
}

/// A `Status` of the protocol.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SpanStatus {
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(int32, tag = "3")]
    pub code: i32,
}

/// An attribute of a span or of a process.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AnyValue {
    #[prost(oneof = "Scalar", tags = "1, 3")]
    pub value: Option<Scalar>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Scalar {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Int(i64),
}

impl KeyValue {
    /// Creates an attribute with a string value.
    pub fn text(key: &str, value: impl Into<String>) -> Self {
        Self::of(key, Scalar::Text(value.into()))
    }

    /// Creates an attribute with an integer value. Larger numbers become the protocol's maximum.
    pub fn number(key: &str, value: impl TryInto<i64>) -> Self {
        Self::of(key, Scalar::Int(value.try_into().unwrap_or(i64::MAX)))
    }

    fn of(key: &str, value: Scalar) -> Self {
        Self { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
    }
}
