//! Deletion of a definition: its status during the deletion, and when its finalizer is removed. Upstream:
//! `registry/customresourcedefinition/etcd.go`, `controller/finalizer`.
use jiff::Timestamp;
use kelson_meta::format_seconds;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::custom::conditions::{self, Condition, TERMINATING, condition};
use crate::custom::definition::CLEANUP_FINALIZER;

/// Progress of deleting a definition's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The deletion has not started.
    Pending,
    /// The deletion is in progress.
    Underway,
    /// Objects could not be deleted, for this reason.
    Failed(String),
    /// Objects still exist after the timeout.
    Stuck,
    /// All objects are deleted.
    Done,
    /// The definition was never established, so it has no objects.
    NeverEstablished,
    /// The objects belong to a built-in resource and are kept.
    Overlapping,
}

impl Progress {
    fn condition(&self) -> Condition {
        let (status, reason, message) = match self {
            Self::Pending => (
                true,
                "InstanceDeletionPending",
                "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon".to_owned(),
            ),
            Self::Underway => (true, "InstanceDeletionInProgress", "CustomResource deletion is in progress".to_owned()),
            Self::Failed(why) => (true, "InstanceDeletionFailed", format!("could not issue all deletes: {why}")),
            Self::Stuck => (
                true,
                "InstanceDeletionCheck",
                "could not confirm zero CustomResources remaining: context deadline exceeded".to_owned(),
            ),
            Self::Done => (false, "InstanceDeletionCompleted", "removed all instances".to_owned()),
            Self::NeverEstablished => (false, "NeverEstablished", "resource was never established".to_owned()),
            Self::Overlapping => {
                (false, "OverlappingBuiltInResource", "instances overlap with built-in resources in storage".to_owned())
            }
        };
        condition(TERMINATING, status, reason, message)
    }
    /// Whether the definition can be removed.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Done | Self::NeverEstablished | Self::Overlapping)
    }
}

/// Marks a definition as deleted.
pub fn mark(object: &mut Value, now: Timestamp) {
    object["metadata"]["deletionTimestamp"] = format_seconds(now).into();
    let finalizers = &mut object["metadata"]["finalizers"];
    match finalizers.as_array_mut() {
        Some(list) if list.iter().any(|f| f == CLEANUP_FINALIZER) => {}
        Some(list) => list.push(CLEANUP_FINALIZER.into()),
        None => *finalizers = json!([CLEANUP_FINALIZER]),
    }
    set_progress(object, &Progress::Pending, now);
}

/// Sets the progress of the deletion in a definition's status. Removes the finalizer when the deletion is complete.
pub fn set_progress(object: &mut Value, progress: &Progress, now: Timestamp) {
    let mut list: Vec<Condition> = Vec::deserialize(&object["status"]["conditions"]).unwrap_or_default();
    conditions::set(&mut list, progress.condition(), now);
    object["status"]["conditions"] = json!(list);
    if progress.is_over()
        && let Some(metadata) = object["metadata"].as_object_mut()
        && let Some(finalizers) = metadata.get_mut("finalizers").and_then(Value::as_array_mut)
    {
        finalizers.retain(|f| f != CLEANUP_FINALIZER);
        if finalizers.is_empty() {
            metadata.remove("finalizers");
        }
    }
}
