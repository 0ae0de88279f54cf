//! Eviction: deletes a pod unless its disruption budget prevents that (upstream `registry/core/pod/storage/eviction.go`).
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use kelson_admission::Operation;
use kelson_meta::{FieldErrors, FieldPath, Gvk, LabelSelectorSpec, Status, StatusCause, format_seconds};
use kelson_store::{Record, Resource};
use serde_json::{Value, json};

use crate::catalog::record::parse;
use crate::catalog::{ObjectSchema, Served};
use crate::request::answer::{self, Answer};
use crate::request::body::RequestBody;
use crate::shared::context::RequestContext;
use crate::subresources::binding::set_condition;
use crate::write::admit::Admission;
use crate::write::commit::Committer;
use crate::write::decode;
use crate::write::delete::{self, DeleteAdmission, DeleteOptions};
use crate::write::prepare;
use crate::write::retry::{self, Changed};

/// Limit of disrupted pods in a budget's status.
const DISRUPTED_PODS_MAX: usize = 2000;
const RETRY_AFTER_S: i32 = 10;

/// Serves an eviction.
///
/// # Errors
/// 400, 404, 409, 429, 500.
pub async fn serve(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let gvk = Gvk::new("policy", "v1", "Eviction");
    let schema = ObjectSchema::builtin("policy", "v1", "Eviction");
    // Upstream accepts the older version too, for clients that know no other.
    let eviction = decode::object_or_older(cx, &gvk, "policy/v1beta1", &schema, &body.read().await?)?;
    let name = cx.info.name.as_str();
    prepare::check_namespace(cx, served, &eviction)?;
    let given = prepare::meta_text(&eviction, "name");
    if given != name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    const IGNORE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";
    if eviction["deleteOptions"][IGNORE] == true {
        let mut errors = FieldErrors::new();
        let why = "can not be set for pod eviction, try after removing the option";
        errors.invalid(&FieldPath::new("deleteOptions").child(IGNORE), true, why);
        return Err(Status::invalid(&gvk.group_kind(), name, &errors));
    }
    let mut options: DeleteOptions = match &eviction["deleteOptions"] {
        Value::Null => DeleteOptions::default(),
        given => serde_json::from_value(given.clone()).map_err(|e| Status::bad_request(e.to_string()))?,
    };
    if cx.dry_run()? {
        options.dry_run = vec!["All".into()];
    }
    options.check()?;
    let dry_run = options.is_dry_run();
    let admission = Admission { cx, served, kind: &gvk, operation: Operation::Create, name, dry_run, options: None };
    let object = admission.mutate(Some(eviction), None).await?;
    admission.validate(object, None).await?;
    evict(cx, served, name, &options).await?;
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    answer::success(StatusCode::CREATED, &accepted, status)
}

/// The decision of a pod's disruption budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Allowed {
    /// The pod may be evicted: it has no budget, or a disruption was taken from it.
    Free,
    /// The pod may be evicted as long as it is not ready.
    WhileUnready,
}

async fn evict(cx: &RequestContext, served: &Served, name: &str, options: &DeleteOptions) -> Result<(), Status> {
    let tied = options.preconditions.as_ref().is_some_and(|p| p.resource_version.is_some());
    for attempt in 0..=retry::RETRIES_MAX {
        let record = cx.stored(served, name)?;
        let pod = parse(&record);
        let phase = pod["status"]["phase"].as_str().unwrap_or("");
        let ends = matches!(phase, "Succeeded" | "Failed") || pod["metadata"]["deletionTimestamp"].is_string();
        let guarded = !ends && phase != "Pending";
        let allowed = if guarded { budget(cx, &pod, name, options.is_dry_run()).await? } else { Allowed::Free };
        // A pod that is evicted because of its current state must still be in that state when it is deleted.
        let as_seen = !ends && (!guarded || allowed == Allowed::WhileUnready);
        let mut options = options.clone();
        if as_seen && !tied {
            options.preconditions.get_or_insert_default().resource_version = Some(record.revision().to_string());
        }
        match mark_and_delete(cx, served, name, options).await {
            Err(status) if status.code == 409 && as_seen && !tied => {
                if guarded {
                    // The client retries; until then the budget has processed the pod's new state.
                    return Err(refused(still_processed(&budget_of(cx, &pod)?.unwrap_or_default()), RETRY_AFTER_S));
                }
                if attempt == retry::RETRIES_MAX {
                    return Err(status);
                }
            }
            outcome => return outcome,
        }
    }
    Err(Status::conflict(&served.gr, name, Status::MODIFIED))
}

