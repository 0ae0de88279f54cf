//! The way to a webhook: the address of its host or of one of its service's endpoints, TCP, TLS.
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::client::TlsStream;
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

    async fn connect(self) -> io::Result<Io> {
        let tcp = self.dial().await?;
        tcp.set_nodelay(true)?;
        let stream = self.tls.connect(self.name.clone(), tcp).await;
        stream.map(|s| Io(TokioIo::new(s))).map_err(|error| {
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
    type Response = Io;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Io>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

/// An established connection.
pub(crate) struct Io(TokioIo<TlsStream<TcpStream>>);

impl Connection for Io {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        if self.0.inner().get_ref().1.alpn_protocol() == Some(b"h2") { connected.negotiated_h2() } else { connected }
    }
}

impl hyper::rt::Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }
}
