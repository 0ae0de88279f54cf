//! The proxy's HTTP answers: health check node ports of services (for load balancers), `/healthz`, `/livez`, and
//! `/metrics`. Forms are upstream's (`pkg/proxy/healthcheck`); what they report is made in [`crate::sync`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
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
use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections served at once by one listener.
const CONNECTIONS_MAX: usize = 64;
/// A request's head must be there within this time, and an idle connection ends after it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// After a refused bind.
const BIND_RETRY: Duration = Duration::from_secs(30);
/// Upper bounds of the sync histogram, in milliseconds; upstream's: powers of two from 1 ms.
const BUCKETS: usize = 15;

/// What the answers report. One per proxy.
pub struct Health {
    clock: Arc<dyn Clock>,
    /// A change that waits longer than this for its rules makes the proxy unhealthy.
    stale_after: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When the oldest change not yet in the rules was seen.
    queued: Option<jiff::Timestamp>,
    last_queued: Option<jiff::Timestamp>,
    last_updated: Option<jiff::Timestamp>,
    syncs: Histogram,
    full_syncs: u64,
    failures: u64,
    local_endpoints: BTreeMap<ObjectKey, usize>,
    flows_deleted: u64,
}

#[derive(Default)]
struct Histogram {
    buckets: [u64; BUCKETS],
    count: u64,
    sum_seconds: f64,
}

impl Health {
    /// Nothing synced, nothing queued.
    pub fn new(clock: Arc<dyn Clock>, stale_after: Duration) -> Self {
        Self { clock, stale_after, state: Mutex::default() }
    }

    /// A change came in.
    pub fn queued(&self) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.queued.get_or_insert(now);
        state.last_queued = Some(now);
    }

    /// The rules are what is desired. `began`: changes after it may not be in them.
    pub fn synced(&self, began: jiff::Timestamp, took: Duration, full: bool) {
        let mut state = self.state.lock();
        state.last_updated = Some(self.clock.now());
        state.queued = state.last_queued.filter(|q| *q > began);
        state.full_syncs += u64::from(full);
        let (millis, h) = (took.as_secs_f64() * 1000.0, &mut state.syncs);
        let mut bound = 1.0;
        for bucket in &mut h.buckets {
            *bucket += u64::from(millis <= bound);
            bound *= 2.0;
        }
        h.count += 1;
        h.sum_seconds += took.as_secs_f64();
    }

    /// A sync failed.
    pub fn failed(&self) {
        self.state.lock().failures += 1;
    }

    /// Stale flows were deleted.
    pub fn flows_deleted(&self, count: usize) {
        self.state.lock().flows_deleted += count as u64;
    }

    /// The number of ready local endpoints of a service with a health check node port; `None` forgets it.
    pub fn set_local_endpoints(&self, service: &ObjectKey, count: Option<usize>) {
        let endpoints = &mut self.state.lock().local_endpoints;
        match count {
            Some(n) => drop(endpoints.insert(service.clone(), n)),
            None => drop(endpoints.remove(service)),
        }
    }

    /// Whether changes reach the rules in time.
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

    fn metrics(&self) -> String {
        let s = self.state.lock();
        let seconds = |t: Option<jiff::Timestamp>| t.map_or(0.0, |t| t.as_millisecond() as f64 / 1000.0);
        let mut out = String::new();
        let name = "kubeproxy_sync_proxy_rules_duration_seconds";
        let _ = writeln!(out, "# HELP {name} SyncProxyRules latency in seconds\n# TYPE {name} histogram");
        let mut bound = 0.001;
        for n in s.syncs.buckets {
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {n}");
            bound *= 2.0;
        }
        let (count, sum) = (s.syncs.count, s.syncs.sum_seconds);
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}");
        let rows: [(&str, &str, &str, f64); 5] = [
            (
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "gauge",
                "The last time a sync of proxy rules was queued",
                seconds(s.last_queued),
            ),
            (
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "gauge",
                "The last time proxy rules were successfully synced",
                seconds(s.last_updated),
            ),
            (
                "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                "counter",
                "Cumulative proxy nftables sync failures",
                s.failures as f64,
            ),
            ("kelson_proxy_full_syncs_total", "counter", "Syncs that made the whole table anew", s.full_syncs as f64),
            (
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "counter",
                "Conntrack flow entries deleted by the proxy",
                s.flows_deleted as f64,
            ),
        ];
        for (name, kind, help, value) in rows {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        out
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

/// What a listener answers for.
#[derive(Clone)]
enum Role {
    /// `/healthz`, `/livez`, `/metrics`.
    Proxy,
    /// Anything, about this service.
    Service(ObjectKey),
}

impl Role {
    fn respond(&self, health: &Health, path: &str) -> Response<Full<Bytes>> {
        match (self, path) {
            (Self::Service(key), _) => health.service(key),
            (Self::Proxy, "/healthz" | "/livez") => health.healthz(),
            (Self::Proxy, "/metrics") => answer(StatusCode::OK, "text/plain; version=0.0.4", health.metrics()),
            (Self::Proxy, "/proxyMode") => answer(StatusCode::OK, "text/plain", "nftables".to_owned()),
            _ => answer(StatusCode::NOT_FOUND, "text/plain", "404 page not found\n".to_owned()),
        }
    }
}

async fn serve(health: Arc<Health>, role: Role, at: SocketAddr, tasks: Tasks) {
    let listener = loop {
        match TcpListener::bind(at).await {
            Ok(listener) => break listener,
            Err(e) => tracing::warn!(address = %at, error = %e, "cannot listen for health checks; trying again"),
        }
        tokio::time::sleep(BIND_RETRY).await;
    };
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: wait for some to be given back.
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
            // A client that goes away in the middle is no fault of ours.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
            drop(slot);
        });
    }
}

/// A listener; it ends with its connections when this is dropped.
struct Listening(Tasks);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.token().cancel();
    }
}

/// The sockets on which health and metrics are served; they close with this.
pub struct Listeners {
    health: Arc<Health>,
    /// Where health check node ports listen.
    addresses: Vec<IpAddr>,
    own: Vec<Listening>,
    services: BTreeMap<ObjectKey, (u16, Vec<Listening>)>,
    tasks: Tasks,
}

impl Listeners {
    /// Listens on `own` for the proxy's own health; services are added later.
    pub fn new(health: Arc<Health>, addresses: Vec<IpAddr>, own: &[SocketAddr], tasks: Tasks) -> Self {
        let mut listeners = Self { health, addresses, own: Vec::new(), services: BTreeMap::new(), tasks };
        listeners.own = own.iter().map(|at| listeners.listen(Role::Proxy, *at)).collect();
        listeners
    }

    fn listen(&self, role: Role, at: SocketAddr) -> Listening {
        let tasks = self.tasks.child("proxy-health");
        let (health, group) = (Arc::clone(&self.health), tasks.clone());
        tasks.supervise("proxy-health", move || serve(Arc::clone(&health), role.clone(), at, group.clone()));
        Listening(tasks)
    }

    /// Starts, moves or ends a service's listener, and reports its local endpoints from now on.
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
