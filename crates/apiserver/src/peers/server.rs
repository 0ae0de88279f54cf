//! The peers that are known, and connections to them. A peer trusts the user's headers because of the front proxy certificate. A
//! request that a peer has forwarded is never forwarded again, so that requests cannot circulate.
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use hyper::body::Incoming;
use kelson_auth::{UserInfo, user};
use kelson_meta::Status;
use kelson_metrics::Registry;
use kelson_pki::SwappableCertificate;
use kelson_tasks::Tasks;
use kelson_webhook::{CertificateFaults, handshake_fault};
use parking_lot::RwLock;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::aggregate::forward::{self, Outgoing, Unreachable};
use crate::peers::listing::PeerListing;
use crate::peers::merge;
use crate::peers::metrics::PeerMetrics;
use crate::request::answer::Answer;
use crate::request::route::RequestInfo;
use crate::request::routes::{RemoteHandler, RemoteRequest, Route};

/// Header of requests that a peer has forwarded (upstream's name).
const FORWARDED: HeaderName = HeaderName::from_static("x-kubernetes-peer-proxied");
/// The name in the serving certificates of all API servers.
const NAME: &str = "kubernetes.default.svc";
/// The documents of a peer alone. A server of an older release ignores the profile.
const DISCOVERY: HeaderValue = HeaderValue::from_static(
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,\
     application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
);
/// Limit of connecting to one peer, after which another one is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Limit of reading both discovery documents of a peer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of a discovery document.
const DOCUMENT_BYTES_MAX: usize = 8 << 20;

/// An API server on the same storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerServer {
    /// Name of its identity Lease.
    pub id: String,
    /// Identifies its process.
    pub holder: String,
    /// The address for requests of peers.
    pub address: SocketAddr,
    /// What it serves; `None` until it was read.
    pub listing: Option<Arc<PeerListing>>,
}

/// Reason why it is not known what a peer serves.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The peer cannot be reached.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The peer did not answer in time.
    #[error("no answer within {FETCH_TIMEOUT:?}")]
    Timeout,
    /// The peer rejected the request.
    #[error("GET {path}: status {code}")]
    Rejected {
        /// The path of the document.
        path: &'static str,
        /// The response's code.
        code: StatusCode,
    },
    /// The response is not JSON.
    #[error("GET {path}: {source}")]
    Decode {
        /// The path of the document.
        path: &'static str,
        /// The decoder's error.
        source: serde_json::Error,
    },
    /// The response is another document.
    #[error("GET {0}: the response is not an APIGroupDiscoveryList")]
    NotAggregated(&'static str),
}

/// All known peers.
pub struct PeerServers {
    /// Name of this server's identity Lease.
    own_id: String,
    certificate: Option<Arc<SwappableCertificate>>,
    connector: RwLock<TlsConnector>,
    tasks: Tasks,
    metrics: PeerMetrics,
    known: RwLock<Arc<[PeerServer]>>,
    generation: AtomicU64,
}

