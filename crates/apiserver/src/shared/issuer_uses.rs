//! Metrics of configured token issuers and their keys under upstream's names (`apiserver_authentication_jwt_authenticator_…`), and of
//! connections rejected for deprecated properties of a server's certificate.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_auth::authenticate::jwt::IssuerUse;
use kelson_metrics::{GaugeVec, HistogramVec, Registry};
use kelson_webhook::CertificateFaults;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

/// Upper bounds of the duration histogram in seconds (as upstream).
const BUCKETS_S: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Limit of issuers in metrics. A configuration file has at most 64, and it may be replaced while the server runs.
const ISSUERS_MAX: usize = 256;

/// Metrics of token issuers. Label values are digests of issuer and server, as upstream.
pub struct IssuerCounts {
    latency: HistogramVec,
    fetched_at: GaugeVec,
    server: String,
    /// Digest of the last valid key set by the issuer's digest.
    key_sets: Arc<Mutex<BTreeMap<String, String>>>,
}

fn digest(data: &[u8]) -> String {
    let hex: String = Sha256::digest(data).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

impl IssuerCounts {
    /// Registers the metrics in `registry`.
    pub fn new(registry: &Registry) -> Arc<Self> {
        let name = |name: &str| format!("apiserver_authentication_jwt_authenticator_{name}");
        let server = digest(kelson_platform::process::host_name().as_bytes());
        let key_sets: Arc<Mutex<BTreeMap<String, String>>> = Arc::default();
        let (shown, id, info) = (Arc::clone(&key_sets), server.clone(), name("jwks_fetch_last_key_set_info"));
        registry.on_scrape(move |families| {
            let shown = shown.lock().clone();
            if shown.is_empty() {
                return;
            }
            let mut family = families.gauge(&info, "Digest of the keys that a token issuer has.");
            for (issuer, hash) in shown {
                family.sample(&[("jwt_issuer_hash", &issuer), ("apiserver_id_hash", &id), ("hash", &hash)], 1.0);
            }
        });
        Arc::new(Self {
            latency: registry.histograms(
                &name("latency_seconds"),
                "Duration of validating tokens of configured issuers in seconds, by result.",
                &["result", "jwt_issuer_hash"],
                &BUCKETS_S,
            ),
            fetched_at: registry.float_gauges(
                &name("jwks_fetch_last_timestamp_seconds"),
                "Unix time in seconds of the last fetch of an issuer's keys, by result.",
                &["result", "jwt_issuer_hash", "apiserver_id_hash"],
            ),
            server,
            key_sets,
        })
    }
}

fn word(good: bool) -> &'static str {
    if good { "success" } else { "failure" }
}

impl IssuerUse for IssuerCounts {
    fn judged(&self, issuer: &str, good: bool, took: Duration) {
        let issuer = digest(issuer.as_bytes());
        self.latency.with_label_values(&[word(good), &issuer]).observe(took.as_secs_f64());
    }

    fn keys_fetched(&self, issuer: &str, document: Option<&[u8]>) {
        let issuer = digest(issuer.as_bytes());
        let at = self.fetched_at.with_label_values(&[word(document.is_some()), &issuer, &self.server]);
        at.set(Timestamp::now().as_millisecond() as f64 / 1000.0);
        let Some(document) = document else { return };
        let mut key_sets = self.key_sets.lock();
        if key_sets.len() >= ISSUERS_MAX && !key_sets.contains_key(&issuer) {
            key_sets.clear();
        }
        key_sets.insert(issuer, digest(document));
    }
}

/// Shows in `registry` the connections that were rejected for a server's certificate.
pub fn show_certificate_faults(registry: &Registry) {
    let of = [
        ("apiserver_webhooks", CertificateFaults::of_webhooks()),
        ("apiserver_kube_aggregator", CertificateFaults::of_aggregated()),
    ];
    registry.on_scrape(move |families| {
        for (subsystem, faults) in of {
            for (name, help, count) in [
                (
                    "x509_missing_san_total",
                    "Connections rejected because the server's certificate has no subject alternative name.",
                    faults.missing_san(),
                ),
                (
                    "x509_insecure_sha1_total",
                    "Connections rejected because the server's certificate chain has a SHA-1 signature.",
                    faults.insecure_sha1(),
                ),
            ] {
                families.counter(&format!("{subsystem}_{name}"), help).sample(&[], count as f64);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuers_are_shown_by_their_digests() {
        let registry = Registry::new();
        let counts = IssuerCounts::new(&registry);
        assert!(!registry.text().contains("key_set_info"));
        counts.judged("https://issuer.example", true, Duration::from_millis(2));
        counts.judged("https://issuer.example", false, Duration::from_millis(2));
        counts.keys_fetched("https://issuer.example", Some(b"{}"));
        counts.keys_fetched("https://issuer.example", None);
        for i in 0..2 * ISSUERS_MAX {
            counts.keys_fetched(&i.to_string(), Some(b"{}"));
        }
        let (text, issuer) = (registry.text(), digest(b"https://issuer.example"));
        for row in [
            format!("latency_seconds_count{{jwt_issuer_hash=\"{issuer}\",result=\"success\"}} 1"),
            format!("latency_seconds_count{{jwt_issuer_hash=\"{issuer}\",result=\"failure\"}} 1"),
        ] {
            assert!(text.contains(&row), "{row}\n{text}");
        }
        assert!(!text.contains("issuer.example"));
        let shown = text.lines().filter(|line| line.contains("key_set_info{")).count();
        assert!(shown <= ISSUERS_MAX, "{shown}");
    }

    #[test]
    fn rejected_certificates_are_shown_from_the_start() {
        let registry = Registry::new();
        show_certificate_faults(&registry);
        let text = registry.text();
        for name in ["apiserver_webhooks_x509_missing_san_total", "apiserver_kube_aggregator_x509_insecure_sha1_total"]
        {
            assert!(text.contains(&format!("{name} ")), "{name}\n{text}");
        }
    }
}
