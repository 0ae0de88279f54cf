//! A [`Transport`] over TLS: pooled connections (HTTP/2 where the server speaks it), credentials re-read when their files
//! change, and a fresh connection after a certificate was rotated so that the new identity is used at once.
#![allow(clippy::disallowed_methods, reason = "blocking: read at start, and again in the lane for files")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use jiff::Timestamp;
use kelson_pki::AnyServerCertificate;
use kelson_tasks::FILES;
use kelson_transport::BoxFuture;
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::kubeconfig::{Config, Credentials};
use crate::{Request, Response, Transport, TransportError};

mod connector;
mod plain;
mod pools;
use connector::{CONNECT_TIMEOUT, TlsConnector};
pub use plain::Plain;
use pools::{PING_INTERVAL, Pools};

/// How often credential files are looked at, at most.
const RECHECK: Duration = Duration::from_secs(10);
/// The same while they are not there.
const RECHECK_MISSING: Duration = Duration::from_millis(500);
/// A program is asked again so long before what it said ends.
const EXEC_AHEAD: Duration = Duration::from_secs(10);

/// Speaks to one server.
pub struct Remote {
    base: Uri,
    config: Arc<Config>,
    current: Arc<Mutex<Current>>,
    /// Held while files are read or a program runs: whoever comes meanwhile waits for what it says.
    turn: Arc<tokio::sync::Mutex<()>>,
}

struct Current {
    /// `None`: the credentials are not there yet, and nobody goes without them.
    pools: Option<Pools>,
    token: Option<header::HeaderValue>,
    checked: Option<std::time::Instant>,
    stamp: Vec<Option<SystemTime>>,
    /// When what a program said ends.
    ends: Option<Timestamp>,
}

impl Remote {
    /// A transport for what a kubeconfig says.
    pub fn new(config: Config) -> Result<Self, TransportError> {
        let base: Uri =
            config.server.parse().map_err(|e| TransportError(format!("server {:?}: {e}", config.server)))?;
        if base.scheme_str() != Some("https") {
            return Err(TransportError(format!("server {:?}: only https is spoken", config.server)));
        }
        let current = Arc::new(Mutex::new(open(&config)?));
        Ok(Self { base, config: Arc::new(config), current, turn: Arc::default() })
    }
}

/// Whether it is time to look at files again, or to ask a program; only one caller is told so.
fn is_due(config: &Config, current: &Mutex<Current>) -> bool {
    let mut current = current.lock();
    let rested = |pause| current.checked.is_none_or(|at| at.elapsed() >= pause);
    let due = match (&config.credentials, &current.pools) {
        (Credentials::TokenFile(_) | Credentials::CertificateFiles { .. }, Some(_)) => rested(RECHECK),
        (Credentials::Exec(_), Some(_)) => {
            let ends = current.ends.is_some_and(|ends| Timestamp::now() + EXEC_AHEAD >= ends);
            ends && rested(RECHECK_MISSING)
        }
        (_, None) => rested(RECHECK_MISSING),
        _ => config.ca_file.is_some() && rested(RECHECK),
    };
    if due {
        current.checked = Some(std::time::Instant::now());
    }
    due
}

/// Takes over credentials that have changed in their files, or what a program says now.
fn reload(config: &Config, current: &Mutex<Current>) {
    let new = match &config.credentials {
        Credentials::Exec(plugin) => plugin.run().and_then(|said| said_by(config, said)),
        _ if stamps(config) == current.lock().stamp => return,
        _ => open(config),
    };
    match new {
        Ok(new) => *current.lock() = new,
        // A file in the middle of being replaced, a program that could not ask: keep what works and look again.
        Err(e) => tracing::warn!(error = %e, "cannot reload client credentials"),
    }
}

/// With the credentials that a program gave.
fn said_by(config: &Config, said: crate::exec::Said) -> Result<Current, TransportError> {
    let ends = said.ends;
    let token = said.token.as_deref().map(bearer).transpose()?;
    let credentials = match said.certificate {
        Some((cert_pem, key_pem)) => Credentials::Certificate { cert_pem, key_pem },
        None => Credentials::None,
    };
    let opened = open(&Config { credentials, ..config.clone() })?;
    Ok(Current { token, ends, ..opened })
}

