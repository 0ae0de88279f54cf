//! Metrics of the API server: requests, watches, refusals, and what the store has done. Label values come from the catalog
//! and from fixed words, so that no client can make new series.
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

/// Upper bounds of the duration histogram, seconds (upstream's, thinned).
const BUCKETS_S: [f64; 14] = [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0];
/// Stands where a request names something that is not served.
const OTHER: &str = "other";

/// What a request is counted under.
pub struct Labels {
    verb: &'static str,
    target: RequestTarget,
}

enum RequestTarget {
    /// A path that is no resource.
    Path,
    /// A resource of the catalog, and whether the request is for its subresource of this position.
    Served(Arc<Served>, Option<usize>),
    /// No resource of the catalog: discovery, health, or somebody else's group.
    Other,
}

impl Labels {
    /// Of a request on its route.
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

/// What the server counts of requests, under upstream's names.
pub struct Metrics {
    registry: Registry,
    /// What `/metrics/slis` shows: outcomes of health checks, apart from the rest so that they can be read often.
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

/// Counts a watch for as long as it lives.
pub struct WatchGuard(IntGauge);

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Nothing counted yet. What the store knows is read when somebody asks.
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
        let dropped =
            registry.counters("apiserver_dropped_requests_total", "Requests turned away with 429.", &["request_kind"]);
        let dropped = ["readOnly", "mutating"].map(|kind| dropped.with_label_values(&[kind]));
        let identity = IdentityMetrics::new(&registry);
        let issued = IssuedMetrics::new(&registry);
        let streams = StreamMetrics::new(&registry);
        let impersonation = ImpersonationMetrics::new(&registry);
        registry.on_scrape(move |families| {
            stored(&store, families);
            features(&gates, families);
        });
        let indicators = Registry::new();
        let health_now = indicators.gauges(
            "kubernetes_healthcheck",
            "Whether a health check passed when it last ran, by name and endpoint.",
            &["name", "type"],
        );
        let health_checks = indicators.counters(
            "kubernetes_healthchecks_total",
            "Outcomes of health checks, by name, endpoint and outcome.",
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
    /// Counts a health check that ran for `endpoint` (`healthz`, `livez`, `readyz`).
    pub fn health_checked(&self, name: &str, endpoint: &str, passed: bool) {
        let status = if passed { "success" } else { "error" };
        self.health_now.with_label_values(&[name, endpoint]).set(i64::from(passed));
        self.health_checks.with_label_values(&[name, status, endpoint]).inc();
    }
    /// The service level indicators, as text.
    pub fn indicators(&self) -> String {
        self.indicators.text()
    }
    /// Counts an answer.
    pub fn done(&self, labels: &Labels, code: StatusCode, took: Duration) {
        let values = labels.values();
        let [component, group, resource, scope, subresource, verb, version] = values;
        let with_code = [code.as_str(), component, group, resource, scope, subresource, verb, version];
        self.requests.with_label_values(&with_code).inc();
        // How long a watch lasts is its client's choice.
        if verb != "WATCH" {
            self.durations.with_label_values(&values).observe(took.as_secs_f64());
        }
    }
    /// Counts a watch.
    pub fn watch_opened(&self, gr: &GroupResource) -> WatchGuard {
        let gauge = self.watches.with_label_values(&[gr.to_string().as_str(), "WATCH"]);
        gauge.inc();
        WatchGuard(gauge)
    }
    /// Where certificates are counted that are issued.
    pub fn issued(&self) -> &IssuedMetrics {
        &self.issued
    }
    /// Where it is counted who asks, and whether they may.
    pub fn identity(&self) -> &IdentityMetrics {
        &self.identity
    }
    /// Where streams to kubelets are counted.
    pub fn streams(&self) -> &StreamMetrics {
        &self.streams
    }
    /// Where requests are counted that ask to act as somebody else.
    pub fn impersonation(&self) -> &ImpersonationMetrics {
        &self.impersonation
    }
    /// Counts a request turned away for want of room.
    pub fn turned_away(&self, read: bool) {
        self.dropped[usize::from(!read)].inc();
    }
    /// Where admission counts; called once, since families are registered once.
    pub fn admission(&self) -> kelson_admission::Metrics {
        kelson_admission::Metrics::new(&self.registry)
    }
    /// Where other parts show what they count, each of them once, since families are registered once.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
    /// Shows how many requests are under way; asked when somebody wants to know. Called once.
    pub fn show_in_flight(&self, flow: Arc<dyn Flow>) {
        self.registry.on_scrape(move |families| in_flight(flow.as_ref(), families));
    }
    /// All of it, as text.
    pub fn text(&self) -> String {
        self.registry.text()
    }
}

fn in_flight(flow: &dyn Flow, families: &mut Families) {
    let (reads, writes) = flow.under_way();
    families
        .gauge("apiserver_current_inflight_requests", "Requests under way, by kind.")
        .sample(&[("request_kind", "mutating")], writes as f64)
        .sample(&[("request_kind", "readOnly")], reads as f64);
}

/// Which features there are, and which are on.
fn features(gates: &FeatureGates, families: &mut Families) {
    let mut family = families.gauge("kubernetes_feature_enabled", "Whether a feature is on, by name and stage.");
    for (name, stage, on) in gates.all() {
        family.sample(&[("name", name), ("stage", stage.label())], f64::from(u8::from(on)));
    }
}

/// What the store holds and has done; the names of the latter are ours, as upstream's are etcd's.
fn stored(store: &Store, families: &mut Families) {
    let mut objects = families.gauge("apiserver_storage_objects", "Stored objects by resource.");
    for (resource, n) in store.counts() {
        let gr = GroupResource::new(resource.group(), resource.plural()).to_string();
        objects.sample(&[("resource", gr.as_str())], n as f64);
    }
    let stats = store.stats();
    for (name, help, n) in [
        ("kelson_store_writes_total", "Writes committed.", stats.writes),
        ("kelson_store_batches_total", "Batches the writes were committed in.", stats.batches),
        ("kelson_store_syncs_total", "Times the store was synced to disk.", stats.syncs),
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
    fn what_a_client_makes_up_is_no_label() {
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
            metrics.done(&Labels::new(&info, route), StatusCode::OK, Duration::from_millis(1));
        }
        let text = metrics.text();
        let counted: Vec<&str> = text.lines().filter(|l| l.starts_with("apiserver_request_total{")).collect();
        assert_eq!(counted.len(), 3, "{counted:#?}");
        assert!(counted.iter().any(|l| l.contains("resource=\"other\"") && l.ends_with(" 2")), "{counted:#?}");
        assert!(counted.iter().any(|l| l.contains("subresource=\"log\"")), "{counted:#?}");
        assert!(!text.contains("evil"));
    }
}
