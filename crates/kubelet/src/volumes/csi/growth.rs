//! What a claim's status says about the expansion of its volume, and the status after the node's part (KEP-284, KEP-1790; upstream:
//! `operationexecutor/node_expander.go`). Pure.
use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kelson_meta::Quantity;
use serde_json::{Value, json};

use crate::pod;

const STORAGE: &str = "storage";
/// Conditions about the expansion of a claim.
const CONDITIONS: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];
/// Condition of an expansion that failed on a node.
const ERROR: &str = "NodeResizeError";

/// The steps for the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExpansionStep {
    /// Nothing to do now.
    None,
    /// Expand the volume to this size and then update the claim.
    To(Quantity),
    /// Another node has expanded the volume to this size and updated the claim; this node still expands its mount.
    Here(Quantity),
}

fn amount(list: Option<&BTreeMap<String, ApiQuantity>>) -> Option<Quantity> {
    list?.get(STORAGE).map(pod::quantity)
}

/// Returns the stage of the expansion in the claim's status; empty if there is none.
fn stage(status: &PersistentVolumeClaimStatus) -> &str {
    let of = status.allocated_resource_statuses.as_ref().and_then(|s| s.get(STORAGE));
    of.map_or("", String::as_str)
}

/// Decides what the node does for a claim whose volume has the size `volume` and was already expanded to `grown` here.
pub(super) fn wanted(claim: &PersistentVolumeClaim, volume: Quantity, grown: Option<Quantity>) -> ExpansionStep {
    let Some(status) = &claim.status else { return ExpansionStep::None };
    let Some(now) = amount(status.capacity.as_ref()) else { return ExpansionStep::None };
    match stage(status) {
        "NodeResizePending" | "NodeResizeInProgress" => {
            ExpansionStep::To(amount(status.allocated_resources.as_ref()).unwrap_or(volume))
        }
        // The resizer reports neither a stage nor `allocatedResources`.
        "" if volume > now && status.allocated_resources.is_none() => ExpansionStep::To(volume),
        "" => {
            let modes = claim.spec.as_ref().and_then(|s| s.access_modes.as_ref());
            let is_shared = modes.into_iter().flatten().any(|m| m == "ReadWriteMany");
            let is_needed = is_shared && grown.is_some_and(|done| done < now);
            if is_needed { ExpansionStep::Here(now) } else { ExpansionStep::None }
        }
        _ => ExpansionStep::None,
    }
}

/// Size in the claim's status.
pub(super) fn size(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    amount(claim.status.as_ref()?.capacity.as_ref())
}

