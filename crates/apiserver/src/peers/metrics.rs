//! Metrics of requests to peers, under upstream's names.
use http::StatusCode;
use kelson_metrics::{IntCounter, IntCounterVec, Registry};

use crate::request::route::RequestInfo;

/// Why what a peer serves could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncFault {
    /// Its identity Lease has no usable address.
    Address,
    /// It did not return its discovery documents.
    Fetch,
}

/// The counters of peers.
pub struct PeerMetrics {
    forwarded: IntCounterVec,
    errors: IntCounterVec,
    sync_errors: IntCounterVec,
    hits: IntCounter,
    misses: IntCounter,
    own_only: IntCounter,
}

impl PeerMetrics {
    /// Registers the counters.
    pub fn new(registry: &Registry) -> Self {
        Self {
            forwarded: registry.counters(
                "apiserver_rerouted_request_total",
                "Requests forwarded to another API server that serves the resource, by code and resource. Requests for discovery \
                 documents have no resource.",
                &["code", "group", "version", "resource"],
            ),
            errors: registry.counters(
                "apiserver_peer_proxy_errors_total",
                "Requests that could not be forwarded to another API server, by reason and resource.",
                &["type", "group", "version", "resource"],
            ),
            sync_errors: registry.counters(
                "apiserver_peer_discovery_sync_errors_total",
                "Failed attempts to read what another API server serves, by reason.",
                &["type"],
            ),
            hits: registry.counter(
                "aggregator_discovery_peer_aggregated_cache_hits_total",
                "Requests for discovery of all API servers that were answered from the cache.",
            ),
            misses: registry.counter(
                "aggregator_discovery_peer_aggregated_cache_misses_total",
                "Requests for discovery of all API servers for which the document was built.",
            ),
            own_only: registry.counter(
                "aggregator_discovery_nopeer_requests_total",
                "Requests for discovery of this API server alone.",
            ),
        }
    }

    /// Counts a response of a peer.
    pub fn count_forwarded(&self, code: StatusCode, of: &RequestInfo) {
        self.forwarded.with_label_values(&[code.as_str(), &of.group, &of.version, &of.resource]).inc();
    }
    /// Counts a response of a peer to a request for a discovery document.
    pub fn count_discovery(&self, code: StatusCode) {
        self.forwarded.with_label_values(&[code.as_str(), "", "", ""]).inc();
    }
    /// Counts a request that reached no peer.
    pub fn count_unreachable(&self, of: &RequestInfo) {
        self.errors.with_label_values(&["endpoint_resolution", &of.group, &of.version, &of.resource]).inc();
    }
    /// Counts a failed attempt to read what a peer serves.
    pub fn count_sync_error(&self, fault: SyncFault) {
        let fault = match fault {
            SyncFault::Address => "hostport_resolution",
            SyncFault::Fetch => "fetch_discovery",
        };
        self.sync_errors.with_label_values(&[fault]).inc();
    }
    /// Counts a request for discovery of all servers, and whether the document was cached.
    pub fn count_merged(&self, is_cached: bool) {
        if is_cached { self.hits.inc() } else { self.misses.inc() }
    }
    /// Counts a request for discovery of this server alone.
    pub fn count_own_only(&self) {
        self.own_only.inc();
    }
}
