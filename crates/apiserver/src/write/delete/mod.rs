//! Delete: one object or a collection. Grace, finalizers and propagation as upstream's generic registry: an object with
//! finalizers or grace left is marked, and goes when the last of them does.
mod mark;
mod options;

use std::sync::Arc;

use futures::future::BoxFuture;
use http::StatusCode;
use jiff::Timestamp;
use kelson_admission::Operation;
use kelson_meta::Status;
use kelson_resources::Deletion;
use kelson_store::Record;
use serde_json::{Value, json};

use mark::{Grace, finalizers, grace, is_deleting, mark, mark_grace, set_finalizers};

use crate::catalog::Served;
use crate::catalog::record::Object;
use crate::custom::cleanup;
use crate::read::{encode, list};
use crate::request::answer;
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::request::selectors::Selectors;
use crate::request::version_param::ListAt;
use crate::shared::Server;
use crate::shared::context::RequestContext;
use crate::write::admit::Admission;
use crate::write::commit::{Committer, Refused};
use crate::write::{retry, steps};

pub use mark::ends_with_update;
pub use options::{DeleteOptions, check_preconditions};

/// Serves DELETE of one object.
///
/// # Errors
/// Whatever the steps refuse.
pub async fn delete(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let view = cx.view()?;
    let bytes = body.read().await?;
    steps::body_read(bytes.len());
    let options = DeleteOptions::new(cx, served, &bytes)?;
    steps::at("Decoded delete options");
    steps::at("About to delete object from database");
    let outcome = run(cx, served, &cx.info.name, &options, Admitted::Ask).await?;
    steps::at("Object deleted from database");
    let code = match &outcome {
        // The old way to ask for cascading deletion is told that it is not over.
        Outcome::Marked(_) if options.orphan_dependents == Some(false) => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    match outcome {
        Outcome::Marked(object) => encode::object(code, &accepted, served, &view, object).await,
        Outcome::Gone(object) if served.options().delete_returns_object => {
            encode::object(code, &accepted, served, &view, object).await
        }
        Outcome::Gone(object) => {
            let uid = object.into_tree()["metadata"]["uid"].take();
            let mut details =
                json!({"name": cx.info.name, "group": served.gr.group, "kind": served.gr.resource, "uid": uid});
            if served.gr.group.is_empty()
                && let Some(d) = details.as_object_mut()
            {
                d.remove("group");
            }
            let status =
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
            answer::done(code, &accepted, status)
        }
    }
}

/// What became of the object.
pub enum Outcome {
    /// It is still there, marked.
    Marked(Object),
    /// It is gone; its last state.
    Gone(Object),
}

/// Whether a delete still has to be admitted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// Admission is asked.
    Ask,
    /// It is part of a request that was admitted (an eviction).
    Already,
}

/// Deletes one object, by the rules of its kind.
///
/// # Errors
/// Whatever the steps refuse.
pub async fn run(
    cx: &RequestContext,
    served: &Served,
    name: &str,
    options: &DeleteOptions,
    admitted: Admitted,
) -> Result<Outcome, Status> {
    let tied = options.preconditions.as_ref().is_some_and(|p| p.resource_version.is_some());
    let attempt = |record: Arc<Record>| -> BoxFuture<'_, Result<Outcome, Refused>> {
        Box::pin(async move {
            check_preconditions(served, name, options, &record)?;
            let old = served.one_working(&record).await?;
            if admitted == Admitted::Ask {
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
                admission.mutate(None, Some(&old)).await?;
                admission.validate(None, Some(&old)).await?;
            }
            match once(&cx.server, served, name, options, &record, old).await {
                Err(Refused::Conflict) if tied => Err(Status::conflict(&served.gr, name, Status::MODIFIED).into()),
                outcome => outcome,
            }
        })
    };
    retry::on_newest(cx, served, name, attempt).await
}

/// What a delete that was admitted does.
///
/// # Errors
/// See [`Refused`].
pub async fn once(
    server: &Server,
    served: &Served,
    name: &str,
    options: &DeleteOptions,
    record: &Arc<Record>,
    old: Value,
) -> Result<Outcome, Refused> {
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
    let ends_now = match grace {
        Grace::Seconds(seconds) => seconds == 0,
        _ => true,
    };
    if ends_now && finalizers.is_empty() {
        return gone(server, served, options, record, new).await;
    }
    if !matches!(grace, Grace::Seconds(_)) {
        mark(&mut new, now);
    }
    if options.is_dry_run() {
        return Ok(Outcome::Marked(Object::Tree(new)));
    }
    Ok(Outcome::Marked(Object::Record(Committer::of(server).update(served, record, new).await?)))
}

async fn gone(
    server: &Server,
    served: &Served,
    options: &DeleteOptions,
    record: &Arc<Record>,
    last: Value,
) -> Result<Outcome, Refused> {
    if options.is_dry_run() {
        return Ok(Outcome::Gone(Object::Tree(last)));
    }
    let deleted = Committer::of(server).delete(served, record, None).await?;
    server.services.after_delete(served, &last).await;
    Ok(Outcome::Gone(Object::Record(deleted)))
}

/// The first delete of a namespace marks it; later ones are refused until its content is gone, and the last removes it.
async fn namespace(
    server: &Server,
    served: &Served,
    name: &str,
    options: &DeleteOptions,
    record: &Arc<Record>,
    old: &Value,
    now: Timestamp,
) -> Result<Option<Outcome>, Refused> {
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
        let record = Committer::of(server).update(served, record, new).await?;
        return Ok(Some(Outcome::Marked(Object::Record(record))));
    }
    if held {
        let why = "The system is ensuring all content is removed from this namespace.  Upon completion, this namespace \
                   will automatically be purged by the system.";
        return Err(Status::conflict(&served.gr, name, why).into());
    }
    Ok(None)
}

/// The first delete of a definition marks it; it goes when the objects of its kind are gone.
async fn definition(
    server: &Server,
    served: &Served,
    options: &DeleteOptions,
    record: &Arc<Record>,
    old: &Value,
    now: Timestamp,
) -> Result<Option<Outcome>, Refused> {
    if is_deleting(old) {
        return Ok(None);
    }
    let mut new = old.clone();
    cleanup::mark(&mut new, now);
    if options.is_dry_run() {
        return Ok(Some(Outcome::Marked(Object::Tree(new))));
    }
    let record = Committer::of(server).update(served, record, new).await?;
    Ok(Some(Outcome::Marked(Object::Record(record))))
}

/// Objects of a collection that are deleted at once: they share the store's syncs.
const DELETED_AT_ONCE: usize = 16;

/// Serves DELETE of a collection; answers with the list of what was there, as upstream's generic registry does.
///
/// # Errors
/// Whatever the steps refuse; what was deleted before stays so.
pub async fn collection(cx: &RequestContext, served: &Arc<Served>, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let shown = cx.view()?;
    let bytes = body.read().await?;
    steps::body_read(bytes.len());
    let options = DeleteOptions::new(cx, served, &bytes)?;
    let selectors = Selectors::new(served, &cx.selectors)?;
    let at = ListAt::new(&cx.query, cx.server.clock.now())?;
    let namespace = Some(cx.namespace(served)).filter(|n| !n.is_empty());
    let view = at.view(&cx.server.store, served, namespace).await?;
    let page = list::chosen((&at, namespace), view, served, selectors).await?;
    // What is deleted is held as its record: no trees are made of many objects at once.
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
    let outcome = run(&of_one, served, &key.name, options, Admitted::Ask).await;
    (of_one, outcome.map(drop))
}
