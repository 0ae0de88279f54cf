//! Kelson audit: which requests are written down, how fully, and where to. It knows what an audit event is (`audit.k8s.io/v1`)
//! and nothing of how requests are served: the API server builds events and hands them over, stage by stage.
//!
//! Nothing here waits on a thread that answers requests: files are written in a lane, queues are bounded and drop, counted,
//! what does not fit, and only a request whose operator chose a blocking mode waits for its own event.
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
