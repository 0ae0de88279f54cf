//! Kelson webhook: how the API server calls servers that its users configure: admission webhooks, conversion webhooks of
//! custom resources, and the image policy's.
//!
//! One call is one POST of JSON, answered by JSON. This crate finds the server ([`Target`], [`ServiceResolver`]), proves to
//! it who calls ([`Credentials`]), checks its certificate, keeps connections for the next call, and bounds everything: time,
//! bytes both ways, connections, idle ones, configurations remembered. It knows nothing of what is asked, follows no
//! redirect, uses no proxy of the environment, and shows a server only the credentials that are meant for it. Errors read as
//! upstream's (`k8s.io/apiserver/pkg/util/webhook`, and what client-go makes of a bad answer), since clients see them.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `error`, `target`, `credentials` | what a configuration names; the credentials of this server |
//! | `tls` | verification of the server |
//! | `connect` | services to addresses, one connection for many calls |
//! | `answer` | bounded answers |
//! | `client` | the interface |
//!
//! The crate knows bytes. Their meaning is the business of its callers.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod answer;
mod backend;
mod client;
mod connect;
mod credentials;
mod error;
mod faults;
mod fetch;
mod own;
mod target;
mod tls;

pub use backend::Backend;
pub use client::{Call, WebhookClient};
pub use connect::ServiceResolver;
pub use credentials::Credentials;
pub use error::CallError;
pub use faults::CertificateFaults;
pub use fetch::{NoServices, fetch};
pub use own::{OwnCall, OwnServer};
pub use target::{Location, Target};
pub use tls::{handshake_fault, verifier};
