//! The kubelet's HTTPS server: logs, exec, attach, port-forward, run, pods, stats, metrics, health. Every request but
//! health of a loopback caller is authenticated and authorized (upstream: `pkg/kubelet/server`).
mod auth;
pub(crate) mod command;
mod forward;
mod logs;
mod metrics;
mod node_logs;
mod query;
mod routes;
mod splice;

use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use kelson_pki::{AnyClientCertificate, Authority, Issued, Key, LeafSpec, Purpose, San, SwappableCertificate};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::effects::Context;
use crate::pods::manager::Known;

/// Connections served at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 1024;
/// How long a TLS handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long a request's head may take.
const HEADER_MAX: Duration = Duration::from_secs(30);
/// Life of the certificate that serves until the cluster issued one.
const SELF_SIGNED_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);

/// What requests are served with.
pub(crate) struct Shared {
    pub(crate) ctx: Arc<Context>,
    pub(crate) known: Known,
    pub(crate) auth: auth::Auth,
}

/// Starts the server; gives its port.
///
/// # Errors
/// When it cannot listen or its certificates cannot be read; the text says which.
pub async fn start(tasks: &mut JoinSet<()>, ctx: Arc<Context>, known: Known) -> Result<u16, String> {
    let Some(at) = ctx.config.server.listen else { return Ok(0) };
    let listener = TcpListener::bind(at).await.map_err(|e| format!("listen on {at}: {e}"))?;
    let port = listener.local_addr().map_err(|e| e.to_string())?.port();
    let certificate = serving_certificate(&ctx)?;
    if ctx.config.server.tls_files.is_none() {
        let wanted = crate::certs::serving::run(Arc::clone(&ctx), Arc::clone(&certificate));
        tasks.spawn(wanted);
    }
    let ca = String::from_utf8_lossy(&ctx.config.server.client_ca_pem).into_owned();
    let cas: Vec<&str> = if ca.is_empty() { vec![] } else { vec![&ca] };
    let verifier = AnyClientCertificate::new(&cas).map_err(|e| e.to_string())?;
    let mut tls = rustls::ServerConfig::builder_with_provider(kelson_pki::provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificate);
    // Upgrades need HTTP/1.1; nothing here gains from HTTP/2, and what is not spoken cannot be reset rapidly.
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let auth = auth::Auth::new(Arc::clone(&ctx), &cas)?;
    let shared = Arc::new(Shared { ctx, known, auth });
    tasks.spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), shared));
    Ok(port)
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, shared: Arc<Shared>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let (tcp, tls, shared) = match listener.accept().await {
            Ok((tcp, _)) => (tcp, tls.clone(), Arc::clone(&shared)),
            Err(e) => {
                tracing::warn!(error = %e, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            let _slot = slot;
            if let Err(e) = serve(tcp, tls, shared).await {
                tracing::debug!(error = %e, "connection ended");
            }
        });
    }
}

async fn serve(tcp: TcpStream, tls: TlsAcceptor, shared: Arc<Shared>) -> Result<(), String> {
    // Not fatal: it only delays small writes.
    let _ = tcp.set_nodelay(true);
    let io = tokio::time::timeout(HANDSHAKE_MAX, tls.accept(tcp)).await.map_err(|_| "TLS handshake timed out")?;
    let io = io.map_err(|e| format!("TLS handshake: {e}"))?;
    let chain: Arc<Vec<_>> = Arc::new(
        io.get_ref().1.peer_certificates().unwrap_or_default().iter().map(|c| c.clone().into_owned()).collect(),
    );
    let service = service_fn(move |request| {
        let (shared, chain) = (Arc::clone(&shared), Arc::clone(&chain));
        async move { Ok::<_, std::convert::Infallible>(routes::handle(shared, chain, request).await) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_MAX)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades()
        .await
        .map_err(|e| e.to_string())
}

/// From the configured files, from an earlier run, or made on the spot.
fn serving_certificate(ctx: &Context) -> Result<Arc<SwappableCertificate>, String> {
    let read = |p: &std::path::Path| std::fs::read_to_string(p).map_err(|e| format!("{}: {e}", p.display()));
    let load = |cert: &std::path::Path, key: &std::path::Path| -> Result<Issued, String> {
        let key = Key::from_pem(&read(key)?).map_err(|e| e.to_string())?;
        Ok(Issued { cert_pem: read(cert)?, key })
    };
    let issued = match &ctx.config.server.tls_files {
        Some((cert, key)) => load(cert, key)?,
        None => match crate::certs::store::Store::new("kubelet-server", &ctx.config.cert_dir).current() {
            Ok(Some(found)) => found,
            _ => self_signed(ctx)?,
        },
    };
    SwappableCertificate::new(&issued).map_err(|e| e.to_string())
}

fn self_signed(ctx: &Context) -> Result<Issued, String> {
    let now: Timestamp = ctx.clock.now();
    let name = &ctx.config.node_name;
    let authority = Authority::create(&format!("{name}-ca"), now).map_err(|e| e.to_string())?;
    let mut sans = vec![San::Dns(name.clone())];
    sans.extend(ctx.config.node_ips.iter().map(|ip| San::Ip(*ip)));
    let spec = LeafSpec {
        common_name: name,
        organizations: &[],
        sans: &sans,
        purpose: Purpose::Server,
        lifetime: SELF_SIGNED_LIFE,
    };
    authority.issue(&spec, now).map_err(|e| e.to_string())
}
