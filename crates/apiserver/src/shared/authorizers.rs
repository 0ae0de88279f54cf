//! The configured authorizers: they are built, counted, and replaced when their configuration file changes.
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kelson_auth::authorize::config::WebhookConfig;
use kelson_auth::authorize::node::NodeGraph;
use kelson_auth::authorize::webhook::{ConditionObserver, FailurePolicy, Matched};
use kelson_auth::authorize::{
    AlwaysAllow, AlwaysDeny, AsyncAuthorizer, Decision, NodeAuthorizer, PrivilegedGroup, Rbac, WebhookAuthorizer,
};
use kelson_auth::{Attributes, Authorizer, AuthorizerChain, UserInfo};
use kelson_meta::Clock;
use kelson_metrics::{HistogramVec, IntCounter, IntCounterVec, Registry};
use parking_lot::RwLock;

use crate::config::{AuthorizationMode, Config};
use crate::shared::identity_webhooks::{ReviewOutcome, ReviewWebhook};

/// Upper bounds of the webhook duration histogram in seconds (Prometheus' defaults, as upstream).
const BUCKETS_S: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Upper bounds of the match condition histogram in seconds (as upstream).
const CONDITION_BUCKETS_S: [f64; 7] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];

/// Metrics of authorization under upstream's names.
#[derive(Clone)]
struct Counters {
    decisions: IntCounterVec,
    evaluations: IntCounterVec,
    durations: HistogramVec,
    fail_open: IntCounterVec,
    condition_errors: IntCounterVec,
    condition_exclusions: IntCounterVec,
    condition_durations: HistogramVec,
}

impl Counters {
    fn new(registry: &Registry) -> Self {
        let of_conditions = |name: &str| format!("apiserver_authorization_match_condition_{name}");
        Self {
            decisions: registry.counters(
                "apiserver_authorization_decisions_total",
                "Decisions made by an authorizer, by type, name and decision (allowed or denied).",
                &["type", "name", "decision"],
            ),
            evaluations: registry.counters(
                "apiserver_authorization_webhook_evaluations_total",
                "Round-trips to authorization webhooks, by name and result.",
                &["name", "result"],
            ),
            durations: registry.histograms(
                "apiserver_authorization_webhook_duration_seconds",
                "Duration of round-trips to authorization webhooks in seconds.",
                &["name", "result"],
                &BUCKETS_S,
            ),
            fail_open: registry.counters(
                "apiserver_authorization_webhook_evaluations_fail_open_total",
                "Requests on which a failed webhook was treated as having no opinion (fail open), by name and result.",
                &["name", "result"],
            ),
            condition_errors: registry.counters(
                &of_conditions("evaluation_errors_total"),
                "Requests for which a match condition of an authorizer could not be evaluated.",
                &["type", "name"],
            ),
            condition_exclusions: registry.counters(
                &of_conditions("exclusions_total"),
                "Requests that skipped an authorizer because a match condition is false.",
                &["type", "name"],
            ),
            condition_durations: registry.histograms(
                &of_conditions("evaluation_seconds"),
                "Duration of evaluating an authorizer's match conditions for one request in seconds.",
                &["type", "name"],
                &CONDITION_BUCKETS_S,
            ),
        }
    }

    /// A callback that counts the results of one webhook's match conditions.
    fn condition_counter(&self, name: &str) -> ConditionObserver {
        let labels = ["Webhook", name];
        let took_s = self.condition_durations.with_label_values(&labels);
        let errors = self.condition_errors.with_label_values(&labels);
        let exclusions = self.condition_exclusions.with_label_values(&labels);
        Box::new(move |matched, took| {
            took_s.observe(took.as_secs_f64());
            match matched {
                Matched::Asked => {}
                Matched::Excluded => exclusions.inc(),
                Matched::Failed => errors.inc(),
            }
        })
    }

    /// A callback that counts the reviews by one webhook.
    fn review_counter(
        &self,
        name: &str,
        policy: FailurePolicy,
    ) -> impl Fn(ReviewOutcome, Duration) + Send + Sync + 'static {
        let (counters, name) = (self.clone(), name.to_owned());
        move |asked, took| {
            let result = asked.label();
            counters.evaluations.with_label_values(&[&name, result]).inc();
            counters.durations.with_label_values(&[&name, result]).observe(took.as_secs_f64());
            if asked != ReviewOutcome::Answered && policy == FailurePolicy::NoOpinion {
                counters.fail_open.with_label_values(&[&name, result]).inc();
            }
        }
    }
}

/// An authorizer whose decisions are counted. "No opinion" is not a decision.
struct CountedAuthorizer {
    inner: Arc<dyn Authorizer>,
    allowed: IntCounter,
    denied: IntCounter,
}

