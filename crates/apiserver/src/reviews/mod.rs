//! Resources that are answered and not stored: access and token reviews, bindings, component statuses,
//! resource usage.
mod check;
pub mod component_status;
pub mod usage;

use http::StatusCode;
use kelson_auth::{Attributes, Decision, UserInfo};
use kelson_meta::{FieldSelector, LabelSelector, LabelSelectorSpec, Status, format_seconds};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::check::ReviewSubject;
use crate::catalog::Served;
use crate::request::answer::{self, Answer};
use crate::request::body::RequestBody;
use crate::request::negotiate::{Accepted, View};
use crate::shared::context::RequestContext;
use crate::subresources::binding;
use crate::write::{decode, fields, prepare};

/// Serves a review or another resource that is not stored.
///
/// # Errors
/// 400, 404, 422.
pub async fn serve(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    match (served.gr.group.as_str(), served.gr.resource.as_str()) {
        ("", "bindings") => return binding::serve(cx, served, body).await,
        ("", "componentstatuses") => return component_status::serve(cx, served).await,
        (crate::usage::GROUP, _) => return usage::serve(cx, served).await,
        _ => {}
    }
    let accepted = Accepted { view: View::Whole, ..cx.accept()? };
    let mut review = decode::object(cx, &served.gvk, &served.schema, &body.read().await?)?;
    if !review["metadata"].is_object() {
        review["metadata"] = json!({});
    }
    forget_system_fields(&mut review["metadata"], served.namespaced);
    fields::track_fields(cx, served, None, &mut review, "").await?;
    match served.gvk.kind.as_str() {
        "SelfSubjectAccessReview" => access(cx, &mut review, ReviewSubject::Requester).await?,
        "SubjectAccessReview" => access(cx, &mut review, ReviewSubject::Named).await?,
        "LocalSubjectAccessReview" => {
            prepare::set_namespace(cx, served, &mut review)?;
            access(cx, &mut review, ReviewSubject::NamedHere).await?;
        }
        "SelfSubjectRulesReview" => {
            let status = rules(cx, &review)?;
            // The response is another object, without the request's spec.
            review = json!({"apiVersion": served.api_version, "kind": served.gvk.kind, "metadata": {}, "spec": {}, "status": status});
        }
        "TokenReview" => token(cx, &mut review).await?,
        "SelfSubjectReview" => {
            review["metadata"] = json!({"creationTimestamp": format_seconds(cx.server.clock.now())});
            review["status"] = json!({"userInfo": user_value(&cx.user)});
        }
        _ => return Err(Status::no_such_path()),
    }
    answer::tree(StatusCode::CREATED, &accepted, &served.schema, review)
}

/// Removes metadata that only the server sets (upstream `rest.WipeObjectMetaSystemFields`).
fn forget_system_fields(metadata: &mut Value, namespaced: bool) {
    let Some(metadata) = metadata.as_object_mut() else { return };
    for field in ["creationTimestamp", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        metadata.remove(field);
    }
    if !namespaced {
        metadata.remove("namespace");
    }
}