impl PeerServers {
    /// Starts without peers. `ca_pem` verifies their serving certificates.
    ///
    /// # Errors
    /// TLS cannot be configured.
    pub fn new(
        own_id: String,
        ca_pem: &str,
        certificate: Option<Arc<SwappableCertificate>>,
        tasks: &Tasks,
        registry: &Registry,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            own_id,
            connector: RwLock::new(connector(ca_pem, certificate.as_ref())?),
            certificate,
            tasks: tasks.clone(),
            metrics: PeerMetrics::new(registry),
            known: RwLock::default(),
            generation: AtomicU64::default(),
        })
    }
    /// Replaces the CAs of peers for new connections.
    ///
    /// # Errors
    /// TLS cannot be configured. Nothing changes then.
    pub fn trust(&self, ca_pem: &str) -> Result<(), rustls::Error> {
        *self.connector.write() = connector(ca_pem, self.certificate.as_ref())?;
        Ok(())
    }
    /// Name of this server's identity Lease.
    pub fn own_id(&self) -> &str {
        &self.own_id
    }
    /// The counters of peers.
    pub fn metrics(&self) -> &PeerMetrics {
        &self.metrics
    }
    /// All known peers.
    pub fn all(&self) -> Arc<[PeerServer]> {
        Arc::clone(&self.known.read())
    }
    /// Replaces the known peers.
    pub fn replace(&self, peers: Vec<PeerServer>) {
        *self.known.write() = peers.into();
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
    /// A number that changes with the known peers.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The peers that serve a resource which this server does not serve; `None` for a request that a peer has forwarded.
    pub fn find(self: &Arc<Self>, info: &RequestInfo, headers: &HeaderMap) -> Option<Route> {
        // Only the legacy group is below `/api`.
        let is_path_of_group = (info.prefix == "api") == info.group.is_empty();
        if !info.is_resource || !is_path_of_group || headers.get(&FORWARDED).is_some_and(|value| value == "true") {
            return None;
        }
        let known = self.known.read();
        let serves = |peer: &&PeerServer| {
            let listing = peer.listing.as_ref();
            listing.is_some_and(|listing| listing.serves(&info.group, &info.version, &info.resource))
        };
        let addresses: Vec<SocketAddr> = known.iter().filter(serves).map(|peer| peer.address).collect();
        let servers = Arc::clone(self);
        (!addresses.is_empty()).then(|| Route::Remote(Arc::new(PeerRoute { servers, addresses })))
    }

    /// This server's groups and those of all peers, as items of aggregated discovery; `None` without peers.
    pub fn merged(&self, own: &[Value]) -> Option<Vec<Value>> {
        let known = self.all();
        let mut lists: Vec<(&str, &[Value])> = known
            .iter()
            .filter_map(|peer| Some((peer.id.as_str(), peer.listing.as_ref()?.groups())))
            .chain([(self.own_id.as_str(), own)])
            .collect();
        // In the same order on all servers.
        lists.sort_by_key(|(id, _)| *id);
        let lists: Vec<&[Value]> = lists.into_iter().map(|(_, groups)| groups).collect();
        (lists.len() > 1).then(|| merge::groups(&lists))
    }

    /// Reads what the peer at an address serves, without the group versions that are excluded.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn fetch(
        &self,
        address: SocketAddr,
        is_excluded: impl Fn(&str, &str) -> bool,
    ) -> Result<PeerListing, FetchError> {
        let both = async { Ok((self.document(address, "/api").await?, self.document(address, "/apis").await?)) };
        let read = tokio::time::timeout(FETCH_TIMEOUT, both).await.map_err(|_| FetchError::Timeout)?;
        read.map(|(core, named)| PeerListing::read(&core, &named, is_excluded))
    }

    async fn document(&self, address: SocketAddr, path: &'static str) -> Result<Value, FetchError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, DISCOVERY);
        headers.insert(FORWARDED, HeaderValue::from_static("true"));
        let user = UserInfo::new(user::API_SERVER, [user::AUTHENTICATED]);
        let request = forward::outgoing((&Method::GET, path), &headers, &user, Bytes::new(), NAME)?;
        let response = forward::exchange(self.connect(address).await?, request, &self.tasks).await?;
        let (code, body) = forward::collect(response, DOCUMENT_BYTES_MAX).await?;
        self.metrics.count_discovery(code);
        if code != StatusCode::OK {
            return Err(FetchError::Rejected { path, code });
        }
        let document: Value = kelson_meta::from_json(&body).map_err(|source| FetchError::Decode { path, source })?;
        match document["kind"] == "APIGroupDiscoveryList" {
            true => Ok(document),
            false => Err(FetchError::NotAggregated(path)),
        }
    }

    async fn connect(&self, address: SocketAddr) -> Result<TlsStream<TcpStream>, Unreachable> {
        let connector = self.connector.read().clone();
        let connect = async {
            let tcp = TcpStream::connect(address).await.map_err(|e| Unreachable::connection(&e))?;
            tcp.set_nodelay(true).map_err(|e| Unreachable::connection(&e))?;
            let name = ServerName::try_from(NAME).map_err(|e| Unreachable::connection(&e))?;
            connector.connect(name, tcp).await.map_err(|e| Unreachable::Connection(handshake_fault(&e)))
        };
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connect).await;
        connected.map_err(|_| Unreachable::Connection(format!("dial tcp {address}: i/o timeout")))?
    }
}

/// Forwards requests to one of the peers that serve a resource.
struct PeerRoute {
    servers: Arc<PeerServers>,
    /// The addresses of all peers that serve the resource, of which there is at least one.
    addresses: Vec<SocketAddr>,
}

impl PeerRoute {
    /// Sends a request to the first peer that accepts a connection, starting with a random one. A request that was sent is not repeated.
    async fn send(&self, mut request: Outgoing) -> Result<Response<Incoming>, Unreachable> {
        request.headers_mut().insert(FORWARDED, HeaderValue::from_static("true"));
        let first = rand::random::<u32>() as usize % self.addresses.len().max(1);
        let mut failed = Unreachable::Connection("no address".to_owned());
        for address in self.addresses.iter().cycle().skip(first).take(self.addresses.len()) {
            match self.servers.connect(*address).await {
                Ok(stream) => return forward::exchange(stream, request, &self.servers.tasks).await,
                Err(why) => {
                    tracing::debug!(%address, %why, "cannot connect to an API server that serves the resource");
                    failed = why;
                }
            }
        }
        Err(failed)
    }

    async fn carry(&self, request: RemoteRequest<'_>) -> Result<Answer, Status> {
        let (info, metrics) = (request.info, &self.servers.metrics);
        match forward::carry(request, NAME, &self.servers.tasks, |made| self.send(made)).await? {
            Ok(answer) => {
                metrics.count_forwarded(answer.status(), info);
                Ok(answer)
            }
            Err(why) => {
                metrics.count_unreachable(info);
                tracing::warn!(
                    group = info.group, version = info.version, resource = info.resource, %why,
                    "cannot reach the API servers that serve a resource which this one does not serve"
                );
                let text = format!("cannot reach the API servers that serve this resource: {why}");
                Err(Status::unavailable(text))
            }
        }
    }
}

impl RemoteHandler for PeerRoute {
    fn serve<'a>(&'a self, request: RemoteRequest<'a>) -> BoxFuture<'a, Result<Answer, Status>> {
        Box::pin(self.carry(request))
    }
}

fn connector(ca_pem: &str, certificate: Option<&Arc<SwappableCertificate>>) -> Result<TlsConnector, rustls::Error> {
    forward::connector(kelson_webhook::verifier(ca_pem.as_bytes(), CertificateFaults::of_aggregated()), certificate)
}
