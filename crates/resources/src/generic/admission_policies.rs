//! Validates admission policies and their bindings (upstream `pkg/apis/admissionregistration/validation`).
use std::collections::BTreeSet;

use crate::path::{Errors, Path};
use kelson_cel::Type;
use kelson_cel::admission::{Extent, compile, env};
use kelson_meta::{is_dns1035_label, is_dns1123_subdomain, is_path_segment_name, is_qualified_name};
use kelson_structural::publish::JsonPath;
use serde_json::Value;

use super::admission_webhooks::{
    FAILURE_POLICIES, MATCH_POLICIES, REINVOCATION_POLICIES, conditions, one_of, rule_with_operations,
};
use crate::rules::label_selector;
use crate::tree::{items, present, text};

/// The maximum number of audit annotations of a policy, and the maximum length of their expressions.
const ANNOTATIONS_MAX: usize = 20;
const ANNOTATION_EXPRESSION_BYTES_MAX: usize = 5 * 1024;
const MUTATING_OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];
const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];

/// The environment for a policy's expressions.
struct Scope<'a> {
    extent: Extent,
    /// Names and types of its variables.
    known: Vec<(String, Type)>,
    /// Expressions that were stored before, with the same parameters and variables. They are not validated again, so
    /// that a policy that an older server accepted can still be changed elsewhere (upstream's environment of stored
    /// expressions).
    stored: BTreeSet<&'a str>,
}

/// Returns the expressions of the stored policy, if an update does not change what they may use.
fn stored<'a>(spec: &Value, old: Option<&'a Value>) -> BTreeSet<&'a str> {
    let Some(old) = old.map(|o| &o["spec"]) else { return BTreeSet::new() };
    if old["paramKind"] != spec["paramKind"] || old["variables"] != spec["variables"] {
        return BTreeSet::new();
    }
    let of = |list: &'a Value, fields: &'static [&'static str]| {
        items(list).iter().flat_map(move |entry| fields.iter().map(move |field| text(&entry[*field])))
    };
    let mutations = items(&old["mutations"]).iter();
    of(&old["variables"], &["expression"])
        .chain(of(&old["validations"], &["expression", "messageExpression"]))
        .chain(of(&old["auditAnnotations"], &["valueExpression"]))
        .chain(mutations.flat_map(|m| ["applyConfiguration", "jsonPatch"].map(|kind| text(&m[kind]["expression"]))))
        .map(str::trim)
        .collect()
}

/// Validates the variables of a policy.
fn variables(spec: &Value, extent: Extent, old: &BTreeSet<&str>, p: &Path<'_>, e: &mut Errors) -> Vec<(String, Type)> {
    const RESERVED: [&str; 19] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
    ];
    let mut known: Vec<(String, Type)> = Vec::new();
    for (i, variable) in items(&spec["variables"]).iter().enumerate() {
        let at = p.index(i);
        let (name, source) = (text(&variable["name"]), text(&variable["expression"]));
        let begins = name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic());
        let identifier = begins && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
        if name.trim().is_empty() {
            e.required(&at.child("name"), "name is not specified");
        } else if !identifier || RESERVED.contains(&name) || matches!(name, "void" | "while") {
            e.invalid(&at.child("name"), name, "must be a valid CEL identifier");
        }
        if source.trim().is_empty() {
            e.required(&at.child("expression"), "expression is not specified");
            continue;
        }
        match with(&known, extent).compile(source) {
            Ok(program) => known.push((name.to_owned(), program.output_type().clone())),
            Err(_) if old.contains(source.trim()) => known.push((name.to_owned(), Type::Dyn)),
            Err(why) => e.invalid(&at.child("expression"), source, format!("compilation failed: {why}")),
        }
    }
    known
}

fn with(known: &[(String, Type)], extent: Extent) -> kelson_cel::Env {
    let fields = known.iter().map(|(name, ty)| (name.as_str(), ty.clone()));
    env(extent).extend().named_expressions(fields).build()
}

fn compiled(source: &str, scope: &Scope<'_>, wanted: &[Type], p: &Path<'_>, e: &mut Errors) {
    let compiled = if scope.known.is_empty() {
        compile(env(scope.extent), source, wanted)
    } else {
        compile(&with(&scope.known, scope.extent), source, wanted)
    };
    if let Err(why) = compiled
        && !scope.stored.contains(source.trim())
    {
        e.invalid(p, source, why);
    }
}

