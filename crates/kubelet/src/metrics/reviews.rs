//! Questions to the API server who a caller is and what he may, under the names of every server that delegates them.
use std::time::Duration;

use kelson_client::ClientError;
use kelson_metrics::{HistogramVec, IntCounterVec, Registry};

/// Upper bounds of the seconds that an answer takes.
const BOUNDS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];

/// What is counted of questions of one kind.
#[derive(Debug)]
pub struct Reviews {
    requests: IntCounterVec,
    seconds: HistogramVec,
}

/// What is counted of both kinds.
#[derive(Debug)]
pub struct ReviewMetrics {
    /// Who somebody is: reviews of tokens.
    pub authentication: Reviews,
    /// What somebody may: reviews of access.
    pub authorization: Reviews,
}

impl ReviewMetrics {
    /// Nothing counted yet; shown by `r`, once.
    pub fn new(r: &Registry) -> Self {
        let of = |kind: &str, what: &str| Reviews {
            requests: r.counters(
                &format!("apiserver_delegated_{kind}_request_total"),
                &format!("Questions to the API server {what}, by the code of the answer."),
                &["code"],
            ),
            seconds: r.histograms(
                &format!("apiserver_delegated_{kind}_request_duration_seconds"),
                &format!("Seconds until the API server answered {what}, by the code of the answer."),
                &["code"],
                &BOUNDS,
            ),
        };
        Self { authentication: of("authn", "who a caller is"), authorization: of("authz", "what a caller may") }
    }
}

impl Reviews {
    /// A question was answered, or not: the code of the answer, `<error>` where there was none.
    pub fn asked<T>(&self, answer: &Result<T, ClientError>, took: Duration) {
        let code = match answer {
            Ok(_) => "201".to_owned(),
            Err(e) => e.status().map_or_else(|| "<error>".to_owned(), |s| s.code.to_string()),
        };
        self.requests.with_label_values(&[&code]).inc();
        self.seconds.with_label_values(&[&code]).observe(took.as_secs_f64());
    }
}
