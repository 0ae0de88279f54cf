//! Update: what PUT, PATCH, apply and the subresources that change an object share: read, change, check, admit,
//! validate, commit, and try again where the client left room for it.
use std::sync::Arc;

use futures::future::BoxFuture;
use http::StatusCode;
use kelson_admission::Operation;
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Gvk, Reason, Status};
use kelson_store::Record;
use parking_lot::Mutex;
use serde_json::Value;

use crate::catalog::Served;
use crate::catalog::record::{Object, parse};
use crate::read::encode;
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::shared::context::RequestContext;
use crate::write::admit::{self, Admission};
use crate::write::commit::{Committer, Refused};
use crate::write::owners::{self, When};
use crate::write::prepare::{self, meta_text};
use crate::write::{create, decode, delete, device_claims, fields, privileged, retry, steps, warn};

/// Whose word `managedFields` follow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// What changed belongs to the request's field manager.
    Note,
    /// The merge of an apply has said it already.
    Merged,
}

/// What a wanted tree was made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The client sent it: a resourceVersion in it ties the write to that version.
    Sent,
    /// The stored object was changed: that it names its version ties it to nothing.
    Stored,
}

/// The form in which a change is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The one the request is in.
    Served,
    /// The one that is worked on ([`Served::works_as_served`]).
    Working,
}

/// An object as admission is to see it, where that is not the object itself (`Scale`).
pub trait AdmissionView: Send + Sync {
    /// What admission sees of an object that is worked on.
    fn show(&self, object: &Value) -> Value;
    /// Takes what admission changed in its view over into the object.
    ///
    /// # Errors
    /// For a view that cannot be taken over.
    fn take_over(&self, view: &Value, object: &mut Value) -> Result<(), Status>;
}

/// One change of a stored object.
pub struct Change<'a> {
    /// The view that the strategy judges by; empty for the object itself.
    pub subresource: &'a str,
    /// The subresource that `managedFields` name.
    pub manager: &'a str,
    /// Kind that admission sees.
    pub kind: &'a Gvk,
    /// What admission sees, unless it is the object.
    pub admission_view: Option<&'a dyn AdmissionView>,
    /// Nothing is to be stored.
    pub dry_run: bool,
    /// Whose word `managedFields` follow.
    pub ownership: Ownership,
    /// What the wanted tree was made of.
    pub basis: Basis,
    /// The form that the change is made in.
    pub form: Form,
}

/// Gives the tree that is wanted in place of a stored one, both in the change's form.
pub trait Make: Send + Sync {
    /// The wanted tree; asked again when somebody else wrote in between.
    fn make<'a>(&'a self, old: &'a Value) -> BoxFuture<'a, Result<Value, Status>>;
}

/// What need not wait is a function.
impl<F: Fn(&Value) -> Result<Value, Status> + Send + Sync> Make for F {
    fn make<'a>(&'a self, old: &'a Value) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(std::future::ready(self(old)))
    }
}

/// Serves PUT on an object or one of its views.
///
/// # Errors
/// Whatever the steps refuse.
pub async fn put(cx: &RequestContext, served: &Served, subresource: &str, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let view = cx.view()?;
    let dry_run = cx.dry_run()?;
    let bytes = body.read().await?;
    let len = bytes.len();
    steps::body_read(len);
    steps::at("About to convert to expected version");
    let value = decode::object(cx, &served.gvk, &served.schema, &bytes)?;
    drop(bytes);
    let mut value = prepare::to_working(served, value).await?;
    steps::at("Conversion done");
    prepare::same_name(cx, meta_text(&value, "name"))?;
    value["metadata"]["name"] = cx.info.name.as_str().into();
    prepare::set_namespace(cx, served, &mut value)?;
    steps::at("About to store object in database");
    if subresource.is_empty() && served.options().allow_create_on_update && cx.stored(served, &cx.info.name).is_err() {
        match create_instead(cx, served, value.clone(), dry_run).await {
            Ok(object) => {
                steps::written(len, &Ok(()));
                return encode::object(StatusCode::CREATED, &accepted, served, &view, object).await;
            }
            // Somebody was faster: it is an update after all.
            Err(status) if status.is(Reason::AlreadyExists) => {}
            Err(status) => return Err(status),
        }
    }
    let change = Change {
        subresource,
        manager: subresource,
        kind: &served.gvk,
        admission_view: None,
        dry_run,
        ownership: Ownership::Note,
        basis: Basis::Sent,
        form: Form::Working,
    };
    // A tree that names its version is wanted once, whatever comes of it: it need not be copied.
    let once = names_version(&value);
    let wanted = Mutex::new(value);
    let make = |_: &Value| -> Result<Value, Status> {
        let mut wanted = wanted.lock();
        Ok(if once { std::mem::take(&mut *wanted) } else { wanted.clone() })
    };
    let object = run(cx, served, &cx.info.name, &change, &make).await;
    steps::written(len, &object);
    let object = object?;
    encode::object(StatusCode::OK, &accepted, served, &view, object).await
}

