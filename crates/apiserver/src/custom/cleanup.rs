//! How a definition goes: what its status says on the way, and when its finalizer may be taken off. Upstream:
//! `registry/customresourcedefinition/etcd.go`, `controller/finalizer`.
use jiff::Timestamp;
use kelson_meta::format_seconds;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::custom::conditions::{self, Condition, TERMINATING, condition};
use crate::custom::definition::CLEANUP_FINALIZER;

/// How far the deletion of a definition's objects is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing was done yet.
    Pending,
    /// Objects are being deleted.
    Underway,
    /// Objects could not be deleted, with the reason.
    Failed(String),
    /// Objects are still there after a while.
    Stuck,
    /// All are gone.
    Done,
    /// There never were any.
    NeverEstablished,
    /// The objects are those of a resource that is compiled in, and stay.
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
    /// Whether nothing holds the definition any more.
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
    tell(object, &Progress::Pending, now);
}

/// Says in a definition's status how far its deletion is; takes the finalizer off when it is over.
pub fn tell(object: &mut Value, progress: &Progress, now: Timestamp) {
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
