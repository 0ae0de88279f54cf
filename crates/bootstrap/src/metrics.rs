//! The metrics of the certificates, with upstream's names (`kubelet_certificate_manager_…`).
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_meta::Clock;
use kelson_metrics::{Histogram, IntCounter, Registry};
use parking_lot::Mutex;

/// Upper bounds of how long certificates live, in seconds: a minute, an hour, four, a day, a week, a month, a quarter, half a
/// year, one, two and four years.
const LIVES: &[f64] = &[
    60.0,
    3600.0,
    14400.0,
    86400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    62_208_000.0,
    124_416_000.0,
];

/// The numbers of a node's certificates. Cloning gives another handle to the same ones.
#[derive(Clone)]
pub struct CertificateMetrics {
    registry: Registry,
    client_errors: IntCounter,
    server_errors: IntCounter,
    server_lives: Histogram,
    ends: Arc<Mutex<Ends>>,
}

/// When the current certificates expire.
#[derive(Default)]
struct Ends {
    client: Option<Timestamp>,
    server: Option<Timestamp>,
}

impl CertificateMetrics {
    /// Creates the metric with the remaining lifetime by `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let registry = Registry::new();
        let ends: Arc<Mutex<Ends>> = Arc::default();
        let shown = Arc::clone(&ends);
        registry.on_scrape(move |families| {
            let (now, ends) = (clock.now(), shown.lock());
            let left = |end: Option<Timestamp>| end.map_or(f64::INFINITY, |end| end.duration_since(now).as_secs_f64());
            let help = "Seconds until the client certificate expires; +Inf without a certificate.";
            families.gauge("kubelet_certificate_manager_client_ttl_seconds", help).sample(&[], left(ends.client));
            let help = "Seconds until the serving certificate expires; +Inf without a certificate.";
            families.gauge("kubelet_certificate_manager_server_ttl_seconds", help).sample(&[], left(ends.server));
        });
        Self {
            client_errors: registry.counter(
                "kubelet_certificate_manager_client_expiration_renew_errors",
                "Failed renewals of the client certificate.",
            ),
            server_errors: registry
                .counter("kubelet_server_expiration_renew_errors", "Failed renewals of the serving certificate."),
            server_lives: registry.histogram(
                "kubelet_certificate_manager_server_rotation_seconds",
                "Time in seconds that a serving certificate was in use before it was replaced.",
                LIVES,
            ),
            registry,
            ends,
        }
    }

    /// All of it in the classic text format.
    pub fn text(&self) -> String {
        self.registry.text()
    }

    pub(crate) fn client_ends(&self, at: Timestamp) {
        self.ends.lock().client = Some(at);
    }

    pub(crate) fn client_failed(&self) {
        self.client_errors.inc();
    }

    pub(crate) fn server_ends(&self, at: Timestamp) {
        self.ends.lock().server = Some(at);
    }

    pub(crate) fn server_failed(&self) {
        self.server_errors.inc();
    }

    pub(crate) fn server_replaced(&self, after: Duration) {
        self.server_lives.observe(after.as_secs_f64());
    }
}
