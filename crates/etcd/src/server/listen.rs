//! Sockets: each connection uses HTTP/2 (gRPC) or HTTP/1.1 (health, metrics), depending on its first bytes.
#![allow(clippy::disallowed_methods, reason = "blocking: sockets of the file system are made in the lane for files")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use kelson_platform::sockets::{self, UnixListener, UnixStream};
use kelson_tasks::{FILES, OnPanic};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::server::TlsStream;

use super::face::Face;
use super::nameless::Nameless;
use super::options::{Address, StartError};
use super::prompt::Prompt;
use super::route;
use super::tls::Acceptor;

/// The maximum number of connections. An API server opens one for each kind that it serves.
const CONNECTIONS_MAX: usize = 16_384;
/// The maximum number of connections from one remote address.
const CONNECTIONS_OF_PEER_MAX: usize = CONNECTIONS_MAX / 4;
/// The maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// The time limit of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for receiving a request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// The maximum size of HTTP/1.1 headers in bytes; connections without credentials can use that much as well.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Received bytes in flight per stream and per connection.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// The number of streams reset by the peer before they were answered, above which a connection is closed
/// (CVE-2023-44487).
const PENDING_RESETS_MAX: usize = 200;
/// The time limit for the first bytes of a request.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Idle connections are pinged to detect dead ones (`--grpc-keepalive-interval`, `--grpc-keepalive-timeout`; the
/// interval is far below etcd's, since a dead peer occupies a connection).
const PING_EVERY: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause after the system could not accept a connection (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The time limit for closing a connection: watch streams do not end by themselves.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A bound socket that is not served yet.
pub(super) struct Listener {
    socket: Socket,
    address: Address,
    tls: Option<Acceptor>,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The peer of a connection.
enum Peer {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    async fn accept(&self) -> io::Result<Peer> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Peer::Tcp(stream)),
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Peer::Unix(stream)),
        }
    }
}

/// The number of connections for each remote address. Connections from this machine, which most servers get all clients
/// from, are not counted.
#[derive(Default)]
struct Peers {
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// A connection from an address, counted until it is dropped.
struct OfPeer(Option<(Arc<Peers>, IpAddr)>);

impl Peers {
    fn admit(self: &Arc<Self>, peer: &Peer) -> Option<OfPeer> {
        let Peer::Tcp(stream) = peer else { return Some(OfPeer(None)) };
        match stream.peer_addr().map(|address| address.ip().to_canonical()) {
            Ok(address) if !address.is_loopback() => self.take(address),
            _ => Some(OfPeer(None)),
        }
    }

