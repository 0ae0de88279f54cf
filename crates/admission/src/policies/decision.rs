//! Evaluates one validating policy for a request with one set of parameters (upstream `validating.validator`).
use std::time::{Duration, Instant};

use kelson_cel::admission::Extent;
use kelson_cel::{Activation, Budget, REQUEST_BUDGET, Type, Value as CelValue};
use kelson_meta::Reason;
use kelson_meta::tree::path::{at, list, text};
use serde_json::Value;

use super::policy::Policy;
use crate::dynamic::expressions::{Expression, Fault, Inputs, OUT_OF_BUDGET, budget};

/// The maximum length of the result of a message expression, in bytes.
const MESSAGE_BYTES_MAX: usize = 5 * 1024;

/// A validating policy.
pub struct ValidatingPolicy {
    /// The fields that all policies have.
    pub base: Policy,
    validations: Vec<Validation>,
    annotations: Vec<Annotation>,
}

struct Validation {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: Reason,
}

struct Annotation {
    key: String,
    value: Expression,
}

/// A validation that was false, or could not be evaluated under `failurePolicy: Fail`.
#[derive(Clone, Debug)]
pub struct Denial {
    /// The index of the validation in the policy.
    pub index: usize,
    /// The message for clients.
    pub message: String,
    /// The reason of the rejection.
    pub reason: Reason,
    /// The kind of failure in metrics.
    pub error: &'static str,
    /// The time of its evaluation.
    pub took: Duration,
}

/// The result of a policy.
#[derive(Debug, Default)]
pub struct Verdict {
    /// The failed validations.
    pub denials: Vec<Denial>,
    /// Audit annotations: key and value.
    pub annotations: Vec<(String, String)>,
    /// Audit annotations that could not be evaluated, under `failurePolicy: Fail`.
    pub broken_annotations: Vec<String>,
}

impl ValidatingPolicy {
    /// Decodes a stored object.
    pub fn parse(tree: &Value) -> Self {
        let base = Policy::parse(tree);
        let spec = at(tree, &["spec"]);
        let reported = Extent { authorizer: false, ..base.extent };
        let validation = |v: &Value| Validation {
            expression: base.variables.expression(base.extent, text(v, &["expression"]), &[Type::Bool]),
            message: text(v, &["message"]).trim().to_owned(),
            message_expression: Some(text(v, &["messageExpression"]))
                .filter(|source| !source.is_empty())
                .map(|source| base.variables.expression(reported, source, &[Type::String])),
            reason: serde_json::from_value(at(v, &["reason"]).clone()).unwrap_or(Reason::Invalid),
        };
        let annotation = |v: &Value| Annotation {
            key: text(v, &["key"]).to_owned(),
            value: base.variables.expression(base.extent, text(v, &["valueExpression"]), &[Type::String, Type::Null]),
        };
        let validations = list(spec, &["validations"]).iter().map(validation).collect();
        let annotations = list(spec, &["auditAnnotations"]).iter().map(annotation).collect();
        Self { validations, annotations, base }
    }

    /// Returns the failure of the policy itself, if failures reject requests.
    fn failed(&self, index: usize, message: String, took: Duration) -> Option<Denial> {
        let denial = Denial { index, message, reason: Reason::Invalid, error: "invalid_error", took };
        (!self.base.ignores_failures).then_some(denial)
    }

    /// Evaluates the policy for a request.
    pub fn judge(&self, inputs: &Inputs<'_>, params: Option<&Value>) -> Verdict {
        let activation = inputs.activation(params, self.base.variables.programs());
        let mut verdict = Verdict::default();
        let mut total = budget(REQUEST_BUDGET);
        for (index, validation) in self.validations.iter().enumerate() {
            match self.one(index, validation, &activation, &mut total) {
                Ok(denial) => verdict.denials.extend(denial),
                Err(()) => {
                    // Earlier results are dropped: upstream answers only with this one.
                    let denial = self.failed(0, OUT_OF_BUDGET.to_owned(), Duration::ZERO);
                    let denials = denial.map(|d| Denial { error: "out_of_budget", ..d }).into_iter().collect();
                    return Verdict { denials, ..Verdict::default() };
                }
            }
        }
        self.annotate(&activation, &mut verdict);
        verdict
    }

    /// Evaluates one validation; the error means that nothing more may be evaluated.
    fn one<'a>(
        &'a self,
        index: usize,
        validation: &'a Validation,
        activation: &Activation<'a>,
        total: &mut Budget,
    ) -> Result<Option<Denial>, ()> {
        let begun = Instant::now();
        match validation.expression.eval(activation, total) {
            Ok(value) if value.as_bool() == Some(true) => Ok(None),
            Ok(_) => {
                let took = begun.elapsed();
                let reported = validation.message_expression.as_ref().map(|e| e.eval(activation, total));
                let reported = match reported {
                    Some(Err(Fault::OutOfBudget)) => {
                        let why = format!("failed messageExpression: {OUT_OF_BUDGET}");
                        return Ok(self.failed(index, why, took));
                    }
                    Some(Ok(value)) => value.as_text().map(str::trim).unwrap_or_default().to_owned(),
                    _ => String::new(),
                };
                let reported =
                    Some(reported).filter(|t| !t.is_empty() && t.len() <= MESSAGE_BYTES_MAX && !t.contains('\n'));
                let written = Some(validation.message.clone()).filter(|m| !m.is_empty());
                let message = reported
                    .or(written)
                    .unwrap_or_else(|| format!("failed expression: {}", validation.expression.source.trim()));
                Ok(Some(Denial { index, message, reason: validation.reason, error: "no_error", took }))
            }
            Err(Fault::Expression(why)) => Ok(self.failed(index, why, begun.elapsed())),
            Err(Fault::OutOfBudget) => Err(()),
        }
    }

    fn annotate<'a>(&'a self, activation: &Activation<'a>, verdict: &mut Verdict) {
        let mut total = budget(REQUEST_BUDGET);
        for annotation in &self.annotations {
            match annotation.value.eval(activation, &mut total) {
                Ok(CelValue::Text(value)) if !value.trim().is_empty() => {
                    verdict.annotations.push((annotation.key.clone(), value.trim().to_owned()));
                }
                Ok(CelValue::Text(_) | CelValue::Null) => {}
                _ if self.base.ignores_failures => {}
                Ok(other) => {
                    let why = format!(
                        "valueExpression '{}' resulted in unsupported return type: {}. Return type must be \
                         either string or null.",
                        annotation.value.source,
                        other.type_name()
                    );
                    verdict.broken_annotations.push(why);
                }
                Err(Fault::Expression(why)) => verdict.broken_annotations.push(why),
                Err(Fault::OutOfBudget) => {
                    verdict.broken_annotations.push(OUT_OF_BUDGET.to_owned());
                    return;
                }
            }
        }
    }
}