impl CountedAuthorizer {
    fn count(&self, decision: Decision) -> Decision {
        match decision {
            Decision::Allow(_) => self.allowed.inc(),
            Decision::Deny(_) => self.denied.inc(),
            Decision::NoOpinion(_) => {}
        }
        decision
    }
}

impl Authorizer for CountedAuthorizer {
    fn unlisted(&self, user: &UserInfo) -> Vec<&'static str> {
        self.inner.unlisted(user)
    }
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        self.count(self.inner.authorize(attributes))
    }
    fn as_async(&self, attributes: &Attributes<'_>) -> Option<&dyn AsyncAuthorizer> {
        self.inner.as_async(attributes).map(|_| self as &dyn AsyncAuthorizer)
    }
}

#[async_trait]
impl AsyncAuthorizer for CountedAuthorizer {
    async fn decide_later(&self, attributes: &Attributes<'_>) -> Decision {
        self.count(self.inner.decide(attributes).await)
    }
}

/// The server's authorizers in configured order. They can be replaced at runtime, as one chain.
pub struct Authorizers {
    chain: RwLock<Arc<AuthorizerChain>>,
    /// Whether the authorizers may be replaced while the server runs.
    replaceable: bool,
    rbac: Arc<Rbac>,
    /// `None` if Node was not configured at start; then the graph is not maintained.
    graph: Option<Arc<NodeGraph>>,
    clock: Arc<dyn Clock>,
    counters: Counters,
}

impl Authorizers {
    /// Builds the configured authorizers.
    ///
    /// # Errors
    /// An authorizer's configuration is invalid.
    pub fn new(config: &Config, rbac: &Arc<Rbac>, graph: &Arc<NodeGraph>, metrics: &Registry) -> Result<Self, String> {
        let authorizers = Self {
            chain: RwLock::default(),
            replaceable: config.authorization_may_change,
            rbac: Arc::clone(rbac),
            graph: config.authorization.contains(&AuthorizationMode::Node).then(|| Arc::clone(graph)),
            clock: Arc::clone(&config.clock),
            counters: Counters::new(metrics),
        };
        authorizers.replace(&config.authorization, &config.authorization_webhooks)?;
        Ok(authorizers)
    }

    /// Replaces the authorizers from the next request on. Cached responses of webhooks are dropped.
    ///
    /// # Errors
    /// An authorizer's configuration is invalid. Nothing changes then.
    pub fn replace(&self, modes: &[AuthorizationMode], webhooks: &[WebhookConfig]) -> Result<(), String> {
        let mut members: Vec<Arc<dyn Authorizer>> = vec![Arc::new(PrivilegedGroup)];
        for mode in modes {
            members.push(match mode {
                AuthorizationMode::AlwaysAllow => {
                    self.count_decisions("AlwaysAllow", "alwaysallow", Arc::new(AlwaysAllow))
                }
                AuthorizationMode::AlwaysDeny => self.count_decisions("AlwaysDeny", "alwaysdeny", Arc::new(AlwaysDeny)),
                AuthorizationMode::Node => {
                    let graph = self
                        .graph
                        .clone()
                        .ok_or("authorizer type Node is not allowed if it was not enabled at initial server startup")?;
                    self.count_decisions("Node", "node", Arc::new(NodeAuthorizer::new(graph)))
                }
                AuthorizationMode::Rbac => self.count_decisions("RBAC", "rbac", Arc::clone(&self.rbac) as _),
                AuthorizationMode::Webhook(at) => {
                    let webhook = webhooks.get(*at).ok_or("no configuration for an authorization webhook")?;
                    let name = webhook.options.name.clone();
                    let count_review = self.counters.review_counter(&name, webhook.options.failure_policy);
                    let ask =
                        ReviewWebhook::of_kubeconfig(&webhook.kubeconfig, webhook.timeout)?.observed_by(count_review);
                    let made = WebhookAuthorizer::new(Arc::new(ask), Arc::clone(&self.clock), webhook.options.clone())?;
                    let made = made.with_condition_observer(self.counters.condition_counter(&name));
                    self.count_decisions("Webhook", &name, Arc::new(made))
                }
            });
        }
        *self.chain.write() = Arc::new(AuthorizerChain::new(members));
        Ok(())
    }

    fn count_decisions(&self, kind: &str, name: &str, inner: Arc<dyn Authorizer>) -> Arc<dyn Authorizer> {
        let counter = |decision: &str| self.counters.decisions.with_label_values(&[kind, name, decision]);
        Arc::new(CountedAuthorizer { inner, allowed: counter("allowed"), denied: counter("denied") })
    }

