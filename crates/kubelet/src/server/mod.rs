//! The kubelet's HTTPS server: logs, exec, attach, port-forward, run, pods, statistics, metrics, health. Every request is authenticated and
//! authorized (upstream: `pkg/kubelet/server`).
#![allow(clippy::disallowed_methods, reason = "blocking: read at start, before anything is served")]

mod answer;
mod auth;
mod client_ca;
pub(crate) mod command;
mod configz;
mod endpoint;
mod exec;
mod forward;
mod health;
mod health_port;
#[cfg(test)]
mod hostile;
mod local_volumes;
mod logs;
pub mod metrics;
mod node_files;
mod node_journal;
mod node_logs;
mod node_query;
mod pods;
mod routes;
mod run;
mod splice;
pub mod state;
mod target;
mod translate;
#[cfg(test)]
#[path = "tests/unread.rs"]
mod unread;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use kelson_bootstrap::files::Store;
use kelson_bootstrap::{ServingCertificate, demand};
use kelson_client::Client;
use kelson_meta::Clock;
use kelson_pki::{AnyClientCertificate, Authority, Issued, Key, LeafSpec, Purpose, San, SwappableCertificate};
use kelson_tasks::OnPanic;
use parking_lot::{Mutex, RwLock};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::config::{Config, ServerConfig, ciphers};
use auth::Auth;
pub use routes::judged;
use state::ServerState;

/// TCP keep-alive: idle time before the first probe, and interval of probes.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Number of unanswered keep-alive probes after which the connection is closed.
const KEEP_ALIVE_PROBES: u32 = 9;
/// Maximum number of connections; more are closed.
const CONNECTIONS_MAX: usize = 1024;
/// Maximum number of connections per address; loopback may use all.
const CONNECTIONS_PER_PEER_MAX: usize = 256;
/// Delay after a failed accept, for example when no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Timeout of a TLS handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Timeout for request headers, counted from the end of the previous request.
const HEADER_MAX: Duration = Duration::from_secs(30);
/// Lifetime of the self-signed certificate.
const SELF_SIGNED_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Bytes of a request's head, and of an answer that the peer does not read, that a connection may hold.
const BUFFER_BYTES_MAX: usize = 256 << 10;

/// State and dependencies of the server. [`Server::start`] listens and serves in a task; each connection is limited per address, does a TLS
/// handshake with the current serving certificate and CA certificates, and passes its requests to `routes`, which authenticates, authorizes
/// and calls an endpoint.
pub struct Server {
    /// State for endpoints.
    pub state: ServerState,
    /// Client of the API, for reviews and for the serving certificate.
    pub client: Client,
    /// Names for the serving certificate; empty until the node has addresses.
    pub names: watch::Receiver<Vec<San>>,
}

