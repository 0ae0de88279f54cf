//! The metrics of admission, under upstream's names (`k8s.io/apiserver/pkg/admission/metrics`). Names of webhooks and
//! policies are label values, as upstream: administrators choose them, not clients.
use std::time::Duration;

use kelson_metrics::{Histogram, HistogramVec, IntCounterVec, IntGaugeVec, Registry};

use crate::{Attributes, Operation};

const BUCKETS_S: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const WEBHOOK_BUCKETS_S: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
const CONDITION_BUCKETS_S: [f64; 7] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];
const POLICY_BUCKETS_S: [f64; 6] = [0.000_000_5, 0.001, 0.01, 0.1, 1.0, 10.0];
/// Status codes of webhooks above this one are counted as this one.
const CODE_MAX: u16 = 600;

/// One of the two passes over the plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The mutating pass, which may change the object.
    Admit = 0,
    /// The validating pass.
    Validate = 1,
}

impl Pass {
    /// Returns the value of the label `type` for plugins and steps.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Validate => "validate",
        }
    }
    /// Returns the value of the label `type` for webhooks, whose validating pass has another name upstream.
    pub fn of_webhook(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Validate => "validating",
        }
    }
}

/// Why a webhook rejected a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionCause {
    /// The webhook denied it.
    Answer,
    /// The webhook could not be called, or its answer was invalid.
    Calling,
    /// The server could not apply the answer.
    Server,
}

impl RejectionCause {
    fn as_str(self) -> &'static str {
        match self {
            Self::Answer => "no_error",
            Self::Calling => "calling_webhook_error",
            Self::Server => "apiserver_internal_error",
        }
    }
}

/// The metric families of admission, in the registry of the API server.
#[derive(Clone)]
pub struct Metrics {
    steps: HistogramVec,
    plugins: HistogramVec,
    webhooks: HistogramVec,
    rejections: IntCounterVec,
    failed_open: IntCounterVec,
    requests: IntCounterVec,
    condition_errors: IntCounterVec,
    condition_exclusions: IntCounterVec,
    condition_seconds: HistogramVec,
    policies: Policies,
    security: Security,
    enabled: IntGaugeVec,
}

/// The metrics of policy evaluations.
#[derive(Clone)]
struct Policies {
    validations: IntCounterVec,
    validation_seconds: HistogramVec,
    mutations: IntCounterVec,
    mutation_seconds: HistogramVec,
}

impl Policies {
    fn new(registry: &Registry) -> Self {
        let validation = ["policy", "policy_binding", "error_type", "enforcement_action"];
        let mutation = ["policy", "policy_binding", "error_type"];
        Self {
            validations: registry.counters(
                "apiserver_validating_admission_policy_check_total",
                "Validations by validating admission policies, by error type and enforcement action.",
                &validation,
            ),
            validation_seconds: registry.histograms(
                "apiserver_validating_admission_policy_check_duration_seconds",
                "Duration in seconds of validations by validating admission policies.",
                &validation,
                &POLICY_BUCKETS_S,
            ),
            mutations: registry.counters(
                "apiserver_mutating_admission_policy_check_total",
                "Mutations by mutating admission policies, by error type.",
                &mutation,
            ),
            mutation_seconds: registry.histograms(
                "apiserver_mutating_admission_policy_check_duration_seconds",
                "Duration in seconds of mutations by mutating admission policies.",
                &mutation,
                &POLICY_BUCKETS_S,
            ),
        }
    }
}

/// The mode of a Pod Security evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityMode {
    /// Label `mode` of evaluations that reject a request.
    Enforce,
    /// Label `mode` of evaluations for the audit log.
    Audit,
    /// Label `mode` of evaluations that warn the client.
    Warn,
}

impl SecurityMode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Audit => "audit",
            Self::Warn => "warn",
        }
    }
}

/// The metrics of PodSecurity (`pod-security-admission/metrics`).
#[derive(Clone)]
struct Security {
    evaluations: IntCounterVec,
    exemptions: IntCounterVec,
    errors: IntCounterVec,
}

