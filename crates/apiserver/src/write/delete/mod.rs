//! Delete: one object or a collection. Grace periods, finalizers and propagation follow upstream's generic registry: an object with
//! finalizers or a grace period is marked, and removed when the last of them ends.
mod mark;
mod options;

use std::sync::Arc;

use futures::future::BoxFuture;
use http::StatusCode;
use jiff::Timestamp;
use kelson_admission::{LazyObject, Operation};
use kelson_meta::Status;
use kelson_resources::Deletion;
use kelson_store::Record;
use serde_json::{Value, json};

use mark::{Grace, finalizers, grace, is_deleting, is_removed_at_once, mark, mark_grace, set_finalizers};

use crate::catalog::Served;
use crate::catalog::record::{Object, parse};
use crate::custom::cleanup;
use crate::read::{encode, list};
use crate::request::answer;
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::request::selectors::Selectors;
use crate::request::version_param::ListParams;
use crate::shared::Server;
use crate::shared::context::RequestContext;
use crate::write::admit::Admission;
use crate::write::commit::{Committer, WriteError};
use crate::write::{retry, steps};

pub use mark::ends_with_update;
pub use options::{DeleteOptions, check_preconditions};

/// Serves DELETE of one object.
///
/// # Errors
/// Errors of the steps.
pub async fn delete(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let view = cx.view(&accepted)?;
    let bytes = body.read().await?;
    steps::record_body(bytes.len());
    let options = DeleteOptions::new(cx, served, &bytes)?;
    steps::record("Decoded delete options");
    steps::record("About to delete object from database");
    let outcome = run(cx, served, &cx.info.name, &options, DeleteAdmission::Required).await?;
    steps::record("Object deleted from database");
    let code = match &outcome {
        // With the deprecated orphanDependents, 202 says that the deletion has not finished.
        Outcome::Marked(_) if options.orphan_dependents == Some(false) => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    match outcome {
        Outcome::Marked(object) => encode::object(code, &accepted, served, &view, object).await,
        Outcome::Gone(object) if served.options().delete_returns_object => {
            encode::object(code, &accepted, served, &view, object).await
        }
        Outcome::Gone(object) => {
            let uid = match object {
                Object::Record(record) => record.meta().uid.to_string().into(),
                Object::Tree(mut value) => value["metadata"]["uid"].take(),
            };
            let mut details =
                json!({"name": cx.info.name, "group": served.gr.group, "kind": served.gr.resource, "uid": uid});
            if served.gr.group.is_empty()
                && let Some(d) = details.as_object_mut()
            {
                d.remove("group");
            }
            let status =
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
            answer::success(code, &accepted, status)
        }
    }
}

/// Result of a delete.
pub enum Outcome {
    /// The object still exists and is marked as deleted.
    Marked(Object),
    /// The object was removed; this is its last state.
    Gone(Object),
}

/// Whether a delete must pass admission.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum DeleteAdmission {
    /// Admission runs before the delete.
    Required,
    /// Admission ran for the request that this delete is part of (an eviction).
    Done,
}

/// Deletes one object by the rules of its kind.
///
/// # Errors
/// Errors of the steps.
pub async fn run(
    cx: &RequestContext,
    served: &Served,
    name: &str,
    options: &DeleteOptions,
    admitted: DeleteAdmission,
) -> Result<Outcome, Status> {
    let tied = options.preconditions.as_ref().is_some_and(|p| p.resource_version.is_some());
    let attempt = |record: Arc<Record>| -> BoxFuture<'_, Result<Outcome, WriteError>> {
        Box::pin(async move {
            check_preconditions(served, name, options, &record)?;
            let old = if served.is_plain(&record) {
                let record = Arc::clone(&record);
                LazyObject::new(move || parse(&record))
            } else {
                served.one_working(&record).await?.into()
            };
            if admitted == DeleteAdmission::Required {
                let make = || options.object();
                let admission = Admission {
                    cx,
                    served,
                    kind: &served.gvk,
                    operation: Operation::Delete,
                    name,
                    dry_run: options.is_dry_run(),
                    options: Some(&make),
                };
                admission.check_delete(&old).await?;
            }
            let attempted = if !options.is_dry_run() && is_removed_at_once(served, options, &record) {
                let deleted = Committer::new(&cx.server).delete(served, &record, None).await;
                deleted.map(|record| Outcome::Gone(Object::Record(record)))
            } else {
                try_delete(&cx.server, served, name, options, &record, old.into_value()).await
            };
            match attempted {
                Err(WriteError::Conflict) if tied => Err(Status::conflict(&served.gr, name, Status::MODIFIED).into()),
                outcome => outcome,
            }
        })
    };
    retry::on_newest(cx, served, name, attempt).await
}

