//! ValidatingAdmissionPolicy: evaluates every policy whose rules and bindings match a request; failed validations
//! reject the request, warn, or are written to the audit log, as the binding says (upstream
//! `plugin/policy/validating`).
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use kelson_meta::{Reason, Status, StatusCause};
use serde_json::{Value, json};

use super::decision::{Denial, ValidatingPolicy};
use super::in_force::{Bound, Decoded, InForce};
use super::policy::{Binding, Policy};
use super::{namespace_of, params};
use crate::dynamic::expressions::{self, Asking, Inputs};
use crate::dynamic::manifests::Accepted;
use crate::dynamic::{Match, VersionedObjects};
use crate::metrics::Pass;
use crate::{AsyncPlugin, Attributes, Dependencies, Notes, Operation, Plugin};

/// The maximum length of an audit annotation's value, in bytes.
const ANNOTATION_BYTES_MAX: usize = 10 * 1024;
/// The audit annotation with failed validations.
const FAILURE: &str = "validation.policy.admission.k8s.io/validation_failure";

impl Decoded for ValidatingPolicy {
    const CONFIGURATION: &'static str = "ValidatingAdmissionPolicyConfiguration";
    const ACCEPTED: [Accepted; 2] = [
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    ];
    fn parse(tree: &Value) -> Self {
        Self::parse(tree)
    }
    fn base(&self) -> &Policy {
        &self.base
    }
}

/// The plugin; see the module.
pub struct ValidatingPolicies {
    d: Dependencies,
    in_force: InForce<ValidatingPolicy>,
}

/// A rejection with its policy and binding.
struct Refusal {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: Reason,
}

/// The results of the policies for one request.
#[derive(Default)]
struct Findings<'p> {
    refusals: Vec<Refusal>,
    /// Policy, key and values of audit annotations.
    annotations: Vec<(&'p str, String, Vec<String>)>,
}

/// The CEL values of the request's objects and of the request; nearly all policies use the same form.
struct EvaluationInput<'r> {
    form: Match<'r>,
    shown: VersionedObjects<'r>,
    request: Value,
}

/// A step planned for a request before anything is evaluated.
enum Step<'p> {
    /// A policy or one of its bindings is invalid.
    Misconfigured(&'p ValidatingPolicy, Option<&'p Binding>, String),
    Evaluate(Evaluation<'p>),
}

/// A policy with one binding.
struct Evaluation<'p> {
    policy: &'p ValidatingPolicy,
    binding: &'p Binding,
    /// The index of the form of the objects it is evaluated with.
    seen: usize,
    params: Option<Value>,
}

impl ValidatingPolicies {
    /// Creates the plugin with the stored policies and bindings, and those in the files that its configuration names.
    ///
    /// # Errors
    /// The configuration or a file is invalid.
    pub fn new(d: &Dependencies, configuration: &Value) -> Result<Self, String> {
        Ok(Self { d: d.clone(), in_force: InForce::new(d, configuration)? })
    }

