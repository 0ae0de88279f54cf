//! The way to a webhook: the address of its host or of one of its service's endpoints, TCP, TLS.
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use kelson_transport::PooledTls;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tower_service::Service;

use crate::target::Location;
use crate::tls;

/// Services to the addresses behind them, as the caller knows them.
pub trait ServiceResolver: Send + Sync {
    /// The address of a ready endpoint of the service's port; another one each time, so that connections spread.
    ///
    /// # Errors
    /// Why there is none, in upstream's words (`service "x" not found`, `no endpoints available for service "x"`).
    fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<SocketAddr, String>;
}

/// Connects to one target.
#[derive(Clone)]
pub(crate) struct Connector {
    location: Location,
    resolver: Arc<dyn ServiceResolver>,
    tls: tokio_rustls::TlsConnector,
    name: ServerName<'static>,
    /// `host:port` as errors name it.
    host: String,
    port: u16,
}

impl Connector {
    pub fn new(
        location: &Location,
        url: &Uri,
        resolver: Arc<dyn ServiceResolver>,
        tls: ClientConfig,
    ) -> Result<Self, String> {
        let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|e| format!("{host}: {e}"))?;
        let port = url.port_u16().unwrap_or(443);
        Ok(Self { location: location.clone(), resolver, tls: Arc::new(tls).into(), name, host, port })
    }

    async fn dial(&self) -> io::Result<TcpStream> {
        let (host, port) = (&self.host, self.port);
        let addresses: Vec<SocketAddr> = match &self.location {
            Location::Service { namespace, name, port, .. } => {
                vec![self.resolver.resolve(namespace, name, *port).map_err(io::Error::other)?]
            }
            Location::Url(_) => lookup_host((host.as_str(), port))
                .await
                .map_err(|_| io::Error::other(format!("dial tcp: lookup {host}: no such host")))?
                .collect(),
        };
        let mut failed = io::Error::other(format!("dial tcp: lookup {host}: no such host"));
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = io::Error::other(format!("dial tcp {address}: connect: {}", reason(&error))),
            }
        }
        Err(failed)
    }

    async fn connect(self) -> io::Result<PooledTls> {
        let tcp = self.dial().await?;
        tcp.set_nodelay(true)?;
        let stream = self.tls.connect(self.name.clone(), tcp).await;
        stream.map(PooledTls::new).map_err(|error| {
            let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
            io::Error::other(match inner {
                Some(fault) => tls::words(fault),
                None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
                None => reason(&error),
            })
        })
    }
}

/// The system's reason without the number.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset by peer".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        io::ErrorKind::TimedOut => "connection timed out".to_owned(),
        _ => error.to_string(),
    }
}

impl Service<Uri> for Connector {
    type Response = PooledTls;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<PooledTls>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}
