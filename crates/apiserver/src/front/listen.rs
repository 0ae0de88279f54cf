//! Listen: TCP, TLS, HTTP/1.1 and HTTP/2, with limits on everything that a client can make the server hold. `peers` limits the
//! connections of each client, `activity` notices idle connections.
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kelson_pki::{AnyClientCertificate, provider};
use kelson_platform::sockets;
use kelson_tasks::OnPanic;
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::config::StartError;
use crate::front::activity::{Activity, TrackedBody};
use crate::front::gather::Gathering;
use crate::front::handle;
use crate::front::heads::{CountedHeads, HeadBudget, HeadMeter};
use crate::front::identify::Identity;
use crate::front::peers::{Limits, Peers};
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::shared::Server;

/// Connections that the kernel queues before they are accepted.
const BACKLOG: u32 = 1024;
/// Timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// A connection without a request is closed after this time, also before its first request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Timeout of closing a connection after the server started to close it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of the bytes of a request's head and, with HTTP/1.1, of a response that its reader has not taken yet.
const HEADER_BYTES_MAX: u32 = 256 << 10;
/// Limit of the bytes of all incomplete heads together, except small ones.
const HEADS_BYTES_MAX: usize = 64 << 20;
/// Concurrent streams of one HTTP/2 connection (upstream `--http2-max-streams-per-connection`).
const STREAMS_MAX: u32 = 100;
/// A connection is closed when its peer has reset more than this number of streams before they were answered (CVE-2023-44487).
const PENDING_RESETS_MAX: usize = 50;
/// Received bytes in flight per stream and per connection.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024 * 4;
/// Idle HTTP/2 connections are pinged to notice dead ones.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause after the operating system could not accept a connection, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound socket that does not accept yet.
pub struct Listener {
    tcp: TcpListener,
    tls: TlsAcceptor,
    address: SocketAddr,
}

impl Listener {
    /// Binds the configured address; `None` if there is none.
    ///
    /// # Errors
    /// [`StartError::Bind`], [`StartError::Tls`].
    pub async fn bind(server: &Server) -> Result<Option<Self>, StartError> {
        let Some(serving) = &server.config.serving else { return Ok(None) };
        let address = serving.bind;
        let failed = |source| StartError::Bind { address, source };
        let tcp = sockets::listen_tcp(address, BACKLOG).map_err(failed)?;
        let address = tcp.local_addr().map_err(failed)?;
        server.listens_at.get_or_init(|| address);
        let tls = tls(server, Arc::clone(&serving.certificate) as _)?;
        Ok(Some(Self { tcp, tls, address }))
    }
    /// The bound address.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
    /// Accepts until the server stops.
    pub async fn run(self, server: Arc<Server>) {
        let heads = HeadBudget::new(HEADS_BYTES_MAX);
        let peers = Peers::new(Limits::from_process(), server.store.clone());
        loop {
            let accepted = tokio::select! {
                () = server.tasks.token().cancelled() => return,
                accepted = self.tcp.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(admitted) = peers.admit(peer.ip()) else {
                if let Some(suppressed) = server.rejections.allow() {
                    tracing::warn!(%peer, suppressed, "too many connections; rejected a new one");
                }
                continue;
            };
            let (tls, server_of, heads) = (self.tls.clone(), Arc::clone(&server), Arc::clone(&heads));
            server.tasks.spawn_graceful("api-connection", OnPanic::Contain, async move {
                connection(server_of, heads, tls, stream, peer.ip()).await;
                drop(admitted);
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
        let verifier = AnyClientCertificate::verifier(&cas).map_err(|e| fault(&e))?;
        builder.with_client_cert_verifier(verifier).with_cert_resolver(certificate)
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn connection(server: Arc<Server>, heads: Arc<HeadBudget>, tls: TlsAcceptor, stream: TcpStream, peer: IpAddr) {
    // Send small responses at once.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    let certificates: Arc<[CertificateDer<'static>]> =
        stream.get_ref().1.peer_certificates().unwrap_or_default().iter().map(|c| c.clone().into_owned()).collect();
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let stopping = server.tasks.token().clone();
    serve(stream, http2, &heads, &stopping, move |request| {
        let server = Arc::clone(&server);
        let identity = Identity::Network { certificates: Arc::clone(&certificates), peer };
        async move {
            let (parts, body) = request.into_parts();
            handle::handle(&server, parts, RequestBody::Network(body), identity).await
        }
    })
    .await;
}

/// Speaks HTTP over a connection until it ends, is idle for too long, or the server stops. The version is the one that TLS
/// negotiated; it is not guessed from the first bytes, which a client may never send.
async fn serve<T, H, F>(io: T, http2: bool, heads: &Arc<HeadBudget>, stopping: &CancellationToken, handle: H)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Fn(http::Request<hyper::body::Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let heads = HeadMeter::new(heads);
    let activity = Activity::new(Arc::clone(&heads));
    let activity_of = Arc::clone(&activity);
    let service = service_fn(move |request| {
        let open = activity_of.begin();
        let activity = Arc::clone(&activity_of);
        // On the heap, so that a connection that waits for its next request neither keeps the memory of one nor moves it.
        let answer = Box::pin(handle(request));
        async move {
            let answer = answer.await;
            if answer.status() == http::StatusCode::SWITCHING_PROTOCOLS {
                activity.upgrade();
            }
            Ok::<_, std::convert::Infallible>(answer.map(|body| TrackedBody::new(body, open)))
        }
    });
    let io = CountedHeads::new(io, heads);
    let outcome = if http2 {
        let serve = |stream| http2_builder().serve_connection(TokioIo::new(stream), service);
        let connection = Gathering::new(io, serve);
        drive(connection, |c| c.get_mut().connection().graceful_shutdown(), &activity, stopping).await
    } else {
        let connection = http1_builder().serve_connection(TokioIo::new(io), service).with_upgrades();
        drive(connection, |c| c.graceful_shutdown(), &activity, stopping).await
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "connection ended with an error");
    }
}

async fn drive<C>(
    connection: C,
    close: fn(Pin<&mut C>),
    activity: &Activity,
    stopping: &CancellationToken,
) -> hyper::Result<()>
where
    C: Future<Output = hyper::Result<()>>,
{
    tokio::pin!(connection);
    tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = stopping.cancelled() => {
            close(connection.as_mut());
            connection.await
        }
        () = activity.idle_for(IDLE_TIMEOUT) => {
            close(connection.as_mut());
            // A peer that does not close its end is not waited for longer.
            tokio::time::timeout(CLOSE_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    }
}

fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX as usize)
        .half_close(false);
    builder
}

fn http2_builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::body::ApiBody;
    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Empty};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt as _, DuplexStream};
    use tokio::time::Instant;

    /// A served connection: `/` is answered at once, `/watch` with a body that never ends.
    fn served(http2: bool) -> DuplexStream {
        let (client, server) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move {
            let handle = |request: http::Request<hyper::body::Incoming>| async move {
                let watch = request.uri().path() == "/watch";
                http::Response::new(if watch { ApiBody::stream(futures::stream::pending()) } else { ApiBody::empty() })
            };
            serve(server, http2, &HeadBudget::new(0), &CancellationToken::new(), handle).await;
        });
        client
    }

