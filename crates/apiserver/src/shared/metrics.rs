//! Metrics of the API server: requests, watches, rejections, and the store. Label values come from the catalog and from fixed strings,
//! so that clients cannot create series.
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use kelson_meta::GroupResource;
use kelson_meta::gates::FeatureGates;
use kelson_metrics::{Families, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use kelson_store::Store;

use crate::catalog::Served;
use crate::request::route::RequestInfo;
use crate::request::routes::Route;
use crate::shared::flow::Flow;
use crate::shared::identity_metrics::IdentityMetrics;
use crate::shared::impersonation_metrics::ImpersonationMetrics;
use crate::shared::issued_metrics::IssuedMetrics;
use crate::shared::stream_metrics::StreamMetrics;

/// Upper bounds of the duration histogram in seconds (fewer than upstream's).
const BUCKETS_S: [f64; 14] = [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0];
/// Label value of a resource or verb that is not served.
const OTHER: &str = "other";

/// The labels of a request.
pub struct Labels {
    verb: &'static str,
    target: RequestTarget,
}

enum RequestTarget {
    /// A path that is not a resource.
    Path,
    /// A resource of the catalog, and the index of the requested subresource.
    Served(Arc<Served>, Option<usize>),
    /// Not a resource of the catalog: discovery, health, or an aggregated API.
    Other,
}

impl Labels {
    /// The labels of a request with this target.
    pub fn new(info: &RequestInfo, route: Option<&Route>) -> Self {
        let verb = match info.verb {
            "get" => "GET",
            "list" => "LIST",
            "watch" => "WATCH",
            "create" => "POST",
            "update" => "PUT",
            "patch" => "PATCH",
            "delete" => "DELETE",
            "deletecollection" => "DELETECOLLECTION",
            _ => OTHER,
        };
        let target = match route {
            _ if !info.is_resource => RequestTarget::Path,
            Some(Route::Stored(served)) if info.subresource.is_empty() => {
                RequestTarget::Served(Arc::clone(served), None)
            }
            Some(Route::Stored(served)) => match served.subresources.iter().position(|s| s.name == info.subresource) {
                Some(at) => RequestTarget::Served(Arc::clone(served), Some(at)),
                None => RequestTarget::Other,
            },
            Some(Route::Remote(_)) | None => RequestTarget::Other,
        };
        Self { verb, target }
    }

    /// Component, group, resource, scope, subresource, verb, version.
    fn values(&self) -> [&str; 7] {
        let (group, resource, scope, subresource, version) = match &self.target {
            RequestTarget::Path => ("", "", "", "", ""),
            RequestTarget::Other => ("", OTHER, "resource", "", ""),
            RequestTarget::Served(served, sub) => {
                let sub = sub.and_then(|at| served.subresources.get(at)).map_or("", |s| s.name.as_str());
                let gvr = &served.gvr;
                (gvr.group.as_str(), gvr.resource.as_str(), "resource", sub, gvr.version.as_str())
            }
        };
        ["apiserver", group, resource, scope, subresource, self.verb, version]
    }
}

/// The server's metrics, mostly under upstream's names; those of the store have the prefix `kelson_`. Other parts register their
/// metrics in [`Metrics::registry`] once, at start. `/metrics` shows [`Metrics::text`], `/metrics/slis` [`Metrics::indicators`].
pub struct Metrics {
    registry: Registry,
    /// Outcomes of health checks for `/metrics/slis`, in their own registry so that they can be scraped often.
    indicators: Registry,
    health_now: IntGaugeVec,
    health_checks: IntCounterVec,
    requests: IntCounterVec,
    durations: HistogramVec,
    watches: IntGaugeVec,
    dropped: [IntCounter; 2],
    identity: IdentityMetrics,
    issued: IssuedMetrics,
    streams: StreamMetrics,
    impersonation: ImpersonationMetrics,
}

/// Counts an open watch until it is dropped.
pub struct WatchGuard(IntGauge);

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Registers the metrics. Values of the store are read at each scrape.
    pub fn new(store: Store, gates: Arc<FeatureGates>) -> Self {
        let registry = Registry::of_component();
        let labels = ["component", "group", "resource", "scope", "subresource", "verb", "version"];
        let mut with_code = vec!["code"];
        with_code.extend(labels);
        let requests =
            registry.counters("apiserver_request_total", "Requests answered, by verb, resource and code.", &with_code);
        let durations = registry.histograms(
            "apiserver_request_duration_seconds",
            "Response latency distribution in seconds by verb and resource.",
            &labels,
            &BUCKETS_S,
        );
        let watches =
            registry.gauges("apiserver_longrunning_requests", "Open watches by resource.", &["resource", "verb"]);
        let dropped = registry.counters(
            "apiserver_dropped_requests_total",
            "Requests rejected with code 429.",
            &["request_kind"],
        );
        let dropped = ["readOnly", "mutating"].map(|kind| dropped.with_label_values(&[kind]));
        let identity = IdentityMetrics::new(&registry);
        let issued = IssuedMetrics::new(&registry);
        let streams = StreamMetrics::new(&registry);
        let impersonation = ImpersonationMetrics::new(&registry);
        registry.on_scrape(move |families| {
            show_storage(&store, families);
            show_features(&gates, families);
        });
        let indicators = Registry::new();
        let health_now = indicators.gauges(
            "kubernetes_healthcheck",
            "Result of the last run of a health check (1: passed), by name and endpoint.",
            &["name", "type"],
        );
        let health_checks = indicators.counters(
            "kubernetes_healthchecks_total",
            "Runs of health checks, by name, endpoint and result.",
            &["name", "status", "type"],
        );
        Self {
            registry,
            indicators,
            health_now,
            health_checks,
            requests,
            durations,
            watches,
            dropped,
            identity,
            issued,
            streams,
            impersonation,
        }
    }
    /// Counts a run of a health check for `endpoint` (`healthz`, `livez`, `readyz`).
    pub fn count_health_check(&self, name: &str, endpoint: &str, passed: bool) {
        let status = if passed { "success" } else { "error" };
        self.health_now.with_label_values(&[name, endpoint]).set(i64::from(passed));
        self.health_checks.with_label_values(&[name, status, endpoint]).inc();
    }
    /// The service level indicators in Prometheus' text format.
    pub fn indicators(&self) -> String {
        self.indicators.text()
    }
    /// Counts an answered request.
    pub fn count_request(&self, labels: &Labels, code: StatusCode, took: Duration) {
        let values = labels.values();
        let [component, group, resource, scope, subresource, verb, version] = values;
        let with_code = [code.as_str(), component, group, resource, scope, subresource, verb, version];
        self.requests.with_label_values(&with_code).inc();
        // The client decides how long a watch lasts.
        if verb != "WATCH" {
            self.durations.with_label_values(&values).observe(took.as_secs_f64());
        }
    }
    /// Counts an open watch.
    pub fn watch_opened(&self, gr: &GroupResource) -> WatchGuard {
        let gauge = self.watches.with_label_values(&[gr.to_string().as_str(), "WATCH"]);
        gauge.inc();
        WatchGuard(gauge)
    }
    /// The metrics of issued certificates.
    pub fn issued(&self) -> &IssuedMetrics {
        &self.issued
    }
    /// The metrics of authentication and authorization.
    pub fn identity(&self) -> &IdentityMetrics {
        &self.identity
    }
    /// The metrics of streams to kubelets.
    pub fn streams(&self) -> &StreamMetrics {
        &self.streams
    }
    /// The metrics of impersonation.
    pub fn impersonation(&self) -> &ImpersonationMetrics {
        &self.impersonation
    }
    /// Counts a request that was rejected for lack of capacity.
    pub fn count_rejected(&self, read: bool) {
        self.dropped[usize::from(!read)].inc();
    }
    /// The metrics of admission. Called once, because metrics are registered once.
    pub fn admission(&self) -> kelson_admission::Metrics {
        kelson_admission::Metrics::new(&self.registry)
    }
    /// The registry for metrics of other parts. Each registers its metrics once.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
    /// Shows the requests in progress at each scrape. Called once.
    pub fn show_in_flight(&self, flow: Arc<dyn Flow>) {
        self.registry.on_scrape(move |families| show_requests(flow.as_ref(), families));
    }
    /// All metrics in Prometheus' text format.
    pub fn text(&self) -> String {
        self.registry.text()
    }
}

