//! Kelson bootstrap: how a node gets its certificates and keeps them, against any Kubernetes API server.
//!
//! From a kubeconfig with a token to one with the node's own certificate ([`bootstrap`]), the store on disk ([`files`]), the
//! requests that are filed and awaited ([`request`]), and what keeps a client and a serving certificate good while the node
//! runs ([`client`], [`serving`]) and as the cluster wants them ([`demand`]). Approval and signing are the control plane's work.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `error`, `files`, `metrics`, `clock` | errors; certificate and key behind a link; a clock that cannot be right |
//! | `request`, `demand`, `connection` | a CSR that is created once and awaited by a watch; the CA that must have issued a certificate, and since when; connections of components to the API, which react when the API and the node no longer trust each other |
//! | `node` | names and addresses of the node |
//! | `client`, `bootstrap`, `serving` | the client certificate while the node runs and before its first start; the serving certificate |
//!
//! A node whose certificate is rejected requests another one with its bootstrap credentials, after it has discovered the CA of
//! the cluster where it does not know that either (`kelson agent` uses its token, as when it joined). A node whose certificate
//! has expired shows it once more before it uses its token: the API server authenticates it as a member of
//! `kelson:returning-nodes` (`authenticate/x509`), which may request a certificate of the same name and nothing else.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod bootstrap;
pub mod client;
pub mod clock;
mod connection;
pub mod demand;
mod error;
pub mod files;
pub mod metrics;
mod node;
pub mod request;
pub mod serving;

pub use connection::Connection;
pub use demand::{Demand, Demands};
pub use error::CertError;
pub use metrics::CertificateMetrics;
pub use node::{ClientCertificate, Discovery, Paths};
pub use serving::ServingCertificate;

#[cfg(test)]
mod tests;
