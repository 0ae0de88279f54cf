//! Metrics of the member of this server.

use kelson_metrics::{Gauge, IntCounter, IntGauge, IntGaugeVec, Registry};
use parking_lot::Mutex;

/// The metrics, and the fault that a health check reports.
pub(crate) struct Metrics {
    pub registry: Registry,
    pub members: IntGaugeVec,
    pub is_leader: IntGauge,
    pub restarts: IntGauge,
    pub size: IntGauge,
    pub in_use: IntGauge,
    pub quota: IntGauge,
    pub alarms: IntGaugeVec,
    pub defragmentations: IntCounter,
    pub fsync_p99: Gauge,
    pub round_trip: Gauge,
    fault: Mutex<Option<String>>,
}

impl Metrics {
    pub fn new() -> Self {
        let r = Registry::new();
        Self {
            members: r.gauges("kelson_etcd_member_count", "Members of the etcd cluster by role.", &["role"]),
            is_leader: r.gauge("kelson_etcd_member_is_leader", "1 if the member of this server is the leader."),
            restarts: r
                .gauge("kelson_etcd_member_restarts", "Restarts of the etcd process since the start of the server."),
            size: r.gauge("kelson_etcd_member_size_bytes", "Size of the database file of the member in bytes."),
            in_use: r.gauge("kelson_etcd_member_in_use_bytes", "Bytes in use in the database file of the member."),
            quota: r
                .gauge("kelson_etcd_member_quota_bytes", "Maximum size of the database file of the member in bytes."),
            alarms: r.gauges("kelson_etcd_member_alarm", "1 while a member has the alarm.", &["alarm"]),
            defragmentations: r.counter(
                "kelson_etcd_member_defragmentations_total",
                "Defragmentations of the database file of the member.",
            ),
            fsync_p99: r.float_gauge(
                "kelson_etcd_member_fsync_p99_seconds",
                "99th percentile of the duration of a sync of the log of the member in the last minute, in seconds.",
            ),
            round_trip: r.float_gauge(
                "kelson_etcd_member_round_trip_seconds",
                "Longest round trip from this member to another one in seconds.",
            ),
            registry: r,
            fault: Mutex::default(),
        }
    }

    /// Sets the fault of the member, `None` for none.
    pub fn set_fault(&self, fault: Option<String>) {
        *self.fault.lock() = fault;
    }

    /// Returns the fault of the member.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().clone()
    }
}
