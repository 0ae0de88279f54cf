//! Connections to servers with unverified certificates: a pod's address for probes or proxying, and documents that are
//! verified otherwise. The handshake's signatures are still checked.
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;

use crate::peer::{Anyone, PeerVerifier};
use crate::provider;

/// Accepts any server certificate, and only checks that the server has its key: for peers without a verifiable name (a
/// pod's address) and for documents that are verified otherwise. A credential may only be sent over it if the
/// configuration requests it by name (`insecure-skip-tls-verify`).
#[derive(Debug)]
pub struct AnyServerCertificate;

impl AnyServerCertificate {
    /// Returns the verifier, for clients that present a certificate.
    pub fn verifier() -> Arc<dyn ServerCertVerifier> {
        PeerVerifier::of_servers(Anyone)
    }
    /// A TLS client that trusts no one's word for the server.
    ///
    /// # Errors
    /// When the crypto provider has no usable protocol version.
    pub fn client_config() -> Result<ClientConfig, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        Ok(builder.dangerous().with_custom_certificate_verifier(Self::verifier()).with_no_client_auth())
    }
}