    fn current(&self) -> Arc<AuthorizerChain> {
        Arc::clone(&self.chain.read())
    }
}

impl Authorizer for Authorizers {
    fn unlisted(&self, user: &UserInfo) -> Vec<&'static str> {
        self.current().unlisted(user)
    }
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        self.current().authorize(attributes)
    }
    fn as_async(&self, attributes: &Attributes<'_>) -> Option<&dyn AsyncAuthorizer> {
        // Whether to wait and the decision must come from the same chain. If the chain may be replaced between the two, `decide_later`
        // does both.
        (self.replaceable || self.current().as_async(attributes).is_some()).then_some(self)
    }
}

#[async_trait]
impl AsyncAuthorizer for Authorizers {
    async fn decide_later(&self, attributes: &Attributes<'_>) -> Decision {
        let chain = self.current();
        let chain: &dyn Authorizer = &*chain;
        chain.decide(attributes).await
    }
}

#[cfg(test)]
mod tests {
    use kelson_store::{Store, StoreOptions};

    use super::*;

    #[tokio::test]
    async fn replaced_authorizers_decide_and_each_decision_is_counted() {
        let mut config = Config::new(Store::in_memory(StoreOptions::default()));
        config.authorization = vec![AuthorizationMode::AlwaysAllow];
        config.authorization_may_change = true;
        let (rbac, graph, registry) = (Arc::new(Rbac::new()), Arc::new(NodeGraph::new()), Registry::new());
        let authorizers = Authorizers::new(&config, &rbac, &graph, &registry).expect("built");
        let jane = UserInfo::new("jane", ["dev"]);
        let path = Attributes::path(&jane, "get", "/x");
        let shown: &dyn Authorizer = &authorizers;
        assert!(shown.decide(&path).await.is_allow());
        authorizers.replace(&[AuthorizationMode::Rbac], &[]).expect("replaced");
        assert!(matches!(shown.decide(&path).await, Decision::NoOpinion(_)));
        let refused = authorizers.replace(&[AuthorizationMode::AlwaysAllow, AuthorizationMode::Node], &[]).unwrap_err();
        assert!(refused.contains("was not enabled at initial server startup"), "{refused}");
        assert!(!shown.decide(&path).await.is_allow(), "an invalid configuration replaces nothing");
        let text = registry.text();
        let counted =
            "apiserver_authorization_decisions_total{decision=\"allowed\",name=\"alwaysallow\",type=\"AlwaysAllow\"} 1";
        assert!(text.contains(counted), "{text}");
    }

    #[test]
    fn a_failed_webhook_is_counted_according_to_its_policy() {
        let registry = Registry::new();
        let counters = Counters::new(&registry);
        counters.review_counter("open", FailurePolicy::NoOpinion)(ReviewOutcome::TimedOut, Duration::from_secs(3));
        counters.review_counter("shut", FailurePolicy::Deny)(ReviewOutcome::Failed, Duration::from_secs(3));
        counters.review_counter("open", FailurePolicy::NoOpinion)(ReviewOutcome::Answered, Duration::from_millis(3));
        let text = registry.text();
        for row in [
            "apiserver_authorization_webhook_evaluations_total{name=\"open\",result=\"timeout\"} 1",
            "apiserver_authorization_webhook_evaluations_total{name=\"open\",result=\"success\"} 1",
            "apiserver_authorization_webhook_evaluations_total{name=\"shut\",result=\"error\"} 1",
            "apiserver_authorization_webhook_evaluations_fail_open_total{name=\"open\",result=\"timeout\"} 1",
            "apiserver_authorization_webhook_duration_seconds_bucket{name=\"open\",result=\"success\",le=\"0.005\"} 1",
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
        assert!(!text.contains("fail_open_total{name=\"shut\""));
    }

    #[test]
    fn results_of_match_conditions_are_counted() {
        let registry = Registry::new();
        let count = Counters::new(&registry).condition_counter("w");
        for matched in [Matched::Asked, Matched::Excluded, Matched::Excluded, Matched::Failed] {
            count(matched, Duration::from_millis(2));
        }
        let text = registry.text();
        for row in [
            "evaluation_errors_total{name=\"w\",type=\"Webhook\"} 1",
            "exclusions_total{name=\"w\",type=\"Webhook\"} 2",
            "evaluation_seconds_count{name=\"w\",type=\"Webhook\"} 4",
            "evaluation_seconds_bucket{name=\"w\",type=\"Webhook\",le=\"0.005\"} 4",
        ] {
            assert!(text.contains(&format!("apiserver_authorization_match_condition_{row}")), "{row}\n{text}");
        }
    }
}
