//! One change of a mutating policy: a partial object to apply, or a JSON patch (upstream `mutating/patch`).
use kelson_cel::admission::Extent;
use kelson_cel::{Activation, List, Map, REQUEST_BUDGET, Struct, Type, Value as CelValue};
use kelson_codec::{Budget, Limits};
use kelson_meta::tree::path::{at, list, text};
use serde_json::{Map as JsonMap, Value, json};

use super::policy::Policy;
use crate::dynamic::expressions::{Expression, Fault, Inputs, OUT_OF_BUDGET, budget};

/// The CEL type of partial objects, and the first part of the names of nested types.
const OBJECT: &str = "Object";
const JSON_PATCH: &str = "JSONPatch";

/// A mutating policy.
pub struct MutatingPolicy {
    /// The fields that all policies have.
    pub base: Policy,
    /// The mutations in their order.
    pub mutations: Vec<Mutation>,
    /// Whether it is evaluated again when the object changes after it ran (`reinvocationPolicy: IfNeeded`).
    pub reinvoked: bool,
}

/// An entry of `mutations`.
pub struct Mutation {
    expression: Expression,
    merges: bool,
}

/// The result of a mutation.
#[derive(Debug, PartialEq)]
pub enum Change {
    /// Fields to merge into the object.
    Merge(Value),
    /// Operations of a JSON patch.
    Patch(Value),
}

impl MutatingPolicy {
    /// Decodes a stored object.
    pub fn parse(tree: &Value) -> Self {
        let base = Policy::parse(tree);
        let spec = at(tree, &["spec"]);
        let extent = Extent { mutations: true, ..base.extent };
        let mutation = |m: &Value| {
            let merges = text(m, &["patchType"]) != JSON_PATCH;
            let (field, wanted) = if merges {
                ("applyConfiguration", Type::object(OBJECT))
            } else {
                ("jsonPatch", Type::list(Type::object(JSON_PATCH)))
            };
            let source = text(m, &[field, "expression"]);
            Mutation { expression: base.variables.expression(extent, source, &[wanted]), merges }
        };
        Self {
            mutations: list(spec, &["mutations"]).iter().map(mutation).collect(),
            reinvoked: text(spec, &["reinvocationPolicy"]) == "IfNeeded",
            base,
        }
    }
}

impl Mutation {
    /// Evaluates the mutation for a request.
    ///
    /// # Errors
    /// Upstream's message.
    pub fn change(&self, policy: &Policy, inputs: &Inputs<'_>, params: Option<&Value>) -> Result<Change, String> {
        let activation: Activation<'_> = inputs.activation(params, policy.variables.programs());
        let value = self.expression.eval(&activation, &mut budget(REQUEST_BUDGET)).map_err(|fault| match fault {
            Fault::Expression(why) => why,
            Fault::OutOfBudget => OUT_OF_BUDGET.to_owned(),
        })?;
        if self.merges {
            let CelValue::Map(Map::Struct(object)) = &value else {
                let found = value.type_name();
                return Err(format!("unsupported return type from ApplyConfiguration expression: {found}"));
            };
            check_names(object, OBJECT)?;
            return value
                .to_json()
                .map(Change::Merge)
                .ok_or_else(|| format!("invalid return type: {}", value.type_name()));
        }
        match &value {
            CelValue::List(operations) => operations_of(operations).map(Change::Patch),
            _ => Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned()),
        }
    }
}

fn operations_of(operations: &List<'_>) -> Result<Value, String> {
    let one = |value: Result<CelValue<'_>, kelson_cel::EvalError>| {
        let value = value.map_err(|e| e.to_string())?;
        let CelValue::Map(Map::Struct(operation)) = &value else {
            let found = value.type_name();
            return Err(format!(
                "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of {found}"
            ));
        };
        let mut made = JsonMap::new();
        for (name, field) in &operation.fields {
            if let CelValue::Map(Map::Struct(object)) = field {
                check_names(object, &object.name)?;
            }
            let json = field.to_json().ok_or_else(|| {
                "JSONPath valueExpression evaluated to a type that could not marshal to JSON".to_owned()
            })?;
            // An empty `from` counts as absent.
            if !(**name == *"from" && json == "") {
                made.insert(name.to_string(), json);
            }
        }
        Ok(Value::Object(made))
    };
    operations.iter().map(one).collect::<Result<Vec<_>, _>>().map(Value::Array)
}

/// Checks that nested objects have the type of their field: `Object.spec` in `spec`.
fn check_names(object: &Struct<'_>, expected: &str) -> Result<(), String> {
    if *object.name != *expected {
        return Err(format!(
            "type mismatch: unexpected type name {:?}, expected {expected:?}, which matches field name path from root \
             Object type",
            object.name
        ));
    }
    object.fields.iter().try_for_each(|(name, value)| check_within(value, &format!("{expected}.{name}")))
}

fn check_within(value: &CelValue<'_>, expected: &str) -> Result<(), String> {
    match value {
        CelValue::Map(Map::Struct(inner)) => check_names(inner, expected),
        CelValue::List(items) => items.iter().filter_map(Result::ok).try_for_each(|item| check_within(&item, expected)),
        CelValue::Optional(Some(inner)) => check_within(inner, expected),
        _ => Ok(()),
    }
}

/// Applies operations to an object. A failed `test` leaves it unchanged.
///
/// # Errors
/// An operation cannot be applied.
pub fn patched(object: &Value, operations: &Value) -> Result<Value, String> {
    let mut patched = object.clone();
    match kelson_patch::json_patch_within(&mut patched, operations, &mut Budget::new(Limits::DOCUMENT)) {
        Ok(()) => Ok(patched),
        Err(e) if e.to_string().starts_with("testing value ") => Ok(object.clone()),
        Err(e) => Err(format!("JSON Patch: {e}")),
    }
}

/// Adds the object's kind and apiVersion to a partial object.
pub fn of_kind(mut fields: Value, object: &Value) -> Value {
    for field in ["apiVersion", "kind"] {
        fields[field] = object.get(field).cloned().unwrap_or(json!(""));
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_as_lenient_as_upstreams_library() {
        let map = json!({"kind": "ConfigMap", "metadata": {"name": "m", "labels": {"a": "1"}}});
        let check = |operations: Value, expected: Result<Value, &str>| {
            let found = patched(&map, &operations).map(|mut object| object["metadata"]["labels"].take());
            assert_eq!(found, expected.map_err(str::to_owned), "{operations}");
        };
        let label = |op: &str, value: Value| json!([{"op": op, "path": "/metadata/labels/zz", "value": value}]);
        check(label("replace", json!("z")), Ok(json!({"a": "1", "zz": "z"})));
        check(label("test", Value::Null), Ok(json!({"a": "1"})));
        // A failed test leaves the object unchanged.
        let tested = json!([{"op": "add", "path": "/metadata/labels/b", "value": "2"}, {"op": "test", "path": "/metadata/labels/a", "value": "9"}]);
        check(tested, Ok(json!({"a": "1"})));
        let nowhere = json!([{"op": "replace", "path": "/metadata/annotations/a", "value": "1"}]);
        let why =
            "JSON Patch: replace operation does not apply: doc is missing path: /metadata/annotations/a: missing value";
        check(nowhere, Err(why));
    }
}
