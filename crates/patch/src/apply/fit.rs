//! Checks a configuration against its schema at every level, including the content of atomic lists and maps. The rules
//! and messages are those of structured-merge-diff's validation, which prints values in Go's syntax.
use super::fields::PathElement;
use super::walk::{ElementError, element_of};
use crate::printed::printed;
use kelson_schema::shape::{ScalarType, ValueForm};
use kelson_schema::{ListType, Shape};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The number of faults that are reported. A configuration may have any number.
const FAULTS_MAX: usize = 100;

/// Checks a configuration against its schema.
///
/// # Errors
/// Returns every fault with its path: undeclared fields, values of another type, elements without a key or with a
/// repeated key.
pub(super) fn check(shape: &Shape, config: &Value) -> Result<(), Misfits> {
    let mut check = Check { path: Vec::new(), faults: Vec::new() };
    check.value(shape, config);
    if check.faults.is_empty() { Ok(()) } else { Err(Misfits(check.faults)) }
}

/// The faults of a configuration, at least one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", list(.0))]
pub struct Misfits(Vec<Misfit>);

impl Misfits {
    /// The faults, in the order of the configuration.
    #[must_use]
    pub fn all(&self) -> &[Misfit] {
        &self.0
    }
}

impl From<Misfit> for Misfits {
    fn from(only: Misfit) -> Self {
        Self(vec![only])
    }
}

fn list(faults: &[Misfit]) -> String {
    match faults {
        [only] => only.to_string(),
        all => all.iter().fold("errors:".to_owned(), |text, fault| format!("{text}\n  {fault}")),
    }
}

/// One value that does not fit its schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{fault}", prefix(.path))]
pub struct Misfit {
    /// The path of the value.
    pub path: Vec<PathElement>,
    /// The kind of the mismatch.
    pub fault: MisfitKind,
}

fn prefix(path: &[PathElement]) -> String {
    let path: String = path.iter().map(ToString::to_string).collect();
    if path.is_empty() { path } else { path + ": " }
}

/// The kind of a mismatch, with the messages of structured-merge-diff.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MisfitKind {
    /// The value has another type.
    #[error("expected {expected}, got {found}")]
    Type {
        /// The expected type.
        expected: &'static str,
        /// The value, or its type, as Go prints it.
        found: String,
    },
    /// The schema does not have the field.
    #[error("field not declared in schema")]
    Undeclared,
    /// An element of a list cannot be identified.
    #[error("element {index}: {error}")]
    Element {
        /// The index of the element, from 0.
        index: usize,
        /// Why it cannot be identified.
        error: ElementError,
    },
    /// Two elements of a list have the same key.
    #[error("duplicate entries for key {0}")]
    Duplicate(PathElement),
}

struct Check {
    path: Vec<PathElement>,
    faults: Vec<Misfit>,
}

impl Check {
    fn fault(&mut self, fault: MisfitKind) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(Misfit { path: self.path.clone(), fault });
        }
    }

    fn below(&mut self, step: PathElement, check: impl FnOnce(&mut Self)) {
        self.path.push(step);
        check(self);
        self.path.pop();
    }

    fn value(&mut self, shape: &Shape, value: &Value) {
        let unfit = |expected| Some(MisfitKind::Type { expected, found: format!("&{{{}}}", printed(value)) });
        let why = match (shape.form(), value) {
            // Null is valid for every type.
            (_, Value::Null) => None,
            (ValueForm::Map | ValueForm::Any, Value::Object(fields)) => return self.fields(shape, fields),
            (ValueForm::List | ValueForm::Any, Value::Array(items)) => return self.items(shape, items),
            (ValueForm::Any, _) => None,
            (ValueForm::Map, _) => unfit("map"),
            (ValueForm::List, _) => unfit("list"),
            (ValueForm::AnyScalar, Value::Object(_) | Value::Array(_)) => unfit("any scalar"),
            (ValueForm::AnyScalar, _) => None,
            (ValueForm::Scalar(ty), value) => misfit(ty, value),
        };
        if let Some(why) = why {
            self.fault(why);
        }
    }

    fn fields(&mut self, shape: &Shape, fields: &Map<String, Value>) {
        for (key, value) in fields {
            self.below(PathElement::Field(key.clone()), |check| match shape.child(key) {
                Some(of_field) => check.value(&of_field, value),
                None => check.fault(MisfitKind::Undeclared),
            });
        }
    }

    fn items(&mut self, shape: &Shape, items: &[Value]) {
        let of_element = shape.element();
        let mut seen = BTreeSet::new();
        for (i, item) in items.iter().enumerate() {
            let step = match shape.list_type() {
                ListType::Atomic => PathElement::Index(i64::try_from(i).unwrap_or(i64::MAX)),
                ListType::Set | ListType::Map => match element_of(shape, item) {
                    Ok(element) => element,
                    // Without the key of the element, the paths below it and of the later elements are unknown.
                    Err(error) => return self.fault(MisfitKind::Element { index: i, error }),
                },
            };
            if !matches!(step, PathElement::Index(_)) && !seen.insert(step.clone()) {
                self.fault(MisfitKind::Duplicate(step.clone()));
            }
            self.below(step, |check| check.value(&of_element, item));
        }
    }
}