/// Validates a policy of either kind.
pub fn policy(obj: &Value, old: Option<&Value>, e: &mut Errors) {
    let (spec, p) = (&obj["spec"], Path::new("spec"));
    one_of(&spec["failurePolicy"], &FAILURE_POLICIES, &p.child("failurePolicy"), e);
    let params = present(&spec["paramKind"]);
    if params {
        param_kind(&spec["paramKind"], &p.child("paramKind"), e);
    }
    let constraints = p.child("matchConstraints");
    if present(&spec["matchConstraints"]) {
        match_resources(&spec["matchConstraints"], &constraints, e);
        if items(&spec["matchConstraints"]["resourceRules"]).is_empty() {
            e.required(&constraints.child("resourceRules"), "");
        }
    } else {
        e.required(&constraints, "");
    }
    let same = |field: &str| old.is_some_and(|o| o["spec"][field] == spec[field]);
    if !(same("paramKind") && same("matchConditions")) {
        conditions(&spec["matchConditions"], params, &p.child("matchConditions"), e);
    }
    let extent = Extent { params, authorizer: true, mutations: false };
    let stored = stored(spec, old);
    let known = variables(spec, extent, &stored, &p.child("variables"), e);
    let scope = Scope { extent, known, stored };
    if text(&obj["kind"]) == "MutatingAdmissionPolicy" {
        mutations(spec, scope, &p, e);
    } else {
        validations(obj, scope, &p, e);
    }
}

fn param_kind(kind: &Value, p: &Path<'_>, e: &mut Errors) {
    let (version, name) = (text(&kind["apiVersion"]), text(&kind["kind"]));
    let at = p.child("apiVersion");
    match version.split_once('/').unwrap_or(("", version)) {
        _ if version.is_empty() => e.required(&at, ""),
        (_, rest) if rest.contains('/') => {
            e.invalid(&at, version, format!("unexpected GroupVersion string: {version}"))
        }
        (_, "") => e.invalid(&at, version, "version must be specified"),
        (group, short) => {
            if !group.is_empty() {
                e.invalid_each(&at, group, is_dns1123_subdomain(group));
            }
            e.invalid_each(&at, short, is_dns1035_label(short));
        }
    }
    let at = p.child("kind");
    if name.is_empty() {
        e.required(&at, "");
    } else if let Err(faults) = is_dns1035_label(&name.to_lowercase()) {
        e.invalid(&at, name, format!("may have mixed case, but should otherwise match: {}", faults.join(",")));
    }
}

fn match_resources(resources: &Value, p: &Path<'_>, e: &mut Errors) {
    one_of(&resources["matchPolicy"], &MATCH_POLICIES, &p.child("matchPolicy"), e);
    for field in ["namespaceSelector", "objectSelector"] {
        label_selector(&resources[field], &p.child(field), e);
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        let list = p.child(field);
        for (i, rule) in items(&resources[field]).iter().enumerate() {
            let at = list.index(i);
            let mut names = BTreeSet::new();
            let of_names = at.child("resourceNames");
            for (j, name) in items(&rule["resourceNames"]).iter().map(text).enumerate() {
                e.invalid_each(&of_names.index(j), name, is_path_segment_name(name));
                if !names.insert(name) {
                    e.duplicate(&of_names.index(j), name);
                }
            }
            rule_with_operations(rule, &at, e);
        }
    }
}

fn validations(obj: &Value, scope: Scope<'_>, p: &Path<'_>, e: &mut Errors) {
    let spec = &obj["spec"];
    let (list, annotations) = (items(&spec["validations"]), items(&spec["auditAnnotations"]));
    if list.is_empty() && annotations.is_empty() {
        const WHY: &str = "validations or auditAnnotations must contain at least one item";
        e.required(&p.child("validations"), WHY);
        return e.required(&p.child("auditAnnotations"), WHY);
    }
    let validations = p.child("validations");
    for (i, validation) in list.iter().enumerate() {
        one_validation(validation, &scope, &validations.index(i), e);
    }
    let at = p.child("auditAnnotations");
    if annotations.len() > ANNOTATIONS_MAX {
        let why = format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations");
        e.invalid(&at, &spec["auditAnnotations"], why);
    }
    let (name, mut keys) = (text(&obj["metadata"]["name"]), BTreeSet::new());
    for (i, annotation) in annotations.iter().enumerate() {
        let at = at.index(i);
        let (key, source) = (text(&annotation["key"]), text(&annotation["valueExpression"]));
        e.invalid_each(&at.child("key"), key, is_qualified_name(&format!("{name}/{key}")));
        let value = at.child("valueExpression");
        match source.trim() {
            "" => e.required(&value, "valueExpression is not specified"),
            long if long.len() > ANNOTATION_EXPRESSION_BYTES_MAX => {
                e.required(&value, &format!("must not exceed {ANNOTATION_EXPRESSION_BYTES_MAX} bytes in length"));
            }
            source => compiled(source, &scope, &[Type::String, Type::Null], &value, e),
        }
        if !keys.insert(key) {
            e.duplicate(&at.child("key"), key);
        }
    }
}

