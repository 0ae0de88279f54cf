//! Kelson audit: the audit policy, and the outputs for audit events (`audit.k8s.io/v1`). The crate does not serve
//! requests: the API server creates an event at every stage and passes it on.
//!
//! Threads that serve requests never wait here. Files are written on a lane, and full queues drop and count events.
//! Only with an output in a blocking mode does a request wait for its own event.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `event`, `legacy` | one event as JSON, and as a line of text |
//! | `policy`, `rules` | the policy file, and what matches a request; pure |
//! | `options` | flags |
//! | `counters` | metrics |
//! | `output` | where batches end |
//! | `file`, `log`, `webhook` | a log file that rotates, the server's log, a webhook |
//! | `batch` | the queue before an output |
//! | `backend` | mode and truncation |
//! | `audit` | the interface |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod audit;
mod backend;
mod batch;
mod counters;
mod event;
mod file;
mod legacy;
mod log;
mod options;
mod output;
mod policy;
mod rules;
mod webhook;

pub use audit::{Audit, AuditError};
pub use event::{AuthenticationMetadata, Event, Level, ObjectReference, Stage};
pub use options::{Batching, Format, LogOptions, Mode, Options, Truncation, WebhookOptions};
pub use output::{Entry, Output};
pub use policy::{Policy, PolicyError};
pub use rules::Decision;
