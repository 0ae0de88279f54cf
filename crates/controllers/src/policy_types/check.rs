//! Type checks of a validating policy's expressions against the schemas of its kinds. The result is warnings in the
//! policy's status (upstream `validating/typechecking.go`). Pure: kinds and types are parameters.
use std::collections::BTreeSet;
use std::sync::Arc;

use kelson_cel::admission::{Extent, env};
use kelson_cel::{DeclType, Env};
use kelson_meta::Gvk;
use kelson_meta::tree::path::{at, list, text};
use serde_json::Value;

/// The maximum number of kinds per rule against which a policy is checked.
pub const KINDS_MAX: usize = 10;

/// A type error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The path of the expression in the policy.
    pub field: String,
    /// The errors for each kind.
    pub warning: String,
}

/// The resources that one rule names, in lookup order. Rules with wildcards are skipped.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedResources<'p> {
    /// Groups. The empty group means every group.
    pub groups: Vec<&'p str>,
    pub versions: Vec<&'p str>,
    /// Names of resources without subresources.
    pub resources: Vec<&'p str>,
}

/// Returns the resources that the rules of a policy name.
pub fn named(policy: &Value) -> Vec<NamedResources<'_>> {
    list(policy, &["spec", "matchConstraints", "resourceRules"]).iter().filter_map(named_by).collect()
}

fn named_by(rule: &Value) -> Option<NamedResources<'_>> {
    let texts = |field: &str| {
        let mut all: Vec<&str> = list(rule, &[field]).iter().filter_map(Value::as_str).collect();
        all.sort_unstable();
        all
    };
    let (groups, versions, mut resources) = (texts("apiGroups"), texts("apiVersions"), texts("resources"));
    resources.retain(|name| !name.contains(['*', '/']));
    let open = groups.iter().chain(&versions).any(|name| name.contains('*'));
    (!open).then_some(NamedResources { groups, versions, resources })
}

/// Returns the kinds of a policy in order, from the kinds of its rules. Upstream stops at the tenth kind of a rule and
/// then skips further rules.
pub fn bounded(of_rules: impl IntoIterator<Item = Vec<Gvk>>) -> Vec<Gvk> {
    let mut found = BTreeSet::new();
    for kinds in of_rules {
        let full = kinds.len() >= KINDS_MAX;
        found.extend(kinds.into_iter().take(KINDS_MAX).map(|k| (k.group, k.version, k.kind)));
        if full {
            break;
        }
    }
    found.into_iter().map(|(group, version, kind)| Gvk { group, version, kind }).collect()
}

/// Returns the kind of a policy's parameters, if it has any.
pub fn params_kind(policy: &Value) -> Option<Gvk> {
    let kind = at(policy, &["spec", "paramKind"]);
    kind.is_object().then(|| {
        let version = text(kind, &["apiVersion"]);
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        Gvk::new(group, version, text(kind, &["kind"]))
    })
}

