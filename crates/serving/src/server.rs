//! The HTTPS server for health and metrics.
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use kelson_metrics::{CONTENT_TYPE, IntCounterVec, IntGaugeVec, Registry};
use kelson_pki::{AnyClientCertificate, SwappableCertificate};
use kelson_tasks::{OnPanic, Tasks};
use rustls_pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

use crate::{Attributes, Delegated};

/// The maximum number of concurrent connections. Further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// The timeout for a handshake and for the headers of a request, and the idle timeout of a connection.
const WAIT_MAX: Duration = Duration::from_secs(15);
/// The maximum duration of a connection. Scrapers then open another one.
const CONNECTION_MAX: Duration = Duration::from_secs(600);
/// The delay after a connection could not be accepted, usually because of a lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The name of the one check that a component has.
const CHECK: &str = "ping";

/// The port of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Upstream's default port. If it is in use, the component runs without it, as two servers may share a machine.
    Usual(u16),
    /// The configured port. It is an error if it is in use. 0 disables the port.
    Asked(u16),
}

impl Port {
    /// Returns the configured port, or upstream's default.
    pub fn of(asked: Option<u16>, usual: u16) -> Self {
        asked.map_or(Self::Usual(usual), Self::Asked)
    }
}

/// The paths that need no authorization: exact paths and prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenPaths {
    whole: Vec<String>,
    beginnings: Vec<String>,
}

impl Default for OpenPaths {
    /// The default paths are those of health checks.
    fn default() -> Self {
        let whole = ["healthz", "livez", "readyz"].map(str::to_owned).into();
        Self { whole, beginnings: Vec::new() }
    }
}

impl OpenPaths {
    /// Parses paths. A trailing `*` matches any suffix, and a leading slash may be omitted.
    ///
    /// # Errors
    /// Returns upstream's error if a `*` is not at the end.
    pub fn parse(paths: &[String]) -> Result<Self, String> {
        let mut out = Self { whole: Vec::new(), beginnings: Vec::new() };
        for path in paths {
            let path = path.strip_prefix('/').unwrap_or(path);
            match path.split_once('*') {
                None => out.whole.push(path.to_owned()),
                Some((beginning, "")) => out.beginnings.push(beginning.to_owned()),
                Some(_) => return Err(format!("only trailing * allowed in {path:?}")),
            }
        }
        Ok(out)
    }

    fn has(&self, path: &str) -> bool {
        let path = path.strip_prefix('/').unwrap_or(path);
        self.whole.iter().any(|p| p == path) || self.beginnings.iter().any(|b| path.starts_with(b.as_str()))
    }
}

/// A component with a port for health and metrics.
pub struct Component {
    /// The name of the component, for the log.
    pub name: &'static str,
    /// The metrics for `/metrics`.
    pub registry: Registry,
    /// The health check for `/healthz`, `/livez` and `/readyz`. The error is the reason.
    pub healthy: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// The paths without authorization (`--authorization-always-allow-paths`).
    pub open: OpenPaths,
    /// The authentication and authorization of all other paths.
    pub access: Arc<Delegated>,
    /// The serving certificate.
    pub certificate: Arc<SwappableCertificate>,
    /// The CA of client certificates.
    pub client_ca_pem: String,
}

/// The results of requested health checks, served at `/metrics/slis`, which is separate so that it can be scraped often
/// (KEP-3466).
struct HealthCounts {
    registry: Registry,
    now: IntGaugeVec,
    checks: IntCounterVec,
}

impl HealthCounts {
    fn new() -> Self {
        let registry = Registry::new();
        let now = registry.gauges(
            "kubernetes_healthcheck",
            "1 if the health check last succeeded, by name and endpoint.",
            &["name", "type"],
        );
        let checks = registry.counters(
            "kubernetes_healthchecks_total",
            "Results of health checks, by name, endpoint and status.",
            &["name", "status", "type"],
        );
        Self { registry, now, checks }
    }

    fn checked(&self, endpoint: &str, passed: bool) {
        self.now.with_label_values(&[CHECK, endpoint]).set(i64::from(passed));
        let status = if passed { "success" } else { "error" };
        self.checks.with_label_values(&[CHECK, status, endpoint]).inc();
    }
}

/// A component and the results of its health checks.
struct Served {
    component: Component,
    health: HealthCounts,
}

/// Listens on `address` and serves until `tasks` ends. Returns the address, or `None` if the port is disabled or in
/// use.
///
/// # Errors
/// Fails if a configured port is not available, or if the CA is invalid.
pub async fn start(tasks: &Tasks, address: IpAddr, port: Port, component: Component) -> io::Result<Option<SocketAddr>> {
    let number = match port {
        Port::Asked(0) => return Ok(None),
        Port::Usual(n) | Port::Asked(n) => n,
    };
    let listener = match TcpListener::bind((address, number)).await {
        Ok(listener) => listener,
        Err(e) if matches!(port, Port::Usual(_)) => {
            tracing::info!(component = component.name, port = number, error = %e, "default port is in use; not serving health and metrics");
            return Ok(None);
        }
        Err(e) => return Err(io::Error::new(e.kind(), format!("{}: port {number}: {e}", component.name))),
    };
    let at = listener.local_addr()?;
    let tls = tls(&component).map_err(io::Error::other)?;
    let inner = tasks.clone();
    let served = Arc::new(Served { component, health: HealthCounts::new() });
    tasks.spawn("component-server", OnPanic::Contain, accept(inner, listener, tls, served));
    Ok(Some(at))
}