fn open(config: &Config) -> Result<Current, TransportError> {
    let stamp = stamps(config);
    let missing = matches!(&config.credentials, Credentials::CertificateFiles { cert, .. } if !cert.exists());
    if matches!(config.credentials, Credentials::Exec(_)) || (missing && config.credentials_may_come) {
        return Ok(Current { pools: None, token: None, checked: None, stamp, ends: None });
    }
    let tls = Arc::new(match &config.ca_file {
        Some(file) => client_config(&Config { ca_pem: read(file)?, ..config.clone() })?,
        None => client_config(config)?,
    });
    let name = config.tls_server_name.as_deref().map(|n| ServerName::try_from(n.to_owned())).transpose();
    let connector = TlsConnector::new(tcp(), tls, name.map_err(TransportError::new)?);
    let token = match &config.credentials {
        Credentials::Token(t) => Some(bearer(t)?),
        Credentials::TokenFile(p) => {
            Some(bearer(&read(p).and_then(|b| String::from_utf8(b).map_err(TransportError::new))?)?)
        }
        _ => None,
    };
    Ok(Current {
        pools: Some(Pools::new(connector)),
        token,
        checked: Some(std::time::Instant::now()),
        stamp,
        ends: None,
    })
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(PING_INTERVAL));
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp
}