impl Server {
    /// Starts the server. Returns its port, or 0 if no server is configured.
    ///
    /// # Errors
    /// It cannot listen, or its certificates cannot be read.
    pub async fn start(self) -> Result<u16, ServerError> {
        let Self { state, client, names } = self;
        let settings = state.config.server.clone();
        if let Some(at) = settings.healthz {
            let group = state.tasks.clone();
            state.tasks.supervise("health-port", move || health_port::serve(group.clone(), at));
        }
        let Some(at) = settings.listen else { return Ok(0) };
        let listener = TcpListener::bind(at).await.map_err(|source| ServerError::Listen { at, source })?;
        let port = listener.local_addr().map_err(|source| ServerError::Listen { at, source })?.port();
        let certificate = serving_certificate(&state.config, &*state.clock).map_err(ServerError::Certificate)?;
        if settings.tls_files.is_none() && settings.tls_bootstrap {
            let wanted = ServingCertificate {
                client: client.clone(),
                clock: Arc::clone(&state.clock),
                node_name: state.config.node_name.clone(),
                cert_dir: state.config.cert_dir.clone(),
                names,
                demands: settings.serving_demands.clone().unwrap_or_else(demand::none),
                serving: Arc::clone(&certificate),
                metrics: state.certificates.clone(),
            };
            state.tasks.supervise("serving-certificate", move || wanted.clone().run());
        }
        let ca = String::from_utf8_lossy(&settings.client_ca_pem).into_owned();
        let cas: Vec<&str> = if ca.is_empty() { vec![] } else { vec![&ca] };
        let tls = acceptor(&cas, &certificate, &settings).map_err(ServerError::Certificate)?;
        let registry = state.metrics.registry();
        let auth = Auth::new(client, Arc::clone(&state.clock), &state.config, &cas, registry);
        let serving = Arc::new(Serving {
            listener,
            tls: RwLock::new(tls),
            certificate,
            auth: Arc::new(auth.map_err(ServerError::Certificate)?),
            places: ConnectionLimits::default(),
            state: Arc::new(state),
        });
        let tasks = serving.state.tasks.clone();
        if let Some(file) = settings.client_ca_file {
            let (serving, known) = (Arc::clone(&serving), settings.client_ca_pem);
            tasks.supervise("client-ca", move || {
                let serving = Arc::clone(&serving);
                client_ca::follow(file.clone(), known.clone(), move |ca| serving.trust(ca))
            });
        }
        tasks.supervise("server-accept", move || accept(Arc::clone(&serving)));
        Ok(port)
    }
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is in use or not an address of this machine.
    #[error("listen on {at}: {source}")]
    Listen {
        /// The configured address.
        at: SocketAddr,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// A certificate, key or CA certificate is invalid.
    #[error("{0}")]
    Certificate(String),
}

struct Serving {
    listener: TcpListener,
    tls: RwLock<TlsAcceptor>,
    certificate: Arc<SwappableCertificate>,
    auth: Arc<Auth>,
    places: ConnectionLimits,
    state: Arc<ServerState>,
}

impl Serving {
    /// Replaces the CA certificates of clients, also for requests on open connections.
    fn trust(&self, ca_pem: &str) -> Result<(), String> {
        let tls = acceptor(&[ca_pem], &self.certificate, &self.state.config.server)?;
        self.auth.trust(ca_pem)?;
        *self.tls.write() = tls;
        Ok(())
    }
}

/// Creates the TLS acceptor with this serving certificate, which requests client certificates of these CAs.
fn acceptor(
    cas: &[&str],
    certificate: &Arc<SwappableCertificate>,
    settings: &ServerConfig,
) -> Result<TlsAcceptor, String> {
    let verifier = AnyClientCertificate::verifier(cas).map_err(|e| e.to_string())?;
    let versions: &[&rustls::SupportedProtocolVersion] =
        if settings.tls13_only { &[&rustls::version::TLS13] } else { rustls::DEFAULT_VERSIONS };
    let mut tls = rustls::ServerConfig::builder_with_provider(ciphers::provider(&settings.tls_suites))
        .with_protocol_versions(versions)
        .map_err(|e| e.to_string())?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::clone(certificate) as _);
    // Upgrades need HTTP/1.1 and nothing here needs HTTP/2, whose rapid resets are thereby excluded.
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(tls)))
}

async fn accept(serving: Arc<Serving>) {
    loop {
        let (tcp, peer) = match serving.listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) => {
                tracing::warn!(error = %e, "accepting a connection failed; retrying");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // A connection over the limit is closed at once; waiting would delay the connections behind it.
        let Some(place) = serving.places.take(peer.ip()) else {
            tracing::debug!(%peer, "too many connections; closing the new one");
            continue;
        };
        let own = Arc::clone(&serving);
        serving.state.tasks.spawn("server-connection", OnPanic::Contain, async move {
            let _place = place;
            if let Err(e) = serve(tcp, &own).await {
                tracing::debug!(%peer, error = %e, "a connection ended with an error");
            }
        });
    }
}

