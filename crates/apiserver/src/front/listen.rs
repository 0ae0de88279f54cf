//! Listen: TCP, TLS, HTTP/1.1 and HTTP/2, with limits on everything a client can make the server hold.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use kelson_pki::{AnyClientCertificate, provider};
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::config::StartError;
use crate::front::handle::{self, Identity};
use crate::request::body::RequestBody;
use crate::shared::Server;

/// Connections open at once.
const CONNECTIONS_MAX: usize = 10_000;
/// Connections the kernel keeps before they are accepted.
const BACKLOG: u32 = 1024;
/// A TLS handshake must be over by then.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A request's head must be there by then.
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// Bytes of a request's head.
const HEADER_BYTES_MAX: u32 = 1 << 20;
/// Streams of one HTTP/2 connection at once (upstream `--http2-max-streams-per-connection`).
const STREAMS_MAX: u32 = 100;
/// Streams reset by the peer before they were answered, beyond which a connection is closed (CVE-2023-44487).
const PENDING_RESETS_MAX: usize = 50;
/// Received bytes in flight per stream and per connection.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024 * 4;
/// Idle HTTP/2 connections are pinged, so that dead ones are noticed.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause after the system could not accept a connection (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound socket, not yet served.
pub struct Listener {
    tcp: TcpListener,
    tls: TlsAcceptor,
    address: SocketAddr,
}

impl Listener {
    /// Binds what the configuration says; `None` when it says nothing.
    ///
    /// # Errors
    /// [`StartError::Bind`], [`StartError::Tls`].
    pub async fn bind(server: &Server) -> Result<Option<Self>, StartError> {
        let Some(serving) = &server.config.serving else { return Ok(None) };
        let address = serving.bind;
        let failed = |source| StartError::Bind { address, source };
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.map_err(failed)?;
        socket.set_reuseaddr(true).map_err(failed)?;
        socket.bind(address).map_err(failed)?;
        let tcp = socket.listen(BACKLOG).map_err(failed)?;
        let address = tcp.local_addr().map_err(failed)?;
        let tls = tls(server, Arc::clone(&serving.certificate) as _)?;
        Ok(Some(Self { tcp, tls, address }))
    }
    /// The bound address.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
    /// Accepts until the server stops.
    pub async fn run(self, server: Arc<Server>) {
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let accepted = tokio::select! {
                () = server.stopping.cancelled() => return,
                accepted = self.tcp.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (tls, server_of) = (self.tls.clone(), Arc::clone(&server));
            server.tasks.spawn(async move {
                connection(server_of, tls, stream).await;
                drop(permit);
            });
        }
    }
}

fn tls(server: &Server, certificate: Arc<dyn rustls::server::ResolvesServerCert>) -> Result<TlsAcceptor, StartError> {
    let fault = |e: &dyn std::fmt::Display| StartError::Tls(e.to_string());
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| fault(&e))?;
    let cas: Vec<&str> = [&server.config.client_ca_pem, &server.config.request_header_ca_pem]
        .into_iter()
        .filter(|p| !p.is_empty())
        .map(String::as_str)
        .collect();
    let mut config = if cas.is_empty() {
        builder.with_no_client_auth().with_cert_resolver(certificate)
    } else {
        let verifier = AnyClientCertificate::new(&cas).map_err(|e| fault(&e))?;
        builder.with_client_cert_verifier(verifier).with_cert_resolver(certificate)
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn connection(server: Arc<Server>, tls: TlsAcceptor, stream: TcpStream) {
    // Small answers must not wait for more.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    let certificates: Arc<[CertificateDer<'static>]> =
        stream.get_ref().1.peer_certificates().unwrap_or_default().iter().map(|c| c.clone().into_owned()).collect();
    let server_of = Arc::clone(&server);
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let server = Arc::clone(&server_of);
        let identity = Identity::Network(Arc::clone(&certificates));
        async move {
            let (parts, body) = request.into_parts();
            Ok::<_, std::convert::Infallible>(
                handle::handle(&server, parts, RequestBody::Network(body), identity).await,
            )
        }
    });
    let builder = builder();
    let served = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(served);
    let outcome = tokio::select! {
        outcome = served.as_mut() => outcome,
        () = server.stopping.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(error, "connection ended with a fault");
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX as usize)
        .half_close(false)
        .pipeline_flush(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}
