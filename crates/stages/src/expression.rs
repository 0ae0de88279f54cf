//! CEL expressions, in which the object is the variable `self`.
use kelson_cel::{Activation, Budget, Env, Program, Type, Value as Cel};
use serde_json::Value;

use crate::error::StageError;

/// The cost limit of one evaluation.
const COST_MAX: u64 = 1_000_000;

/// A compiled CEL expression.
#[derive(Debug)]
pub struct Expression(Program);

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// Fails when the expression is invalid.
    pub fn new(text: &str) -> Result<Self, StageError> {
        let env = Env::builder().typed("self", Type::Dyn).bindings().build();
        Ok(Self(env.compile(text).map_err(|e| StageError::new("cel", e))?))
    }

    /// Evaluates the expression and returns the result as JSON. Durations and timestamps become strings.
    ///
    /// # Errors
    /// Fails when the expression cannot be evaluated for this object.
    pub fn value(&self, object: &Value) -> Result<Value, StageError> {
        let mut values = Activation::new();
        values.bind("self", Cel::json(object));
        let mut budget = Budget::new(COST_MAX);
        let value = self.0.eval(&values, &mut budget).map_err(|e| StageError::new("cel", e))?;
        value
            .to_json()
            .ok_or_else(|| StageError::new("cel", format!("unsupported value of type {}", value.type_name())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expressions() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"claimRef": {"name": "c"}, "n": 2}});
        for (text, expected) in [
            ("has(self.spec.claimRef.name)", json!(true)),
            ("!has(self.metadata.deletionTimestamp)", json!(true)),
            ("self.metadata.name in ['a', 'b']", json!(true)),
            ("self.spec.n * 3", json!(6)),
            ("'2s'", json!("2s")),
        ] {
            assert_eq!(Expression::new(text).unwrap().value(&object), Ok(expected), "{text}");
        }
        assert!(Expression::new("self.").is_err());
        assert!(Expression::new("self.nothing.here").unwrap().value(&object).is_err());
    }
}