/// Checks a scalar against the expected type. Returns the mismatch.
fn misfit(ty: ScalarType, value: &Value) -> Option<MisfitKind> {
    let (expected, found) = match ty {
        ScalarType::Numeric if !value.is_number() => ("numeric (int or float)", go_type(value).to_owned()),
        ScalarType::Text if !value.is_string() => {
            ("string", format!("&value.valueUnstructured{{Value:{}}}", go_syntax(value)))
        }
        ScalarType::Boolean if !value.is_boolean() => ("boolean", format!("&{{{}}}", printed(value))),
        _ => return None,
    };
    Some(MisfitKind::Type { expected, found })
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Formats a value in Go's syntax.
fn go_syntax(value: &Value) -> String {
    let between = |all: Vec<String>| format!("{}{{{}}}", go_type(value), all.join(", "));
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(items) => between(items.iter().map(go_syntax).collect()),
        Value::Object(map) => between(map.iter().map(|(key, value)| format!("{key:?}:{}", go_syntax(value))).collect()),
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn fails(kind: (&str, &str, &str), config: Value, want: &str) {
        let (group, version, name) = kind;
        let shape = Shape::of_kind(group, version, name);
        let found = check(&shape, &config).err().map(|misfits| misfits.to_string()).unwrap_or_default();
        assert_eq!(found, want, "{config}");
    }

    const DEPLOYMENT: (&str, &str, &str) = ("apps", "v1", "Deployment");

    #[test]
    fn the_words_are_those_of_its_validation() {
        let spec = |key: &str, value: Value| json!({"spec": {key: value}});
        let check = |key: &str, value: Value, want: &str| fails(DEPLOYMENT, spec(key, value), want);
        check("replicas", json!("x"), ".spec.replicas: expected numeric (int or float), got string");
        check("replicas", json!(1.5), "");
        check("replicas", Value::Null, "");
        check("paused", json!("x"), ".spec.paused: expected boolean, got &{x}");
        check("paused", json!({"a": [1, "b"]}), ".spec.paused: expected boolean, got &{map[a:[1 b]]}");
        check("template", json!("x"), ".spec.template: expected map, got &{x}");
        check("template", Value::Null, "");
        check("strategy", json!({"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}}), "");
        check(
            "strategy",
            json!({"rollingUpdate": {"maxSurge": []}}),
            ".spec.strategy.rollingUpdate.maxSurge: expected any scalar, got &{[]}",
        );
        let containers = |containers: Value| spec("template", json!({"spec": {"containers": containers}}));
        let at = ".spec.template.spec.containers";
        let check = |list: Value, want: &str| fails(DEPLOYMENT, containers(list), &format!("{at}{want}"));
        check(json!({}), ": expected list, got &{map[]}");
        check(
            json!([{"name": "a", "image": 5}]),
            "[name=\"a\"].image: expected string, got &value.valueUnstructured{Value:5}",
        );
        let map = "[name=\"a\"].image: expected string, got &value.valueUnstructured{Value:map[string]interface {}{\"a\":[]interface {}{true}}}";
        check(json!([{"name": "a", "image": {"a": [true]}}]), map);
        check(json!([{"name": "a"}, {"name": "a"}]), ": duplicate entries for key [name=\"a\"]");
        check(json!([{"name": "a", "imag": "x"}]), "[name=\"a\"].imag: field not declared in schema");
    }

    #[test]
    fn below_what_is_owned_as_one_value() {
        let policy = ("networking.k8s.io", "v1", "NetworkPolicy");
        let from = json!({"spec": {"podSelector": {}, "ingress": [{"form": [{"podSelector": {}}]}]}});
        fails(policy, from, ".spec.ingress[0].form: field not declared in schema");
        let role = ("rbac.authorization.k8s.io", "v1", "ClusterRole");
        let rules =
            json!({"rules": [{"verbs": ["get"], "resources": ["pods"], "apiGroups": [""], "resourceName": ["x"]}]});
        fails(role, rules, ".rules[0].resourceName: field not declared in schema");
        let selector = json!({"spec": {"selector": {"matchLabels": {"a": "b"}, "matchExpression": [{}]}}});
        fails(DEPLOYMENT, selector, ".spec.selector.matchExpression: field not declared in schema");
        let pod = |spec: Value, want: &str| fails(("", "v1", "Pod"), json!({"spec": spec}), want);
        pod(
            json!({"tolerations": [{"key": "a"}, {"key": "a", "operater": "Exists"}]}),
            ".spec.tolerations[1].operater: field not declared in schema",
        );
        let container = |fields: Value| {
            let mut container = json!({"name": "a"});
            crate::merge_patch(&mut container, fields);
            json!({"containers": [container]})
        };
        pod(
            container(json!({"envFrom": [{"prefx": "A"}]})),
            ".spec.containers[name=\"a\"].envFrom[0].prefx: field not declared in schema",
        );
        let key = json!({"env": [{"name": "e", "valueFrom": {"secretKeyRef": {"key": "k", "optionl": true}}}]});
        pod(
            container(key),
            ".spec.containers[name=\"a\"].env[name=\"e\"].valueFrom.secretKeyRef.optionl: field not declared in schema",
        );
        pod(
            json!({"tolerations": "x", "nodeSelector": "y"}),
            "errors:\n  .spec.nodeSelector: expected map, got &{y}\n  .spec.tolerations: expected list, got &{x}",
        );
    }

    #[test]
    fn texts_where_maps_belong() {
        for (kind, config, want) in [
            ("ConfigMap", json!({"data": "x"}), ".data: expected map, got &{x}"),
            ("ConfigMap", json!({"data": {"a": 1}}), ".data.a: expected string, got &value.valueUnstructured{Value:1}"),
            ("Secret", json!({"data": []}), ".data: expected map, got &{[]}"),
            ("Node", json!({"spec": "x"}), ".spec: expected map, got &{x}"),
            ("Node", json!({"metadata": "x"}), ".metadata: expected map, got &{x}"),
            ("Node", json!({"metadata": []}), ".metadata: expected map, got &{[]}"),
            ("Node", json!({"status": 1}), ".status: expected map, got &{1}"),
            ("Node", json!({"metadata": {"labels": "x"}}), ".metadata.labels: expected map, got &{x}"),
            (
                "Node",
                json!({"status": {"capacity": {"cpu": {"a": 1}}}}),
                ".status.capacity.cpu: expected any scalar, got &{map[a:1]}",
            ),
            ("Node", json!({"status": {"capacity": {"cpu": 1}}}), ""),
        ] {
            fails(("", "v1", kind), config, want);
        }
        // Fields of any JSON are not checked further.
        let revision = ("apps", "v1", "ControllerRevision");
        fails(revision, json!({"data": {"a": [{"b": 1}]}, "revision": 1}), "");
        fails(revision, json!({"data": "x"}), ".data: expected map, got &{x}");
    }
}