fn bearer(token: &str) -> Result<header::HeaderValue, TransportError> {
    let value = header::HeaderValue::from_str(&format!("Bearer {}", token.trim()));
    let mut value = value.map_err(|_| TransportError("the bearer token holds characters that no header may".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn stamps(config: &Config) -> Vec<Option<SystemTime>> {
    let modified = |p: &PathBuf| std::fs::metadata(p).and_then(|m| m.modified()).ok();
    let mut files: Vec<&PathBuf> = config.ca_file.iter().collect();
    match &config.credentials {
        Credentials::TokenFile(p) => files.push(p),
        Credentials::CertificateFiles { cert, key } => files.extend([cert, key]),
        _ => {}
    }
    files.into_iter().map(modified).collect()
}

fn read(path: &PathBuf) -> Result<Vec<u8>, TransportError> {
    std::fs::read(path).map_err(|e| TransportError(format!("{}: {e}", path.display())))
}

/// What the server of `config` says the time is (the `Date` of an answer), over a connection that is verified as of `at`;
/// `None`: not verified at all, which makes the answer a guess.
///
/// # Errors
/// When no such answer comes.
pub async fn date(config: &Config, at: Option<Timestamp>) -> Result<Timestamp, TransportError> {
    let insecure_skip_tls_verify = at.is_none();
    let anonymous = Config { credentials: Credentials::None, insecure_skip_tls_verify, ..config.clone() };
    let mut tls = client_config(&anonymous)?;
    if let Some(at) = at {
        tls.time_provider = Arc::new(FixedTime(at));
    }
    let mut current = open(&anonymous)?;
    let name = config.tls_server_name.as_deref().map(|n| ServerName::try_from(n.to_owned())).transpose();
    let connector = TlsConnector::new(tcp(), Arc::new(tls), name.map_err(TransportError::new)?);
    current.pools = Some(Pools::new(connector));
    let base: Uri = config.server.parse().map_err(|e| TransportError(format!("server {:?}: {e}", config.server)))?;
    let current = Arc::new(Mutex::new(current));
    let remote = Remote { base, config: Arc::new(anonymous), current, turn: Arc::default() };
    // Whatever the answer is, 401 too, it has a date.
    let request = http::Request::get("/livez").body(Bytes::new()).map_err(TransportError::new)?;
    let response = remote.send(request).await?;
    let text = response.headers().get(header::DATE).and_then(|v| v.to_str().ok());
    let date = text.and_then(|text| jiff::fmt::rfc2822::parse(text).ok());
    date.map(|date| date.timestamp()).ok_or_else(|| TransportError("the server's answer has no date".into()))
}

/// Has certificates judged as of one time.
#[derive(Debug)]
struct FixedTime(Timestamp);

impl rustls::time_provider::TimeProvider for FixedTime {
    fn current_time(&self) -> Option<rustls_pki_types::UnixTime> {
        let seconds = u64::try_from(self.0.as_second()).ok()?;
        Some(rustls_pki_types::UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

/// Whose word for a server's certificate is taken: that of the authorities of a kubeconfig, and where it names none, that of
/// the system's.
fn roots(config: &Config, system: fn() -> Vec<CertificateDer<'static>>) -> Result<RootCertStore, TransportError> {
    let mut roots = RootCertStore::empty();
    if config.ca_pem.is_empty() && config.ca_file.is_none() && !config.insecure_skip_tls_verify {
        roots.add_parsable_certificates(system());
        return Ok(roots);
    }
    for cert in CertificateDer::pem_slice_iter(&config.ca_pem) {
        let cert = cert.map_err(|e| TransportError(format!("certificate authority: {e}")))?;
        roots.add(cert).map_err(|e| TransportError(format!("certificate authority: {e}")))?;
    }
    Ok(roots)
}

/// The TLS side of a kubeconfig; also for connections that are not pooled (upgrades).
pub fn client_config(config: &Config) -> Result<ClientConfig, TransportError> {
    let roots = roots(config, kelson_pki::system_roots)?;
    if config.insecure_skip_tls_verify {
        if !matches!(config.credentials, Credentials::None) {
            return Err(TransportError("credentials are not sent to a server that is not verified".into()));
        }
        return Ok(with_alpn(AnyServerCertificate::client_config().map_err(TransportError::new)?));
    }
    let builder = ClientConfig::builder_with_provider(kelson_pki::provider())
        .with_safe_default_protocol_versions()
        .map_err(TransportError::new)?
        .with_root_certificates(roots);
    let (cert, key) = match &config.credentials {
        Credentials::Certificate { cert_pem, key_pem } => (cert_pem.clone(), key_pem.clone()),
        Credentials::CertificateFiles { cert, key } => (read(cert)?, read(key)?),
        _ => return Ok(with_alpn(builder.with_no_client_auth())),
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&cert).collect();
    let chain = chain.map_err(|e| TransportError(format!("client certificate: {e}")))?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|e| TransportError(format!("client key: {e}")))?;
    Ok(with_alpn(builder.with_client_auth_cert(chain, key).map_err(TransportError::new)?))
}

fn with_alpn(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

impl Transport for Remote {
    fn send(&self, mut request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let mut parts = self.base.clone().into_parts();
        parts.path_and_query = request.uri().path_and_query().cloned();
        let (current, config, turn) = (self.current.clone(), self.config.clone(), self.turn.clone());
        Box::pin(async move {
            let waits = current.lock().pools.is_none();
            let turn = if waits { Some(turn.lock().await) } else { None };
            if is_due(&config, &current) {
                let current = current.clone();
                // What is wrong is told where it is found; what is known serves on.
                let _ = FILES.run(move || reload(&config, &current)).await;
            }
            drop(turn);
            let (pool, token) = {
                let mut current = current.lock();
                (current.pools.as_mut().map(Pools::take), current.token.clone())
            };
            if let Some(token) = token {
                request.headers_mut().insert(header::AUTHORIZATION, token);
            }
            *request.uri_mut() = Uri::from_parts(parts).map_err(TransportError::new)?;
            let (pool, place) =
                pool.ok_or_else(|| TransportError("the client's credentials are not there yet".into()))?;
            let response = pool.request(request.map(Full::new)).await.map_err(|e| TransportError(chain(&e)))?;
            // A place is free again when the answer's last byte was read, or nobody wants it any more.
            let held = |b: hyper::body::Incoming| {
                b.map_frame(move |frame| {
                    let _ = &place;
                    frame
                })
            };
            Ok(response.map(|b| held(b).map_err(|e| TransportError(chain(&e))).boxed_unsync()))
        })
    }
}

/// An error with its causes; hyper's own text alone says little.
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(s) = source {
        text.push_str(": ");
        text.push_str(&s.to_string());
        source = s.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use http_body_util::StreamBody;
    use hyper::body::{Frame, Incoming};
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use kelson_pki::{Authority, LeafSpec, Purpose, San, SwappableCertificate};
    use std::convert::Infallible;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    fn authority() -> Authority {
        Authority::create("a", Timestamp::now()).unwrap()
    }

    /// What the machine trusts in these tests: two authorities.
    fn machine() -> Vec<CertificateDer<'static>> {
        [authority(), authority()].iter().flat_map(|a| kelson_pki::bundle_roots(a.cert_pem().as_bytes())).collect()
    }

    #[test]
    fn the_machines_authorities_are_believed_where_the_kubeconfig_names_none() {
        let found = |config: Config| roots(&config, machine).map(|roots| roots.len()).map_err(|e| e.0);
        assert_eq!(found(Config::default()), Ok(2));
        let named = Config { ca_pem: authority().cert_pem().into(), ..Config::default() };
        assert_eq!(found(named), Ok(1));
        let in_a_file = Config { ca_file: Some("/ca".into()), ..Config::default() };
        assert_eq!(found(in_a_file), Ok(0), "what the file lacks is not made up for");
        assert_eq!(found(Config { insecure_skip_tls_verify: true, ..Config::default() }), Ok(0));
        assert!(
            found(Config {
                ca_pem: b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n".into(),
                ..Config::default()
            })
            .is_err()
        );
    }

    /// A server as the reference's: a hundred streams on a connection. Answers begin and never end.
    async fn server(authority: &Authority) -> String {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let at = listener.local_addr().expect("its address");
        let spec = LeafSpec {
            common_name: "server",
            organizations: &[],
            sans: &[San::Ip(at.ip())],
            purpose: Purpose::Server,
            lifetime: Duration::from_secs(3600),
        };
        let issued = authority.issue(&spec, Timestamp::now()).expect("issued");
        let mut tls = rustls::ServerConfig::builder_with_provider(kelson_pki::provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_cert_resolver(SwappableCertificate::new(&issued).expect("a certificate"));
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(std::sync::Arc::new(tls));
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.expect("accepted");
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let io = TokioIo::new(acceptor.accept(tcp).await.expect("TLS"));
                    let service = service_fn(|_: Request<Incoming>| async {
                        let first = futures::stream::iter([Ok::<_, Infallible>(Frame::data(bytes::Bytes::from("x")))]);
                        let body = futures::StreamExt::chain(first, futures::stream::pending());
                        Ok::<_, Infallible>(Response::new(StreamBody::new(body)))
                    });
                    let mut http = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
                    let _ = http.max_concurrent_streams(100).serve_connection(io, service).await;
                });
            }
        });
        format!("https://{at}")
    }

    #[tokio::test]
    async fn watches_leave_a_place_for_those_who_come_after_them() {
        let authority = Authority::create("a", Timestamp::now()).expect("an authority");
        let server = server(&authority).await;
        let config = Config { server, ca_pem: authority.cert_pem().into(), ..Config::default() };
        let remote = Remote::new(config).expect("a transport");
        let mut open = Vec::new();
        for n in 0..250 {
            let request = Request::get("/watch").body(bytes::Bytes::new()).expect("a request");
            let answer = tokio::time::timeout(Duration::from_secs(60), remote.send(request)).await;
            let mut answer = answer.unwrap_or_else(|_| panic!("request {n} waits for a place")).expect("answered");
            assert!(answer.body_mut().frame().await.is_some(), "it begins");
            open.push(answer);
        }
        // Places are free again when their answers are dropped.
        let pools = || remote.current.lock().pools.as_ref().map_or(0, Pools::count);
        assert_eq!(pools(), 4);
        open.clear();
        let request = Request::get("/watch").body(bytes::Bytes::new()).expect("a request");
        remote.send(request).await.expect("answered");
        assert_eq!(pools(), 4);
    }
}
