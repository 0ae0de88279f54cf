//! Metrics of impersonation under upstream's names (KEP-5284).
use std::time::Duration;

use async_trait::async_trait;
use kelson_auth::authenticate::impersonation_mode;
use kelson_auth::{AsyncAuthorizer, Attributes, Authorizer, Decision};
use kelson_metrics::{HistogramVec, IntCounterVec, Registry};
use tokio::time::Instant;

/// Upper bounds in seconds: a millisecond, doubled fourteen times.
const BOUNDS_S: [f64; 15] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

/// Impersonation metrics of one server.
pub struct ImpersonationMetrics {
    attempts: ModeCounts,
    checks: ModeCounts,
}

/// Counts and durations by mode and decision.
struct ModeCounts {
    total: IntCounterVec,
    seconds: HistogramVec,
}

impl ModeCounts {
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
    /// Registers the metrics; called once per registry.
    pub fn new(r: &Registry) -> Self {
        Self {
            attempts: ModeCounts::new(
                r,
                ["apiserver_impersonation_attempts_total", "apiserver_impersonation_attempts_duration_seconds"],
                [
                    "Impersonation attempts, by the mode that allowed it and the decision.",
                    "Duration of impersonation attempts in seconds.",
                ],
            ),
            checks: ModeCounts::new(
                r,
                [
                    "apiserver_impersonation_authorization_attempts_total",
                    "apiserver_impersonation_authorization_attempts_duration_seconds",
                ],
                [
                    "Authorization checks for impersonation, by mode and decision.",
                    "Duration of authorization checks for impersonation in seconds.",
                ],
            ),
        }
    }

    /// Counts an attempt. `constraint` is the verb that allowed it (empty: unconstrained), `None` if it was denied.
    pub fn count_attempt(&self, constraint: Option<&str>, took: Duration) {
        let mode = match constraint {
            None => "",
            Some("") => "legacy",
            Some(verb) => impersonation_mode(verb),
        };
        self.attempts.count(mode, constraint.is_some(), took);
    }

    /// An authorizer that delegates to `authorizer` and counts its decisions.
    pub fn counting<'a>(&'a self, authorizer: &'a dyn Authorizer) -> impl Authorizer + 'a {
        CountedAuthorizerRef { authorizer, counts: &self.checks }
    }
}

struct CountedAuthorizerRef<'a> {
    authorizer: &'a dyn Authorizer,
    counts: &'a ModeCounts,
}

impl CountedAuthorizerRef<'_> {
    fn count_decision(&self, attributes: &Attributes<'_>, since: Instant, decision: Decision) -> Decision {
        let mode = match impersonation_mode(attributes.verb) {
            "" => "unknown",
            mode => mode,
        };
        self.counts.count(mode, decision.is_allow(), since.elapsed());
        decision
    }
}

impl Authorizer for CountedAuthorizerRef<'_> {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let since = Instant::now();
        self.count_decision(attributes, since, self.authorizer.authorize(attributes))
    }

    fn as_async(&self, attributes: &Attributes<'_>) -> Option<&dyn AsyncAuthorizer> {
        self.authorizer.as_async(attributes).is_some().then_some(self)
    }
}

#[async_trait]
impl AsyncAuthorizer for CountedAuthorizerRef<'_> {
    async fn decide_later(&self, attributes: &Attributes<'_>) -> Decision {
        let since = Instant::now();
        self.count_decision(attributes, since, self.authorizer.decide(attributes).await)
    }
}
