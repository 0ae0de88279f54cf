//! A [`Transport`] over TLS: pooled connections (HTTP/2 where the server speaks it), credentials re-read when their files
//! change, and a fresh connection after a certificate was rotated so that the new identity is used at once.
#![allow(clippy::disallowed_methods, reason = "blocking: read at start, and again in the lane for files")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kelson_pki::AnyServerCertificate;
use kelson_tasks::FILES;
use kelson_transport::BoxFuture;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::kubeconfig::{Config, Credentials};
use crate::{Request, Response, Transport, TransportError};

mod connector;
use connector::{CONNECT_TIMEOUT, TlsConnector};

/// How often credential files are looked at, at most.
const RECHECK: Duration = Duration::from_secs(10);
/// A dead HTTP/2 connection is noticed after this plus [`PING_TIMEOUT`].
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long the answer to a ping may take.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

type HttpPool = Pool<TlsConnector, Full<Bytes>>;

/// Speaks to one server.
pub struct Remote {
    base: Uri,
    config: Arc<Config>,
    current: Arc<Mutex<Current>>,
}

struct Current {
    pool: HttpPool,
    token: Option<header::HeaderValue>,
    checked: std::time::Instant,
    stamp: Vec<Option<SystemTime>>,
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
        Ok(Self { base, config: Arc::new(config), current })
    }

    /// Whether it is time to look at files again; only one caller is told so.
    fn is_due(&self) -> bool {
        let in_files =
            matches!(self.config.credentials, Credentials::TokenFile(_) | Credentials::CertificateFiles { .. });
        let mut current = self.current.lock();
        let due = in_files && current.checked.elapsed() >= RECHECK;
        if due {
            current.checked = std::time::Instant::now();
        }
        due
    }
}

/// Takes over credentials that have changed in their files.
fn reload(config: &Config, current: &Mutex<Current>) {
    let stamp = stamps(&config.credentials);
    if stamp == current.lock().stamp {
        return;
    }
    match open(config) {
        Ok(new) => *current.lock() = new,
        // A file in the middle of being replaced: keep what works and look again.
        Err(e) => tracing::warn!(error = %e, "cannot reload client credentials"),
    }
}

fn open(config: &Config) -> Result<Current, TransportError> {
    let stamp = stamps(&config.credentials);
    let tls = Arc::new(client_config(config)?);
    let name = config.tls_server_name.as_deref().map(|n| ServerName::try_from(n.to_owned())).transpose();
    let connector = TlsConnector::new(tcp(), tls, name.map_err(TransportError::new)?);
    let pool = Pool::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .build(connector);
    let token = match &config.credentials {
        Credentials::Token(t) => Some(bearer(t)?),
        Credentials::TokenFile(p) => {
            Some(bearer(&read(p).and_then(|b| String::from_utf8(b).map_err(TransportError::new))?)?)
        }
        _ => None,
    };
    Ok(Current { pool, token, checked: std::time::Instant::now(), stamp })
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

fn stamps(credentials: &Credentials) -> Vec<Option<SystemTime>> {
    let modified = |p: &PathBuf| std::fs::metadata(p).and_then(|m| m.modified()).ok();
    match credentials {
        Credentials::TokenFile(p) => vec![modified(p)],
        Credentials::CertificateFiles { cert, key } => vec![modified(cert), modified(key)],
        _ => Vec::new(),
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, TransportError> {
    std::fs::read(path).map_err(|e| TransportError(format!("{}: {e}", path.display())))
}

/// The TLS side of a kubeconfig; also for connections that are not pooled (upgrades).
pub fn client_config(config: &Config) -> Result<ClientConfig, TransportError> {
    let mut roots = rustls::RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(&config.ca_pem) {
        let cert = cert.map_err(|e| TransportError(format!("certificate authority: {e}")))?;
        roots.add(cert).map_err(|e| TransportError(format!("certificate authority: {e}")))?;
    }
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
        let (due, current, config) = (self.is_due(), self.current.clone(), self.config.clone());
        Box::pin(async move {
            if due {
                let current = current.clone();
                // What is wrong is told where it is found; what is known serves on.
                let _ = FILES.run(move || reload(&config, &current)).await;
            }
            let (pool, token) = {
                let current = current.lock();
                (current.pool.clone(), current.token.clone())
            };
            if let Some(token) = token {
                request.headers_mut().insert(header::AUTHORIZATION, token);
            }
            *request.uri_mut() = Uri::from_parts(parts).map_err(TransportError::new)?;
            let response = pool.request(request.map(Full::new)).await.map_err(|e| TransportError(chain(&e)))?;
            Ok(response.map(|b| b.map_err(|e| TransportError(chain(&e))).boxed_unsync()))
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
