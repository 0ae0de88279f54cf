//! Kelson webhook: calls from the API server to servers that users configure: admission webhooks, conversion webhooks
//! of custom resources, and the image policy webhook.
//!
//! One call is one POST of JSON, answered with JSON. This crate resolves the server ([`Target`], [`ServiceResolver`]),
//! authenticates to it ([`Credentials`]), verifies its certificate and reuses connections. It limits times, request
//! and response sizes, connections and cached configurations. It does not interpret the bodies, follows no redirects,
//! uses no proxy from the environment, and sends a server only the credentials configured for it. Error messages match
//! upstream's (`k8s.io/apiserver/pkg/util/webhook`, and client-go's for failed responses), because clients see them.
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
//! The crate handles bodies as bytes. Its callers interpret them.
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
