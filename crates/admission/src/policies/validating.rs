//! ValidatingAdmissionPolicy: every policy whose rules and bindings fit a request is evaluated; failed validations refuse
//! the request, warn, or go to the audit log, as the binding says (upstream `plugin/policy/validating`).
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use kelson_meta::{Reason, Status, StatusCause};
use serde_json::{Value, json};

use super::decision::{Denial, ValidatingPolicy};
use super::in_force::{Decoded, InForce};
use super::policy::{Binding, Policy};
use super::{namespace_of, params};
use crate::dynamic::expressions::{self, Asking, Inputs};
use crate::dynamic::manifests::Accepted;
use crate::dynamic::{Match, Shown};
use crate::metrics::Pass;
use crate::{AsyncPlugin, Attributes, Dependencies, Notes, Operation, Plugin};

/// Longest value of an audit annotation, in bytes.
const ANNOTATION_BYTES_MAX: usize = 10 * 1024;
/// Annotation of the audit event that tells failed validations.
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

/// See the module.
pub struct ValidatingPolicies {
    d: Dependencies,
    in_force: InForce<ValidatingPolicy>,
}

/// A refusal, with the policy and binding that it is of.
struct Refusal {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: Reason,
}

/// What is found while the policies of one request are evaluated.
#[derive(Default)]
struct Findings {
    refusals: Vec<Refusal>,
    /// Values by key, of one policy.
    annotations: Vec<(String, Vec<String>)>,
    /// The request as expressions see it, in the form that the last policy wanted; nearly all want the same.
    request: Option<(Match, Arc<Value>)>,
}

/// Bindings by the name of their policy, each in its place.
type Bound<'b> = HashMap<&'b str, Vec<&'b Binding>>;

impl ValidatingPolicies {
    /// Over the stored policies and bindings, and those in the files that the plugin's configuration names.
    ///
    /// # Errors
    /// What is wrong with the configuration or the files.
    pub fn new(d: &Dependencies, configuration: &Value) -> Result<Self, String> {
        Ok(Self { d: d.clone(), in_force: InForce::new(d, configuration)? })
    }

    async fn policy(
        &self,
        policy: &ValidatingPolicy,
        bindings: &Bound<'_>,
        a: &Attributes<'_>,
        notes: &mut Notes,
        found: &mut Findings,
    ) -> Result<(), Status> {
        let base = &policy.base;
        let (objects, versions) = (self.d.objects.as_ref(), self.d.versions.as_ref());
        let form = match base.criteria.matches(a, objects, versions) {
            Ok(Some(form)) => form,
            Ok(None) => return Ok(()),
            Err(status) => {
                found.misconfigured(policy, None, &status.message);
                return Ok(());
            }
        };
        if let Some(kind) = &base.param_kind
            && self.d.kinds.resources(&kind.api_version(), &kind.kind).is_empty()
        {
            let why = format!("failed to find resource referenced by paramKind: '{kind}'");
            found.misconfigured(policy, None, &why);
            return Ok(());
        }
        for binding in bindings.get(base.name.as_str()).into_iter().flatten() {
            let fits = match &binding.criteria {
                None => Ok(true),
                Some(criteria) => criteria.matches(a, objects, versions).map(|m| m.is_some()),
            };
            match fits {
                Ok(true) => self.binding(policy, binding, a, &form, notes, found).await?,
                Ok(false) => {}
                Err(status) => found.misconfigured(policy, Some(binding), &status.message),
            }
        }
        for (key, values) in std::mem::take(&mut found.annotations) {
            notes.annotate(format!("{}/{key}", base.name), values.join(", "));
        }
        Ok(())
    }

    async fn binding(
        &self,
        policy: &ValidatingPolicy,
        binding: &Binding,
        a: &Attributes<'_>,
        form: &Match,
        notes: &mut Notes,
        found: &mut Findings,
    ) -> Result<(), Status> {
        let params = match params::collect(&policy.base, binding, a, &self.d).await {
            Ok(params) => params,
            Err(why) => {
                found.misconfigured(policy, Some(binding), &why);
                return Ok(());
            }
        };
        if params.is_empty() {
            return Ok(());
        }
        let shown = match Shown::of(a, self.d.versions.as_ref(), form).await {
            Ok(shown) => shown,
            Err(status) => {
                let why = format!("failed to convert object version: {}", status.message);
                found.misconfigured(policy, Some(binding), &why);
                return Ok(());
            }
        };
        let namespace = namespace_of(a, &self.d)?;
        let (request, asking) = (found.request(a, form), Asking::of(a, &self.d));
        for params in &params {
            let inputs = Inputs {
                object: shown.object.as_deref(),
                old: shown.old.as_deref(),
                request: &request,
                params: params.as_ref(),
                namespace: namespace.as_deref(),
                asking: &asking,
                resource: expressions::resource(a),
            };
            self.evaluate(policy, binding, a, &inputs, notes, found);
        }
        Ok(())
    }

    fn evaluate(
        &self,
        policy: &ValidatingPolicy,
        binding: &Binding,
        a: &Attributes<'_>,
        inputs: &Inputs<'_>,
        notes: &mut Notes,
        found: &mut Findings,
    ) {
        let base = &policy.base;
        if !base.conditions.is_empty() {
            let (held, seen) = base.conditions.hold(inputs);
            self.d.metrics.conditions(&base.name, "policy", Pass::Validate, a.operation, seen);
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
        let verdict = policy.judge(inputs);
        for denial in &verdict.denials {
            self.act(policy, binding, denial, notes, found);
        }
        for (key, mut value) in verdict.annotations {
            value.truncate(value.floor_char_boundary(ANNOTATION_BYTES_MAX));
            found.annotate(key, value);
        }
        for message in verdict.broken_annotations {
            self.d.metrics.validation(&base.name, &binding.name, "invalid_error", "deny", Duration::ZERO);
            found.refuse(policy, Some(binding), message, Reason::Invalid);
        }
    }

    /// Does with a failed validation what its binding says.
    fn act(
        &self,
        policy: &ValidatingPolicy,
        binding: &Binding,
        denial: &Denial,
        notes: &mut Notes,
        found: &mut Findings,
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
                    let told = json!([{"message": denial.message, "policy": base.name, "binding": binding.name,
                        "expressionIndex": denial.index, "validationActions": binding.actions}]);
                    notes.annotate(FAILURE, told.to_string());
                }
                _ => {}
            }
        }
    }
}

impl Findings {
    /// A fault of a policy or of its binding, which refuses the request unless failures are to be passed over.
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
    fn request(&mut self, a: &Attributes<'_>, form: &Match) -> Arc<Value> {
        if let Some((_, request)) = self.request.as_ref().filter(|(of, _)| of == form) {
            return Arc::clone(request);
        }
        let request = Arc::new(expressions::request(a, form));
        self.request = Some((form.clone(), Arc::clone(&request)));
        request
    }
    fn annotate(&mut self, key: String, value: String) {
        match self.annotations.iter_mut().find(|(k, _)| *k == key) {
            Some((_, values)) if values.contains(&value) => {}
            Some((_, values)) => values.push(value),
            None => self.annotations.push((key, vec![value])),
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
        let (policies, bindings) = self.in_force.of(a);
        let mut found = Findings::default();
        let mut bound = Bound::new();
        for binding in bindings.iter() {
            bound.entry(&binding.policy).or_default().push(binding);
        }
        for policy in &policies {
            self.policy(policy, &bound, a, notes, &mut found).await?;
        }
        found.status(a)
    }
}
