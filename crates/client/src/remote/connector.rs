//! TCP plus TLS for hyper's pool, with the negotiated protocol handed on.
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

/// How long a connection may take, TLS included.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to the host of a URI.
#[derive(Clone)]
pub(super) struct TlsConnector {
    tcp: HttpConnector,
    tls: tokio_rustls::TlsConnector,
    name: Option<ServerName<'static>>,
}

impl TlsConnector {
    pub(super) fn new(tcp: HttpConnector, config: Arc<ClientConfig>, name: Option<ServerName<'static>>) -> Self {
        Self { tcp, tls: config.into(), name }
    }
}

impl Service<Uri> for TlsConnector {
    type Response = TlsIo;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TlsIo>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp.poll_ready(cx).map_err(io::Error::other)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (mut tcp, tls, name) = (self.tcp.clone(), self.tls.clone(), self.name.clone());
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
            let name = match name {
                Some(n) => n,
                None => ServerName::try_from(host).map_err(io::Error::other)?,
            };
            let connect = async {
                let stream = tcp.call(uri).await.map_err(io::Error::other)?;
                tls.connect(name, stream.into_inner()).await
            };
            let stream =
                tokio::time::timeout(CONNECT_TIMEOUT, connect).await.map_err(|_| io::ErrorKind::TimedOut)??;
            Ok(TlsIo(TokioIo::new(stream)))
        })
    }
}

/// An established connection.
pub(super) struct TlsIo(TokioIo<TlsStream<TcpStream>>);

impl Connection for TlsIo {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        if self.0.inner().get_ref().1.alpn_protocol() == Some(b"h2") { connected.negotiated_h2() } else { connected }
    }
}

impl hyper::rt::Read for TlsIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for TlsIo {
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