fn show_requests(flow: &dyn Flow, families: &mut Families) {
    let (reads, writes) = flow.in_flight();
    families
        .gauge("apiserver_current_inflight_requests", "Requests in progress, by kind.")
        .sample(&[("request_kind", "mutating")], writes as f64)
        .sample(&[("request_kind", "readOnly")], reads as f64);
}

/// Shows the feature gates and whether they are enabled.
fn show_features(gates: &FeatureGates, families: &mut Families) {
    let mut family =
        families.gauge("kubernetes_feature_enabled", "Whether a feature is enabled (1), by name and stage.");
    for (name, stage, on) in gates.all() {
        family.sample(&[("name", name), ("stage", stage.label())], f64::from(u8::from(on)));
    }
}

/// Shows the store's objects and counters. The counters have Kelson's names, because upstream's are those of etcd.
fn show_storage(store: &Store, families: &mut Families) {
    let mut objects = families.gauge("apiserver_storage_objects", "Stored objects by resource.");
    for (resource, n) in store.counts() {
        let gr = GroupResource::new(resource.group(), resource.plural()).to_string();
        objects.sample(&[("resource", gr.as_str())], n as f64);
    }
    let stats = store.stats();
    for (name, help, n) in [
        ("kelson_store_writes_total", "Committed writes.", stats.writes),
        ("kelson_store_batches_total", "Batches in which writes were committed.", stats.batches),
        ("kelson_store_syncs_total", "Syncs of the store to disk.", stats.syncs),
        ("kelson_store_written_bytes_total", "Bytes of committed objects.", stats.bytes),
    ] {
        families.counter(name, help).sample(&[], n as f64);
    }
}

#[cfg(test)]
mod tests {
    use kelson_store::StoreOptions;

    use super::*;
    use crate::catalog::Catalog;

    #[test]
    fn values_that_clients_invent_are_not_labels() {
        let metrics = Metrics::new(Store::in_memory(StoreOptions::default()), Default::default());
        let pods = Catalog::builtin().find("", "v1", "pods").map(Route::Stored);
        let info = |resource: &str, subresource: &str| RequestInfo {
            is_resource: true,
            verb: "get",
            resource: resource.into(),
            subresource: subresource.into(),
            ..RequestInfo::default()
        };
        for (info, route) in [
            (info("pods", ""), pods.as_ref()),
            (info("pods", "log"), pods.as_ref()),
            (info("pods", "evil\"\n"), pods.as_ref()),
            (info("evil\"\n", ""), None),
        ] {
            metrics.count_request(&Labels::new(&info, route), StatusCode::OK, Duration::from_millis(1));
        }
        let text = metrics.text();
        let counted: Vec<&str> = text.lines().filter(|l| l.starts_with("apiserver_request_total{")).collect();
        assert_eq!(counted.len(), 3, "{counted:#?}");
        assert!(counted.iter().any(|l| l.contains("resource=\"other\"") && l.ends_with(" 2")), "{counted:#?}");
        assert!(counted.iter().any(|l| l.contains("subresource=\"log\"")), "{counted:#?}");
        assert!(!text.contains("evil"));
    }
}