fn one_validation(v: &Value, scope: &Scope<'_>, p: &Path<'_>, e: &mut Errors) {
    let (source, reported, message) = (text(&v["expression"]), text(&v["messageExpression"]), text(&v["message"]));
    if source.trim().is_empty() {
        e.required(&p.child("expression"), "expression is not specified");
    } else {
        compiled(source, scope, &[Type::Bool], &p.child("expression"), e);
    }
    if !reported.is_empty() && reported.trim().is_empty() {
        e.invalid(&p.child("messageExpression"), reported, "must be non-empty if specified");
    } else if !reported.is_empty() {
        // Message expressions cannot use the authorizer.
        let extent = Extent { authorizer: false, ..scope.extent };
        let scope = Scope { extent, known: scope.known.clone(), stored: scope.stored.clone() };
        compiled(reported, &scope, &[Type::String], &p.child("messageExpression"), e);
    }
    if !message.is_empty() && message.trim().is_empty() {
        e.invalid(&p.child("message"), message, "must be non-empty if specified");
    } else if message.trim().contains(['\n', '\r']) {
        e.invalid(&p.child("message"), message, "must not contain line breaks");
    }
    one_of(&v["reason"], &REASONS, &p.child("reason"), e);
}

/// Rejects operations that cannot be mutated; upstream names no index.
fn mutating_operations(matched: &Value, p: &Path<'_>, e: &mut Errors) {
    let operations = items(&matched["resourceRules"]).iter().flat_map(|r| items(&r["operations"]));
    for operation in operations.map(text).filter(|o| !MUTATING_OPERATIONS.contains(o)) {
        let rules = p.child("resourceRules");
        e.not_supported(&rules.child("operations"), operation, &MUTATING_OPERATIONS);
    }
}

/// Validates a policy's status: the result of type checking, and conditions.
pub fn policy_status(new: &Value, _old: Option<&Value>, e: &mut Errors) {
    let (status, root) = (&new["status"], Path::new("status"));
    let checking = root.child("typeChecking");
    let list = checking.child("expressionWarnings");
    for (i, warning) in items(&status["typeChecking"]["expressionWarnings"]).iter().enumerate() {
        let at = list.index(i);
        if text(&warning["warning"]).is_empty() {
            e.required(&at.child("warning"), "");
        }
        let field = text(&warning["fieldRef"]).trim();
        if field.is_empty() {
            e.required(&at.child("fieldRef"), "");
        } else if JsonPath::parse(field).is_none() {
            e.invalid(&at.child("fieldRef"), field, "invalid JSONPath");
        }
    }
    crate::conditions::check(&status["conditions"], &root.child("conditions"), e);
}

fn mutations(spec: &Value, scope: Scope<'_>, p: &Path<'_>, e: &mut Errors) {
    mutating_operations(&spec["matchConstraints"], &p.child("matchConstraints"), e);
    let list = p.child("mutations");
    if items(&spec["mutations"]).is_empty() {
        e.required(&list, "mutations must contain at least one item");
    }
    let scope = Scope { extent: Extent { mutations: true, ..scope.extent }, ..scope };
    for (i, mutation) in items(&spec["mutations"]).iter().enumerate() {
        let at = list.index(i);
        let (field, other, wanted) = match text(&mutation["patchType"]) {
            "JSONPatch" => ("jsonPatch", "applyConfiguration", Type::list(Type::object("JSONPatch"))),
            "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", Type::object("Object")),
            "" => {
                e.required(&at.child("patchType"), "");
                continue;
            }
            unknown => {
                e.not_supported(&at.child("patchType"), unknown, &["ApplyConfiguration", "JSONPatch"]);
                continue;
            }
        };
        let kind = text(&mutation["patchType"]);
        if present(&mutation[field]) {
            let within = at.child(field);
            let source = &mutation[field]["expression"];
            match text(source).trim() {
                "" => e.required(&within.child("expression"), ""),
                source => compiled(source, &scope, &[wanted], &within.child("expression"), e),
            }
        } else {
            e.required(&at.child(field), &format!("must be specified when patchType is {kind}"));
        }
        if present(&mutation[other]) {
            e.invalid(
                &at.child(other),
                format!("{{{other}}}"),
                format!("must not be specified when patchType is {kind}"),
            );
        }
    }
    match text(&spec["reinvocationPolicy"]) {
        "" => e.required(&p.child("reinvocationPolicy"), ""),
        _ => one_of(&spec["reinvocationPolicy"], &REINVOCATION_POLICIES, &p.child("reinvocationPolicy"), e),
    }
}

