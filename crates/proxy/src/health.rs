//! The proxy's HTTP endpoints: health check node ports of services (for load balancers), `/healthz`, `/livez`, and
//! `/metrics`. The formats are upstream's (`pkg/proxy/healthcheck`); [`crate::sync`] updates their state.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use kelson_meta::{Clock, ObjectKey};
use kelson_metrics::CONTENT_TYPE;
use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::config::Config;
use crate::metrics::Metrics;

/// The maximum number of connections of one listener.
const CONNECTIONS_MAX: usize = 64;
/// The time limit for a request's headers, and for idle connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// The pause after a failed bind.
const BIND_RETRY: Duration = Duration::from_secs(30);

/// The state that the endpoints report. One per proxy.
pub struct Health {
    clock: Arc<dyn Clock>,
    /// A change that is not applied for longer than this makes the proxy unhealthy.
    stale_after: Duration,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When the oldest change that is not applied was received.
    queued: Option<jiff::Timestamp>,
    last_queued: Option<jiff::Timestamp>,
    last_updated: Option<jiff::Timestamp>,
    local_endpoints: BTreeMap<ObjectKey, usize>,
}

impl Health {
    /// Creates the state of a proxy that has applied nothing.
    pub fn new(clock: Arc<dyn Clock>, stale_after: Duration, metrics: Arc<Metrics>) -> Self {
        Self { clock, stale_after, metrics, state: Mutex::default() }
    }