fn user_value(user: &UserInfo) -> Value {
    serde_json::to_value(user).unwrap_or_default()
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct AccessSpec {
    resource_attributes: Option<ResourceAttributes>,
    non_resource_attributes: Option<NonResourceAttributes>,
    user: String,
    groups: Vec<String>,
    extra: std::collections::BTreeMap<String, Option<Vec<String>>>,
    uid: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ResourceAttributes {
    namespace: String,
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    name: String,
    field_selector: Option<Selector>,
    label_selector: Option<Selector>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Selector {
    raw_selector: String,
    requirements: Vec<kelson_meta::LabelSelectorRequirement>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NonResourceAttributes {
    path: String,
    verb: String,
}

async fn access(cx: &RequestContext, review: &mut Value, subject: ReviewSubject) -> Result<(), Status> {
    let spec: AccessSpec =
        serde_json::from_value(review["spec"].clone()).map_err(|e| Status::bad_request(e.to_string()))?;
    let faults = check::access(review, subject, &cx.info.namespace);
    if !faults.is_empty() {
        // Upstream's error has no kind here.
        let kind = kelson_meta::GroupKind { group: "authorization.k8s.io".into(), kind: String::new() };
        return Err(Status::invalid(&kind, "", &faults));
    }
    let user = match subject {
        ReviewSubject::Requester => cx.user.as_ref().clone(),
        _ => {
            let extra = spec.extra.into_iter().map(|(key, values)| (key, values.unwrap_or_default())).collect();
            UserInfo { name: spec.user, uid: spec.uid, groups: spec.groups, extra }
        }
    };
    let mut errors = Vec::new();
    let decision = match (&spec.resource_attributes, &spec.non_resource_attributes) {
        (Some(r), _) => {
            let labels = r.label_selector.as_ref().map(labels);
            let fields = r.field_selector.as_ref().map(fields);
            errors.extend(fields.as_ref().and_then(|read| read.error("fieldSelector")));
            errors.extend(labels.as_ref().and_then(|read| read.error("labelSelector")));
            let attributes = Attributes {
                version: if r.version.is_empty() { "*" } else { &r.version },
                subresource: &r.subresource,
                label_selector: labels.as_ref().and_then(|read| read.selector.as_ref()),
                field_selector: fields.as_ref().and_then(|read| read.selector.as_ref()),
                ..Attributes::resource(&user, &r.verb, &r.group, &r.resource, &r.namespace, &r.name)
            };
            cx.server.authorizer.decide(&attributes).await
        }
        (None, Some(n)) => cx.server.authorizer.decide(&Attributes::path(&user, &n.verb, &n.path)).await,
        (None, None) => Decision::NoOpinion(String::new()),
    };
    let mut status = Map::new();
    status.insert("allowed".into(), decision.is_allow().into());
    if matches!(decision, Decision::Deny(_)) {
        status.insert("denied".into(), true.into());
    }
    if !decision.reason().is_empty() {
        status.insert("reason".into(), decision.reason().into());
    }
    if !errors.is_empty() {
        status.insert("evaluationError".into(), errors.join("; ").into());
    }
    review["status"] = status.into();
    Ok(())
}

/// A parsed selector of a review. Invalid parts are ignored and reported; the review is then for a wider selection.
struct ParsedSelector<T> {
    selector: Option<T>,
    /// The part that was ignored.
    ignored: Option<&'static str>,
}

impl<T> ParsedSelector<T> {
    fn of(selector: Option<T>, faulty: bool) -> Self {
        let ignored = match (faulty, selector.is_some()) {
            (false, _) => None,
            (true, true) => Some("partially ignored"),
            (true, false) => Some("ignored"),
        };
        Self { selector, ignored }
    }
    fn error(&self, field: &str) -> Option<String> {
        self.ignored.map(|how| format!("spec.resourceAttributes.{field} {how} due to parse error"))
    }
}

fn labels(selector: &Selector) -> ParsedSelector<LabelSelector> {
    if !selector.raw_selector.is_empty() {
        let read = LabelSelector::parse(&selector.raw_selector).ok();
        let faulty = read.is_none();
        return ParsedSelector::of(read, faulty);
    }
    let of = |requirements| LabelSelectorSpec { match_expressions: requirements, ..Default::default() }.selector().ok();
    let valid: Vec<_> = selector.requirements.iter().filter(|r| of(vec![(*r).clone()]).is_some()).cloned().collect();
    let faulty = valid.len() < selector.requirements.len();
    ParsedSelector::of(if valid.is_empty() { None } else { of(valid) }, faulty)
}

fn fields(selector: &Selector) -> ParsedSelector<FieldSelector> {
    if !selector.raw_selector.is_empty() {
        let read = FieldSelector::parse(&selector.raw_selector).ok();
        let faulty = read.is_none();
        return ParsedSelector::of(read, faulty);
    }
    let one = |r: &kelson_meta::LabelSelectorRequirement| {
        let [value] = r.values.as_slice() else { return None };
        let negated = match r.operator.as_str() {
            "In" => false,
            "NotIn" => true,
            _ => return None,
        };
        Some(kelson_meta::FieldRequirement { field: r.key.clone(), value: value.clone(), negated })
    };
    let valid: Vec<_> = selector.requirements.iter().filter_map(one).collect();
    let faulty = valid.len() < selector.requirements.len();
    ParsedSelector::of(if valid.is_empty() { None } else { Some(FieldSelector(valid)) }, faulty)
}

fn rules(cx: &RequestContext, review: &Value) -> Result<Value, Status> {
    let namespace = review["spec"]["namespace"].as_str().unwrap_or("");
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let found = cx.server.auth.rbac.rules_for(&cx.user, namespace);
    let (mut resource, mut other) = (Vec::new(), Vec::new());
    if cx.user.in_group(kelson_auth::user::MASTERS) {
        resource.push(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        other.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
    }
    for rule in found.rules {
        if rule.non_resource_urls.is_empty() {
            let mut value = json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if !rule.resource_names.is_empty() {
                value["resourceNames"] = json!(rule.resource_names);
            }
            resource.push(value);
        } else {
            other.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    // An authorizer whose rules cannot be listed may allow more.
    let unlisted = cx.server.authorizer.unlisted(&cx.user);
    let errors: Vec<&str> = found.errors.iter().map(String::as_str).chain(unlisted).collect();
    let mut status = json!({"resourceRules": resource, "nonResourceRules": other, "incomplete": !errors.is_empty()});
    if !errors.is_empty() {
        status["evaluationError"] = errors.join(", ").into();
    }
    Ok(status)
}

async fn token(cx: &RequestContext, review: &mut Value) -> Result<(), Status> {
    let text = review["spec"]["token"].as_str().unwrap_or("");
    if text.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences: Vec<String> = serde_json::from_value(review["spec"]["audiences"].clone()).unwrap_or_default();
    let mut status = Map::new();
    match cx.server.auth.tokens.prove(text, &audiences).await {
        Ok(Some(found)) => {
            status.insert("authenticated".into(), true.into());
            let mut user = found.user.as_ref().clone();
            if user.name != kelson_auth::user::ANONYMOUS && !user.in_group(kelson_auth::user::AUTHENTICATED) {
                user.groups.push(kelson_auth::user::AUTHENTICATED.into());
            }
            status.insert("user".into(), user_value(&user));
            // An authenticator without audiences is valid only for the server's own.
            if found.audiences.is_empty() && !audiences.is_empty() {
                let own = cx.server.auth.issuer.as_ref().map(|i| i.options().audiences.clone()).unwrap_or_default();
                let shared: Vec<&String> = audiences.iter().filter(|a| own.contains(a)).collect();
                if shared.is_empty() {
                    status.clear();
                    status.insert("error".into(), "[token audiences do not match]".into());
                } else {
                    status.insert("audiences".into(), json!(shared));
                }
            } else if !found.audiences.is_empty() {
                status.insert("audiences".into(), json!(*found.audiences));
            }
        }
        // The error that a request with this token would get.
        unproven => {
            const UNPROVEN: &str = "invalid bearer token";
            let why = unproven.map_or_else(|why| format!("[{UNPROVEN}, {why}]"), |_| UNPROVEN.to_owned());
            status.insert("user".into(), json!({}));
            status.insert("error".into(), why.into());
        }
    }
    review["status"] = status.into();
    Ok(())
}
