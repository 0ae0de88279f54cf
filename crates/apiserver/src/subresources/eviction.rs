//! Eviction: deletes a pod unless its disruption budget forbids it (upstream `registry/core/pod/storage/eviction.go`).
use http::StatusCode;
use kelson_admission::Operation;
use kelson_meta::{Gvk, LabelSelectorSpec, Status, StatusCause, format_seconds};
use kelson_store::Resource;
use serde_json::{Value, json};

use crate::catalog::record::parse;
use crate::catalog::{ObjectSchema, Served};
use crate::request::answer::{self, Answer};
use crate::request::body::RequestBody;
use crate::shared::context::RequestContext;
use crate::subresources::binding::set_condition;
use crate::write::admit::Admission;
use crate::write::decode;
use crate::write::delete::{self, Admitted, DeleteOptions};
use crate::write::retry::{self, Changed};

/// Pods that a budget may note as disrupted at once.
const DISRUPTED_PODS_MAX: usize = 2000;
const RETRY_AFTER_S: i32 = 10;

/// Serves an eviction.
///
/// # Errors
/// 400, 404, 409, 429, 500.
pub async fn serve(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let gvk = Gvk::new("policy", "v1", "Eviction");
    let eviction = decode::object(cx, &gvk, &ObjectSchema::builtin("policy", "v1", "Eviction"), &body.read().await?)?;
    let name = cx.info.name.as_str();
    let given = eviction["metadata"]["name"].as_str().unwrap_or("");
    if given != name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut options: DeleteOptions = match &eviction["deleteOptions"] {
        Value::Null => DeleteOptions::default(),
        given => serde_json::from_value(given.clone()).map_err(|e| Status::bad_request(e.to_string()))?,
    };
    if cx.dry_run()? {
        options.dry_run = vec!["All".into()];
    }
    let dry_run = options.is_dry_run();
    let admission = Admission { cx, served, kind: &gvk, operation: Operation::Create, name, dry_run, options: None };
    let object = admission.mutate(Some(eviction), None).await?;
    admission.validate(object, None).await?;
    evict(cx, served, name, &options).await?;
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    answer::tree(StatusCode::CREATED, &accepted, &ObjectSchema::status(), status)
}

async fn evict(cx: &RequestContext, served: &Served, name: &str, options: &DeleteOptions) -> Result<(), Status> {
    let pod = parse(&*cx.stored(served, name)?);
    let phase = pod["status"]["phase"].as_str().unwrap_or("");
    let exempt =
        matches!(phase, "Succeeded" | "Failed" | "Pending") || pod["metadata"]["deletionTimestamp"].is_string();
    if !exempt {
        budget(cx, &pod, name, options.is_dry_run()).await?;
    }
    if !options.is_dry_run() {
        mark(cx, served, name).await?;
    }
    delete::run(cx, served, name, options, Admitted::Already).await.map(|_| ())
}

/// Asks the pod's budget and takes one disruption from it.
async fn budget(cx: &RequestContext, pod: &Value, name: &str, dry_run: bool) -> Result<(), Status> {
    let resource = Resource::new("policy", "poddisruptionbudgets");
    let labels: std::collections::BTreeMap<String, String> =
        serde_json::from_value(pod["metadata"]["labels"].clone()).unwrap_or_default();
    let all = cx.server.store.list(resource, Some(&cx.info.namespace), None, None);
    let covers = |budget: &Value| {
        serde_json::from_value::<Option<LabelSelectorSpec>>(budget["spec"]["selector"].clone())
            .ok()
            .flatten()
            .and_then(|s| s.selector().ok())
            .is_some_and(|s| s.matches(&labels))
    };
    let mut matching: Vec<String> = Vec::new();
    for record in all.iter() {
        if covers(&parse(record)) {
            matching.push(record.key().name.to_string());
        }
    }
    let budget_name = match matching.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        _ => {
            let why =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Status::failure(500, kelson_meta::Reason::Unknown, why));
        }
    };
    let budgets = cx.server.catalog.any("policy", "poddisruptionbudgets").ok_or_else(Status::no_such_path)?;
    let disrupt = |budget: &mut Value| -> Result<Changed, Status> {
        if unguarded(pod, budget) {
            return Ok(Changed::No);
        }
        take(cx, budget, &budget_name, name)?;
        Ok(if dry_run { Changed::No } else { Changed::Yes })
    };
    match retry::modify(cx, &budgets, &budget_name, disrupt).await {
        // The budget went in between: nothing guards the pod any more.
        Err(status) if status.code == 404 => Ok(()),
        Err(status) if status.code == 409 => Err(Status::timeout(
            format!("couldn't update PodDisruptionBudget {budget_name:?} due to conflicts"),
            RETRY_AFTER_S,
        )),
        outcome => outcome,
    }
}

/// Whether a pod that is not ready may go without asking.
fn unguarded(pod: &Value, budget: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    if conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True") {
        return false;
    }
    let number = |f: &str| budget["status"][f].as_i64().unwrap_or(0);
    budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        || (number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0)
}

fn take(cx: &RequestContext, budget: &mut Value, budget_name: &str, pod: &str) -> Result<(), Status> {
    let status = &budget["status"];
    let number = |f: &str| status[f].as_i64().unwrap_or(0);
    if number("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return Err(refused(format!("The disruption budget {budget_name} is still being processed by the server.")));
    }
    let allowed = number("disruptionsAllowed");
    if allowed < 0 {
        return Err(Status::forbidden(
            &kelson_meta::GroupResource::new("policy", "poddisruptionbudgets"),
            budget_name,
            "pdb disruptions allowed is negative",
        ));
    }
    let disrupted = status["disruptedPods"].as_object().map_or(0, serde_json::Map::len);
    if disrupted > DISRUPTED_PODS_MAX {
        return Err(Status::forbidden(
            &kelson_meta::GroupResource::new("policy", "poddisruptionbudgets"),
            budget_name,
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        let why = format!(
            "The disruption budget {budget_name} needs {} healthy pods and has {} currently",
            number("desiredHealthy"),
            number("currentHealthy")
        );
        return Err(refused(why));
    }
    let now = format_seconds(cx.server.clock.now());
    let status = &mut budget["status"];
    status["disruptionsAllowed"] = (allowed - 1).into();
    if !status["disruptedPods"].is_object() {
        status["disruptedPods"] = json!({});
    }
    status["disruptedPods"][pod] = now.into();
    Ok(())
}

fn refused(why: String) -> Status {
    let mut status =
        Status::too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", RETRY_AFTER_S);
    status.details.get_or_insert_default().causes.push(StatusCause {
        reason: "DisruptionBudget".into(),
        message: why,
        field: String::new(),
    });
    status
}

/// Notes on the pod why it goes.
async fn mark(cx: &RequestContext, served: &Served, name: &str) -> Result<(), Status> {
    let (reason, message) = ("EvictionByEvictionAPI", "Eviction API: evicting");
    let note = |pod: &mut Value| -> Result<Changed, Status> {
        set_condition(pod, "DisruptionTarget", reason, message, cx.server.clock.now());
        Ok(Changed::Yes)
    };
    retry::modify(cx, served, name, note).await
}