impl Security {
    fn new(registry: &Registry) -> Self {
        let request = ["request_operation", "resource", "subresource"];
        let demand = ["decision", "policy_level", "policy_version", "mode"];
        Self {
            evaluations: registry.counters(
                "pod_security_evaluations_total",
                "Pod Security Standards evaluations.",
                &[&demand[..], &request[..]].concat(),
            ),
            exemptions: registry.counters(
                "pod_security_exemptions_total",
                "Requests exempt from Pod Security Standards.",
                &request,
            ),
            errors: registry.counters(
                "pod_security_errors_total",
                "Errors that prevented a Pod Security Standards evaluation.",
                &[&["fatal"][..], &request[..]].concat(),
            ),
        }
    }
}

/// Returns the labels of the request that PodSecurity evaluates.
fn security_request<'a>(a: &'a Attributes<'_>) -> [&'a str; 3] {
    let operation = match a.operation {
        Operation::Create => "create",
        Operation::Update => "update",
        Operation::Delete => "delete",
        Operation::Connect => "connect",
    };
    let resource = if a.is("", "pods") { "pod" } else { "controller" };
    [operation, resource, a.subresource]
}

impl Metrics {
    /// Registers the families.
    pub fn new(registry: &Registry) -> Self {
        let step = ["type", "operation", "rejected"];
        let named = ["name", "type", "operation", "rejected"];
        let condition = ["name", "kind", "type", "operation"];
        let histograms = |name: &str, help: &str, labels: &[&str], buckets: &[f64]| {
            registry.histograms(&format!("apiserver_{name}"), help, labels, buckets)
        };
        let counters =
            |name: &str, help: &str, labels: &[&str]| registry.counters(&format!("apiserver_{name}"), help, labels);
        Self {
            steps: histograms(
                "admission_step_admission_duration_seconds",
                "Duration in seconds of an admission step: all mutating or all validating plugins.",
                &step,
                &BUCKETS_S,
            ),
            plugins: histograms(
                "admission_controller_admission_duration_seconds",
                "Duration in seconds of one admission plugin.",
                &named,
                &BUCKETS_S,
            ),
            webhooks: histograms(
                "admission_webhook_admission_duration_seconds",
                "Duration in seconds of webhook calls.",
                &named,
                &WEBHOOK_BUCKETS_S,
            ),
            rejections: counters(
                "admission_webhook_rejection_count",
                "Requests rejected by a webhook or because its call failed.",
                &["name", "type", "operation", "error_type", "rejection_code"],
            ),
            failed_open: counters(
                "admission_webhook_fail_open_count",
                "Failed webhook calls that were ignored (failurePolicy Ignore).",
                &["name", "type"],
            ),
            requests: counters(
                "admission_webhook_request_total",
                "Webhook calls.",
                &["name", "type", "operation", "code", "rejected"],
            ),
            condition_errors: counters(
                "admission_match_condition_evaluation_errors_total",
                "Failed evaluations of match conditions.",
                &condition,
            ),
            condition_exclusions: counters(
                "admission_match_condition_exclusions_total",
                "Requests excluded by match conditions.",
                &condition,
            ),
            condition_seconds: histograms(
                "admission_match_condition_evaluation_seconds",
                "Duration in seconds of the evaluation of a webhook's or policy's match conditions.",
                &condition,
                &CONDITION_BUCKETS_S,
            ),
            policies: Policies::new(registry),
            security: Security::new(registry),
            enabled: registry.gauges(
                "kelson_admission_plugin_order",
                "Position of each enabled plugin in the plugin order, from 1.",
                &["name"],
            ),
        }
    }

