//! Metrics of delegated authentication and authorization, under the names of upstream's delegating servers.
use std::time::Duration;

use kelson_client::ClientError;
use kelson_metrics::{HistogramVec, IntCounterVec, Registry};

/// Bounds in seconds for responses.
const BOUNDS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];

/// Metrics of reviews of one kind.
#[derive(Debug)]
pub struct Reviews {
    requests: IntCounterVec,
    seconds: HistogramVec,
}

/// Metrics of both kinds.
#[derive(Debug)]
pub struct ReviewMetrics {
    /// Metrics of token reviews.
    pub authentication: Reviews,
    /// Metrics of subject access reviews.
    pub authorization: Reviews,
}

impl ReviewMetrics {
    /// Registers the metrics in `r`.
    pub fn new(r: &Registry) -> Self {
        let of = |kind: &str, what: &str| Reviews {
            requests: r.counters(
                &format!("apiserver_delegated_{kind}_request_total"),
                &format!("Requests to the API server {what}, by status code."),
                &["code"],
            ),
            seconds: r.histograms(
                &format!("apiserver_delegated_{kind}_request_duration_seconds"),
                &format!("Duration of requests to the API server {what} in seconds, by status code."),
                &["code"],
                &BOUNDS,
            ),
        };
        Self {
            authentication: of("authn", "for token reviews"),
            authorization: of("authz", "for subject access reviews"),
        }
    }
}

impl Reviews {
    /// Records a review and its status code, `<error>` if there was no response.
    pub fn asked<T>(&self, answer: &Result<T, ClientError>, took: Duration) {
        let code = match answer {
            Ok(_) => "201".to_owned(),
            Err(e) => e.status().map_or_else(|| "<error>".to_owned(), |s| s.code.to_string()),
        };
        self.requests.with_label_values(&[&code]).inc();
        self.seconds.with_label_values(&[&code]).observe(took.as_secs_f64());
    }
}
