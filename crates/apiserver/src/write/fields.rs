//! Fields: who owns which field of an object (`metadata.managedFields`), kept up by every write, and server-side apply.
//! The sets and the merge are `kelson-patch`'s. Work is done in the request's version, as the entries name it.
use std::sync::Arc;

use kelson_meta::{Reason, Status, StatusCause, format_seconds};
use kelson_patch::{ApplyError, FieldManager, FieldSet};
use kelson_schema::shape::Shape;
use parking_lot::RwLock;
use serde_json::Value;

use crate::catalog::Served;
use crate::read::encode::to_served;
use crate::shared::context::Cx;

/// A kind's field managers, by subresource; made when first needed.
#[derive(Default)]
pub struct Managers(RwLock<Vec<(String, Arc<FieldManager>)>>);

fn manager(served: &Served, subresource: &str) -> Arc<FieldManager> {
    let managers = &served.managers.0;
    if let Some((_, found)) = managers.read().iter().find(|(s, _)| s == subresource) {
        return Arc::clone(found);
    }
    let gvk = &served.gvk;
    let shape = Shape::of_kind(&gvk.group, &gvk.version, &gvk.kind);
    let ignored = ignored(served, subresource);
    let made = Arc::new(FieldManager::new(shape, &served.api_version, &gvk.kind, subresource, ignored));
    managers.write().push((subresource.to_owned(), Arc::clone(&made)));
    made
}

/// What a write through this door cannot set.
fn ignored(served: &Served, subresource: &str) -> FieldSet {
    match subresource {
        "" if served.options().has_status() => FieldSet::of(&[&["status"]]),
        "status" if served.is("apps", "deployments") => FieldSet::of(&[&["spec"], &["metadata", "labels"]]),
        "status" => FieldSet::of(&[&["spec"]]),
        _ => FieldSet::default(),
    }
}

/// Notes what a create or update set. `live` is the object before; both are in the stored form.
///
/// # Errors
/// 500 for what cannot be converted.
pub fn note(
    cx: &Cx,
    served: &Served,
    live: Option<&Value>,
    value: &mut Value,
    subresource: &str,
) -> Result<(), Status> {
    let manager = manager(served, subresource);
    let now = format_seconds(cx.server.clock.now());
    if !served.converts {
        manager.update(live, value, &cx.manager(), &now);
        return Ok(());
    }
    let live = live.map(|l| to_served(served, l.clone())).transpose()?;
    let mut view = to_served(served, value.clone())?;
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
    cx: &Cx,
    served: &Served,
    live: Option<&Value>,
    config: &Value,
    subresource: &str,
    force: bool,
) -> Result<Value, Status> {
    let now = format_seconds(cx.server.clock.now());
    manager(served, subresource).apply(live, config, cx.query.text("fieldManager"), force, &now).map_err(refused)
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
