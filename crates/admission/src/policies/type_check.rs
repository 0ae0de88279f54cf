//! Type checking of validating policies: what expressions say of fields, compared with the schemas of the kinds that the policy
//! is for. Only warnings come of it, in the policy's status (upstream `validating/typechecking.go`).
use std::sync::Arc;

use kelson_cel::admission::{Extent, env};
use kelson_cel::{DeclType, Env};
use kelson_meta::Gvk;
use kelson_meta::tree::path::{at, list, text};
use serde_json::Value;

/// Kinds that one policy is checked against at most.
const KINDS_MAX: usize = 10;

/// What the checker must know of kinds.
pub trait Types {
    /// The kind of a resource's objects; `None` when it is not served.
    fn kind_of(&self, group: &str, version: &str, resource: &str) -> Option<Gvk>;
    /// What expressions see of a kind's objects; `None` when it is not known.
    fn type_of(&self, kind: &Gvk) -> Option<Arc<DeclType>>;
}

/// Something that does not fit the type of the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The place of the expression in the policy.
    pub field: String,
    /// What is wrong with it, for each kind.
    pub warning: String,
}

/// The kinds that a policy is for, as far as its rules name them: wildcards stand for too much.
fn kinds(policy: &Value, types: &dyn Types) -> Vec<Gvk> {
    let mut found: Vec<Gvk> = Vec::new();
    for rule in list(policy, &["spec", "matchConstraints", "resourceRules"]) {
        let texts = |field: &str| -> Vec<&str> { list(rule, &[field]).iter().filter_map(Value::as_str).collect() };
        let (groups, versions, mut resources) = (texts("apiGroups"), texts("apiVersions"), texts("resources"));
        if groups.iter().chain(&versions).any(|name| name.contains('*')) {
            continue;
        }
        resources.retain(|name| !name.contains(['*', '/']));
        for group in &groups {
            for version in &versions {
                for resource in &resources {
                    let kind = types.kind_of(group, version, resource);
                    found.extend(kind.filter(|kind| found.len() < KINDS_MAX && !found.contains(kind)));
                }
            }
        }
    }
    found.sort_by(|a, b| (&a.group, &a.version, &a.kind).cmp(&(&b.group, &b.version, &b.kind)));
    found
}

/// The environment of a policy for objects of one kind.
fn environment(policy: &Value, object: &DeclType, params: Option<&DeclType>, has_params: bool) -> Env {
    let extent = Extent { params: has_params, authorizer: true, mutations: false };
    let mut builder = env(extent).extend().variable("object", object).same_as("oldObject", "object");
    if let Some(params) = params {
        builder = builder.variable("params", params);
    }
    let base = builder.build();
    // Each variable may use those before it; what does not compile has no type, and whoever uses it is told.
    let mut known: Vec<(String, kelson_cel::Type)> = Vec::new();
    let with = |known: &[(String, kelson_cel::Type)]| {
        base.extend().named_expressions(known.iter().map(|(name, ty)| (name.as_str(), ty.clone()))).build()
    };
    for variable in list(policy, &["spec", "variables"]) {
        if let Ok(program) = with(&known).compile(text(variable, &["expression"])) {
            known.push((text(variable, &["name"]).to_owned(), program.output_type().clone()));
        }
    }
    with(&known)
}