fn names_version(object: &Value) -> bool {
    !matches!(meta_text(object, "resourceVersion"), "" | "0")
}

async fn create_instead(
    cx: &RequestContext,
    served: &Served,
    mut value: Value,
    dry_run: bool,
) -> Result<Object, Status> {
    let uid = meta_text(&value, "uid");
    if !uid.is_empty() {
        return Err(Status::conflict(&served.gr, &cx.info.name, &uid_mismatch(uid, "")));
    }
    if names_version(&value) {
        return Err(Status::not_found(&served.gr, &cx.info.name));
    }
    value["metadata"]["resourceVersion"] = "".into();
    create::insert(cx, served, value, dry_run).await
}

/// Makes a change. `make` is called again when somebody else wrote in between and the change is not tied to a version.
///
/// # Errors
/// Whatever the steps refuse.
pub async fn run(
    cx: &RequestContext,
    served: &Served,
    name: &str,
    change: &Change<'_>,
    make: &dyn Make,
) -> Result<Object, Status> {
    let attempt = |record: Arc<Record>| -> BoxFuture<'_, Result<Object, Refused>> {
        Box::pin(async move {
            let old = served.stored_to_working(parse(&record)).await?;
            let new = match change.form {
                Form::Working => make.make(&old).await?,
                Form::Served if !served.works_as_served() => {
                    let shown = served.working_to_served(old.clone()).await?;
                    prepare::to_working(served, make.make(&shown).await?).await?
                }
                Form::Served => prepare::to_working(served, make.make(&old).await?).await?,
            };
            let tied = check_version(served, name, change.basis, &new, &record)? && change.basis == Basis::Sent;
            match once(cx, served, name, change, &record, &old, new).await {
                Err(Refused::Conflict) if tied => Err(Status::conflict(&served.gr, name, Status::MODIFIED).into()),
                outcome => outcome,
            }
        })
    };
    retry::on_newest(cx, served, name, attempt).await
}

/// Whether the wanted tree is tied to the version that was read.
fn check_version(served: &Served, name: &str, basis: Basis, new: &Value, record: &Record) -> Result<bool, Status> {
    let text = |f: &str| new["metadata"][f].as_str().unwrap_or("");
    let uid = text("uid");
    // What is sent names the object it is meant for; a patch that changes the UID is refused as any change of a field is that
    // cannot change.
    if basis == Basis::Sent && !uid.is_empty() && kelson_store::Uid::new(uid) != record.meta().uid {
        let why = uid_mismatch(uid, &record.meta().uid.to_string());
        // Upstream's storage is the one that notices.
        let key = record.key();
        let path = kelson_schema::storage::path(&served.gr.group, &served.gr.resource);
        let parts = [&*path, &*key.namespace, &*key.name].into_iter().filter(|part| !part.is_empty());
        let key: String = parts.flat_map(|part| ["/", part]).collect();
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: /registry{key}, ResourceVersion: 0, AdditionalErrorMsg: {why}"
        );
        return Err(Status::conflict(&served.gr, name, &why));
    }
    let version = text("resourceVersion");
    if version.is_empty() || version == "0" {
        if served.options().allow_unconditional_update {
            return Ok(false);
        }
        let mut errors = FieldErrors::new();
        let path = FieldPath::new("metadata").child("resourceVersion");
        errors.invalid(&path, 0, "must be specified for an update");
        let kind = GroupKind { group: served.gr.group.clone(), kind: served.gr.resource.clone() };
        return Err(Status::invalid(&kind, name, &errors));
    }
    match version.parse::<u64>() {
        Ok(v) if v == record.revision() => Ok(true),
        Ok(_) => Err(Status::conflict(&served.gr, name, Status::MODIFIED)),
        Err(_) => {
            let why = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
            Err(Status::failure(500, Reason::Unknown, why))
        }
    }
}