    /// Plans the steps of one policy for a request.
    async fn plan<'p>(
        &self,
        Bound { policy, bindings }: &'p Bound<ValidatingPolicy>,
        a: &'p Attributes<'p>,
        seen: &mut Vec<EvaluationInput<'p>>,
        steps: &mut Vec<Step<'p>>,
    ) {
        let base = &policy.base;
        let (objects, versions) = (self.d.objects.as_ref(), self.d.versions.as_ref());
        let form = match base.criteria.matches(a, objects, versions) {
            Ok(Some(form)) => form,
            Ok(None) => return,
            Err(status) => return steps.push(Step::Misconfigured(policy, None, status.message)),
        };
        if let Some(kind) = &base.param_kind
            && self.d.kinds.resources(&kind.api_version(), &kind.kind).is_empty()
        {
            let why = format!("failed to find resource referenced by paramKind: '{kind}'");
            return steps.push(Step::Misconfigured(policy, None, why));
        }
        for binding in bindings {
            let fits = match &binding.criteria {
                None => Ok(true),
                Some(criteria) => criteria.matches(a, objects, versions).map(|m| m.is_some()),
            };
            match fits {
                Ok(true) => {
                    if let Err(why) = self.bound(policy, binding, a, &form, seen, steps).await {
                        steps.push(Step::Misconfigured(policy, Some(binding), why));
                    }
                }
                Ok(false) => {}
                Err(status) => steps.push(Step::Misconfigured(policy, Some(binding), status.message)),
            }
        }
    }

    /// Plans the steps of a policy with one binding.
    ///
    /// # Errors
    /// The binding is invalid.
    async fn bound<'p>(
        &self,
        policy: &'p ValidatingPolicy,
        binding: &'p Binding,
        a: &'p Attributes<'p>,
        form: &Match<'p>,
        seen: &mut Vec<EvaluationInput<'p>>,
        steps: &mut Vec<Step<'p>>,
    ) -> Result<(), String> {
        let params = params::collect(&policy.base, binding, a, &self.d).await?;
        if params.is_empty() {
            return Ok(());
        }
        let seen = match seen.iter().position(|s| s.form == *form) {
            Some(place) => place,
            None => {
                let shown = VersionedObjects::of(a, self.d.versions.as_ref(), form).await;
                let shown = shown.map_err(|s| format!("failed to convert object version: {}", s.message))?;
                seen.push(EvaluationInput { form: form.clone(), shown, request: expressions::request(a, form) });
                seen.len() - 1
            }
        };
        let evaluation = |params| Step::Evaluate(Evaluation { policy, binding, seen, params });
        steps.extend(params.into_iter().map(evaluation));
        Ok(())
    }

    fn evaluate<'p>(
        &self,
        evaluation: &Evaluation<'p>,
        operation: Operation,
        inputs: &Inputs<'_>,
        notes: &mut Notes,
        found: &mut Findings<'p>,
    ) {
        let (policy, binding, params) = (evaluation.policy, evaluation.binding, evaluation.params.as_ref());
        let base = &policy.base;
        if !base.conditions.is_empty() {
            let (held, seen) = base.conditions.hold(inputs, params);
            self.d.metrics.conditions(&base.name, "policy", Pass::Validate, operation, seen);
            match held {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) if base.ignores_failures => return,
                Err(message) => {
                    let denial = Denial {
                        index: 0,
                        message,
                        reason: Reason::Invalid,
                        error: "invalid_error",
                        took: Duration::ZERO,
                    };
                    return self.act(policy, binding, &denial, notes, found);
                }
            }
        }
        let verdict = policy.judge(inputs, params);
        for denial in &verdict.denials {
            self.act(policy, binding, denial, notes, found);
        }
        for (key, mut value) in verdict.annotations {
            value.truncate(value.floor_char_boundary(ANNOTATION_BYTES_MAX));
            found.annotate(&base.name, key, value);
        }
        for message in verdict.broken_annotations {
            self.d.metrics.validation(&base.name, &binding.name, "invalid_error", "deny", Duration::ZERO);
            found.refuse(policy, Some(binding), message, Reason::Invalid);
        }
    }

    /// Applies the binding's actions to a failed validation.
    fn act(
        &self,
        policy: &ValidatingPolicy,
        binding: &Binding,
        denial: &Denial,
        notes: &mut Notes,
        found: &mut Findings<'_>,
    ) {
        let base = &policy.base;
        let counted = |action| self.d.metrics.validation(&base.name, &binding.name, denial.error, action, denial.took);
        for action in &binding.actions {
            match action.as_str() {
                "Deny" => {
                    counted("deny");
                    found.refuse(policy, Some(binding), denial.message.clone(), denial.reason);
                }
                "Warn" => {
                    counted("warn");
                    notes.warn(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                        base.name, binding.name, denial.message
                    ));
                }
                "Audit" => {
                    counted("audit");
                    let reported = json!([{"message": denial.message, "policy": base.name, "binding": binding.name,
                        "expressionIndex": denial.index, "validationActions": binding.actions}]);
                    notes.annotate(FAILURE, reported.to_string());
                }
                _ => {}
            }
        }
    }
}

