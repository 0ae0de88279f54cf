//! The proxy's metrics, under upstream's names (`pkg/proxy/metrics`). One transaction is a sync of one family.
use std::time::Duration;

use kelson_metrics::{GaugeVec, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry, exponential_buckets};

use crate::model::Family;

/// The proxy's metrics; one per node.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    syncs: HistogramVec,
    full_syncs: HistogramVec,
    partial_syncs: HistogramVec,
    last_queued: GaugeVec,
    last_synced: GaugeVec,
    failures: IntCounterVec,
    restores: IntCounterVec,
    flows_deleted: IntCounterVec,
    service_changes: IntCounter,
    endpoint_changes: IntCounter,
    changes_pending: IntGauge,
    healthz: IntCounterVec,
    livez: IntCounterVec,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(Registry::of_component())
    }
}

impl Metrics {
    /// Registers the metrics in `registry`, once.
    pub fn new(registry: Registry) -> Self {
        let (r, family) = (&registry, ["ip_family"]);
        let bounds = exponential_buckets(0.001, 2.0, 15).unwrap_or_default();
        let seconds = |name: &str, help: &str| r.histograms(name, help, &family, &bounds);
        Self {
            syncs: seconds("kubeproxy_sync_proxy_rules_duration_seconds", "Duration in seconds of rule syncs."),
            full_syncs: seconds(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "Duration in seconds of full rule syncs.",
            ),
            partial_syncs: seconds(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "Duration in seconds of partial rule syncs.",
            ),
            last_queued: r.float_gauges(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "Unix time in seconds at which a sync was last queued.",
                &family,
            ),
            last_synced: r.float_gauges(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "Unix time in seconds of the last successful sync.",
                &family,
            ),
            failures: r.counters(
                "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                "nftables transactions rejected by the kernel.",
                &family,
            ),
            restores: r.counters(
                "kelson_proxy_table_restores_total",
                "Tables restored after changes by other programs.",
                &family,
            ),
            flows_deleted: r.counters(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Conntrack entries of removed endpoints that were deleted.",
                &family,
            ),
            service_changes: r
                .counter("kubeproxy_sync_proxy_rules_service_changes_total", "Observed changes of services."),
            endpoint_changes: r
                .counter("kubeproxy_sync_proxy_rules_endpoint_changes_total", "Observed changes of endpoints."),
            changes_pending: r.gauge(
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Services with changes that are not yet applied.",
            ),
            healthz: r.counters("kubeproxy_proxy_healthz_total", "Responses of /healthz by code.", &["code"]),
            livez: r.counters("kubeproxy_proxy_livez_total", "Responses of /livez by code.", &["code"]),
            registry,
        }
    }

    /// Returns the registry, with the metrics of other parts of the proxy.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Records a change for both families: which one it concerns is only known when the rules are rendered.
    pub(crate) fn queued(&self, families: &[Family], now: jiff::Timestamp) {
        for family in families {
            self.last_queued.with_label_values(&[word(*family)]).set(seconds(now));
        }
    }

    pub(crate) fn service_changed(&self) {
        self.service_changes.inc();
    }

    pub(crate) fn endpoints_changed(&self) {
        self.endpoint_changes.inc();
    }

    pub(crate) fn set_pending(&self, services: usize) {
        self.changes_pending.set(i64::try_from(services).unwrap_or(i64::MAX));
    }

    /// Records that a family's rules were applied; `full` means that the whole table was replaced.
    pub(crate) fn synced(&self, family: Family, took: Duration, full: bool) {
        let (label, took) = (word(family), took.as_secs_f64());
        self.syncs.with_label_values(&[label]).observe(took);
        let of_kind = if full { &self.full_syncs } else { &self.partial_syncs };
        of_kind.with_label_values(&[label]).observe(took);
    }

    /// Records that a family's rules are up to date, whether or not there was something to write.
    pub(crate) fn in_sync(&self, family: Family, now: jiff::Timestamp) {
        self.last_synced.with_label_values(&[word(family)]).set(seconds(now));
    }

    pub(crate) fn failed(&self, family: Family) {
        self.failures.with_label_values(&[word(family)]).inc();
    }

    pub(crate) fn restored(&self, family: Family) {
        self.restores.with_label_values(&[word(family)]).inc();
    }

    pub(crate) fn flows_deleted(&self, family: Family, count: usize) {
        self.flows_deleted.with_label_values(&[word(family)]).inc_by(count as u64);
    }

    pub(crate) fn healthz(&self, code: http::StatusCode) {
        self.healthz.with_label_values(&[code.as_str()]).inc();
    }

    pub(crate) fn livez(&self, code: http::StatusCode) {
        self.livez.with_label_values(&[code.as_str()]).inc();
    }
}

fn word(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

fn seconds(at: jiff::Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_by_family_and_extent() {
        let m = Metrics::new(Registry::new());
        m.synced(Family::V4, Duration::from_millis(3), true);
        m.synced(Family::V4, Duration::from_millis(1), false);
        m.synced(Family::V6, Duration::from_millis(9), false);
        m.failed(Family::V6);
        m.flows_deleted(Family::V4, 7);
        m.queued(&[Family::V4, Family::V6], jiff::Timestamp::from_millisecond(1500).expect("a time"));
        m.healthz(http::StatusCode::SERVICE_UNAVAILABLE);
        let text = m.registry().text();
        for line in [
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.001\"} 1",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.004\"} 2",
            "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"} 1",
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv6\"} 1",
            "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"} 7",
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv6\"} 1.5",
            "kubeproxy_proxy_healthz_total{code=\"503\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
