//! Kelson traces: OpenTelemetry spans of requests. A sampled request produces spans with upstream's names
//! (`k8s.io/component-base/tracing`), which are sent to a collector over OTLP. A request that is not sampled only
//! passes its position in a trace ([`SpanContext`]) on to other servers.
//!
//! Without recording, a span costs one pointer check. Recorded spans wait in a bounded queue. Spans that do not fit
//! are dropped and counted, so that a slow or missing collector does not affect the API.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `context`, `otlp` | the position in a trace, in headers; messages |
//! | `sink` | the queue |
//! | `span` | the current span of the work in progress |
//! | `tracer` | which requests are recorded |
//! | `export`, `config` | batches and calls; the file |
//!
//! The span of a request begins in `apiserver/front/spans`, when its user is known. A part of the work that deserves a separate
//! span asks for a `child`; spans are not passed as arguments.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod config;
mod context;
mod export;
mod otlp;
mod sink;
mod span;
mod tracer;

pub use config::TracingConfiguration;
pub use context::SpanContext;
pub use export::{Exporter, ExporterOptions, Pace};
pub use otlp::KeyValue;
pub use span::{Current, Span, child, client, event, pass_on};
pub use tracer::{Origin, Tracer};