fn patch(claim: &PersistentVolumeClaim, status: Value) -> Value {
    json!({"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status})
}

/// Returns the claim's conditions, without those about its expansion that `keeps` rejects.
fn conditions(claim: &PersistentVolumeClaim, keeps: impl Fn(&str) -> bool) -> Vec<Value> {
    let all = claim.status.iter().flat_map(|s| s.conditions.iter().flatten());
    all.filter(|c| !CONDITIONS.contains(&c.type_.as_str()) || keeps(&c.type_)).map(|c| json!(c)).collect()
}

/// Returns the patch before the driver is called; `None` if the claim already has that status.
pub(super) fn begun(claim: &PersistentVolumeClaim) -> Option<Value> {
    let stage = claim.status.as_ref().map_or("", stage);
    let patch = patch(claim, json!({"allocatedResourceStatuses": {STORAGE: "NodeResizeInProgress"}}));
    (stage == "NodeResizePending").then_some(patch)
}

/// Returns the patch after the volume has the size.
pub(super) fn done(claim: &PersistentVolumeClaim, size: Quantity) -> Value {
    let conditions = conditions(claim, |_| false);
    let nothing = json!({STORAGE: Value::Null});
    let status = json!({"capacity": {STORAGE: size.to_string()}, "allocatedResourceStatuses": nothing, "conditions": conditions});
    patch(claim, status)
}

/// Returns the patch after the driver failed; `for_good` if a retry cannot help.
pub(super) fn failed(claim: &PersistentVolumeClaim, why: &str, for_good: bool, now: Timestamp) -> Value {
    let mut all = conditions(claim, |kind| kind != ERROR);
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    all.push(json!({"type": ERROR, "status": "True", "lastTransitionTime": now.to_string(),
        "message": format!("failed to expand pvc with {why}")}));
    let mut status = json!({"conditions": all});
    if for_good {
        status["allocatedResourceStatuses"] = json!({STORAGE: "NodeResizeInfeasible"});
    }
    patch(claim, status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(mode: &str, status: Value) -> PersistentVolumeClaim {
        let all = json!({"metadata": {"resourceVersion": "7"}, "spec": {"accessModes": [mode]}, "status": status});
        serde_json::from_value(all).expect("a claim")
    }

    #[test]
    fn expansion_steps_of_the_node() {
        let gib = |n: i64| Quantity::binary(n << 30);
        let has = |stage: &str, allocated: &str| {
            let mut status = json!({"capacity": {"storage": "1Gi"}});
            if !stage.is_empty() {
                status["allocatedResourceStatuses"] = json!({"storage": stage});
            }
            if !allocated.is_empty() {
                status["allocatedResources"] = json!({"storage": allocated});
            }
            status
        };
        let one = "ReadWriteOnce";
        for (mode, status, volume, grown, expected) in [
            (one, has("", ""), 1, None, ExpansionStep::None),
            (one, has("", ""), 2, None, ExpansionStep::To(gib(2))),
            (one, has("NodeResizePending", "2Gi"), 3, None, ExpansionStep::To(gib(2))),
            (one, has("NodeResizeInProgress", "2Gi"), 2, None, ExpansionStep::To(gib(2))),
            (one, has("ControllerResizeInProgress", "2Gi"), 1, None, ExpansionStep::None),
            (one, has("NodeResizeInfeasible", "2Gi"), 2, None, ExpansionStep::None),
            (one, has("", "1Gi"), 1, Some(gib(1)), ExpansionStep::None),
            ("ReadWriteMany", has("", "1Gi"), 1, Some(Quantity::binary(1 << 20)), ExpansionStep::Here(gib(1))),
            ("ReadWriteMany", has("", "1Gi"), 1, Some(gib(1)), ExpansionStep::None),
            ("ReadWriteMany", has("", "1Gi"), 1, None, ExpansionStep::None),
            (one, json!({}), 2, None, ExpansionStep::None),
        ] {
            assert_eq!(wanted(&claim(mode, status.clone()), gib(volume), grown), expected, "{status} {volume}");
        }
    }

    #[test]
    fn claim_status_after_an_expansion() {
        let condition = |kind: &str| json!({"type": kind, "status": "True"});
        let before = claim(
            "ReadWriteOnce",
            json!({"allocatedResourceStatuses": {"storage": "NodeResizePending"},
                "conditions": [condition("Other"), condition("FileSystemResizePending")]}),
        );
        let kinds = |patch: &Value| -> Vec<String> {
            let all = patch["status"]["conditions"].as_array().cloned().unwrap_or_default();
            all.iter().map(|c| c["type"].as_str().unwrap_or_default().to_owned()).collect()
        };
        let begun = begun(&before).expect("it was pending");
        assert_eq!(begun["status"]["allocatedResourceStatuses"]["storage"], "NodeResizeInProgress");
        assert_eq!(begun["metadata"]["resourceVersion"], "7");
        let done = done(&before, Quantity::binary(2 << 30));
        assert_eq!((&done["status"]["capacity"]["storage"], kinds(&done)), (&json!("2Gi"), vec!["Other".to_owned()]));
        assert_eq!(done["status"]["allocatedResourceStatuses"], json!({"storage": null}));
        let failed = failed(&before, "no room", true, Timestamp::UNIX_EPOCH);
        assert_eq!(failed["status"]["allocatedResourceStatuses"]["storage"], "NodeResizeInfeasible");
        assert_eq!(kinds(&failed), ["Other", "FileSystemResizePending", "NodeResizeError"]);
        assert_eq!(failed["status"]["conditions"][2]["message"], "failed to expand pvc with no room");
    }
}