    /// Returns the histogram for passes of this kind.
    pub(crate) fn step(&self, pass: Pass, operation: Operation, rejected: bool) -> Histogram {
        self.steps.with_label_values(&[pass.as_str(), operation.as_str(), flag(rejected)])
    }
    /// Returns the histogram for a plugin in a pass.
    pub(crate) fn plugin(&self, name: &str, pass: Pass, operation: Operation, rejected: bool) -> Histogram {
        self.plugins.with_label_values(&[name, pass.as_str(), operation.as_str(), flag(rejected)])
    }
    /// Records a call of a webhook.
    pub(crate) fn called(
        &self,
        name: &str,
        pass: Pass,
        operation: Operation,
        took: Duration,
        code: u16,
        rejected: bool,
    ) {
        let code = code.min(CODE_MAX).to_string();
        let (pass, operation, rejected) = (pass.of_webhook(), operation.as_str(), flag(rejected));
        self.requests.with_label_values(&[name, pass, operation, &code, rejected]).inc();
        self.webhooks.with_label_values(&[name, pass, operation, rejected]).observe(took.as_secs_f64());
    }
    /// Counts a rejection by a webhook.
    pub(crate) fn rejected(&self, name: &str, pass: Pass, operation: Operation, cause: RejectionCause, code: u16) {
        let code = code.min(CODE_MAX).to_string();
        self.rejections.with_label_values(&[name, pass.of_webhook(), operation.as_str(), cause.as_str(), &code]).inc();
    }
    /// Counts a failed call that was ignored by the failure policy.
    pub(crate) fn failed_open(&self, name: &str, pass: Pass) {
        self.failed_open.with_label_values(&[name, pass.of_webhook()]).inc();
    }
    /// Records the evaluation of match conditions of one webhook (`webhook`) or policy (`policy`).
    pub fn conditions(&self, name: &str, kind: &str, pass: Pass, operation: Operation, seen: ConditionsSeen) {
        let labels = [name, kind, pass.as_str(), operation.as_str()];
        self.condition_seconds.with_label_values(&labels).observe(seen.took.as_secs_f64());
        if seen.errors > 0 {
            self.condition_errors.with_label_values(&labels).inc_by(seen.errors);
        }
        if seen.excluded {
            self.condition_exclusions.with_label_values(&labels).inc();
        }
    }
    /// Shows the enabled plugins and their order.
    pub(crate) fn enabled(&self, names: &[&str]) {
        for (place, name) in (1..).zip(names) {
            self.enabled.with_label_values(&[name]).set(place);
        }
    }
    /// Counts an evaluation of a Pod Security level and version.
    pub(crate) fn security_evaluation(
        &self,
        allowed: bool,
        (level, version): (&str, &str),
        mode: SecurityMode,
        a: &Attributes<'_>,
    ) {
        let decision = if allowed { "allow" } else { "deny" };
        let [operation, resource, subresource] = security_request(a);
        let labels = [decision, level, version, mode.as_str(), operation, resource, subresource];
        self.security.evaluations.with_label_values(&labels).inc();
    }
    /// Counts a request that is exempt.
    pub(crate) fn security_exemption(&self, a: &Attributes<'_>) {
        self.security.exemptions.with_label_values(&security_request(a)).inc();
    }
    /// Counts an error; a fatal one rejects the request.
    pub(crate) fn security_error(&self, fatal: bool, a: &Attributes<'_>) {
        let [operation, resource, subresource] = security_request(a);
        self.security.errors.with_label_values(&[flag(fatal), operation, resource, subresource]).inc();
    }
    /// Records one validation of a policy: `error` is the kind of failure, `action` its consequence.
    pub fn validation(&self, policy: &str, binding: &str, error: &str, action: &str, took: Duration) {
        let labels = [policy, binding, error, action];
        self.policies.validations.with_label_values(&labels).inc();
        self.policies.validation_seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }
    /// Records one mutation of a policy.
    pub fn mutation(&self, policy: &str, binding: &str, error: &str, took: Duration) {
        let labels = [policy, binding, error];
        self.policies.mutations.with_label_values(&labels).inc();
        self.policies.mutation_seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }
}

/// The result of evaluating the match conditions of one webhook or policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConditionsSeen {
    /// The time for all of them.
    pub took: Duration,
    /// The number of conditions that could not be evaluated.
    pub errors: u64,
    /// Whether a condition was false.
    pub excluded: bool,
}

fn flag(rejected: bool) -> &'static str {
    if rejected { "true" } else { "false" }
}
