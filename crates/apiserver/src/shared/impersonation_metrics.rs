//! What is counted of requests that ask to act as somebody else, under upstream's names (KEP-5284).
use std::time::Duration;

use async_trait::async_trait;
use kelson_auth::authenticate::impersonation_mode;
use kelson_auth::{AsyncAuthorizer, Attributes, Authorizer, Decision};
use kelson_metrics::{HistogramVec, IntCounterVec, Registry};
use tokio::time::Instant;

/// Upper bounds in seconds: a millisecond, doubled fourteen times.
const BOUNDS_S: [f64; 15] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

/// Counts of one server.
pub struct ImpersonationMetrics {
    attempts: Counts,
    checks: Counts,
}

/// How often, and how long each took, by mode and decision.
struct Counts {
    total: IntCounterVec,
    seconds: HistogramVec,
}

impl Counts {
    fn new(r: &Registry, names: [&str; 2], help: [&str; 2]) -> Self {
        const LABELS: [&str; 2] = ["mode", "decision"];
        Self {
            total: r.counters(names[0], help[0], &LABELS),
            seconds: r.histograms(names[1], help[1], &LABELS, &BOUNDS_S),
        }
    }

    fn count(&self, mode: &str, allowed: bool, took: Duration) {
        let labels = [mode, if allowed { "allowed" } else { "denied" }];
        self.total.with_label_values(&labels).inc();
        self.seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }
}

impl ImpersonationMetrics {
    /// Nothing counted yet; shown by `r`, once.
    pub fn new(r: &Registry) -> Self {
        Self {
            attempts: Counts::new(
                r,
                ["apiserver_impersonation_attempts_total", "apiserver_impersonation_attempts_duration_seconds"],
                [
                    "Requests that asked to act as somebody else, by the mode that allowed it and the decision.",
                    "How long it took to decide whether a request may act as somebody else.",
                ],
            ),
            checks: Counts::new(
                r,
                [
                    "apiserver_impersonation_authorization_attempts_total",
                    "apiserver_impersonation_authorization_attempts_duration_seconds",
                ],
                [
                    "Questions to the authorizers for requests that asked to act as somebody else, by mode and decision.",
                    "How long those questions took.",
                ],
            ),
        }
    }

    /// A request was allowed to act as somebody else in the way of this verb (empty: the old way), or was not.
    pub fn attempted(&self, constraint: Option<&str>, took: Duration) {
        let mode = match constraint {
            None => "",
            Some("") => "legacy",
            Some(verb) => impersonation_mode(verb),
        };
        self.attempts.count(mode, constraint.is_some(), took);
    }

    /// The same authorizer, whose decisions are counted.
    pub fn over<'a>(&'a self, authorizer: &'a dyn Authorizer) -> impl Authorizer + 'a {
        Counted { authorizer, counts: &self.checks }
    }
}

struct Counted<'a> {
    authorizer: &'a dyn Authorizer,
    counts: &'a Counts,
}

impl Counted<'_> {
    fn counted(&self, attributes: &Attributes<'_>, since: Instant, decision: Decision) -> Decision {
        let mode = match impersonation_mode(attributes.verb) {
            "" => "unknown",
            mode => mode,
        };
        self.counts.count(mode, decision.is_allow(), since.elapsed());
        decision
    }
}

impl Authorizer for Counted<'_> {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let since = Instant::now();
        self.counted(attributes, since, self.authorizer.authorize(attributes))
    }

    fn as_async(&self, attributes: &Attributes<'_>) -> Option<&dyn AsyncAuthorizer> {
        self.authorizer.as_async(attributes).is_some().then_some(self)
    }
}

#[async_trait]
impl AsyncAuthorizer for Counted<'_> {
    async fn decide_later(&self, attributes: &Attributes<'_>) -> Decision {
        let since = Instant::now();
        self.counted(attributes, since, self.authorizer.decide(attributes).await)
    }
}
