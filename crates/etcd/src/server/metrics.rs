//! Metrics under etcd's names.

use std::sync::Arc;

use kelson_metrics::{IntCounter, IntCounterVec, Registry};
use tonic::Code;

use super::options::{CLUSTER_MINOR, VERSION};
use crate::store::{Durations, Shared};

#[derive(Debug)]
pub(super) struct Metrics {
    started: IntCounterVec,
    handled: IntCounterVec,
    pub ranges: IntCounter,
    pub puts: IntCounter,
    pub deletes: IntCounter,
    pub txns: IntCounter,
    pub leases_granted: IntCounter,
    pub leases_revoked: IntCounter,
    health_success: IntCounter,
    health_failures: IntCounter,
}

/// Services and methods that are counted by name; other names come from clients and would be unbounded.
const METHODS: &[(&str, &[&str])] = &[
    ("etcdserverpb.KV", &["Range", "Put", "DeleteRange", "Txn", "Compact"]),
    ("etcdserverpb.Watch", &["Watch"]),
    ("etcdserverpb.Lease", &["LeaseGrant", "LeaseRevoke", "LeaseKeepAlive", "LeaseTimeToLive", "LeaseLeases"]),
    ("etcdserverpb.Cluster", &["MemberList"]),
    ("etcdserverpb.Maintenance", &["Alarm", "Status", "Defragment", "Hash", "HashKV", "Snapshot", "MoveLeader"]),
    ("etcdserverpb.Auth", &["AuthStatus"]),
    ("v3lockpb.Lock", &["Lock", "Unlock"]),
    ("v3electionpb.Election", &["Campaign", "Proclaim", "Leader", "Observe", "Resign"]),
];

impl Metrics {
    pub fn new(registry: &Registry, shared: &Arc<Shared>) -> Self {
        let of = Arc::clone(shared);
        registry.on_scrape(move |families| {
            let sizes = of.sizes();
            let (revision, compacted, keys) = of.read(|s| (s.revision(), s.compacted(), s.keys()));
            let mut gauge = |name: &str, help: &str, value: f64| {
                families.gauge(name, help).sample(&[], value);
            };
            gauge("etcd_server_has_leader", "1 if there is a leader.", 1.0);
            gauge("etcd_server_is_leader", "1 if this member is the leader.", 1.0);
            gauge("etcd_server_is_learner", "1 if this member is a learner.", 0.0);
            gauge("etcd_server_quota_backend_bytes", "Storage quota in bytes.", sizes.quota as f64);
            gauge(
                "etcd_mvcc_db_total_size_in_bytes",
                "Size of the database files in bytes.",
                sizes.disk.max(sizes.data) as f64,
            );
            gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "Size of keys and values in bytes.", sizes.data as f64);
            gauge("etcd_debugging_mvcc_keys_total", "Number of keys.", keys as f64);
            gauge("etcd_debugging_mvcc_current_revision", "Current revision.", revision as f64);
            gauge("etcd_debugging_mvcc_compact_revision", "Revision of the last compaction.", compacted as f64);
            gauge("etcd_debugging_mvcc_watcher_total", "Number of watches.", of.watches() as f64);
            gauge("etcd_server_proposals_committed_total", "Committed proposals.", of.commits() as f64);
            gauge("etcd_server_proposals_applied_total", "Applied proposals.", of.commits() as f64);
            gauge("etcd_server_proposals_pending", "Number of pending proposals.", 0.0);
            let mut counter = |name: &str, help: &str, value: f64| {
                families.counter(name, help).sample(&[], value);
            };
            counter("etcd_server_proposals_failed_total", "Failed proposals.", of.failed_commits() as f64);
            counter("etcd_server_leader_changes_seen_total", "Leader changes seen; always 1.", 1.0);
            let mut times = |name: &str, help: &str, times: &Durations| {
                families.histogram(name, help).distribution(&[], times.buckets(), times.above(), times.sum_s());
            };
            times(
                "etcd_disk_wal_fsync_duration_seconds",
                "Duration in seconds of fsyncs of the write-ahead log.",
                of.sync_times(),
            );
            times(
                "etcd_disk_backend_commit_duration_seconds",
                "Duration in seconds of disk commits.",
                of.commit_times(),
            );
            let id = format!("{:x}", of.identity().member_id);
            families
                .gauge("etcd_server_id", "Constant 1, labelled with the server ID.")
                .sample(&[("server_id", &id)], 1.0);
            let mut cluster = families.gauge("etcd_cluster_version", "Constant 1, labelled with the version.");
            cluster.sample(&[("cluster_version", CLUSTER_MINOR)], 1.0);
            let mut version = families.gauge("etcd_server_version", "Constant 1, labelled with the version.");
            version.sample(&[("server_version", VERSION)], 1.0);
        });
        let labels = ["grpc_method", "grpc_service", "grpc_type"];
        let with_code = ["grpc_code", "grpc_method", "grpc_service", "grpc_type"];
        Self {
            started: registry.counters("grpc_server_started_total", "Started RPCs.", &labels),
            handled: registry.counters("grpc_server_handled_total", "Completed RPCs by code.", &with_code),
            ranges: registry.counter("etcd_mvcc_range_total", "Range requests."),
            puts: registry.counter("etcd_mvcc_put_total", "Put requests."),
            deletes: registry.counter("etcd_mvcc_delete_total", "Delete requests."),
            txns: registry.counter("etcd_mvcc_txn_total", "Transactions."),
            leases_granted: registry.counter("etcd_debugging_lease_granted_total", "Granted leases."),
            leases_revoked: registry.counter("etcd_debugging_lease_revoked_total", "Leases revoked by clients."),
            health_success: registry.counter("etcd_server_health_success", "Successful health checks."),
            health_failures: registry.counter("etcd_server_health_failures", "Failed health checks."),
        }
    }

    /// Counts the start of a call; returns service and method, if they are known.
    pub fn started(&self, path: &str) -> Option<(&'static str, &'static str)> {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        let (service, methods) = METHODS.iter().find(|(name, _)| *name == service)?;
        let method = methods.iter().find(|name| **name == method)?;
        self.started.with_label_values(&[*method, *service, kind(method)]).inc();
        Some((service, method))
    }

    pub fn handled(&self, service: &str, method: &str, code: Code) {
        let code = format!("{code:?}");
        let code = if code == "Ok" { "OK" } else { &code };
        self.handled.with_label_values(&[code, method, service, kind(method)]).inc();
    }

    pub fn health(&self, fine: bool) {
        if fine { &self.health_success } else { &self.health_failures }.inc();
    }
}

fn kind(method: &str) -> &'static str {
    match method {
        "Watch" | "LeaseKeepAlive" => "bidi_stream",
        "Snapshot" | "Observe" => "server_stream",
        _ => "unary",
    }
}