/// The name of the only budget that selects a pod.
fn budget_of(cx: &RequestContext, pod: &Value) -> Result<Option<String>, Status> {
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
    let mut matching = None;
    for record in all.iter().filter(|r| covers(&parse(r))) {
        if matching.replace(record.key().name.to_string()).is_some() {
            let why =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Status::failure(500, kelson_meta::Reason::Unknown, why));
        }
    }
    Ok(matching)
}

/// Checks the pod's budget and takes one disruption from it.
async fn budget(cx: &RequestContext, pod: &Value, name: &str, dry_run: bool) -> Result<Allowed, Status> {
    let Some(budget_name) = budget_of(cx, pod)? else { return Ok(Allowed::Free) };
    let budgets = cx.server.catalog.any("policy", "poddisruptionbudgets").ok_or_else(Status::no_such_path)?;
    let free = AtomicBool::new(true);
    let disrupt = |budget: &mut Value| -> Result<Changed, Status> {
        if unguarded(pod, budget) {
            free.store(false, Ordering::Relaxed);
            return Ok(Changed::No);
        }
        free.store(true, Ordering::Relaxed);
        take(cx, budget, &budget_name, name)?;
        Ok(if dry_run { Changed::No } else { Changed::Yes })
    };
    match retry::modify(cx, &budgets, &budget_name, disrupt).await {
        // The budget was deleted in between: nothing protects the pod any more.
        Err(status) if status.code == 404 => Ok(Allowed::Free),
        Err(status) if status.code == 409 => Err(Status::timeout(
            format!("couldn't update PodDisruptionBudget {budget_name:?} due to conflicts"),
            RETRY_AFTER_S,
        )),
        Err(status) => Err(status),
        Ok(()) if free.load(Ordering::Relaxed) => Ok(Allowed::Free),
        Ok(()) => Ok(Allowed::WhileUnready),
    }
}

/// Whether an unready pod may be evicted without a disruption.
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
        return Err(refused(still_processed(budget_name), RETRY_AFTER_S));
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
        // Without Retry-After, because it is unknown when a pod becomes healthy.
        return Err(refused(explain_denial(budget_name, status), 0));
    }
    let now = format_seconds(cx.server.clock.now());
    let status = &mut budget["status"];
    status["disruptionsAllowed"] = (allowed - 1).into();
    if !status["disruptedPods"].is_object() {
        status["disruptedPods"] = json!({});
    }
    status["disruptedPods"][pod] = now.clone().into();
    if allowed == 1 {
        note_exhausted(status, &now);
    }
    Ok(())
}

