//! Kelson bootstrap: how a node gets its certificates and keeps them, against any Kubernetes API server.
//!
//! From a kubeconfig with a token to one with the node's own certificate ([`bootstrap`]), the store on disk ([`files`]), the
//! requests that are filed and awaited ([`request`]), and what keeps a client and a serving certificate good while the node
//! runs ([`client`], [`serving`]) and as the cluster wants them ([`demand`]). Approval and signing are the control plane's work.
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