fn tls(component: &Component) -> Result<TlsAcceptor, String> {
    let verifier = AnyClientCertificate::verifier(&[&component.client_ca_pem]).map_err(|e| e.to_string())?;
    let mut tls = rustls::ServerConfig::builder_with_provider(kelson_pki::provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::clone(&component.certificate) as _);
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(tls)))
}

async fn accept(tasks: Tasks, listener: TcpListener, tls: TlsAcceptor, served: Arc<Served>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((tcp, _)) => {
                let work = connection(tcp, tls.clone(), Arc::clone(&served), place);
                tasks.spawn("component-connection", OnPanic::Contain, work);
            }
            Err(e) => {
                tracing::warn!(component = served.component.name, error = %e, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn connection(tcp: TcpStream, tls: TlsAcceptor, served: Arc<Served>, _place: OwnedSemaphorePermit) {
    let name = served.component.name;
    let ended = tokio::time::timeout(CONNECTION_MAX, async {
        let io = tokio::time::timeout(WAIT_MAX, tls.accept(tcp)).await.map_err(|_| "TLS handshake timed out")?;
        let io = io.map_err(|e| format!("TLS handshake: {e}"))?;
        let chain = io.get_ref().1.peer_certificates().unwrap_or_default();
        let chain: Arc<Vec<_>> = Arc::new(chain.iter().map(|c| c.clone().into_owned()).collect());
        let service = service_fn(move |request: Request<Incoming>| {
            let (served, chain) = (Arc::clone(&served), Arc::clone(&chain));
            async move {
                let (method, path, headers) = (request.method(), request.uri().path(), request.headers());
                Ok::<_, Infallible>(answer(&served, method, path, headers, &chain).await)
            }
        });
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(WAIT_MAX)
            .serve_connection(TokioIo::new(io), service)
            .await
            .map_err(|e| e.to_string())
    });
    if let Ok(Err(error)) = ended.await {
        tracing::debug!(component = name, error, "connection failed");
    }
}

/// Public paths are served at once. All others are authorized first, so that unauthorized clients do not learn which
/// paths exist.
async fn answer(
    served: &Served,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    chain: &[CertificateDer<'static>],
) -> Response<Full<Bytes>> {
    let verb = match *method {
        Method::GET | Method::HEAD => "get",
        _ => return text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"),
    };
    let component = &served.component;
    if component.open.has(path) {
        return shown(served, path);
    }
    let Some(caller) = component.access.authenticate(chain, headers).await else {
        return text(StatusCode::UNAUTHORIZED, "Unauthorized");
    };
    let wants = Attributes::Path { verb, path: path.to_owned() };
    if !component.access.allows(&caller, wants).await {
        let why = format!("forbidden: User \"{}\" cannot {verb} path \"{path}\"", caller.name);
        return text(StatusCode::FORBIDDEN, &why);
    }
    shown(served, path)
}

/// Returns the response for a path.
fn shown(served: &Served, path: &str) -> Response<Full<Bytes>> {
    match path {
        "/healthz" | "/livez" | "/readyz" => {
            let healthy = (served.component.healthy)();
            served.health.checked(&path[1..], healthy.is_ok());
            match healthy {
                Ok(()) => text(StatusCode::OK, "ok"),
                Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{why}\n{} check failed\n", &path[1..])),
            }
        }
        "/metrics" => measured(&served.component.registry),
        "/metrics/slis" => measured(&served.health.registry),
        _ => text(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

fn measured(registry: &Registry) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(registry.text()));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(CONTENT_TYPE));
    response
}

fn text(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body.to_owned()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_of_health_checks_are_counted() {
        let health = HealthCounts::new();
        health.checked("healthz", true);
        health.checked("healthz", false);
        health.checked("livez", true);
        let text = health.registry.text();
        for line in [
            "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 0",
            "kubernetes_healthcheck{name=\"ping\",type=\"livez\"} 1",
            "kubernetes_healthchecks_total{name=\"ping\",status=\"error\",type=\"healthz\"} 1",
            "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }

    #[test]
    fn open_paths() {
        let of = |paths: &[&str]| OpenPaths::parse(&paths.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>());
        let open = of(&["/healthz", "metrics", "/debug/*", "/"]).expect("paths");
        for (path, expected) in [
            ("/healthz", true),
            ("/healthz/x", false),
            ("/metrics", true),
            ("/debug/x/y", true),
            ("/", true),
            ("/x", false),
        ] {
            assert_eq!(open.has(path), expected, "{path}");
        }
        assert!(!of(&[]).expect("none").has("/healthz"));
        assert_eq!(of(&["/a*b"]), Err("only trailing * allowed in \"a*b\"".into()));
        assert!(OpenPaths::default().has("/readyz") && !OpenPaths::default().has("/metrics"));
    }
}
