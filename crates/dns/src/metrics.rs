//! The metrics of cluster DNS.
use std::net::SocketAddr;

use kelson_metrics::{IntCounter, IntCounterVec, Registry};

use crate::cache::AnswerKind;

/// The metrics of one server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    responses: IntCounterVec,
    hits: IntCounterVec,
    misses: IntCounter,
    upstream_failures: IntCounterVec,
}

impl Metrics {
    /// Creates the metrics. Each scrape calls `entries` for the number of cached responses.
    pub fn new(entries: impl Fn() -> usize + Send + Sync + 'static) -> Self {
        let registry = Registry::new();
        registry.on_scrape(move |families| {
            let help = "Answers of upstream resolvers in the cache.";
            families.gauge("kelson_dns_cache_entries", help).sample(&[], entries() as f64);
        });
        Self {
            responses: registry.counters(
                "kelson_dns_responses_total",
                "Responses to DNS queries, by transport protocol and response code.",
                &["protocol", "code"],
            ),
            hits: registry.counters(
                "kelson_dns_cache_hits_total",
                "Queries for other domains answered from the cache, by type: success or denial (RFC 2308).",
                &["type"],
            ),
            misses: registry.counter(
                "kelson_dns_cache_misses_total",
                "Queries for other domains that the cache could have answered, and did not.",
            ),
            upstream_failures: registry.counters(
                "kelson_dns_upstream_failures_total",
                "Queries that an upstream resolver did not answer in time, by resolver.",
                &["resolver"],
            ),
            registry,
        }
    }

    /// Returns the registry to serve.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Counts a response; `message` begins with its header.
    pub fn responded(&self, protocol: &str, message: &[u8]) {
        let code = match message.get(3).map(|flags| flags & 0b1111) {
            Some(0) => "NOERROR",
            Some(1) => "FORMERR",
            Some(2) => "SERVFAIL",
            Some(3) => "NXDOMAIN",
            Some(4) => "NOTIMP",
            Some(5) => "REFUSED",
            _ => "other",
        };
        self.responses.with_label_values(&[protocol, code]).inc();
    }

    /// Counts a cache lookup and its result.
    pub fn looked_up(&self, found: Option<AnswerKind>) {
        match found {
            Some(AnswerKind::Positive) => self.hits.with_label_values(&["success"]).inc(),
            Some(AnswerKind::Negative) => self.hits.with_label_values(&["denial"]).inc(),
            None => self.misses.inc(),
        }
    }

    /// Counts a query that this resolver did not answer.
    pub fn upstream_failed(&self, resolver: SocketAddr) {
        self.upstream_failures.with_label_values(&[&resolver.to_string()]).inc();
    }
}