/// Validates a binding of either kind.
pub fn binding(obj: &Value, _old: Option<&Value>, e: &mut Errors) {
    let (spec, p) = (&obj["spec"], Path::new("spec"));
    match text(&spec["policyName"]) {
        "" => e.required(&p.child("policyName"), ""),
        name => e.invalid_each(&p.child("policyName"), name, is_dns1123_subdomain(name)),
    }
    if present(&spec["paramRef"]) {
        param_ref(&spec["paramRef"], &p.child("paramRef"), e);
    }
    if present(&spec["matchResources"]) {
        match_resources(&spec["matchResources"], &p.child("matchResources"), e);
    }
    if text(&obj["kind"]) == "MutatingAdmissionPolicyBinding" {
        mutating_operations(&spec["matchResources"], &p.child("matchResources"), e);
    }
    if text(&obj["kind"]) == "ValidatingAdmissionPolicyBinding" {
        actions(&spec["validationActions"], &p.child("validationActions"), e);
    }
}

fn param_ref(reference: &Value, p: &Path<'_>, e: &mut Errors) {
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let (name, selector) = (text(&reference["name"]), &reference["selector"]);
    if !name.is_empty() {
        e.invalid_each(&p.child("name"), name, is_path_segment_name(name));
        if present(selector) {
            e.forbidden(&p.child("name"), EXCLUSIVE);
        }
    }
    if present(selector) {
        label_selector(selector, &p.child("selector"), e);
        if !name.is_empty() {
            e.forbidden(&p.child("selector"), EXCLUSIVE);
        }
    } else if name.is_empty() {
        e.required(p, "one of name or selector must be specified");
    }
    let (action, at) = (&reference["parameterNotFoundAction"], p.child("parameterNotFoundAction"));
    match text(action) {
        "" => e.required(&at, ""),
        _ => one_of(action, &["Deny", "Allow"], &at, e),
    }
}

fn actions(list: &Value, p: &Path<'_>, e: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, action) in items(list).iter().map(text).enumerate() {
        if !ACTIONS.contains(&action) {
            e.not_supported(&p.index(i), action, &ACTIONS);
        }
        if !seen.insert(action) {
            e.duplicate(&p.index(i), action);
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                   response and headers serves no purpose)";
        e.invalid(p, list, why);
    }
    if seen.is_empty() {
        e.required(p, "at least one validation action is required");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns the invalid fields.
    fn faults(old: Option<&Value>, new: &Value) -> Vec<String> {
        let mut errors = Errors::new();
        policy(new, old, &mut errors);
        errors.finish().0.into_iter().map(|fault| fault.path).collect()
    }

    #[test]
    fn stored_values_are_not_validated_again() {
        let policy = |variable: &str, expression: &str, message: &str, reason: &str| {
            json!({"kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"}, "spec": {
                "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                    "operations": ["*"]}]},
                "variables": [{"name": "v", "expression": variable}],
                "validations": [{"expression": expression, "messageExpression": message, "reason": reason}]}})
        };
        let old = policy("object.of('a future server')", "variables.v.isNew()", "object.told()", "Invalid");
        let all =
            ["spec.variables[0].expression", "spec.validations[0].expression", "spec.validations[0].messageExpression"];
        assert_eq!(faults(None, &old), all);
        assert_eq!(faults(Some(&old), &old), [""; 0]);
        let mut changed = old.clone();
        changed["spec"]["validations"][0]["reason"] = json!("Forbidden");
        assert_eq!(faults(Some(&old), &changed), [""; 0], "it can be changed elsewhere");
        changed["spec"]["validations"][0]["expression"] = json!("object.newer()");
        assert_eq!(faults(Some(&old), &changed), all[1..2], "what is new is judged");
        changed["spec"]["paramKind"] = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        assert_eq!(faults(Some(&old), &changed), all, "all of it, where it may name something else");
    }
}