/// What does not fit in a policy.
pub fn check(policy: &Value, types: &dyn Types) -> Vec<Warning> {
    let param_kind = at(policy, &["spec", "paramKind"]);
    let params = param_kind.is_object().then(|| {
        let version = text(param_kind, &["apiVersion"]);
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        Gvk::new(group, version, text(param_kind, &["kind"]))
    });
    let params_type = params.as_ref().and_then(|kind| types.type_of(kind));
    let environments: Vec<(Gvk, Env)> = kinds(policy, types)
        .into_iter()
        .filter_map(|kind| {
            let object = types.type_of(&kind)?;
            let env = environment(policy, &object, params_type.as_deref(), params.is_some());
            Some((kind, env))
        })
        .collect();
    let mut warnings = Vec::new();
    for (i, validation) in list(policy, &["spec", "validations"]).iter().enumerate() {
        for field in ["expression", "messageExpression"] {
            let source = text(validation, &[field]);
            let faults: Vec<String> = environments
                .iter()
                .filter(|_| !source.is_empty())
                .filter_map(|(kind, env)| {
                    let fault = env.compile(source).err()?;
                    Some(format!("{}/{}, Kind={}: {fault}\n", kind.group, kind.version, kind.kind))
                })
                .collect();
            if !faults.is_empty() {
                let field = format!("spec.validations[{i}].{field}");
                warnings.push(Warning { field, warning: faults.join("\n") });
            }
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Known;
    impl Types for Known {
        fn kind_of(&self, group: &str, version: &str, resource: &str) -> Option<Gvk> {
            match (group, version, resource) {
                ("apps", "v1", "deployments") => Some(Gvk::new("apps", "v1", "Deployment")),
                ("", "v1", "pods") => Some(Gvk::new("", "v1", "Pod")),
                ("x", "v1", "open") => Some(Gvk::new("x", "v1", "Open")),
                _ => None,
            }
        }
        fn type_of(&self, kind: &Gvk) -> Option<Arc<DeclType>> {
            let spec = |field: &'static str| DeclType::object([(field, DeclType::int(), false)]);
            let made = match kind.kind.as_str() {
                "Deployment" => DeclType::object([("spec", spec("replicas"), false)]),
                "Pod" => DeclType::object([("spec", spec("priority"), false)]),
                "Limit" => DeclType::object([("max", DeclType::int(), false)]),
                _ => return None,
            };
            Some(Arc::new(made))
        }
    }

    fn checked(resources: Value, spec: Value) -> Vec<(String, String)> {
        let mut spec = spec;
        spec["matchConstraints"] = json!({"resourceRules": resources});
        let warnings = check(&json!({"spec": spec}), &Known);
        warnings.into_iter().map(|w| (w.field, w.warning)).collect()
    }

    fn rule(group: &str, resource: &str) -> Value {
        json!({"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource], "operations": ["*"]})
    }

    #[test]
    fn what_does_not_fit_is_told_for_each_kind() {
        let validations = json!({"validations": [
            {"expression": "object.spec.replicas < 5", "messageExpression": "'has ' + object.spec.replica"},
            {"expression": "oldObject == null || object.spec.replicas >= oldObject.spec.replicas"}]});
        let told = checked(json!([rule("apps", "deployments")]), validations.clone());
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].0, "spec.validations[0].messageExpression");
        assert!(told[0].1.starts_with("apps/v1, Kind=Deployment: ERROR: <input>:1:"), "{}", told[0].1);
        assert!(told[0].1.contains("undefined field 'replica'") && told[0].1.ends_with('\n'), "{}", told[0].1);
        let told = checked(json!([rule("apps", "deployments"), rule("", "pods")]), validations);
        let fields: Vec<&str> = told.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.validations[0].expression",
                "spec.validations[0].messageExpression",
                "spec.validations[1].expression"
            ]
        );
        assert!(told[0].1.starts_with("/v1, Kind=Pod: ") && !told[0].1.contains("Deployment"), "{}", told[0].1);
        assert!(told[1].1.contains("/v1, Kind=Pod: ") && told[1].1.contains("apps/v1, Kind=Deployment: "));
    }

    #[test]
    fn parameters_and_variables_have_types() {
        let spec = |params: &str, expression: &str| {
            json!({"paramKind": {"apiVersion": "x/v1", "kind": params},
            "variables": [{"name": "n", "expression": "object.spec.replicas"}, {"name": "m", "expression": "variables.n + 1"}],
            "validations": [{"expression": expression}]})
        };
        let told = |params: &str, expression: &str| {
            checked(json!([rule("apps", "deployments")]), spec(params, expression)).len()
        };
        assert_eq!(told("Limit", "variables.m < params.max"), 0);
        assert_eq!(told("Limit", "variables.m < params.most"), 1);
        assert_eq!(told("Limit", "variables.m == 'x'"), 1);
        assert_eq!(told("Unknown", "variables.m < params.most"), 0, "nothing is known of it");
    }

    #[test]
    fn what_is_not_known_is_not_checked() {
        let spec = || json!({"validations": [{"expression": "object.nothing"}]});
        for rules in [
            json!([]),
            json!([rule("*", "deployments")]),
            json!([rule("apps", "*")]),
            json!([rule("apps", "deployments/status")]),
            json!([rule("x", "open")]),
            json!([rule("y", "z")]),
        ] {
            assert_eq!(checked(rules.clone(), spec()), [], "{rules}");
        }
    }
}
