//! Sockets: each connection speaks HTTP/2 (gRPC) or HTTP/1.1 (health, metrics), as its first bytes say.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use kelson_tasks::OnPanic;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;

use super::face::Face;
use super::options::StartError;
use super::route;
use super::tls::Acceptor;

/// Connections of all clients. An API server opens one for each kind that it serves.
const CONNECTIONS_MAX: usize = 16_384;
/// Connections the kernel keeps before they are accepted.
const BACKLOG: u32 = 1024;
/// A TLS handshake must be over by then.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A request's head must be there by then.
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// Received bytes in flight per stream and per connection.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// Streams reset by the peer before they were answered, beyond which a connection is closed (CVE-2023-44487).
const PENDING_RESETS_MAX: usize = 200;
/// Quiet connections are pinged, so that dead ones are noticed (`--grpc-keepalive-interval`, `--grpc-keepalive-timeout`).
const PING_EVERY: Duration = Duration::from_secs(2 * 3600);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause after the system could not accept a connection (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A connection that was told to close must have closed by then: streams of watches end by themselves.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A bound socket, not yet served.
pub(super) struct Listener {
    tcp: TcpListener,
    address: SocketAddr,
    tls: Option<Acceptor>,
}

impl Listener {
    pub async fn bind(address: SocketAddr, tls: Option<Acceptor>) -> Result<Self, StartError> {
        let fault = |source| StartError::Bind { address, source };
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.map_err(fault)?;
        socket.set_reuseaddr(true).map_err(fault)?;
        socket.bind(address).map_err(fault)?;
        let tcp = socket.listen(BACKLOG).map_err(fault)?;
        let address = tcp.local_addr().map_err(fault)?;
        Ok(Self { tcp, address, tls })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts until the group ends. `whole` serves the protocol too, otherwise health and metrics alone.
    pub async fn run(self, face: Arc<Face>, whole: bool) {
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let accepted = tokio::select! {
                () = face.tasks.token().cancelled() => return,
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
            let Ok(turn) = Arc::clone(&room).try_acquire_owned() else {
                tracing::warn!(limit = CONNECTIONS_MAX, "too many connections: refused one more");
                continue;
            };
            let (tls, of) = (self.tls.clone(), Arc::clone(&face));
            face.tasks.spawn_graceful("etcd-connection", OnPanic::Contain, async move {
                connection(stream, tls, of, whole).await;
                drop(turn);
            });
        }
    }
}

async fn connection(stream: TcpStream, tls: Option<Acceptor>, face: Arc<Face>, whole: bool) {
    // Small answers must not wait for more.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else { return serve(stream, face, whole).await };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.get().accept(stream)).await {
        Ok(Ok(stream)) => serve(stream, face, whole).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

async fn serve<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(io: T, face: Arc<Face>, whole: bool) {
    let stop = face.tasks.token().clone();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(face.options.streams_max)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    let service = service_fn(move |request| {
        let face = Arc::clone(&face);
        async move { Ok::<_, Infallible>(route::route(face, request, whole).await) }
    });
    let connection = builder.serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(CLOSE_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(error, "connection ended with a fault");
    }
}