/// Enables TCP keep-alive like Go's listeners, so that a peer that lost power does not hold its connection. A failure is ignored.
fn keep_alive(tcp: &TcpStream) {
    use rustix::net::sockopt;
    let set = || -> rustix::io::Result<()> {
        sockopt::set_tcp_keepidle(tcp, KEEP_ALIVE)?;
        sockopt::set_tcp_keepintvl(tcp, KEEP_ALIVE)?;
        sockopt::set_tcp_keepcnt(tcp, KEEP_ALIVE_PROBES)?;
        sockopt::set_socket_keepalive(tcp, true)
    };
    if let Err(error) = set() {
        tracing::debug!(%error, "cannot enable TCP keep-alive");
    }
}

async fn serve(tcp: TcpStream, serving: &Serving) -> Result<(), String> {
    // A failure only delays small writes.
    let _ = tcp.set_nodelay(true);
    keep_alive(&tcp);
    let tls = serving.tls.read().clone();
    let handshake = tokio::time::timeout(HANDSHAKE_MAX, tls.accept(tcp)).await;
    let io = handshake.map_err(|_| "TLS handshake timed out")?.map_err(|e| format!("TLS handshake: {e}"))?;
    let chain: Arc<Vec<_>> = Arc::new(
        io.get_ref().1.peer_certificates().unwrap_or_default().iter().map(|c| c.clone().into_owned()).collect(),
    );
    let (state, auth) = (Arc::clone(&serving.state), Arc::clone(&serving.auth));
    let service = service_fn(move |request| {
        let (state, auth, chain) = (Arc::clone(&state), Arc::clone(&auth), Arc::clone(&chain));
        async move { Ok::<_, std::convert::Infallible>(routes::handle(state, auth, chain, request).await) }
    });
    http1_builder().serve_connection(TokioIo::new(io), service).with_upgrades().await.map_err(|e| e.to_string())
}

/// The limits of every connection.
fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    // The timeout for headers also runs between requests, so a silent connection is closed.
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_MAX).max_buf_size(BUFFER_BYTES_MAX);
    builder
}

