//! Binding: assigns a pod to a node (`POST pods/NAME/binding`, or `POST bindings`).
use http::StatusCode;
use kelson_admission::Operation;
use kelson_meta::{FieldErrors, FieldPath, Gvk, Reason, Status, format_seconds};
use serde_json::{Value, json};

use crate::catalog::{ObjectSchema, Served};
use crate::request::answer::{self, Answer};
use crate::request::body::RequestBody;
use crate::shared::context::RequestContext;
use crate::write::admit::Admission;
use crate::write::decode;
use crate::write::prepare::{self, meta_text};
use crate::write::retry::{self, Changed};

/// Serves a binding.
///
/// # Errors
/// 400, 404, 409, 422.
pub async fn serve(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let dry_run = cx.dry_run()?;
    let gvk = Gvk::new("", "v1", "Binding");
    let mut binding = decode::object(cx, &gvk, &ObjectSchema::builtin("", "v1", "Binding"), &body.read().await?)?;
    let pods = cx.server.catalog.find("", "v1", "pods").ok_or_else(Status::no_such_path)?;
    prepare::set_namespace(cx, &pods, &mut binding)?;
    let given = meta_text(&binding, "name").to_owned();
    let name = if cx.info.name.is_empty() { given.clone() } else { cx.info.name.clone() };
    if name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    if given != name {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    let admission =
        Admission { cx, served, kind: &gvk, operation: Operation::Create, name: &name, dry_run, options: None };
    let binding = admission.mutate(Some(binding), None).await?;
    let binding = admission.validate(binding, None).await?.unwrap_or_default();
    check(&binding)?;
    let bind = |pod: &mut Value| -> Result<Changed, Status> {
        assign(&pods, &name, pod, &binding, cx.server.clock.now())?;
        Ok(if dry_run { Changed::No } else { Changed::Yes })
    };
    retry::modify(cx, &pods, &name, bind).await?;
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    answer::success(StatusCode::CREATED, &accepted, status)
}

/// Validates the target. As in upstream's storage, the error has no reason.
fn check(binding: &Value) -> Result<(), Status> {
    let mut errors = FieldErrors::new();
    let target = FieldPath::new("target");
    let kind = binding["target"]["kind"].as_str().unwrap_or("");
    if !matches!(kind, "" | "Node") {
        errors.not_supported(&target.child("kind"), kind, &["Node", "<empty>"]);
    }
    if binding["target"]["name"].as_str().unwrap_or("").is_empty() {
        errors.required(&target.child("name"), "");
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::failure(500, Reason::Unknown, errors.to_string()))
}

fn assign(pods: &Served, name: &str, pod: &mut Value, binding: &Value, now: jiff::Timestamp) -> Result<(), Status> {
    let conflict = |why: &str| Err(Status::conflict(&kelson_meta::GroupResource::new("", "pods/binding"), name, why));
    for (field, what) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let (wanted, found) = (meta_text(binding, field), meta_text(pod, field));
        if !wanted.is_empty() && wanted != found {
            let why = format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}");
            return Err(Status::conflict(&pods.gr, name, &why));
        }
    }
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return conflict(&format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let node = pod["spec"]["nodeName"].as_str().unwrap_or("");
    if !node.is_empty() {
        return conflict(&format!("pod {name} is already assigned to node {node:?}"));
    }
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|g| !g.is_empty()) {
        return conflict(&format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    pod["spec"]["nodeName"] = binding["target"]["name"].clone();
    for map in ["annotations", "labels"] {
        if let Some(entries) = binding["metadata"][map].as_object().filter(|e| !e.is_empty()) {
            if !pod["metadata"][map].is_object() {
                pod["metadata"][map] = json!({});
            }
            for (k, v) in entries {
                pod["metadata"][map][k] = v.clone();
            }
        }
    }
    // An old nomination would be counted twice (feature ClearingNominatedNodeNameAfterBinding).
    if let Some(status) = pod["status"].as_object_mut() {
        status.remove("nominatedNodeName");
    }
    set_condition(pod, "PodScheduled", "", "", now);
    Ok(())
}

/// Sets a condition of a pod to `True`, with the pod's generation (KEP-5067).
pub fn set_condition(pod: &mut Value, kind: &str, reason: &str, message: &str, now: jiff::Timestamp) {
    if !pod["status"].is_object() {
        pod["status"] = json!({});
    }
    let generation = pod["metadata"]["generation"].as_i64().filter(|generation| *generation != 0);
    let status = &mut pod["status"];
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return };
    let mut condition = json!({"type": kind, "status": "True", "lastProbeTime": null});
    if let Some(generation) = generation {
        condition["observedGeneration"] = generation.into();
    }
    if !reason.is_empty() {
        condition["reason"] = reason.into();
        condition["message"] = message.into();
    }
    match conditions.iter_mut().find(|c| c["type"] == kind) {
        Some(old) => {
            let since =
                if old["status"] == "True" { old["lastTransitionTime"].take() } else { format_seconds(now).into() };
            condition["lastTransitionTime"] = since;
            *old = condition;
        }
        None => {
            condition["lastTransitionTime"] = format_seconds(now).into();
            conditions.push(condition);
        }
    }
}
