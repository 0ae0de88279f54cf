//! What is counted, under upstream's names (apiserver `storage/value`, `encryptionconfig/metrics`, `kmsv2`). The registry is this
//! crate's own and is shown with the API server's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kelson_metrics::{GaugeVec, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Registry, exponential_buckets};
use sha2::{Digest as _, Sha256};

/// Counters and histograms of encryption.
pub(crate) struct Metrics {
    pub registry: Registry,
    /// The API server's identity, as its digest.
    id_hash: String,
    operations: IntCounterVec,
    durations: HistogramVec,
    cache_misses: IntCounter,
    reloads: IntCounterVec,
    reloaded_at: GaugeVec,
    config_info: IntGaugeVec,
    kms_calls: HistogramVec,
    key_ids: IntCounterVec,
    key_id_status_at: GaugeVec,
    invalid_key_ids: IntCounterVec,
}

/// Returns `sha256:` and the digest in hex, or an empty string for empty input.
pub(crate) fn digest(text: &[u8]) -> String {
    if text.is_empty() {
        return String::new();
    }
    let hex: String = Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

/// Returns the seconds since the Unix epoch.
pub(crate) fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Metrics {
    /// Nothing counted yet.
    pub fn new(server_id: &str) -> Self {
        let r = Registry::new();
        // From 5 microseconds on (one small value, no key service) to 83 and 52 seconds.
        let transform = exponential_buckets(5e-6, 2.0, 25).unwrap_or_default();
        let calls = exponential_buckets(1e-4, 2.0, 20).unwrap_or_default();
        Self {
            id_hash: digest(server_id.as_bytes()),
            operations: r.counters(
                "apiserver_storage_transformation_operations_total",
                "Encryptions and decryptions of values, by transformer and status.",
                &["resource", "transformation_type", "transformer_prefix", "status"],
            ),
            durations: r.histograms(
                "apiserver_storage_transformation_duration_seconds",
                "Latencies in seconds of value transformation operations.",
                &["transformation_type", "transformer_prefix"],
                &transform,
            ),
            cache_misses: r.counter(
                "apiserver_storage_envelope_transformation_cache_misses_total",
                "Cache misses of data encryption keys, which the KMS plugin then decrypted.",
            ),
            reloads: r.counters(
                "apiserver_encryption_config_controller_automatic_reloads_total",
                "Reloads of the encryption configuration, by outcome.",
                &["status", "apiserver_id_hash"],
            ),
            reloaded_at: r.float_gauges(
                "apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds",
                "Unix time in seconds of the last reload of the encryption configuration, by outcome.",
                &["status", "apiserver_id_hash"],
            ),
            config_info: r.gauges(
                "apiserver_encryption_config_controller_last_config_info",
                "Hash of the current encryption configuration.",
                &["apiserver_id_hash", "hash"],
            ),
            kms_calls: r.histograms(
                "apiserver_envelope_encryption_kms_operations_latency_seconds",
                "Duration in seconds of calls to the KMS plugin, by gRPC status.",
                &["provider_name", "method_name", "grpc_status_code"],
                &calls,
            ),
            key_ids: r.counters(
                "apiserver_envelope_encryption_key_id_hash_total",
                "Uses of KMS key IDs, by transformation.",
                &["transformation_type", "provider_name", "key_id_hash", "apiserver_id_hash"],
            ),
            key_id_status_at: r.float_gauges(
                "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds",
                "Unix time in seconds at which the KMS plugin last reported a key ID as current.",
                &["provider_name", "key_id_hash", "apiserver_id_hash"],
            ),
            invalid_key_ids: r.counters(
                "apiserver_envelope_encryption_invalid_key_id_from_status_total",
                "Invalid key IDs returned by the KMS plugin.",
                &["provider_name", "error"],
            ),
            registry: r,
        }
    }

    /// A value was transformed, or not.
    pub fn transformed(&self, resource: &str, from_storage: bool, prefix: &str, took: Duration, ok: bool) {
        let kind = if from_storage { "from_storage" } else { "to_storage" };
        // The status of upstream's errors that are not gRPC's.
        let status = if ok { "OK" } else { "Unknown" };
        self.operations.with_label_values(&[resource, kind, prefix, status]).inc();
        if ok {
            self.durations.with_label_values(&[kind, prefix]).observe(took.as_secs_f64());
        }
    }

    /// Counts a data key that was not in memory.
    pub fn cache_missed(&self) {
        self.cache_misses.inc();
    }

    /// Records that a changed configuration was read again.
    pub fn reloaded(&self, ok: bool, at_s: f64) {
        let status = if ok { "success" } else { "failure" };
        self.reloads.with_label_values(&[status, &self.id_hash]).inc();
        self.reloaded_at.with_label_values(&[status, &self.id_hash]).set(at_s);
    }

    /// Records the configuration in use.
    pub fn uses(&self, hash: &str) {
        self.config_info.reset();
        self.config_info.with_label_values(&[&self.id_hash, hash]).set(1);
    }

    /// Counts a call of the key service.
    pub fn called(&self, provider: &str, method: &str, code: &str, took: Duration) {
        self.kms_calls.with_label_values(&[provider, method, code]).observe(took.as_secs_f64());
    }

    /// A key of the key service was used.
    pub fn used_key(&self, from_storage: bool, provider: &str, key_id: &str) {
        let kind = if from_storage { "from_storage" } else { "to_storage" };
        self.key_ids.with_label_values(&[kind, provider, &digest(key_id.as_bytes()), &self.id_hash]).inc();
    }

    /// The key service named its current key.
    pub fn named_key(&self, provider: &str, key_id: &str, at_s: f64) {
        self.key_id_status_at.with_label_values(&[provider, &digest(key_id.as_bytes()), &self.id_hash]).set(at_s);
    }

    /// The key service named a key that is none.
    pub fn invalid_key(&self, provider: &str, why: &str) {
        self.invalid_key_ids.with_label_values(&[provider, why]).inc();
    }
}
