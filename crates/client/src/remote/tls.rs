//! The TLS side of a connection: trusted CAs and the client's certificate.
#![allow(clippy::disallowed_methods, reason = "blocking: read at start, and again in the lane for files")]

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use http::Uri;
use kelson_pki::{AnyServerCertificate, Pool, ServerChains};
use rustls::ClientConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::proxy::Way;
use crate::TransportError;
use crate::kubeconfig::{Config, Credentials};

/// What a connection shows and trusts.
#[derive(Clone)]
pub(super) struct Tls {
    /// The trusted CAs, and the client's certificate.
    pub(super) config: Arc<ClientConfig>,
    /// The name to verify instead of the host's.
    pub(super) name: Option<ServerName<'static>>,
}

impl Tls {
    /// Reads it from a configuration and its files. Blocks.
    pub(super) fn of(config: &Config) -> Result<Self, TransportError> {
        let tls = match &config.ca_file {
            Some(file) => client_config(&Config { ca_pem: read(file)?, ..config.clone() })?,
            None => client_config(config)?,
        };
        Ok(Self { config: Arc::new(tls), name: server_name(config)? })
    }

    /// Opens a connection.
    pub(super) async fn open(self, mut way: Way, uri: Uri) -> io::Result<TlsStream<TcpStream>> {
        let name = match self.name {
            Some(name) => name,
            None => {
                let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
                ServerName::try_from(host).map_err(io::Error::other)?
            }
        };
        let stream = way.connect(uri).await?;
        tokio_rustls::TlsConnector::from(self.config).connect(name, stream).await
    }
}

/// Returns the name to verify instead of the host's, if there is one.
pub(super) fn server_name(config: &Config) -> Result<Option<ServerName<'static>>, TransportError> {
    let name = config.tls_server_name.as_deref().map(|n| ServerName::try_from(n.to_owned())).transpose();
    name.map_err(TransportError::new)
}

pub(super) fn read(path: &PathBuf) -> Result<Vec<u8>, TransportError> {
    std::fs::read(path).map_err(|e| TransportError(format!("{}: {e}", path.display())))
}

/// Returns the verifier of a server's certificate: the CAs of a kubeconfig, or the system's if it names none.
pub(super) fn trusted(
    config: &Config,
    system: impl FnOnce() -> Vec<CertificateDer<'static>>,
) -> Result<ServerChains, TransportError> {
    if config.ca_pem.is_empty() && config.ca_file.is_none() {
        return Ok(ServerChains::of(Pool::of_readable(system())));
    }
    let fault = |e: &dyn std::fmt::Display| TransportError(format!("certificate authority: {e}"));
    let bundle: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&config.ca_pem).collect();
    let bundle = bundle.map_err(|e| fault(&e))?;
    if bundle.is_empty() && !config.ca_pem.is_empty() {
        return Err(fault(&"has no certificate"));
    }
    Ok(ServerChains::of(Pool::new(bundle).map_err(|e| fault(&e))?))
}

/// The TLS side of a kubeconfig; also for connections that are not pooled (upgrades).
pub fn client_config(config: &Config) -> Result<ClientConfig, TransportError> {
    let verifier = match config.insecure_skip_tls_verify {
        true => AnyServerCertificate::verifier(),
        false => trusted(config, kelson_pki::system_roots)?.verifier(),
    };
    let builder = ClientConfig::builder_with_provider(kelson_pki::provider())
        .with_safe_default_protocol_versions()
        .map_err(TransportError::new)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let (cert, key) = match &config.credentials {
        Credentials::Certificate { cert_pem, key_pem } => (cert_pem.clone(), key_pem.clone()),
        Credentials::CertificateFiles { cert, key } => (read(cert)?, read(key)?),
        _ => return Ok(with_alpn(builder.with_no_client_auth())),
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&cert).collect();
    let chain = chain.map_err(|e| TransportError(format!("client certificate: {e}")))?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|e| TransportError(format!("client key: {e}")))?;
    Ok(with_alpn(builder.with_client_auth_cert(chain, key).map_err(TransportError::new)?))
}

fn with_alpn(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}
