//! TLS to a pod or a service's endpoint that the proxy is asked to reach by `https:`. Whose certificate it shows is not
//! checked, since nothing says who should have signed it; that it has the certificate's key is. The client's credentials
//! never travel here. (upstream: `pkg/registry/core/rest` proxyTransport)
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use kelson_pki::AnyServerCertificate;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Speaks TLS over a connection.
///
/// # Errors
/// What the handshake failed of, in words.
pub async fn connect(tcp: TcpStream, ip: IpAddr) -> Result<TlsStream<TcpStream>, String> {
    static CONNECTOR: OnceLock<Result<TlsConnector, String>> = OnceLock::new();
    let connector = CONNECTOR.get_or_init(|| {
        let tls = AnyServerCertificate::client_config().map_err(|e| e.to_string())?;
        Ok(TlsConnector::from(Arc::new(tls)))
    });
    let connector = connector.as_ref().map_err(Clone::clone)?;
    connector.connect(ServerName::from(ip), tcp).await.map_err(|e| e.to_string())
}
