//! Kelson audit: which requests are written down, how fully, and where to. It knows what an audit event is (`audit.k8s.io/v1`)
//! and nothing of how requests are served: the API server builds events and hands them over, stage by stage.
//!
//! Files, the lowest first: `event` (one event, its JSON) and `legacy` (its line of text) ← `policy` (the file) and `rules` (what
//! matches a request) are pure ← `options` (the flags) ← `counters` ← `output` (where batches end) ← `file` (a log that
//! rotates), `log`, `webhook` ← `batch` (the queue before an output) ← `backend` (mode and truncation) ← `audit` (the face).
//!
//! Nothing here waits on a thread that answers requests: files are written in a lane, queues are bounded and drop, counted,
//! what does not fit, and only a request whose operator chose a blocking mode waits for its own event.
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
