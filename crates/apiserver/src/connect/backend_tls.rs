//! TLS to a pod or service endpoint that the proxy reaches by `https:`. The issuer of its certificate is not verified, because nothing
//! specifies who should have signed it; possession of the key is. The client's credentials are never sent here. (upstream:
//! `pkg/registry/core/rest` proxyTransport)
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
/// A message why the handshake failed.
pub async fn connect(tcp: TcpStream, ip: IpAddr) -> Result<TlsStream<TcpStream>, String> {
    static CONNECTOR: OnceLock<Result<TlsConnector, String>> = OnceLock::new();
    let connector = CONNECTOR.get_or_init(|| {
        let tls = AnyServerCertificate::client_config().map_err(|e| e.to_string())?;
        Ok(TlsConnector::from(Arc::new(tls)))
    });
    let connector = connector.as_ref().map_err(Clone::clone)?;
    connector.connect(ServerName::from(ip), tcp).await.map_err(|e| e.to_string())
}
