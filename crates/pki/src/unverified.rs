//! Servers whose certificate nobody vouches for: a pod's address that is probed or proxied to, and what is read because it
//! proves itself. The handshake's own signatures are still checked.
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;

use crate::peer::{Anyone, PeerVerifier};
use crate::provider;

/// Accepts any server certificate, and checks only that the server holds the key of what it shows: for peers whose name
/// nobody could have signed (a pod's address) and for reading what proves itself. Send a credential over it only where the
/// configuration asks for it by name (`insecure-skip-tls-verify`).
#[derive(Debug)]
pub struct AnyServerCertificate;

impl AnyServerCertificate {
    /// The check alone, for clients that show a certificate of their own.
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
