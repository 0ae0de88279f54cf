//! Connects to a webhook over TCP and TLS, by its host or by an endpoint of its service.
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use kelson_transport::PooledTls;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tower_service::Service;

use crate::backend::Backend;
use crate::target::Location;
use crate::tls;

/// Resolves services to the addresses of their endpoints.
pub trait ServiceResolver: Send + Sync {
    /// Returns a ready endpoint for the port of a service, or the external name of the service. Successive calls
    /// return different endpoints, so that connections spread.
    ///
    /// # Errors
    /// Returns upstream's message (`service "x" not found`, `no endpoints available for service "x"`).
    fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<Backend, String>;
}

/// Opens connections to one target.
#[derive(Clone)]
pub(crate) struct Connector {
    location: Location,
    resolver: Arc<dyn ServiceResolver>,
    tls: tokio_rustls::TlsConnector,
    name: ServerName<'static>,
    /// The target as `host:port`, for error messages.
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
        let backend = match &self.location {
            Location::Service { namespace, name, port, .. } => {
                self.resolver.resolve(namespace, name, *port).map_err(io::Error::other)?
            }
            Location::Url(_) => Backend::Name(self.host.clone(), self.port),
        };
        backend.dial().await
    }

    async fn connect(self) -> io::Result<PooledTls> {
        let tcp = self.dial().await?;
        tcp.set_nodelay(true)?;
        let stream = self.tls.connect(self.name.clone(), tcp).await;
        stream.map(PooledTls::new).map_err(|error| io::Error::other(tls::handshake_fault(&error)))
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
