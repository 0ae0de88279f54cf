//! Kelson traces: where the time of a request goes, as OpenTelemetry tells it. A request that is sampled leaves spans with
//! upstream's names (`k8s.io/component-base/tracing`), which a collector gets over OTLP; one that is not only carries its place
//! in a trace ([`SpanContext`]) on to the servers that are asked on its behalf.
//!
//! Where nothing is recorded a span is one look at a pointer. What is recorded waits in a bounded queue; spans that find no room
//! there are dropped and counted, so that a collector that is slow or gone costs the API nothing.
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