    /// Records that a change was received.
    pub fn queued(&self) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.queued.get_or_insert(now);
        state.last_queued = Some(now);
    }

    /// Records that the rules are up to date. Changes after `began` may not be included.
    pub fn synced(&self, began: jiff::Timestamp) {
        let mut state = self.state.lock();
        state.last_updated = Some(self.clock.now());
        state.queued = state.last_queued.filter(|q| *q > began);
    }

    /// Sets the number of ready local endpoints of a service with a health check node port; `None` removes it.
    pub fn set_local_endpoints(&self, service: &ObjectKey, count: Option<usize>) {
        let endpoints = &mut self.state.lock().local_endpoints;
        match count {
            Some(n) => drop(endpoints.insert(service.clone(), n)),
            None => drop(endpoints.remove(service)),
        }
    }

    /// Reports whether changes are applied in time.
    pub fn is_healthy(&self) -> bool {
        let waits = self.state.lock().queued;
        let limit = i64::try_from(self.stale_after.as_secs()).unwrap_or(i64::MAX);
        waits.is_none_or(|since| self.clock.now().as_second() - since.as_second() <= limit)
    }

    fn healthz(&self) -> Response<Full<Bytes>> {
        let healthy = self.is_healthy();
        let now = self.clock.now();
        let updated = if healthy { Some(now) } else { self.state.lock().last_updated };
        let updated = updated.unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let body = format!(r#"{{"lastUpdated": "{updated}","currentTime": "{now}", "nodeEligible": true}}"#);
        answer(if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, "application/json", body)
    }

    fn service(&self, key: &ObjectKey) -> Response<Full<Bytes>> {
        let count = self.state.lock().local_endpoints.get(key).copied().unwrap_or_default();
        let healthy = self.is_healthy();
        let body = serde_json::json!({
            "service": {"namespace": key.namespace, "name": key.name},
            "localEndpoints": count,
            "serviceProxyHealthy": healthy,
        });
        let status = if count > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let mut response = answer(status, "application/json", body.to_string());
        response.headers_mut().insert("x-load-balancing-endpoint-weight", HeaderValue::from(count));
        response
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The purpose of a listener.
#[derive(Clone)]
enum Role {
    /// Serves `/healthz` and `/livez`.
    Health,
    /// Serves `/metrics`, `/healthz` and `/proxyMode`.
    Metrics,
    /// Answers any request with the health of this service.
    Service(ObjectKey),
}

impl Role {
    fn respond(&self, health: &Health, path: &str) -> Response<Full<Bytes>> {
        match (self, path) {
            (Self::Service(key), _) => health.service(key),
            (Self::Health | Self::Metrics, "/healthz") => {
                let answer = health.healthz();
                health.metrics.healthz(answer.status());
                answer
            }
            (Self::Health, "/livez") => {
                let answer = health.healthz();
                health.metrics.livez(answer.status());
                answer
            }
            (Self::Metrics, "/metrics") => answer(StatusCode::OK, CONTENT_TYPE, health.metrics.registry().text()),
            (Self::Metrics, "/proxyMode") => answer(StatusCode::OK, "text/plain", "nftables".to_owned()),
            _ => answer(StatusCode::NOT_FOUND, "text/plain", "404 page not found\n".to_owned()),
        }
    }
}

async fn serve(health: Arc<Health>, role: Role, at: SocketAddr, tasks: Tasks) {
    let listener = loop {
        match TcpListener::bind(at).await {
            Ok(listener) => break listener,
            Err(e) => tracing::warn!(address = %at, error = %e, "listening for health checks failed; retrying"),
        }
        tokio::time::sleep(BIND_RETRY).await;
    };
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: wait until some are closed.
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        let (health, role) = (Arc::clone(&health), role.clone());
        tasks.spawn("proxy-health-connection", OnPanic::Contain, async move {
            let service = service_fn(|request: Request<Incoming>| {
                let response = role.respond(&health, request.uri().path());
                async move { Ok::<_, Infallible>(response) }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
            // A client that disconnects is not an error.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
            drop(slot);
        });
    }
}

/// A listener; dropping it closes its connections.
struct Listening(Tasks);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.token().cancel();
    }
}

/// The listeners for health and metrics; they close when this is dropped.
pub struct Listeners {
    health: Arc<Health>,
    /// The addresses of health check node ports.
    addresses: Vec<IpAddr>,
    own: Vec<Listening>,
    services: BTreeMap<ObjectKey, (u16, Vec<Listening>)>,
    tasks: Tasks,
}

impl Listeners {
    /// Opens the configured listeners for the proxy's own health and metrics; services are added later.
    pub fn new(health: Arc<Health>, config: &Config, tasks: Tasks) -> Self {
        let addresses = config.node_ips.clone();
        let mut listeners = Self { health, addresses, own: Vec::new(), services: BTreeMap::new(), tasks };
        let (health, metrics) = (config.health_bind.iter(), config.metrics_bind.iter());
        let own = health.map(|at| (Role::Health, *at)).chain(metrics.map(|at| (Role::Metrics, *at)));
        listeners.own = own.map(|(role, at)| listeners.listen(role, at)).collect();
        listeners
    }

    fn listen(&self, role: Role, at: SocketAddr) -> Listening {
        let tasks = self.tasks.child("proxy-health");
        let (health, group) = (Arc::clone(&self.health), tasks.clone());
        tasks.supervise("proxy-health", move || serve(Arc::clone(&health), role.clone(), at, group.clone()));
        Listening(tasks)
    }

    /// Starts, moves or ends a service's listener, and sets its number of local endpoints.
    pub fn set(&mut self, service: &ObjectKey, wanted: Option<(u16, usize)>) {
        self.health.set_local_endpoints(service, wanted.map(|(_, count)| count));
        let Some((port, _)) = wanted else {
            self.services.remove(service);
            return;
        };
        if self.services.get(service).is_some_and(|(p, _)| *p == port) {
            return;
        }
        self.services.remove(service);
        let listen = |ip: &IpAddr| self.listen(Role::Service(service.clone()), SocketAddr::new(*ip, port));
        let guards = self.addresses.iter().map(listen).collect();
        self.services.insert(service.clone(), (port, guards));
    }
}

#[cfg(test)]
mod tests {
    use kelson_metrics::Registry;

    use super::*;

    #[test]
    fn each_port_answers_its_own_paths() {
        let metrics = Arc::new(Metrics::new(Registry::new()));
        let health = Health::new(Arc::new(kelson_meta::SystemClock), Duration::from_secs(60), metrics);
        let service = ObjectKey::new("n", "s");
        let code = |role: &Role, path: &str| role.respond(&health, path).status().as_u16();
        for (path, of_health, of_metrics) in [
            ("/healthz", 200, 200),
            ("/livez", 200, 404),
            ("/metrics", 404, 200),
            ("/proxyMode", 404, 200),
            ("/", 404, 404),
        ] {
            assert_eq!((code(&Role::Health, path), code(&Role::Metrics, path)), (of_health, of_metrics), "{path}");
        }
        assert_eq!(code(&Role::Service(service.clone()), "/any"), 503, "no endpoint is local");
        health.set_local_endpoints(&service, Some(2));
        assert_eq!(code(&Role::Service(service), "/any"), 200);
        let text = health.metrics.registry().text();
        assert!(text.contains("kubeproxy_proxy_healthz_total{code=\"200\"} 2\n"), "{text}");
        assert!(text.contains("kubeproxy_proxy_livez_total{code=\"200\"} 1\n"), "{text}");
    }
}