/// Deletes an object once, without admission and retries.
///
/// # Errors
/// See [`WriteError`].
pub async fn try_delete(
    server: &Server,
    served: &Served,
    name: &str,
    options: &DeleteOptions,
    record: &Arc<Record>,
    old: Value,
) -> Result<Outcome, WriteError> {
    let now = server.clock.now();
    let special = match served.options().deletion {
        Deletion::Namespace => namespace(server, served, name, options, record, &old, now).await?,
        Deletion::CustomResources => definition(server, served, options, record, &old, now).await?,
        Deletion::Immediate | Deletion::Graceful => None,
    };
    if let Some(outcome) = special {
        return Ok(outcome);
    }
    let finalizers = finalizers(&old, options, served.options().orphans_dependents);
    let grace = grace(served, &old, options);
    let mut new = old;
    match grace {
        Grace::Pending => return Ok(Outcome::Marked(Object::Record(Arc::clone(record)))),
        Grace::Seconds(seconds) => mark_grace(&mut new, seconds, now),
        Grace::None => {}
    }
    set_finalizers(&mut new, &finalizers);
    if grace.ends_now() && finalizers.is_empty() {
        return remove(server, served, options, record, new).await;
    }
    if !matches!(grace, Grace::Seconds(_)) {
        mark(&mut new, now);
    }
    if options.is_dry_run() {
        return Ok(Outcome::Marked(Object::Tree(new)));
    }
    Ok(Outcome::Marked(Object::Record(Committer::new(server).update(served, record, new).await?)))
}

async fn remove(
    server: &Server,
    served: &Served,
    options: &DeleteOptions,
    record: &Arc<Record>,
    last: Value,
) -> Result<Outcome, WriteError> {
    if options.is_dry_run() {
        return Ok(Outcome::Gone(Object::Tree(last)));
    }
    let deleted = Committer::new(server).delete(served, record, None).await?;
    server.services.after_delete(served, &last).await;
    Ok(Outcome::Gone(Object::Record(deleted)))
}

/// Deletes a namespace: the first delete marks it; later ones are rejected until its content is removed.
async fn namespace(
    server: &Server,
    served: &Served,
    name: &str,
    options: &DeleteOptions,
    record: &Arc<Record>,
    old: &Value,
    now: Timestamp,
) -> Result<Option<Outcome>, WriteError> {
    let held = old["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    if !is_deleting(old) {
        let mut new = old.clone();
        mark(&mut new, now);
        if let Some(meta) = new["metadata"].as_object_mut() {
            meta.remove("deletionGracePeriodSeconds");
        }
        new["status"]["phase"] = "Terminating".into();
        set_finalizers(&mut new, &finalizers(old, options, false));
        if !held && new["metadata"]["finalizers"].is_null() {
            return Ok(None);
        }
        if options.is_dry_run() {
            return Ok(Some(Outcome::Marked(Object::Tree(new))));
        }
        let record = Committer::new(server).update(served, record, new).await?;
        return Ok(Some(Outcome::Marked(Object::Record(record))));
    }
    if held {
        let why = "The system is ensuring all content is removed from this namespace.  Upon completion, this namespace \
                   will automatically be purged by the system.";
        return Err(Status::conflict(&served.gr, name, why).into());
    }
    Ok(None)
}

/// Deletes a custom resource definition: the first delete marks it; it is removed after its objects.
async fn definition(
    server: &Server,
    served: &Served,
    options: &DeleteOptions,
    record: &Arc<Record>,
    old: &Value,
    now: Timestamp,
) -> Result<Option<Outcome>, WriteError> {
    if is_deleting(old) {
        return Ok(None);
    }
    let mut new = old.clone();
    cleanup::mark(&mut new, now);
    if options.is_dry_run() {
        return Ok(Some(Outcome::Marked(Object::Tree(new))));
    }
    let record = Committer::new(server).update(served, record, new).await?;
    Ok(Some(Outcome::Marked(Object::Record(record))))
}

/// Objects of a collection that are deleted concurrently, so that they share the store's syncs.
const DELETED_AT_ONCE: usize = 32;

/// Serves DELETE of a collection. The response is the list of the deleted objects, as in upstream's generic registry.
///
/// # Errors
/// Errors of the steps. Objects that were deleted before the error stay deleted.
pub async fn collection(cx: &RequestContext, served: &Arc<Served>, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let shown = cx.view(&accepted)?;
    let bytes = body.read().await?;
    steps::record_body(bytes.len());
    let options = DeleteOptions::new(cx, served, &bytes)?;
    let selectors = Selectors::new(served, &cx.selectors)?;
    let at = ListParams::new(&cx.query, cx.server.clock.now())?;
    let namespace = Some(cx.namespace(served)).filter(|n| !n.is_empty());
    let view = at.view(&cx.server.store, served, namespace, &selectors).await?;
    let page = list::select_page((&at, namespace), view, served, selectors).await?;
    // Only the records are held, so that many objects are not decoded at once.
    let records: Vec<Arc<Record>> = page.records.iter().cloned().collect();
    for some in records.chunks(DELETED_AT_ONCE) {
        let each = some.iter().map(|record| one_of_collection(cx, served, &options, record));
        for (of_one, outcome) in futures::future::join_all(each).await {
            cx.absorb(&of_one);
            match outcome {
                Err(status) if status.code != 404 => return Err(status),
                _ => {}
            }
        }
    }
    drop(records);
    list::write(cx, served, accepted, shown, page).await
}

async fn one_of_collection(
    cx: &RequestContext,
    served: &Served,
    options: &DeleteOptions,
    record: &Record,
) -> (RequestContext, Result<(), Status>) {
    let key = record.key();
    let mut info = cx.info.clone();
    key.namespace.as_ref().clone_into(&mut info.namespace);
    key.name.as_ref().clone_into(&mut info.name);
    let of_one = cx.derive(info);
    let outcome = run(&of_one, served, &key.name, options, DeleteAdmission::Required).await;
    (of_one, outcome.map(drop))
}
