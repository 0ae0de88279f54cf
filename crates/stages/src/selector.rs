//! Which objects are in a stage.
use serde_json::Value;

use crate::document;
use crate::error::StageError;
use crate::expression::Expression;
use crate::query::Query;
use crate::value::Subject;

#[derive(Debug)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

#[derive(Debug)]
enum Requirement {
    Holds(Expression),
    Path(Query, Operator),
}

/// The conditions for an object, all of which must hold.
#[derive(Debug)]
pub struct Selector {
    labels: Vec<(String, String)>,
    annotations: Vec<(String, String)>,
    requirements: Vec<Requirement>,
}

impl Selector {
    /// Compiles what a stage says.
    ///
    /// # Errors
    /// Fails where a path, an expression or an operator is none.
    pub fn new(selector: &document::SelectorSpec) -> Result<Self, StageError> {
        let requirements = selector.match_expressions.iter().enumerate().map(|(i, requirement)| {
            compile(requirement).map_err(|e| e.within(format_args!("selector.matchExpressions[{i}]")))
        });
        Ok(Self {
            requirements: requirements.collect::<Result<_, _>>()?,
            labels: selector.match_labels.clone().into_iter().collect(),
            annotations: selector.match_annotations.clone().into_iter().collect(),
        })
    }

    /// Whether the object is in the stage.
    ///
    /// # Errors
    /// Fails when an expression in CEL cannot be evaluated on it.
    pub fn matches(&self, subject: &Subject<'_>) -> Result<bool, StageError> {
        let metadata = &subject.object["metadata"];
        if !has_all(&metadata["labels"], &self.labels) || !has_all(&metadata["annotations"], &self.annotations) {
            return Ok(false);
        }
        for requirement in &self.requirements {
            if !requirement.holds(subject)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn has_all(map: &Value, wanted: &[(String, String)]) -> bool {
    wanted.iter().all(|(key, value)| map.get(key).and_then(Value::as_str) == Some(value))
}

fn compile(requirement: &document::RequirementSpec) -> Result<Requirement, StageError> {
    if let Some(comparison) = requirement.comparison() {
        let values = comparison.values.clone();
        let operator = match comparison.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => return Err(StageError::new("values", "at least one is required")),
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                return Err(StageError::new("values", "must be empty for this operator"));
            }
            "In" => Operator::In(values),
            "NotIn" => Operator::NotIn(values),
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            other => return Err(StageError::new("operator", format!("unsupported value {other:?}"))),
        };
        return Ok(Requirement::Path(Query::new(&comparison.key)?, operator));
    }
    match &requirement.cel {
        Some(cel) => Ok(Requirement::Holds(Expression::new(&cel.expression)?)),
        None => Err(StageError::new("key", "a path or an expression is required")),
    }
}

impl Requirement {
    fn holds(&self, subject: &Subject<'_>) -> Result<bool, StageError> {
        let (query, operator) = match self {
            Self::Path(query, operator) => (query, operator),
            Self::Holds(expression) => {
                let value = expression.value(subject.object)?;
                return value
                    .as_bool()
                    .ok_or_else(|| StageError::new("cel", format!("must be true or false, got {value}")));
            }
        };
        let found = query.run(&subject.document);
        let among = |values: &[String]| found.iter().any(|f| values.iter().any(|v| v == f.text()));
        Ok(match operator {
            Operator::In(values) => among(values),
            Operator::NotIn(values) => !among(values),
            Operator::Exists => !found.is_empty(),
            Operator::DoesNotExist => found.is_empty(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(selector: Value, object: &Value) -> Result<bool, String> {
        let selector: document::SelectorSpec = serde_json::from_value(selector).unwrap();
        let selector = Selector::new(&selector).map_err(|e| e.to_string())?;
        selector.matches(&Subject::of(object)).map_err(|e| e.to_string())
    }

    fn path(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    }

    #[test]
    fn objects_in_a_stage() {
        let object = json!({"metadata": {"labels": {"a": "1"}, "annotations": {"b": "2"}}, "spec": {"n": 3},
            "status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]}});
        let ready = ".status.conditions.[] | select( .type == \"Ready\" ) | .status";
        for (selector, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"a": "1"}, "matchAnnotations": {"b": "2"}}), true),
            (json!({"matchLabels": {"a": "1"}, "matchAnnotations": {"b": "3"}}), false),
            (json!({"matchLabels": {"z": ""}}), false),
            (path(".status.phase", "In", &["Running", "Pending"]), true),
            (path(".status.phase", "NotIn", &["Running"]), true),
            (path(".spec.n", "In", &["3"]), true),
            (path(ready, "NotIn", &["True"]), true),
            (path(ready, "In", &["True"]), false),
            (path(".metadata.deletionTimestamp", "DoesNotExist", &[]), true),
            (path(".metadata.ownerReferences.[].kind", "In", &["Job"]), false),
            (path(".metadata.ownerReferences.[].kind", "NotIn", &["Job"]), true),
            (path(".status.phase", "Exists", &[]), true),
            (
                json!({"matchExpressions": [{"jq": {"key": ".spec.n", "operator": "Exists"}}, {"cel": {"expression": "self.spec.n == 3"}}]}),
                true,
            ),
            (json!({"matchExpressions": [{"cel": {"expression": "self.spec.n == 4"}}]}), false),
        ] {
            assert_eq!(check(selector.clone(), &object), Ok(expected), "{selector}");
        }
        for (selector, wrong) in [
            (path(".a", "In", &[]), "selector.matchExpressions[0].values: at least one is required"),
            (path(".a", "Exists", &["x"]), "selector.matchExpressions[0].values: must be empty for this operator"),
            (path(".a", "Like", &["x"]), "selector.matchExpressions[0].operator: unsupported value \"Like\""),
            (path(".a[", "Exists", &[]), "selector.matchExpressions[0].jq: must be a jq filter, got \".a[\""),
            (
                json!({"matchExpressions": [{}]}),
                "selector.matchExpressions[0].key: a path or an expression is required",
            ),
            (json!({"matchExpressions": [{"cel": {"expression": "1 + 1"}}]}), "cel: must be true or false, got 2"),
        ] {
            assert_eq!(check(selector.clone(), &object), Err(wrong.to_owned()), "{selector}");
        }
    }
}
