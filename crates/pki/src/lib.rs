//! Kelson PKI: keys, certificate authorities, certificates, CSRs, kubeconfigs, and TLS configuration that follows
//! rotation.
//!
//! `signer` checks what a CSR may request; the approval of CSRs is in the controllers. This crate neither serves nor
//! connects.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `pem`, `der`, `file`, `ecdsa`, `foreign` | encodings; private files that are written whole or not at all; verification of every NIST curve; certificates of others, as the API validates them |
//! | `algorithms` | the algorithms for signing and verification |
//! | `key` | private keys |
//! | `lifetime`, `authority`, `csr`, `signer` | CAs, requests and what they may ask for |
//! | `kubeconfig/` | kubeconfigs; `file` is the one model of the format |
//! | `roots`, `chain/` | CAs of the system; whether a chain leads to a trusted certificate, as Go's `x509.Verify` decides |
//! | `peer` | the one verifier of TLS peers |
//! | `tls`, `unverified` | configuration of TLS |
//! | `rotation` | replacement of CAs, step by step on disk |
//! | `cluster` | all keys and certificates of a control plane |
//!
//! Files are read and written at the start, or in the lane for files.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod algorithms;
mod authority;
mod bootstrap;
mod chain;
mod cluster;
mod csr;
mod der;
mod ecdsa;
mod file;
mod foreign;
mod key;
pub mod kubeconfig;
mod lifetime;
mod peer;
mod pem;
mod roots;
pub mod rotation;
mod signer;
mod tls;
mod unverified;

pub use algorithms::provider;
pub use authority::{Authority, CertInfo, Issued, LeafSpec, Purpose, San, is_issued_by};
pub use bootstrap::{SIGNATURE_PREFIX, parse_pin, public_key_pin, sign_detached, verify_detached};
pub use chain::{ChainFault, Pool, Usage};
pub use cluster::{ClusterPki, Component, KUBELET_CLIENTS, PkiOptions};
pub use csr::{CertificateRequest, create_request};
pub use file::write_secret;
pub use foreign::{ForeignKey, KeyKind, PemBlock, Signed, foreign_blocks};
pub use key::{Key, PublicKey};
pub use kubeconfig::{Kubeconfig, UserCredential};
pub use lifetime::{BACKDATE, CA_LIFETIME, LEAF_LIFETIME, Renewal};
pub use peer::{Judge, PeerCertificates, PeerVerifier};
pub use pem::{certificates_from_pem, pem_block};
pub use roots::{bundle_roots, system_roots};
pub use signer::{
    KUBE_APISERVER_CLIENT, KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING, LEGACY_UNKNOWN, SignerRefusal, sign_request,
    validate_for_signer, validate_kubelet_client, validate_kubelet_serving,
};
pub use tls::{AnyClientCertificate, ClientChains, ServerChains, SwappableCertificate, is_signed_over_sha1};
pub use unverified::AnyServerCertificate;

/// Errors of this crate. Messages never contain key material.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The path of the file.
        path: std::path::PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The PEM or DER content is invalid.
    #[error("{what}: {why}")]
    Malformed {
        /// The name of the content.
        what: String,
        /// The error that was found.
        why: String,
    },
    /// A cryptographic operation failed.
    #[error("cryptography: {0}")]
    Crypto(&'static str),
    /// The issuing CA has expired.
    #[error("the signer has expired: NotAfter={0}")]
    SignerExpired(String),
    /// The clock shows a time before the build of this program.
    #[error("the clock shows {now}, which is before {min}; set the clock before the cluster's CAs are created")]
    ClockBehind {
        /// The time of the clock.
        now: jiff::Timestamp,
        /// The earliest time that can be right.
        min: jiff::Timestamp,
    },
    /// The signature or content of the request is invalid.
    #[error("{0}")]
    Request(String),
}

impl PkiError {
    pub(crate) fn malformed(what: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self::Malformed { what: what.into(), why: why.to_string() }
    }
}
