//! Authorization webhooks (`--authorization-webhook-config-file`, `type: Webhook` of an AuthorizationConfiguration):
//! requests for which all match conditions are true are sent as a SubjectAccessReview; answers are cached for a
//! configured time.
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use kelson_cel::{Activation, Budget, Env, MATCH_CONDITIONS_BUDGET, Program, Type};
use kelson_meta::{Clock, FieldSelector, LabelSelector, Operator};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{AsyncAuthorizer, Authorizer, Decision};
use crate::ask::Ask;
use crate::bounded::{Bounded, digest};
use crate::{Attributes, UserInfo};

/// Largest number of cached answers.
const KEPT_MAX: usize = 8192;
/// Largest review whose answer is cached, in bytes. It bounds the memory of the cache.
const KEPT_BYTES_MAX: usize = 10_000;

/// The decision about a request when the webhook is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailurePolicy {
    /// The next authorizer decides.
    NoOpinion,
    /// The request is denied.
    Deny,
}

/// The settings of a webhook.
#[derive(Clone, Debug)]
pub struct WebhookOptions {
    /// The name in log lines.
    pub name: String,
    /// The version of SubjectAccessReview: `v1` or `v1beta1`.
    pub version: &'static str,
    /// The time for which an allowed request is cached; zero disables the cache.
    pub authorized_ttl: Duration,
    /// The time for which a denied request is cached; zero disables the cache.
    pub unauthorized_ttl: Duration,
    /// The decision when the webhook is unavailable.
    pub failure_policy: FailurePolicy,
    /// CEL expressions over `request`, the `v1` spec of the SubjectAccessReview; only requests for which all are true
    /// are sent.
    pub match_conditions: Vec<String>,
}

/// The result of the match conditions of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matched {
    /// All conditions are true, so the webhook decides.
    Asked,
    /// A condition is false, so the webhook has no opinion.
    Excluded,
    /// The evaluation of a condition failed, and no condition is false.
    Failed,
}

/// Receives the result of a request's match conditions and the duration of their evaluation. It is called while the request waits, so it
/// must not block.
pub type ConditionObserver = Box<dyn Fn(Matched, Duration) + Send + Sync>;

/// Authorizes requests by reviews of a webhook.
pub struct WebhookAuthorizer {
    ask: Arc<dyn Ask>,
    clock: Arc<dyn Clock>,
    options: WebhookOptions,
    conditions: Vec<Program>,
    observer: ConditionObserver,
    kept: Bounded<Decision>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SubjectAccessReview {
    status: Option<SubjectAccessReviewStatus>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SubjectAccessReviewStatus {
    allowed: bool,
    denied: bool,
    reason: String,
}

/// Compiles match conditions.
///
/// # Errors
/// The first condition that does not compile.
pub fn conditions(sources: &[String]) -> Result<Vec<Program>, String> {
    let env = Env::builder().typed("request", Type::map(Type::String, Type::Dyn)).build();
    let compile = |source: &String| kelson_cel::admission::compile(&env, source, &[Type::Bool]);
    sources.iter().map(|source| compile(source).map_err(|why| format!("{source:?}: {why}"))).collect()
}

impl WebhookAuthorizer {
    /// Creates an authorizer that sends reviews through `ask`.
    ///
    /// # Errors
    /// A match condition does not compile.
    pub fn new(ask: Arc<dyn Ask>, clock: Arc<dyn Clock>, options: WebhookOptions) -> Result<Self, String> {
        let conditions = conditions(&options.match_conditions)?;
        Ok(Self { ask, clock, options, conditions, observer: Box::new(|_, _| ()), kept: Bounded::new(KEPT_MAX) })
    }

    /// Reports the result of match conditions of each decision to `observer`, if there are match conditions.
    pub fn with_condition_observer(self, observer: ConditionObserver) -> Self {
        Self { observer, ..self }
    }

    fn failed(&self, why: &str) -> Decision {
        match self.options.failure_policy {
            FailurePolicy::NoOpinion => Decision::NoOpinion(why.to_owned()),
            FailurePolicy::Deny => Decision::Deny(why.to_owned()),
        }
    }

    fn matches(&self, spec: &Value) -> Matched {
        let mut activation = Activation::new();
        activation.bind("request", kelson_cel::Value::json(spec));
        let mut budget = Budget::new(MATCH_CONDITIONS_BUDGET);
        let mut fault = None;
        for program in &self.conditions {
            match program.eval(&activation, &mut budget).map(|value| value.as_bool()) {
                Ok(Some(false)) => return Matched::Excluded,
                Ok(_) => {}
                Err(e) => fault = fault.or(Some(e)),
            }
        }
        let Some(e) = fault else { return Matched::Asked };
        tracing::warn!(webhook = self.options.name, error = %e, "evaluating a match condition failed");
        Matched::Failed
    }

    /// Returns the decision that is known without a call, or the review to send with its cache key. `deciding` is false
    /// when the caller only checks whether a call is necessary.
    fn known(&self, attributes: &Attributes<'_>, deciding: bool) -> Result<Decision, (String, [u8; 32])> {
        let spec = spec(attributes);
        if !self.conditions.is_empty() {
            let begun = Instant::now();
            let matched = self.matches(&spec);
            if deciding {
                (self.observer)(matched, begun.elapsed());
            }
            match matched {
                Matched::Asked => {}
                Matched::Excluded => return Ok(Decision::NoOpinion(String::new())),
                Matched::Failed => return Ok(self.failed("a match condition of an authorizer failed")),
            }
        }
        let text = sent(spec).to_string();
        let key = digest([text.as_bytes()]);
        match self.kept.get(&key, self.clock.now()) {
            Some(decision) => Ok(decision),
            None => Err((text, key)),
        }
    }
}

/// Returns the spec for sending: empty fields are left out, as upstream's types do, since policies test for their
/// presence.
fn sent(mut spec: Value) -> Value {
    fn is_empty(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Bool(_) | Value::Number(_) => false,
        }
    }
    for part in ["resourceAttributes", "nonResourceAttributes"] {
        if let Some(fields) = spec.get_mut(part).and_then(Value::as_object_mut) {
            fields.retain(|_, value| !is_empty(value));
        }
    }
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|name, value| name.ends_with("Attributes") || !is_empty(value));
    }
    spec
}