    /// Watches, lists, logs, proxies and aggregated APIs all have such streamed bodies.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_read_is_not_produced() {
        const PIECE: usize = 16 * 1024;
        // The buffers of the client's end and of the server.
        const BYTES_MAX: usize = 2 << 20;
        for http2 in [false, true] {
            let made = Arc::new(AtomicUsize::new(0));
            let (mut client, server) = tokio::io::duplex(64 * 1024);
            let made_of = Arc::clone(&made);
            tokio::spawn(async move {
                let handle = move |_: http::Request<hyper::body::Incoming>| {
                    let made = Arc::clone(&made_of);
                    let pieces = futures::stream::repeat_with(move || {
                        let before = made.fetch_add(PIECE, Ordering::SeqCst);
                        assert!(before < BYTES_MAX, "an answer that is not read is produced without bound");
                        Ok(Bytes::from(vec![b'x'; PIECE]))
                    });
                    std::future::ready(http::Response::new(ApiBody::stream(pieces)))
                };
                serve(server, http2, &HeadBudget::new(0), &CancellationToken::new(), handle).await;
            });
            let head: &[u8] = match http2 {
                false => b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
                // Preface, settings, and the headers of `GET /` (RFC 7541 indices) on stream 1, which they also end.
                true => {
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
                          \0\0\x06\x01\x05\0\0\0\x01\x82\x84\x87\x41\x01a"
                }
            };
            tokio::io::AsyncWriteExt::write_all(&mut client, head).await.unwrap();
            tokio::time::sleep(IDLE_TIMEOUT * 2).await;
            let made = made.load(Ordering::SeqCst);
            assert!((PIECE..BYTES_MAX).contains(&made), "{http2}: {made}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_closed() {
        for http2 in [false, true] {
            let begun = Instant::now();
            let mut client = served(http2);
            let mut rest = Vec::new();
            let _ = client.read_to_end(&mut rest).await;
            assert!(begun.elapsed() <= IDLE_TIMEOUT + CLOSE_TIMEOUT, "{http2} {:?}", begun.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answered_pings_do_not_hold_an_idle_connection_and_a_watch_does() {
        for (path, lasts) in [("/", false), ("/watch", true)] {
            let io = TokioIo::new(served(true));
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("speaks HTTP/2");
            // The client's side answers pings for as long as it runs.
            let connection = tokio::spawn(connection);
            let request = http::Request::get(path).body(Empty::<Bytes>::new()).expect("a request");
            let answer = sender.send_request(request).await.expect("answered");
            let mut body = answer.into_body();
            if !lasts {
                assert!(body.frame().await.is_none());
            }
            tokio::time::sleep(IDLE_TIMEOUT * 10).await;
            assert_eq!(!connection.is_finished(), lasts, "{path}");
        }
    }
}
