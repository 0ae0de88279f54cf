//! `matchConditions` of webhooks and policies: expressions that must all be true for a request to be handled (upstream
//! `plugin/webhook/matchconditions`).
use std::time::Instant;

use kelson_cel::admission::Extent;
use kelson_cel::{MATCH_CONDITIONS_BUDGET, Type};
use kelson_meta::tree::path::{list, text};
use serde_json::Value;

use super::expressions::{Expression, Fault, Inputs, OUT_OF_BUDGET, budget};
use crate::containers::aggregate;
use crate::metrics::ConditionsSeen;

/// The match conditions of one webhook or policy.
#[derive(Debug, Default)]
pub struct Conditions(Vec<Expression>);

impl Conditions {
    /// Reads the field `matchConditions` of a webhook or policy.
    pub fn parse(value: &Value, params: bool) -> Self {
        let extent = Extent { params, authorizer: true, mutations: false };
        let condition = |c| Expression::new(extent, text(c, &["expression"]), &[Type::Bool]);
        Self(list(value, &["matchConditions"]).iter().map(condition).collect())
    }
    /// Reports whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Evaluates the conditions for a request: one that is false decides, even if another failed before. Also returns
    /// what happened, for metrics.
    ///
    /// # Errors
    /// Expressions that could not be evaluated when none was false; the failure policy decides about those.
    pub fn hold(&self, inputs: &Inputs<'_>, params: Option<&Value>) -> (Result<bool, String>, ConditionsSeen) {
        let begun = Instant::now();
        let activation = inputs.activation(params, &[]);
        let mut budget = budget(MATCH_CONDITIONS_BUDGET);
        let (mut faults, mut excluded, mut exhausted) = (Vec::new(), false, false);
        for condition in &self.0 {
            match condition.eval(&activation, &mut budget) {
                Ok(value) if value.as_bool() == Some(false) => {
                    excluded = true;
                    break;
                }
                Ok(_) => {}
                Err(Fault::Expression(why)) => faults.push(why),
                Err(Fault::OutOfBudget) => {
                    exhausted = true;
                    break;
                }
            }
        }
        let errors = if excluded || exhausted { 0 } else { faults.len() as u64 };
        let seen = ConditionsSeen { took: begun.elapsed(), errors, excluded };
        let held = match (excluded, exhausted, faults.is_empty()) {
            (true, ..) => Ok(false),
            (_, true, _) => Err(OUT_OF_BUDGET.to_owned()),
            (_, _, true) => Ok(true),
            _ => Err(aggregate(&faults)),
        };
        (held, seen)
    }
}
