//! Kelson client: one way to speak to the API, in-process or over the network, and what components build on it.
//!
//! [`Transport`] carries one HTTP request; the API server offers one that never leaves the process, [`remote`] one
//! over TLS. [`Client`] adds the API's verbs, [`Informer`] a watched cache with indexes by key, [`WorkQueue`] the
//! controllers' queue, [`EventRecorder`] events,
//! [`leader`] chooses one of several. Which objects exist and what they mean is the component's business.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `error`, `kind`, `params`, `servers` | the options of a request; the servers of one API |
//! | `client`, `watch`, `exec`, `kubeconfig`, `remote`, `limited`, `metered`, `traced` | verbs; frames; connections over TLS, rate limits, metrics (as client-go names them) and traces |
//! | `informer`, `reflector`, `queue`, `queue_metrics` | a cache that follows the server; keys, delays and workers |
//! | `events/`, `leader` | events; leader election |
//!
//! An informer streams its initial state, and lists whenever the stream fails before it is complete. A worker contains the
//! panic of one key: the panic is reported and counted, and the key is retried.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod client;
mod error;
mod events;
pub mod exec;
mod informer;
mod kind;
pub mod kubeconfig;
pub mod leader;
mod limited;
mod metered;
mod params;
mod queue;
mod queue_metrics;
mod reflector;
pub mod remote;
pub mod servers;
mod traced;
mod watch;

pub use client::{Client, METADATA_ONLY, METADATA_ONLY_LIST};
pub use error::ClientError;
pub use events::{EventRecorder, EventType, ObjectRef};
pub use informer::{Change, Informer, InformerHandle};
pub use kelson_meta::Backoff;
pub use kelson_transport::{Body, BoxFuture, Request, Response, Transport, TransportError, full_body};
pub use kind::{Object, ResourceType};
pub use limited::RateLimit;
pub use metered::{API_HOST, Metered};
pub use params::{
    DeleteOptions, List, ListMeta, ListParams, PatchKind, Preconditions, PropagationPolicy, WriteOptions,
};
pub use queue::{Failure, WorkQueue};
pub use queue_metrics::WorkQueueMetrics;
pub use reflector::InformerConfig;
pub use watch::{WatchEvent, WatchStream};