impl<'p> Findings<'p> {
    /// Handles an invalid policy or binding, which rejects the request unless failures are ignored.
    fn misconfigured(&mut self, policy: &ValidatingPolicy, binding: Option<&Binding>, why: &str) {
        if !policy.base.ignores_failures {
            let what = if binding.is_some() { "binding" } else { "policy" };
            self.refuse(policy, binding, format!("failed to configure {what}: {why}"), Reason::Invalid);
        }
    }
    fn refuse(&mut self, policy: &ValidatingPolicy, binding: Option<&Binding>, message: String, reason: Reason) {
        let (policy, binding) = (policy.base.name.clone(), binding.map(|b| b.name.clone()));
        self.refusals.push(Refusal { policy, binding, message, reason });
    }
    fn annotate(&mut self, policy: &'p str, key: String, value: String) {
        match self.annotations.iter_mut().find(|(p, k, _)| *p == policy && *k == key) {
            Some((_, _, values)) if values.contains(&value) => {}
            Some((_, _, values)) => values.push(value),
            None => self.annotations.push((policy, key, vec![value])),
        }
    }
    fn status(self, a: &Attributes<'_>) -> Result<(), Status> {
        let Some(first) = self.refusals.into_iter().next() else { return Ok(()) };
        let with = first.binding.map(|b| format!(" with binding '{b}'")).unwrap_or_default();
        let message = format!("ValidatingAdmissionPolicy '{}'{with} denied request: {}", first.policy, first.message);
        let mut status = a.forbidden(&message);
        status.reason = first.reason;
        status.code = match first.reason {
            Reason::Forbidden => 403,
            Reason::Unauthorized => 401,
            Reason::RequestEntityTooLarge => 413,
            _ => 422,
        };
        status.details.get_or_insert_default().causes.push(StatusCause { message, ..StatusCause::default() });
        Err(status)
    }
}

impl Plugin for ValidatingPolicies {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }
    fn handles(&self, _: Operation) -> bool {
        true
    }
    fn reload(&self) -> Option<BoxFuture<'_, ()>> {
        self.in_force.reload()
    }
    fn as_async(&self, a: &Attributes<'_>) -> Option<&dyn AsyncPlugin> {
        self.in_force.may_concern(a).then_some(self as &dyn AsyncPlugin)
    }
}

#[async_trait]
impl AsyncPlugin for ValidatingPolicies {
    async fn validate(&self, a: &Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        let ready = self.in_force.ready(a);
        let (mut seen, mut steps) = (Vec::new(), Vec::new());
        for bound in ready.of(a) {
            self.plan(bound, a, &mut seen, &mut steps).await;
        }
        if steps.is_empty() {
            return Ok(());
        }
        let namespace = if seen.is_empty() { None } else { namespace_of(a, &self.d)? };
        let asking = Asking::of(a, &self.d);
        let inputs = seen.iter().map(|s| Inputs::new(a, &s.shown, &s.request, namespace.as_deref(), &asking));
        let inputs: Vec<Inputs<'_>> = inputs.collect();
        let mut found = Findings::default();
        for step in &steps {
            match step {
                Step::Misconfigured(policy, binding, why) => found.misconfigured(policy, *binding, why),
                Step::Evaluate(evaluation) => {
                    let Some(inputs) = inputs.get(evaluation.seen) else { continue };
                    self.evaluate(evaluation, a.operation, inputs, notes, &mut found);
                }
            }
        }
        for (policy, key, values) in &found.annotations {
            notes.annotate(format!("{policy}/{key}"), values.join(", "));
        }
        found.status(a)
    }
}