fn uid_mismatch(wanted: &str, found: &str) -> String {
    format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}")
}

/// What admission is shown in place of the object, and the stored object in that view.
type Shown<'a> = Option<(&'a dyn AdmissionView, &'a Value)>;

async fn mutated(admission: &Admission<'_>, shown: Shown<'_>, mut new: Value, old: &Value) -> Result<Value, Status> {
    let Some((view, old_view)) = shown else {
        return Ok(admission.mutate(Some(new), Some(old)).await?.unwrap_or_default());
    };
    let admitted = admission.mutate(Some(view.show(&new)), Some(old_view)).await?.unwrap_or_default();
    view.take_over(&admitted, &mut new)?;
    Ok(new)
}

async fn validated(admission: &Admission<'_>, shown: Shown<'_>, new: Value, old: &Value) -> Result<Value, Status> {
    let Some((view, old_view)) = shown else {
        return Ok(admission.validate(Some(new), Some(old)).await?.unwrap_or_default());
    };
    admission.validate(Some(view.show(&new)), Some(old_view)).await?;
    Ok(new)
}

/// What is wrong with the changed object, whatever the time is.
async fn judged(cx: &RequestContext, served: &Served, subresource: &str, new: &Value, old: &Value) -> FieldErrors {
    let mut errors = device_claims::of_update(cx, served, subresource, new, old).await;
    errors.extend(served.strategy.judge_update(subresource, new, old, &mut |warning| cx.warn(warning)));
    errors.extend(privileged::refused(cx, served, new));
    errors
}

async fn once(
    cx: &RequestContext,
    served: &Served,
    name: &str,
    change: &Change<'_>,
    record: &Arc<Record>,
    old: &Value,
    mut new: Value,
) -> Result<Object, Refused> {
    kelson_resources::metadata::keep_system_fields(&mut new, old);
    if change.basis == Basis::Sent {
        owners::once_each(&mut new, When::Sent).into_iter().for_each(|w| cx.warn(w));
    }
    if change.ownership == Ownership::Note {
        fields::note(cx, served, Some(old), &mut new, change.manager).await?;
    }
    let admission = Admission {
        cx,
        served,
        kind: change.kind,
        operation: Operation::Update,
        name,
        dry_run: change.dry_run,
        options: None,
    };
    let old_view = change.admission_view.map(|view| view.show(old));
    let shown = change.admission_view.zip(old_view.as_ref());
    new = mutated(&admission, shown, new, old).await?;
    owners::once_each(&mut new, When::Admitted).into_iter().for_each(|w| cx.warn(w));
    served.strategy.default(served.working_version(), &mut new)?;
    cx.server.gated.drop_from(&served.gr.group, &served.gr.resource, &mut new, Some(old));
    let strategy_cx = cx.strategy_cx();
    let main = change.subresource.is_empty();
    if main {
        served.strategy.prepare_update(&strategy_cx, &mut new, old);
    } else {
        served.strategy.prepare_subresource_update(&strategy_cx, change.subresource, &mut new, old);
    }
    new["metadata"]["resourceVersion"] = record.revision().to_string().into();
    admit::escalation(cx, served, &new, Some(old))?;
    let reserved = cx.server.services.before_update(served, &mut new, old, change.dry_run).await?;
    let mut errors = judged(cx, served, change.subresource, &new, old).await;
    if errors.is_empty() && !main {
        errors = served.strategy.judge_subresource_time(&strategy_cx, change.subresource, &new, old);
    }
    if !errors.is_empty() {
        return Err(Status::invalid(&served.storage.group_kind(), name, &errors).into());
    }
    served.strategy.canonicalize(&mut new);
    if main {
        warn::add(cx, served, &new, Some(old));
    }
    new = validated(&admission, shown, new, old).await?;
    fields::keep_old_times(&mut new, old);
    if change.dry_run {
        create::tried_form(served, &new).await?;
        new["metadata"]["resourceVersion"] = record.revision().to_string().into();
        return Ok(Object::Tree(new));
    }
    if delete::ends_with_update(served, &new) {
        let last = new.clone();
        Committer::of(&cx.server).delete(served, record, Some(new)).await?;
        cx.server.services.after_delete(served, &last).await;
        return Ok(Object::Tree(last));
    }
    let stored = Committer::of(&cx.server).update(served, record, new).await?;
    reserved.keep().await;
    Ok(Object::Record(stored))
}
