//! Authorization checks, built step by step: `authorizer.group('').resource('pods').check('get').allowed()`.
use std::sync::Arc;

use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::value::Value;
use crate::value::error::{EvalError, Result};
use crate::value::opaque::{AccessRequest, Check, Decision, Opaque, Stage};

const UNIT: Rule = Rule::Fixed(1);
/// The cost of one check. One evaluation can afford two of them.
const ASKING: Rule = Rule::Fixed(350_000);

pub(super) const ROWS: &[Row] = &[
    Row(
        "authorizer_path",
        "<kubernetes.authorization.Authorizer>.path(string) -> kubernetes.authorization.PathCheck",
        path,
        UNIT,
    ),
    Row(
        "authorizer_group",
        "<kubernetes.authorization.Authorizer>.group(string) -> kubernetes.authorization.GroupCheck",
        group,
        UNIT,
    ),
    Row(
        "authorizer_serviceaccount",
        "<kubernetes.authorization.Authorizer>.serviceAccount(string, string) -> kubernetes.authorization.Authorizer",
        service_account,
        UNIT,
    ),
    Row(
        "groupcheck_resource",
        "<kubernetes.authorization.GroupCheck>.resource(string) -> kubernetes.authorization.ResourceCheck",
        resource,
        UNIT,
    ),
    Row(
        "resourcecheck_subresource",
        "<kubernetes.authorization.ResourceCheck>.subresource(string) -> kubernetes.authorization.ResourceCheck",
        subresource,
        UNIT,
    ),
    Row(
        "resourcecheck_namespace",
        "<kubernetes.authorization.ResourceCheck>.namespace(string) -> kubernetes.authorization.ResourceCheck",
        namespace,
        UNIT,
    ),
    Row(
        "resourcecheck_name",
        "<kubernetes.authorization.ResourceCheck>.name(string) -> kubernetes.authorization.ResourceCheck",
        name,
        UNIT,
    ),
    Row(
        "authorizer_fieldselector",
        "<kubernetes.authorization.ResourceCheck>.fieldSelector(string) -> kubernetes.authorization.ResourceCheck",
        field_selector,
        Rule::Selector,
    ),
    Row(
        "authorizer_labelselector",
        "<kubernetes.authorization.ResourceCheck>.labelSelector(string) -> kubernetes.authorization.ResourceCheck",
        label_selector,
        Rule::Selector,
    ),
    Row(
        "pathcheck_check",
        "<kubernetes.authorization.PathCheck>.check(string) -> kubernetes.authorization.Decision",
        check,
        ASKING,
    ),
    Row(
        "resourcecheck_check",
        "<kubernetes.authorization.ResourceCheck>.check(string) -> kubernetes.authorization.Decision",
        check,
        ASKING,
    ),
    Row("decision_errored", "<kubernetes.authorization.Decision>.errored() -> bool", errored, UNIT),
    Row("decision_error", "<kubernetes.authorization.Decision>.error() -> string", error, UNIT),
    Row("decision_allowed", "<kubernetes.authorization.Decision>.allowed() -> bool", allowed, UNIT),
    Row("decision_reason", "<kubernetes.authorization.Decision>.reason() -> string", reason, UNIT),
];

/// The check after one more step.
fn say<'a>(
    function: &str,
    args: &[Value<'a>],
    at: Stage,
    then: Stage,
    put: impl FnOnce(&mut AccessRequest, &str),
) -> Result<Value<'a>> {
    let [Value::Opaque(Opaque::Check(so_far)), Value::Text(what)] = args else {
        return Err(not_for(function, args));
    };
    if so_far.stage != at {
        return Err(not_for(function, args));
    }
    let mut request = (*so_far.request).clone();
    put(&mut request, what);
    let next = Check { stage: then, request: Arc::new(request), ..so_far.clone() };
    Ok(Value::Opaque(Opaque::Check(next)))
}

fn not_blank<'a>(args: &[Value<'a>], what: &str) -> Result<()> {
    match args.get(1) {
        Some(Value::Text(s)) if s.trim().is_empty() => Err(EvalError::new(format!("{what} must not be empty"))),
        _ => Ok(()),
    }
}

fn path<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    not_blank(args, "path")?;
    say("path", args, Stage::Authorizer, Stage::Path, |r, s| r.path = Some(s.into()))
}
fn group<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    say("group", args, Stage::Authorizer, Stage::Group, |r, s| r.group = s.into())
}
fn resource<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    not_blank(args, "resource")?;
    say("resource", args, Stage::Group, Stage::Resource, |r, s| r.resource = s.into())
}
fn subresource<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    say("subresource", args, Stage::Resource, Stage::Resource, |r, s| r.subresource = s.into())
}
fn namespace<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    say("namespace", args, Stage::Resource, Stage::Resource, |r, s| r.namespace = s.into())
}
fn name<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    say("name", args, Stage::Resource, Stage::Resource, |r, s| r.name = s.into())
}
fn field_selector<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let put = |r: &mut AccessRequest, s: &str| r.field_selector = Some(s.to_owned()).filter(|s| !s.is_empty());
    say("fieldSelector", args, Stage::Resource, Stage::Resource, put)
}
fn label_selector<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let put = |r: &mut AccessRequest, s: &str| r.label_selector = Some(s.to_owned()).filter(|s| !s.is_empty());
    say("labelSelector", args, Stage::Resource, Stage::Resource, put)
}

fn service_account<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::Opaque(Opaque::Check(so_far)), Value::Text(namespace), Value::Text(name)] = args else {
        return Err(not_for("serviceAccount", args));
    };
    if so_far.stage != Stage::Authorizer {
        return Err(not_for("serviceAccount", args));
    }
    if kelson_meta::is_dns1123_subdomain(name).is_err() {
        return Err(EvalError::new("Invalid service account name"));
    }
    if kelson_meta::is_dns1123_label(namespace).is_err() {
        return Err(EvalError::new("Invalid service account namespace"));
    }
    let mut request = (*so_far.request).clone();
    request.service_account = Some((namespace.to_string(), name.to_string()));
    Ok(Value::Opaque(Opaque::Check(Check { request: Arc::new(request), ..so_far.clone() })))
}

fn check<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::Opaque(Opaque::Check(so_far)), Value::Text(verb)] = args else { return Err(not_for("check", args)) };
    if !matches!(so_far.stage, Stage::Path | Stage::Resource) {
        return Err(not_for("check", args));
    }
    let request = AccessRequest { verb: verb.to_string(), ..(*so_far.request).clone() };
    let decision = Some(Arc::new(so_far.authorizer.check(&request)));
    let request = Arc::new(request);
    Ok(Value::Opaque(Opaque::Check(Check { stage: Stage::Decision, request, decision, ..so_far.clone() })))
}

fn decided<'v>(function: &str, args: &'v [Value<'_>]) -> Result<&'v Decision> {
    match args {
        [Value::Opaque(Opaque::Check(Check { decision: Some(decision), .. }))] => Ok(decision),
        _ => Err(not_for(function, args)),
    }
}
fn errored<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    decided("errored", args).map(|d| Value::Bool(d.error.is_some()))
}
fn error<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    decided("error", args).map(|d| Value::text(d.error.as_deref().unwrap_or_default()))
}
fn allowed<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    decided("allowed", args).map(|d| Value::Bool(d.allowed))
}
fn reason<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    decided("reason", args).map(|d| Value::text(d.reason.as_str()))
}
