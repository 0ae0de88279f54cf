//! TLS to a pod or a service's endpoint that the proxy is asked to reach by `https:`. Whose certificate it shows is not
//! checked, since nothing says who should have signed it; that it has the certificate's key is. The client's credentials
//! never travel here. (upstream: `pkg/registry/core/rest` proxyTransport)
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use kelson_pki::provider;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

#[derive(Debug)]
struct AnySigner(Arc<CryptoProvider>);

impl ServerCertVerifier for AnySigner {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Speaks TLS over a connection.
///
/// # Errors
/// What the handshake failed of, in words.
pub async fn connect(tcp: TcpStream, ip: IpAddr) -> Result<TlsStream<TcpStream>, String> {
    static CONNECTOR: OnceLock<Result<TlsConnector, String>> = OnceLock::new();
    let connector = CONNECTOR.get_or_init(|| {
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|e| e.to_string())?.dangerous();
        let tls = builder.with_custom_certificate_verifier(Arc::new(AnySigner(provider()))).with_no_client_auth();
        Ok(TlsConnector::from(Arc::new(tls)))
    });
    let connector = connector.as_ref().map_err(Clone::clone)?;
    connector.connect(ServerName::from(ip), tcp).await.map_err(|e| e.to_string())
}