/// Returns the CEL environment of a policy for objects of one kind.
fn environment(policy: &Value, object: &DeclType, params: Option<&DeclType>) -> Env {
    let extent = Extent { params: params_kind(policy).is_some(), authorizer: true, mutations: false };
    let mut builder = env(extent).extend().variable("object", object).same_as("oldObject", "object");
    if let Some(params) = params {
        builder = builder.variable("params", params);
    }
    let base = builder.build();
    // Each variable may use previous ones. A variable that does not compile has no type, which is an error where it is
    // used.
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

/// Returns the type errors of a policy. `objects` are its kinds with known types, and `params` is the type of its
/// parameters, if known.
pub fn check(policy: &Value, objects: &[(Gvk, Arc<DeclType>)], params: Option<&DeclType>) -> Vec<Warning> {
    let environments: Vec<(&Gvk, Env)> =
        objects.iter().map(|(kind, object)| (kind, environment(policy, object, params))).collect();
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

    fn type_of(kind: &str) -> Option<Arc<DeclType>> {
        let spec = |field: &'static str| DeclType::object([(field, DeclType::int(), false)]);
        let made = match kind {
            "Deployment" => DeclType::object([("spec", spec("replicas"), false)]),
            "Pod" => DeclType::object([("spec", spec("priority"), false)]),
            "Limit" => DeclType::object([("max", DeclType::int(), false)]),
            _ => return None,
        };
        Some(Arc::new(made))
    }

    fn checked(kinds: &[(&str, &str)], spec: Value) -> Vec<(String, String)> {
        let policy = json!({"spec": spec});
        let typed = |(group, kind): &(&str, &str)| Some((Gvk::new(*group, "v1", *kind), type_of(kind)?));
        let objects: Vec<_> = kinds.iter().filter_map(typed).collect();
        let params = params_kind(&policy).and_then(|kind| type_of(&kind.kind));
        check(&policy, &objects, params.as_deref()).into_iter().map(|w| (w.field, w.warning)).collect()
    }

    const DEPLOYMENT: (&str, &str) = ("apps", "Deployment");

    #[test]
    fn type_errors_are_reported_for_each_kind() {
        let validations = json!({"validations": [
            {"expression": "object.spec.replicas < 5", "messageExpression": "'has ' + object.spec.replica"},
            {"expression": "oldObject == null || object.spec.replicas >= oldObject.spec.replicas"}]});
        let reported = checked(&[DEPLOYMENT], validations.clone());
        assert_eq!(reported.len(), 1);
        assert_eq!(reported[0].0, "spec.validations[0].messageExpression");
        assert!(reported[0].1.starts_with("apps/v1, Kind=Deployment: ERROR: <input>:1:"), "{}", reported[0].1);
        assert!(
            reported[0].1.contains("undefined field 'replica'") && reported[0].1.ends_with('\n'),
            "{}",
            reported[0].1
        );
        let reported = checked(&[("", "Pod"), DEPLOYMENT], validations);
        let fields: Vec<&str> = reported.iter().map(|(field, _)| field.as_str()).collect();
        let first = "spec.validations[0].expression";
        assert_eq!(fields, [first, "spec.validations[0].messageExpression", "spec.validations[1].expression"]);
        assert!(
            reported[0].1.starts_with("/v1, Kind=Pod: ") && !reported[0].1.contains("Deployment"),
            "{}",
            reported[0].1
        );
        assert!(reported[1].1.contains("/v1, Kind=Pod: ") && reported[1].1.contains("apps/v1, Kind=Deployment: "));
    }

    #[test]
    fn parameters_and_variables_have_types() {
        let reported = |params: &str, expression: &str| {
            let spec = json!({"paramKind": {"apiVersion": "x/v1", "kind": params},
                "variables": [{"name": "n", "expression": "object.spec.replicas"},
                    {"name": "m", "expression": "variables.n + 1"}],
                "validations": [{"expression": expression}]});
            checked(&[DEPLOYMENT], spec).len()
        };
        assert_eq!(reported("Limit", "variables.m < params.max"), 0);
        assert_eq!(reported("Limit", "variables.m < params.most"), 1);
        assert_eq!(reported("Limit", "variables.m == 'x'"), 1);
        assert_eq!(reported("Unknown", "variables.m < params.most"), 0, "nothing is known of it");
    }

    #[test]
    fn what_rules_name() {
        let names = |rule: Value| {
            let policy = json!({"spec": {"matchConstraints": {"resourceRules": [rule]}}});
            let reported = |r: &NamedResources<'_>| format!("{:?} {:?} {:?}", r.groups, r.versions, r.resources);
            named(&policy).iter().map(reported).collect::<Vec<_>>()
        };
        let rule = |group: &str, version: &str, resources: &[&str]| json!({"apiGroups": [group, "a"], "apiVersions": [version], "resources": resources});
        assert_eq!(names(rule("b", "v1", &["y", "x", "x/status", "*"])), [r#"["a", "b"] ["v1"] ["x", "y"]"#]);
        assert_eq!(names(rule("*", "v1", &["x"])), Vec::<String>::new());
        assert_eq!(names(rule("b", "*", &["x"])), Vec::<String>::new());
        assert_eq!(named(&json!({"spec": {}})), []);
    }

    #[test]
    fn kinds_are_ordered_each_once_and_only_so_many() {
        let kinds = |names: std::ops::Range<usize>| names.map(|n| Gvk::new("g", "v1", format!("K{n:02}"))).collect();
        let all = |rules: Vec<Vec<Gvk>>| bounded(rules).into_iter().map(|k| k.kind.to_string()).collect::<Vec<_>>();
        assert_eq!(all(vec![kinds(1..3), kinds(0..2)]), ["K00", "K01", "K02"]);
        assert_eq!(all(vec![kinds(0..30)]).len(), 10);
        assert_eq!(all(vec![kinds(0..9), kinds(5..12), kinds(20..29)]).len(), 21, "none of the rules is full");
        assert_eq!(all(vec![kinds(0..10), kinds(20..22)]).len(), 10, "what comes after a full rule is not looked at");
    }
}
