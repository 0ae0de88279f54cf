//! A webhook server within a test, with real TLS and HTTP, that can simulate failures.
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, Version, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kelson_pki::{Authority, LeafSpec, Purpose, San, SwappableCertificate, provider};
use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// The response of the server to a request.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// Answer with this status and JSON.
    Answer(u16, Vec<u8>),
    /// Redirect the client to a URL.
    Redirect(String),
    /// Accept the request and never answer.
    Hang,
    /// Send the headers and a part of the body, and then nothing more.
    Stall,
    /// Close the connection.
    Break,
    /// Answer after a delay.
    Slow(Duration, Vec<u8>),
}

/// One request as the server received it.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// The path and the query.
    pub path: String,
    /// The headers of the request.
    pub headers: HeaderMap,
    /// The body of the request.
    pub body: Bytes,
    /// The version of HTTP.
    pub version: Version,
    /// The number of the connection, counted from 1.
    pub connection: usize,
}

type Decide = dyn Fn(&ReceivedRequest) -> Behaviour + Send + Sync;

/// A running server. It ends when this value is dropped.
pub struct TestServer {
    /// The address on which the server listens.
    pub address: SocketAddr,
    authority: Authority,
    leaf_pem: String,
    certificate: Arc<SwappableCertificate>,
    shared: Arc<Shared>,
    tasks: Tasks,
}

struct Shared {
    decide: Box<Decide>,
    seen: Mutex<Vec<ReceivedRequest>>,
    connections: AtomicUsize,
    /// The number of requests in progress now, and the maximum so far.
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
}

/// Counts a request while it is in progress.
struct Answering(Arc<Shared>);

impl Answering {
    fn begin(shared: &Arc<Shared>) -> Self {
        let now = shared.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most_at_once.fetch_max(now, Ordering::SeqCst);
        Self(Arc::clone(shared))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.at_once.fetch_sub(1, Ordering::SeqCst);
    }
}

impl TestServer {
    /// Starts a server with a certificate for `names` and 127.0.0.1.
    ///
    /// # Panics
    /// Panics if no port or no key is available.
    pub async fn start(names: &[&str], decide: impl Fn(&ReceivedRequest) -> Behaviour + Send + Sync + 'static) -> Self {
        let authority = Authority::create("webhook-ca", jiff::Timestamp::now()).expect("an authority");
        let issued = issue(&authority, names);
        let certificate = SwappableCertificate::new(&issued).expect("a certificate");
        let config = rustls::ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let mut config = config
            .expect("protocol versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&certificate) as Arc<dyn rustls::server::ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared {
            decide: Box::new(decide),
            seen: Mutex::default(),
            connections: AtomicUsize::new(0),
            at_once: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
        });
        let tasks = Tasks::root("test-webhook");
        let (acceptor, served, connections) = (TlsAcceptor::from(Arc::new(config)), Arc::clone(&shared), tasks.clone());
        tasks.spawn("accept", OnPanic::Contain, async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let connection = served.connections.fetch_add(1, Ordering::SeqCst) + 1;
                let (acceptor, served) = (acceptor.clone(), Arc::clone(&served));
                connections.spawn("connection", OnPanic::Contain, async move {
                    let Ok(stream) = acceptor.accept(tcp).await else { return };
                    let service = service_fn(move |request| answer(Arc::clone(&served), request, connection));
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    // The client decides how a connection ends.
                    drop(builder.serve_connection(TokioIo::new(stream), service).await);
                });
            }
        });
        let leaf_pem = issued.cert_pem;
        Self { address, authority, leaf_pem, certificate, shared, tasks }
    }

    /// Returns the CA of the server's certificate in PEM.
    pub fn ca(&self) -> &str {
        self.authority.cert_pem()
    }
    /// Returns the server's first certificate in PEM.
    pub fn certificate(&self) -> &str {
        &self.leaf_pem
    }
    /// Replaces the certificate with one from a new CA, and returns the CA in PEM. Open connections continue.
    ///
    /// # Panics
    /// Panics if no key can be generated.
    pub fn change_authority(&self, names: &[&str]) -> String {
        let authority = Authority::create("webhook-ca", jiff::Timestamp::now()).expect("an authority");
        self.certificate.swap(&issue(&authority, names)).expect("a certificate");
        authority.cert_pem().to_owned()
    }
    /// Returns the requests so far.
    pub fn seen(&self) -> Vec<ReceivedRequest> {
        self.shared.seen.lock().clone()
    }
    /// Returns the maximum number of concurrent requests so far.
    pub fn most_at_once(&self) -> usize {
        self.shared.most_at_once.load(Ordering::SeqCst)
    }
    /// Returns the number of accepted connections so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

fn issue(authority: &Authority, names: &[&str]) -> kelson_pki::Issued {
    let mut sans: Vec<San> = names.iter().map(|n| San::Dns((*n).to_owned())).collect();
    sans.push(San::Ip(Ipv4Addr::LOCALHOST.into()));
    let spec = LeafSpec {
        common_name: "webhook",
        organizations: &[],
        sans: &sans,
        purpose: Purpose::Server,
        lifetime: Duration::from_secs(3600),
    };
    authority.issue(&spec, jiff::Timestamp::now()).expect("a certificate")
}

type Body = UnsyncBoxBody<Bytes, Broken>;

#[derive(Debug, thiserror::Error)]
#[error("broken off")]
struct Broken;

async fn answer(
    shared: Arc<Shared>,
    request: http::Request<Incoming>,
    connection: usize,
) -> Result<Response<Body>, Broken> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Broken)?.to_bytes();
    let path = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let _answering = Answering::begin(&shared);
    let seen = ReceivedRequest { path, headers: head.headers, body, version: head.version, connection };
    let behaviour = (shared.decide)(&seen);
    shared.seen.lock().push(seen);
    let json = |code: u16, body: Vec<u8>| {
        let mut response = Response::new(full(body));
        *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::OK);
        response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        response
    };
    match behaviour {
        Behaviour::Answer(code, body) => Ok(json(code, body)),
        Behaviour::Slow(pause, body) => {
            tokio::time::sleep(pause).await;
            Ok(json(200, body))
        }
        Behaviour::Redirect(to) => {
            let mut response = json(302, b"elsewhere".to_vec());
            response.headers_mut().insert(header::LOCATION, to.parse().map_err(|_| Broken)?);
            Ok(response)
        }
        Behaviour::Hang => std::future::pending().await,
        Behaviour::Break => Err(Broken),
        Behaviour::Stall => Ok(Response::new(Stalled(false).boxed_unsync())),
    }
}

fn full(bytes: Vec<u8>) -> Body {
    Full::new(Bytes::from(bytes)).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// A body of one frame, which then never ends.
struct Stalled(bool);

impl hyper::body::Body for Stalled {
    type Data = Bytes;
    type Error = Broken;
    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if std::mem::replace(&mut self.0, true) {
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"{\"resp")))))
    }
}