/// Returns the spec of a SubjectAccessReview with every field: conditions compare them with the empty string.
fn spec(a: &Attributes<'_>) -> Value {
    let user = a.user;
    let mut spec = json!({"user": user.name, "groups": user.groups, "extra": user.extra, "uid": user.uid});
    if !a.is_resource {
        spec["nonResourceAttributes"] = json!({"path": a.path, "verb": a.verb});
        return spec;
    }
    let mut resource = json!({"namespace": a.namespace, "verb": a.verb, "group": a.group, "version": a.version,
        "resource": a.resource, "subresource": a.subresource, "name": a.name});
    if let Some(fields) = a.field_selector.map(fields).filter(|r| !r.is_empty()) {
        resource["fieldSelector"] = json!({"requirements": fields});
    }
    if let Some(labels) = a.label_selector.map(labels).filter(|r| !r.is_empty()) {
        resource["labelSelector"] = json!({"requirements": labels});
    }
    spec["resourceAttributes"] = resource;
    spec
}

fn fields(selector: &FieldSelector) -> Vec<Value> {
    let one = |r: &kelson_meta::FieldRequirement| json!({"key": r.field, "operator": if r.negated { "NotIn" } else { "In" }, "values": [r.value]});
    selector.0.iter().map(one).collect()
}

/// Returns the requirements of a label selector that a review can express: numeric comparisons are left out, so that
/// the webhook sees a wider request.
fn labels(selector: &LabelSelector) -> Vec<Value> {
    let one = |r: &kelson_meta::LabelRequirement| {
        let operator = match r.operator {
            Operator::In => "In",
            Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            Operator::Gt | Operator::Lt => return None,
        };
        Some(json!({"key": r.key, "operator": operator, "values": r.values}))
    };
    selector.requirements.iter().filter_map(one).collect()
}

impl Authorizer for WebhookAuthorizer {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        // Only called for requests that `as_async` does not handle.
        self.known(attributes, true).unwrap_or_else(|_| self.failed("an authorizer cannot decide without waiting"))
    }

    fn unlisted(&self, _user: &UserInfo) -> Vec<&'static str> {
        vec!["webhook authorizer does not support user rule resolution"]
    }

    fn as_async(&self, attributes: &Attributes<'_>) -> Option<&dyn AsyncAuthorizer> {
        self.known(attributes, false).is_err().then_some(self)
    }
}

