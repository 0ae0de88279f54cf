//! Field management: maintains `metadata.managedFields` in every write, and server-side apply. `kelson-patch` has the sets and the
//! merge.
//! Objects are in the request's version, which the entries name.
use std::sync::Arc;

use kelson_meta::{Reason, Status, StatusCause, format_seconds};
use kelson_patch::apply::{ConvertError, Converting, Versions};
use kelson_patch::{ApplyError, FieldManager};
use kelson_resources::Observer;
use serde_json::Value;

use crate::catalog::{Conversion, Served};
use crate::shared::context::RequestContext;
use crate::write::draft::Draft;

/// The served versions of a kind, by which `managedFields` entries are converted.
struct ServedVersions<'a> {
    cx: &'a RequestContext,
    served: &'a Served,
    subresource: &'a str,
}

impl ServedVersions<'_> {
    fn served_in(&self, api_version: &str) -> Option<Arc<Served>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let found = self.cx.server.catalog.find(group, version, &self.served.gvr.resource);
        found.filter(|found| found.store == self.served.store)
    }
}

impl Versions for ServedVersions<'_> {
    fn manager(&self, api_version: &str) -> Option<Arc<FieldManager>> {
        Some(self.served_in(api_version)?.field_manager(self.subresource))
    }
    fn convert<'a>(&'a self, object: Value, to: &'a str) -> Converting<'a> {
        Box::pin(async move {
            let from = object["apiVersion"].as_str().unwrap_or_default();
            let found = self.served_in(from).zip(self.served_in(to));
            let not_served = || ConvertError::NotServed { from: from.to_owned(), to: to.to_owned() };
            let (from, to) = found.ok_or_else(not_served)?;
            let failed = |status: Status| ConvertError::Failed(status.message);
            match &to.conversion {
                Conversion::By(converter) => {
                    let converted = converter.served(&to.gvk, vec![object]).await.map_err(failed)?;
                    converted.into_iter().next().ok_or(ConvertError::NoObject)
                }
                Conversion::Same | Conversion::Builtin => {
                    kelson_resources::convert(&from.gvk, &to.gvk, object).map_err(failed)
                }
            }
        })
    }
}

/// Records which fields a create or update set. `live` is the object before; both are in the working version. If the object cannot be
/// converted to the version of an entry, that entry is dropped, as in upstream.
///
/// # Errors
/// 500 if the object cannot be converted between the working and the served version.
pub async fn track_fields(
    cx: &RequestContext,
    served: &Served,
    live: Option<&Value>,
    value: &mut Value,
    subresource: &str,
) -> Result<(), Status> {
    if served.works_as_served() {
        track(cx, served, live, value, subresource).await;
        return Ok(());
    }
    let live = match live {
        Some(live) => Some(served.working_to_served(live.clone()).await?),
        None => None,
    };
    let mut view = served.working_to_served(value.clone()).await?;
    track(cx, served, live.as_ref(), &mut view, subresource).await;
    let entries = view["metadata"]["managedFields"].take();
    if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        if entries.is_null() {
            meta.remove("managedFields");
        } else {
            meta.insert("managedFields".into(), entries);
        }
    }
    Ok(())
}

/// Records which fields a create set. The entries are kept out of the tree if no step needs them there.
///
/// # Errors
/// As [`track_fields`].
pub async fn track_new(cx: &RequestContext, served: &Served, mut value: Value, dry_run: bool) -> Result<Draft, Status> {
    // Entries that the client sent must be read. A dry run answers with the tree, and the audit log may contain what plugins change in
    // it.
    let brought = value["metadata"].get("managedFields").is_some();
    // The owners of a definition's status are added when it is stored.
    let completed = served.options().observer == Observer::CustomResources;
    let as_stored = served.works_as_served() && served.storage_schema.type_id().is_some() && !completed;
    if brought || dry_run || cx.audited || !as_stored {
        track_fields(cx, served, None, &mut value, "").await?;
        return Ok(value.into());
    }
    let now = format_seconds(cx.server.clock.now());
    let managed_fields = served.field_manager("").of_create(&value, &cx.manager(), &now);
    Ok(Draft { value, managed_fields })
}

async fn track(cx: &RequestContext, served: &Served, live: Option<&Value>, value: &mut Value, subresource: &str) {
    let manager = served.field_manager(subresource);
    let now = format_seconds(cx.server.clock.now());
    let versions = ServedVersions { cx, served, subresource };
    if let Err(error) = manager.update_across(live, value, &cx.manager(), &now, &versions).await {
        let name = cx.info.name.as_str();
        tracing::error!(resource = %served.gr, name, %error, "failed to update managedFields; dropping them");
        kelson_patch::apply::Managed::clear(value);
    }
}

/// Applies a configuration to the object in its served version. Returns the merged object with its `managedFields`.
///
/// # Errors
/// 409 for conflicts with other managers, 400 and 500 as upstream.
pub async fn apply(
    cx: &RequestContext,
    served: &Served,
    live: Option<&Value>,
    config: &Value,
    subresource: &str,
    force: bool,
) -> Result<Value, Status> {
    let now = format_seconds(cx.server.clock.now());
    let manager = served.field_manager(subresource);
    let versions = ServedVersions { cx, served, subresource };
    let applied = manager.apply_across(live, config, cx.query.text("fieldManager"), force, &now, &versions).await;
    applied.map_err(apply_error)
}

/// The client's error for an error of server-side apply.
pub fn apply_error(error: ApplyError) -> Status {
    match error {
        ApplyError::Conflicts(conflicts) => {
            let message = ApplyError::Conflicts(conflicts.clone()).to_string();
            let mut status = Status::failure(409, Reason::Conflict, message);
            let cause = |c: kelson_patch::Conflict| StatusCause {
                reason: "FieldManagerConflict".into(),
                message: format!("conflict with {}", c.manager),
                field: c.field,
            };
            status.details.get_or_insert_default().causes = conflicts.into_iter().map(cause).collect();
            status
        }
        error @ (ApplyError::OtherType { .. } | ApplyError::NamesOwners) => Status::bad_request(error.to_string()),
        error @ (ApplyError::TooLarge(_) | ApplyError::TooLargeTogether(_)) => {
            Status::failure(413, Reason::RequestEntityTooLarge, error.to_string())
        }
        error => Status::failure(500, Reason::Unknown, error.to_string()),
    }
}

/// Keeps the old times of entries if nothing else changed, so that such an update writes nothing.
pub fn keep_old_times(new: &mut Value, old: &Value) {
    kelson_patch::apply::keep_times(old, new);
}
