//! Fields: who owns which field of an object (`metadata.managedFields`), kept up by every write, and server-side apply.
//! The sets and the merge are `kelson-patch`'s. Work is done in the request's version, as the entries name it.
use kelson_meta::{Reason, Status, StatusCause, format_seconds};
use kelson_patch::ApplyError;
use serde_json::Value;

use crate::catalog::Served;
use crate::shared::context::RequestContext;

/// Notes what a create or update set. `live` is the object before; both are in the form that is worked on.
///
/// # Errors
/// 500 for what cannot be converted.
pub async fn note(
    cx: &RequestContext,
    served: &Served,
    live: Option<&Value>,
    value: &mut Value,
    subresource: &str,
) -> Result<(), Status> {
    let manager = served.field_manager(subresource);
    let now = format_seconds(cx.server.clock.now());
    if served.works_as_served() {
        manager.update(live, value, &cx.manager(), &now);
        return Ok(());
    }
    let live = match live {
        Some(live) => Some(served.working_to_served(live.clone()).await?),
        None => None,
    };
    let mut view = served.working_to_served(value.clone()).await?;
    manager.update(live.as_ref(), &mut view, &cx.manager(), &now);
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

/// Applies a configuration to the object as it is served; gives the merged object with its entries.
///
/// # Errors
/// 409 for fields of others, 400 and 500 as upstream.
pub fn apply(
    cx: &RequestContext,
    served: &Served,
    live: Option<&Value>,
    config: &Value,
    subresource: &str,
    force: bool,
) -> Result<Value, Status> {
    let now = format_seconds(cx.server.clock.now());
    served.field_manager(subresource).apply(live, config, cx.query.text("fieldManager"), force, &now).map_err(refused)
}

fn refused(error: ApplyError) -> Status {
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
        ApplyError::BadRequest(message) => Status::bad_request(message),
        ApplyError::Invalid(message) => Status::failure(500, Reason::Unknown, message),
    }
}

/// When nothing but times of entries changed, the old times stay, so that such a write writes nothing.
pub fn keep_old_times(new: &mut Value, old: &Value) {
    kelson_patch::apply::keep_times(old, new);
}