/// Numbers of connections by address, limited so that one host cannot use all.
#[derive(Default)]
struct ConnectionLimits(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// Slot of a connection, which is released when it is dropped.
struct ConnectionSlot {
    of: Arc<Mutex<HashMap<IpAddr, usize>>>,
    peer: IpAddr,
}

impl ConnectionLimits {
    fn take(&self, peer: IpAddr) -> Option<ConnectionSlot> {
        let peer = peer.to_canonical();
        let mut taken = self.0.lock();
        let (all, own) = (taken.values().sum::<usize>(), taken.get(&peer).copied().unwrap_or(0));
        // The API server of a small cluster is on this machine.
        let own_max = if peer.is_loopback() { CONNECTIONS_MAX } else { CONNECTIONS_PER_PEER_MAX };
        if all >= CONNECTIONS_MAX || own >= own_max {
            return None;
        }
        *taken.entry(peer).or_default() += 1;
        Some(ConnectionSlot { of: Arc::clone(&self.0), peer })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.of.lock();
        if let Some(n) = taken.get_mut(&self.peer) {
            *n -= 1;
            if *n == 0 {
                taken.remove(&self.peer);
            }
        }
    }
}

/// Loads the serving certificate from the configured files or an earlier run, or creates a self-signed one.
fn serving_certificate(config: &Config, clock: &dyn Clock) -> Result<Arc<SwappableCertificate>, String> {
    let read = |p: &Path| std::fs::read_to_string(p).map_err(|e| format!("{}: {e}", p.display()));
    let load = |cert: &Path, key: &Path| -> Result<Issued, String> {
        let key = Key::from_pem(&read(key)?).map_err(|e| e.to_string())?;
        Ok(Issued { cert_pem: read(cert)?, key })
    };
    let issued = match &config.server.tls_files {
        Some((cert, key)) => load(cert, key)?,
        None => match Store::new("kubelet-server", &config.cert_dir).current() {
            Ok(Some(found)) if config.server.tls_bootstrap => found,
            _ => self_signed(config, clock.now())?,
        },
    };
    SwappableCertificate::new(&issued).map_err(|e| e.to_string())
}

fn self_signed(config: &Config, now: Timestamp) -> Result<Issued, String> {
    let name = &config.node_name;
    let ca = Authority::create(&format!("{name}-ca"), now).map_err(|e| e.to_string())?;
    let mut sans = vec![San::Dns(name.clone())];
    sans.extend(config.node_ips.iter().map(|ip| San::Ip(*ip)));
    let spec = LeafSpec {
        common_name: name,
        organizations: &[],
        sans: &sans,
        purpose: Purpose::Server,
        lifetime: SELF_SIGNED_LIFE,
    };
    ca.issue(&spec, now).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rustls::ClientConfig;
    use rustls::crypto::CryptoProvider;
    use rustls_pki_types::ServerName;

    use super::*;

    /// Connects a client that offers only this TLS 1.2 suite to a server with the listed suites.
    async fn shakes_hands(listed: &[&str], offered: &str) -> Result<(), String> {
        let dir = tempfile::tempdir().expect("tempdir");
        let mut config = Config::new("n", dir.path());
        config.server.tls_suites = listed.iter().map(ToString::to_string).collect();
        config.node_ips = vec![IpAddr::from(Ipv4Addr::LOCALHOST)];
        let certificate = serving_certificate(&config, &kelson_meta::SystemClock).expect("self-signed");
        let acceptor = acceptor(&[], &certificate, &config.server).expect("an acceptor");
        let all = kelson_pki::provider();
        let mut one = CryptoProvider::clone(&all);
        one.cipher_suites.retain(|suite| suite.suite().as_str() == Some(offered));
        assert_eq!(one.cipher_suites.len(), 1, "{offered}");
        let client = ClientConfig::builder_with_provider(Arc::new(one))
            .with_protocol_versions(&[&rustls::version::TLS12])
            .expect("TLS 1.2")
            .dangerous()
            .with_custom_certificate_verifier(kelson_pki::AnyServerCertificate::verifier())
            .with_no_client_auth();
        let (near, far) = tokio::io::duplex(1 << 16);
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        let (taken, connected) = tokio::join!(acceptor.accept(far), connector.connect(name, near));
        taken.map_err(|e| e.to_string())?;
        connected.map(drop).map_err(|e| e.to_string())
    }

    #[tokio::test]
    async fn a_client_without_a_listed_cipher_suite_is_rejected() {
        // The certificate has an elliptic curve key, which both suites require.
        let listed = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384";
        let other = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
        assert_eq!(shakes_hands(&[listed], listed).await, Ok(()));
        assert_eq!(shakes_hands(&[], other).await, Ok(()), "without a list all are offered");
        assert!(shakes_hands(&[listed], other).await.is_err());
        assert!(shakes_hands(&["TLS_AES_128_GCM_SHA256"], listed).await.is_err(), "TLS 1.3 alone");
    }

    #[test]
    fn one_host_cannot_take_all_places() {
        let places = ConnectionLimits::default();
        let (greedy, other): (IpAddr, IpAddr) = ("192.0.2.1".parse().expect("ip"), "192.0.2.2".parse().expect("ip"));
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().expect("ip");
        let held: Vec<ConnectionSlot> = std::iter::from_fn(|| places.take(greedy)).collect();
        assert_eq!(held.len(), CONNECTIONS_PER_PEER_MAX);
        assert!(places.take(mapped).is_none(), "the same host by another spelling");
        assert!(places.take(other).is_some());
        let loopback = std::iter::from_fn(|| places.take(IpAddr::from([127, 0, 0, 1]))).collect::<Vec<_>>();
        assert_eq!(held.len() + loopback.len(), CONNECTIONS_MAX);
        drop(held);
        assert!(places.take(greedy).is_some());
    }
}