/// The reason why a budget allows no disruption.
fn explain_denial(budget: &str, status: &Value) -> String {
    let number = |f: &str| status[f].as_i64().unwrap_or(0);
    let condition = status["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "DisruptionAllowed");
    let said = condition.filter(|c| c["status"] == "False").and_then(|c| {
        let message = c["message"].as_str().filter(|m| !m.is_empty())?;
        Some((c["reason"].as_str().unwrap_or_default(), message))
    });
    let (desired, current) = (number("desiredHealthy"), number("currentHealthy"));
    match said {
        Some(("SyncFailed", message)) => {
            format!(
                "The disruption budget {budget} does not allow evicting pods currently because it failed sync: {message}"
            )
        }
        _ if current <= desired => {
            format!("The disruption budget {budget} needs {desired} healthy pods and has {current} currently")
        }
        Some((reason, message)) => {
            format!("The disruption budget {budget} does not allow evicting pods currently ({reason}): {message}")
        }
        None => format!("The disruption budget {budget} does not allow evicting pods currently"),
    }
}

/// Sets the condition of a budget whose last disruption was taken.
fn note_exhausted(status: &mut Value, now: &str) {
    let observed = status["observedGeneration"].clone();
    let mut condition = json!({"type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods",
        "message": "", "observedGeneration": observed, "lastTransitionTime": now});
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(all) = status["conditions"].as_array_mut() else { return };
    match all.iter_mut().find(|c| c["type"] == "DisruptionAllowed") {
        Some(old) => {
            if old["status"] == "False" {
                condition["lastTransitionTime"] = old["lastTransitionTime"].take();
            }
            *old = condition;
        }
        None => all.push(condition),
    }
}

fn still_processed(budget: &str) -> String {
    format!("The disruption budget {budget} is still being processed by the server.")
}

fn refused(why: String, retry_after: i32) -> Status {
    let mut status =
        Status::too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", retry_after);
    status.details.get_or_insert_default().causes.push(StatusCause {
        reason: "DisruptionBudget".into(),
        message: why,
        field: String::new(),
    });
    status
}

/// Sets the pod's disruption condition and deletes the pod if it meets the preconditions.
async fn mark_and_delete(
    cx: &RequestContext,
    served: &Served,
    name: &str,
    mut options: DeleteOptions,
) -> Result<(), Status> {
    if !options.is_dry_run() {
        let marked = mark(cx, served, name, &options).await?;
        // The condition created a new version, which is the one to delete.
        if let Some(version) = options.preconditions.as_mut().and_then(|p| p.resource_version.as_mut()) {
            *version = marked.revision().to_string();
        }
    }
    delete::run(cx, served, name, &options, DeleteAdmission::Done).await.map(|_| ())
}

async fn mark(
    cx: &RequestContext,
    served: &Served,
    name: &str,
    options: &DeleteOptions,
) -> Result<Arc<Record>, Status> {
    retry::on_newest(cx, served, name, |record| {
        Box::pin(async move {
            delete::check_preconditions(served, name, options, &record)?;
            let mut pod = served.one_working(&record).await?;
            let (reason, message) = ("EvictionByEvictionAPI", "Eviction API: evicting");
            set_condition(&mut pod, "DisruptionTarget", reason, message, cx.server.clock.now());
            Committer::new(&cx.server).update(served, &record, pod).await
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_explain_why_no_pod_may_be_evicted() {
        let condition = |reason: &str, message: &str| json!([{"type": "DisruptionAllowed", "status": "False", "reason": reason, "message": message}]);
        let none = "The disruption budget b does not allow evicting pods currently";
        let rows = [
            (
                json!({"desiredHealthy": 2, "currentHealthy": 2}),
                "The disruption budget b needs 2 healthy pods and has 2 currently".to_owned(),
            ),
            (json!({"desiredHealthy": 2, "currentHealthy": 3}), none.to_owned()),
            (
                json!({"desiredHealthy": 2, "currentHealthy": 1, "conditions": condition("SyncFailed", "no scale")}),
                format!("{none} because it failed sync: no scale"),
            ),
            (
                json!({"desiredHealthy": 2, "currentHealthy": 3, "conditions": condition("Other", "m")}),
                format!("{none} (Other): m"),
            ),
            (
                json!({"desiredHealthy": 2, "currentHealthy": 3, "conditions": condition("InsufficientPods", "")}),
                none.to_owned(),
            ),
        ];
        for (status, want) in rows {
            assert_eq!(explain_denial("b", &status), want, "{status}");
        }
    }

    #[test]
    fn an_exhausted_budget_gets_the_condition_at_once() {
        let mut status = json!({"observedGeneration": 2, "conditions": [{"type": "DisruptionAllowed", "status": "True",
            "reason": "SufficientPods", "message": "", "lastTransitionTime": "then"}]});
        note_exhausted(&mut status, "now");
        let c = status["conditions"][0].clone();
        assert_eq!(
            (&c["status"], &c["reason"], &c["lastTransitionTime"]),
            (&json!("False"), &json!("InsufficientPods"), &json!("now"))
        );
        note_exhausted(&mut status, "later");
        assert_eq!(status["conditions"], json!([c]));
    }
}