    fn take(self: &Arc<Self>, address: IpAddr) -> Option<OfPeer> {
        let mut open = self.open.lock();
        let count = open.entry(address).or_default();
        if *count >= CONNECTIONS_OF_PEER_MAX {
            return None;
        }
        *count += 1;
        Some(OfPeer(Some((Arc::clone(self), address))))
    }
}

impl Drop for OfPeer {
    fn drop(&mut self) {
        let Some((peers, address)) = self.0.take() else { return };
        let mut open = peers.open.lock();
        if let Some(count) = open.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

/// Binds a Unix socket, after removing one that a killed process left.
async fn unix(path: PathBuf) -> io::Result<UnixListener> {
    let bind = move || {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        sockets::listen(&path)
    };
    FILES.run(bind).await.map_err(io::Error::other)?
}

impl Listener {
    pub async fn bind(address: &Address, tls: Option<Acceptor>) -> Result<Self, StartError> {
        let fault = |source| StartError::Bind { address: address.clone(), source };
        let (socket, address) = match address {
            Address::Tcp(wanted) => {
                let listener = sockets::listen_tcp(*wanted, BACKLOG).map_err(fault)?;
                let bound = listener.local_addr().map_err(fault)?;
                (Socket::Tcp(listener), Address::Tcp(bound))
            }
            Address::Unix(path) => (Socket::Unix(unix(path.clone()).await.map_err(fault)?), address.clone()),
        };
        Ok(Self { socket, address, tls })
    }

    pub fn address(&self) -> Address {
        self.address.clone()
    }

    /// Accepts connections until the group ends. `whole` serves the protocol too; otherwise only health and metrics.
    pub async fn run(self, face: Arc<Face>, whole: bool) {
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let peers = Arc::new(Peers::default());
        loop {
            let accepted = tokio::select! {
                () = face.tasks.token().cancelled() => return,
                accepted = self.socket.accept() => accepted,
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(of_peer) = peers.admit(&stream) else {
                tracing::warn!(
                    limit = CONNECTIONS_OF_PEER_MAX,
                    "too many connections from one address; rejecting a connection"
                );
                continue;
            };
            let Ok(turn) = Arc::clone(&room).try_acquire_owned() else {
                tracing::warn!(limit = CONNECTIONS_MAX, "too many connections; rejecting a connection");
                continue;
            };
            let (tls, of) = (self.tls.clone(), Arc::clone(&face));
            face.tasks.spawn_graceful("etcd-connection", OnPanic::Contain, async move {
                connection(stream, tls, of, whole).await;
                drop((turn, of_peer));
            });
        }
    }
}

async fn connection(peer: Peer, tls: Option<Acceptor>, face: Arc<Face>, whole: bool) {
    match peer {
        Peer::Tcp(stream) => {
            // Small answers must be sent without delay.
            let _ = stream.set_nodelay(true);
            match tls {
                None => serve(Nameless::of_schemes(stream), face, whole).await,
                Some(tls) => {
                    if let Some(stream) = secured(stream, &tls).await {
                        serve(Nameless::of_schemes(stream), face, whole).await;
                    }
                }
            }
        }
        Peer::Unix(stream) => match tls {
            None => serve(Nameless::new(stream), face, whole).await,
            Some(tls) => {
                if let Some(stream) = secured(stream, &tls).await {
                    serve(Nameless::new(stream), face, whole).await;
                }
            }
        },
    }
}

async fn secured<T: AsyncRead + AsyncWrite + Unpin>(stream: T, tls: &Acceptor) -> Option<TlsStream<T>> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.get().accept(stream)).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
    None
}

/// Returns the settings for serving connections.
fn builder(streams_max: u32) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams_max)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

async fn serve<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(io: T, face: Arc<Face>, whole: bool) {
    let stop = face.tasks.token().clone();
    let builder = builder(face.options.streams_max);
    let service = service_fn(move |request| {
        let face = Arc::clone(&face);
        async move { Ok::<_, Infallible>(route::route(face, request, whole).await) }
    });
    let connection = builder.serve_connection(TokioIo::new(Prompt::new(io, SILENCE_MAX)), service);
    tokio::pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(CLOSE_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(error, "connection failed");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use prost::Message as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::unread::UnreadAnswers;
    use super::*;
    use crate::proto::{PutRequest, RangeRequest};

    /// Preface, settings, and the headers of `GET /` (RFC 7541 indices) on stream 1, which ends with them.
    const HTTP2_GET: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
          \0\0\x06\x01\x05\0\0\0\x01\x82\x84\x87\x41\x01a";

    #[tokio::test(start_paused = true)]
    async fn what_no_client_reads_is_not_made() {
        const PIECE: usize = 16 << 10;
        // The buffer sizes of the reader and of the server.
        const BYTES_MAX: usize = 1 << 20;
        for head in [&b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..], HTTP2_GET] {
            let made = Arc::new(AtomicUsize::new(0));
            let (mut client, server) = tokio::io::duplex(64 << 10);
            let of_service = Arc::clone(&made);
            let service = service_fn(move |_| {
                let made = Arc::clone(&of_service);
                let pieces = futures::stream::repeat_with(move || {
                    let before = made.fetch_add(PIECE, Ordering::SeqCst);
                    assert!(before < BYTES_MAX, "an answer that no client reads is made without bound");
                    Ok::<_, Infallible>(hyper::body::Frame::data(bytes::Bytes::from(vec![b'x'; PIECE])))
                });
                let body = tonic::body::Body::new(http_body_util::StreamBody::new(pieces));
                std::future::ready(Ok::<_, Infallible>(http::Response::new(body)))
            });
            let served = tokio::spawn(async move {
                let io = TokioIo::new(Prompt::new(server, SILENCE_MAX));
                builder(1000).serve_connection(io, service).await.map_err(|error| error.to_string())
            });
            client.write_all(head).await.unwrap();
            tokio::time::sleep(Duration::from_secs(30)).await;
            let made = made.load(Ordering::SeqCst);
            assert!((PIECE..BYTES_MAX).contains(&made), "{made} bytes");
            served.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn heads_that_do_not_end_are_bounded() {
        let (mut client, server) = tokio::io::duplex(16 << 10);
        let service = service_fn(|_| std::future::pending::<Result<http::Response<tonic::body::Body>, Infallible>>());
        let served = tokio::spawn(async move {
            let io = TokioIo::new(Prompt::new(server, SILENCE_MAX));
            builder(1000).serve_connection(io, service).await.map_err(|error| error.to_string())
        });
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx: ").await.unwrap();
        let mut taken = 0;
        while client.write_all(&[b'x'; 1024]).await.is_ok() {
            taken += 1024;
            assert!(taken < 4 * HEAD_BYTES_MAX, "the server keeps reading a head without end");
        }
        drop(served.await);
    }

    /// A server with 2 MB of data, and room for two unread answers of that size.
    async fn full_server() -> Arc<Face> {
        let mut face = Face::of_tests().await;
        face.unread = Arc::new(UnreadAnswers::of_bytes(5 << 20));
        for n in 0..4 {
            let (key, value) = (bytes::Bytes::from(format!("k{n}")), bytes::Bytes::from(vec![b'v'; 512 << 10]));
            face.store.put(PutRequest { key, value, ..Default::default() }).await.unwrap();
        }
        Arc::new(face)
    }

    #[tokio::test(start_paused = true)]
    async fn unread_answers_of_grpc_are_bounded_in_bytes() {
        let face = full_server().await;
        let room = face.unread.free_bytes();
        let (client, server) = tokio::io::duplex(64 << 10);
        tokio::spawn(serve(server, Arc::clone(&face), true));
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(u32::from(u16::MAX)).initial_connection_window_size(u32::from(u16::MAX));
        let (mut sender, connection) = builder.handshake(TokioIo::new(client)).await.unwrap();
        let connection = tokio::spawn(connection);
        let everything = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() };
        let message = everything.encode_to_vec();
        let body = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()][..], &message].concat();
        let mut answers = Vec::new();
        for _ in 0..4 {
            let request =
                http::Request::post("http://a/etcdserverpb.KV/Range").header("content-type", "application/grpc");
            let request = request.body(http_body_util::Full::new(bytes::Bytes::from(body.clone()))).unwrap();
            answers.push(sender.send_request(request).await.unwrap());
        }
        // Status 8 is RESOURCE_EXHAUSTED.
        let status = |answer: &http::Response<_>| answer.headers().get("grpc-status").map(|s| s.as_bytes().to_vec());
        let refused: Vec<_> = answers.iter().map(status).collect();
        assert_eq!(refused, [None, None, Some(b"8".to_vec()), Some(b"8".to_vec())]);
        assert!(face.unread.free_bytes() < room / 4, "both are held");
        drop((answers, sender));
        connection.abort();
        while face.unread.free_bytes() < room {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unread_answers_of_json_are_bounded_in_bytes() {
        let face = full_server().await;
        let room = face.unread.free_bytes();
        let ask = async || {
            let (mut client, server) = tokio::io::duplex(64 << 10);
            tokio::spawn(serve(server, Arc::clone(&face), true));
            let body = r#"{"key":"AA==","range_end":"AA=="}"#;
            let head = format!("POST /v3/kv/range HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len());
            client.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            let mut line = [0; 12];
            client.read_exact(&mut line).await.unwrap();
            (String::from_utf8(line.to_vec()).unwrap(), client)
        };
        let (first, one) = ask().await;
        let (second, other) = ask().await;
        assert_eq!([first.as_str(), second.as_str()], ["HTTP/1.1 200", "HTTP/1.1 429"], "in JSON they are larger");
        assert!(face.unread.free_bytes() < room);
        drop((one, other));
        while face.unread.free_bytes() < room {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(ask().await.0, "HTTP/1.1 200");
    }

    #[test]
    fn one_address_does_not_take_all_places() {
        let peers = Arc::new(Peers::default());
        let of = |address: &str| peers.take(address.parse().unwrap());
        let held: Vec<OfPeer> = std::iter::from_fn(|| of("192.0.2.1")).collect();
        assert_eq!(held.len(), CONNECTIONS_OF_PEER_MAX);
        assert!(of("192.0.2.2").is_some());
        drop(held);
        assert!(peers.open.lock().is_empty() && of("192.0.2.1").is_some());
    }
}