#[async_trait]
impl AsyncAuthorizer for WebhookAuthorizer {
    async fn decide_later(&self, attributes: &Attributes<'_>) -> Decision {
        let (spec, key) = match self.known(attributes, true) {
            Ok(decision) => return decision,
            Err(unknown) => unknown,
        };
        let head =
            format!(r#"{{"apiVersion":"authorization.k8s.io/{}","kind":"SubjectAccessReview""#, self.options.version);
        // In v1beta1 the field `groups` is named `group`.
        let sent = if self.options.version == "v1beta1" {
            spec.replacen(r#""groups":"#, r#""group":"#, 1)
        } else {
            spec.clone()
        };
        let review = format!(r#"{head},"metadata":{{}},"spec":{sent},"status":{{"allowed":false}}}}"#);
        let status = match self.ask.post(review.into()).await {
            Ok(answer) => kelson_meta::from_json::<SubjectAccessReview>(&answer).ok().and_then(|review| review.status),
            Err(why) => {
                tracing::warn!(
                    webhook = self.options.name,
                    why,
                    "the authorization webhook is unavailable; not calling it"
                );
                None
            }
        };
        let Some(status) = status else { return self.failed("an authorization webhook did not respond") };
        let (decision, kept) = match (status.allowed, status.denied) {
            (true, true) => {
                tracing::warn!(webhook = self.options.name, "an authorization webhook allowed and denied one request");
                return Decision::Deny("an authorization webhook allowed and denied the request".into());
            }
            (true, false) => (Decision::Allow(status.reason), self.options.authorized_ttl),
            (false, true) => (Decision::Deny(status.reason), self.options.unauthorized_ttl),
            (false, false) => (Decision::NoOpinion(status.reason), self.options.unauthorized_ttl),
        };
        if !kept.is_zero() && spec.len() <= KEPT_BYTES_MAX {
            let now = self.clock.now();
            self.kept.put(key, decision.clone(), now + kept, now);
        }
        decision
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use parking_lot::Mutex;

    /// A clock that is set by hand.
    struct HandClock(Mutex<jiff::Timestamp>);

    impl HandClock {
        fn at(text: &str) -> Arc<Self> {
            Arc::new(Self(Mutex::new(text.parse().unwrap())))
        }
        fn pass(&self, seconds: u64) {
            *self.0.lock() += Duration::from_secs(seconds);
        }
    }

    impl Clock for HandClock {
        fn now(&self) -> jiff::Timestamp {
            *self.0.lock()
        }
    }

    /// Decides by the verb.
    #[derive(Default)]
    struct Server(Mutex<Vec<Value>>);

    #[async_trait]
    impl Ask for Server {
        async fn post(&self, review: Bytes) -> Result<Bytes, String> {
            let review: Value = serde_json::from_slice(&review).unwrap();
            let verb = review["spec"]["resourceAttributes"]["verb"].as_str().unwrap_or("path").to_owned();
            self.0.lock().push(review);
            let status = match verb.as_str() {
                "get" => json!({"allowed": true, "reason": "yes"}),
                "delete" => json!({"allowed": false, "denied": true, "reason": "never"}),
                "patch" => json!({"allowed": true, "denied": true}),
                "update" => return Err("connection refused".into()),
                "watch" => return Ok("{".into()),
                _ => json!({"allowed": false}),
            };
            Ok(json!({"status": status}).to_string().into())
        }
    }

    fn options(failure_policy: FailurePolicy, conditions: &[&str]) -> WebhookOptions {
        WebhookOptions {
            name: "w".into(),
            version: "v1",
            authorized_ttl: Duration::from_secs(300),
            unauthorized_ttl: Duration::from_secs(30),
            failure_policy,
            match_conditions: conditions.iter().map(|c| (*c).to_owned()).collect(),
        }
    }

    #[tokio::test]
    async fn decisions_are_kept_for_their_time_and_failures_follow_the_policy() {
        let (server, clock) = (Arc::new(Server::default()), HandClock::at("2026-01-01T00:00:00Z"));
        let jane = UserInfo::new("jane", ["dev"]);
        for policy in [FailurePolicy::NoOpinion, FailurePolicy::Deny] {
            server.0.lock().clear();
            let webhook =
                WebhookAuthorizer::new(Arc::clone(&server) as _, clock.clone(), options(policy, &[])).unwrap();
            let webhook: &dyn Authorizer = &webhook;
            let failed = matches!(policy, FailurePolicy::Deny);
            for (verb, allowed, denied, calls) in [
                ("get", true, false, 1),
                ("delete", false, true, 1),
                ("list", false, false, 1),
                ("patch", false, true, 3),
                ("update", false, failed, 3),
                ("watch", false, failed, 3),
            ] {
                let before = server.0.lock().len();
                for _ in 0..3 {
                    let decision = webhook.decide(&Attributes::resource(&jane, verb, "", "pods", "n", "p")).await;
                    assert_eq!(decision.is_allow(), allowed, "{verb}");
                    assert_eq!(matches!(decision, Decision::Deny(_)), denied, "{verb}");
                }
                assert_eq!(server.0.lock().len() - before, calls, "{verb}");
            }
            let get = Attributes::resource(&jane, "get", "", "pods", "n", "p");
            let before = server.0.lock().len();
            clock.pass(299);
            assert!(webhook.decide(&get).await.is_allow());
            assert_eq!(server.0.lock().len(), before);
            clock.pass(2);
            assert!(webhook.decide(&get).await.is_allow());
            assert_eq!(server.0.lock().len(), before + 1);
        }
    }

    #[tokio::test]
    async fn it_is_asked_about_what_its_conditions_are_true_of_and_sees_selectors() {
        let (server, clock) = (Arc::new(Server::default()), HandClock::at("2026-01-01T00:00:00Z"));
        let conditions = ["has(request.resourceAttributes)", "request.resourceAttributes.namespace == 'prod'"];
        let webhook = options(FailurePolicy::Deny, &conditions);
        let webhook = WebhookAuthorizer::new(Arc::clone(&server) as _, clock.clone(), webhook).unwrap();
        let results = Arc::new(Mutex::new(Vec::new()));
        let of_first = Arc::clone(&results);
        let webhook = webhook.with_condition_observer(Box::new(move |matched, _| of_first.lock().push(matched)));
        let webhook: &dyn Authorizer = &webhook;
        let jane = UserInfo::new("jane", ["dev"]);
        let no_opinion = Decision::NoOpinion(String::new());
        assert_eq!(webhook.decide(&Attributes::path(&jane, "get", "/metrics")).await, no_opinion);
        assert_eq!(webhook.decide(&Attributes::resource(&jane, "get", "", "pods", "dev", "p")).await, no_opinion);
        assert!(server.0.lock().is_empty());
        let fields = FieldSelector::parse("spec.nodeName=n1").unwrap();
        let labels = LabelSelector::parse("app in (a,b),!old").unwrap();
        let list = Attributes {
            field_selector: Some(&fields),
            label_selector: Some(&labels),
            ..Attributes::resource(&jane, "get", "", "pods", "prod", "")
        };
        assert!(webhook.decide(&list).await.is_allow());
        assert_eq!(*results.lock(), [Matched::Excluded, Matched::Excluded, Matched::Asked], "once for each decision");
        let asked = server.0.lock()[0].clone();
        assert_eq!(asked["apiVersion"], "authorization.k8s.io/v1");
        let resource = &asked["spec"]["resourceAttributes"];
        let wanted = json!([{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]);
        assert_eq!(resource["fieldSelector"]["requirements"], wanted);
        assert_eq!(resource["labelSelector"]["requirements"][0]["operator"], "In");
        assert_eq!(asked["spec"]["groups"], json!(["dev"]));
        let mut names: Vec<&str> = resource.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["fieldSelector", "labelSelector", "namespace", "resource", "verb", "version"]);
        assert!(asked["spec"].get("uid").is_none(), "what is empty is not sent");
        // A failed condition must not let a request bypass the webhook.
        let broken = options(FailurePolicy::Deny, &["request.resourceAttributes.labelSelector.x == 'y'"]);
        let broken = WebhookAuthorizer::new(Arc::clone(&server) as _, clock, broken).unwrap();
        let of_broken = Arc::clone(&results);
        let broken = broken.with_condition_observer(Box::new(move |matched, _| of_broken.lock().push(matched)));
        let broken: &dyn Authorizer = &broken;
        let decision = broken.decide(&Attributes::resource(&jane, "get", "", "pods", "n", "p")).await;
        assert!(matches!(decision, Decision::Deny(_)));
        assert_eq!(results.lock().last(), Some(&Matched::Failed));
        assert_eq!(broken.unlisted(&jane), ["webhook authorizer does not support user rule resolution"]);
        assert!(super::conditions(&["request.".to_owned()]).is_err() && super::conditions(&["1".to_owned()]).is_err());
    }
}
