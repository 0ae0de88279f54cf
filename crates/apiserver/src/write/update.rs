//! Update: common to PUT, PATCH, apply and the subresources that change an object: read, change, check, admit, validate, commit, and
//! retry after a conflict unless the client requires a version.
use std::sync::Arc;

use futures::future::BoxFuture;
use http::StatusCode;
use kelson_admission::Operation;
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Gvk, Reason, Status};
use kelson_store::Record;
use parking_lot::Mutex;
use serde_json::Value;

use crate::catalog::Served;
use crate::catalog::record::Object;
use crate::read::encode;
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::shared::context::RequestContext;
use crate::write::admit::{self, Admission};
use crate::write::commit::{Committer, WriteError};
use crate::write::owners::{self, DedupStage};
use crate::write::prepare::{self, meta_text};
use crate::write::{create, decode, delete, device_claims, fields, privileged, retry, steps, warn};

/// The way in which `managedFields` are maintained.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// Changed fields belong to the request's field manager.
    Note,
    /// The merge of an apply has already updated them.
    Merged,
}

/// The source of the new tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The client sent it; a resourceVersion in it is a precondition.
    Sent,
    /// The stored object was changed; its resourceVersion is not a precondition.
    Stored,
}

/// The version of the trees in which a change is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TreeVersion {
    /// The request's version.
    Served,
    /// The working version ([`Served::works_as_served`]).
    Working,
}

/// Converts an object into the view that admission sees, if that is not the object itself (`Scale`).
pub trait AdmissionView: Send + Sync {
    /// The view of an object in the working version.
    fn show(&self, object: &Value) -> Value;
    /// Copies what admission changed in the view to the object.
    ///
    /// # Errors
    /// The view cannot be converted back.
    fn take_over(&self, view: &Value, object: &mut Value) -> Result<(), Status>;
}

/// One change of a stored object: how it is made, validated and shown to admission.
pub struct Change<'a> {
    /// The subresource whose validation applies; empty for the object itself.
    pub subresource: &'a str,
    /// The subresource in `managedFields`.
    pub manager: &'a str,
    /// The kind that admission sees.
    pub kind: &'a Gvk,
    /// The view that admission sees; `None` for the object.
    pub admission_view: Option<&'a dyn AdmissionView>,
    /// Whether nothing is stored.
    pub dry_run: bool,
    /// The way in which `managedFields` are maintained.
    pub ownership: Ownership,
    /// The source of the new tree.
    pub basis: Basis,
    /// The version in which the change is made.
    pub form: TreeVersion,
}

/// Makes the new tree from the stored one, both in the change's version.
pub trait Make: Send + Sync {
    /// The new tree. It is called again after a conflict.
    fn make<'a>(&'a self, old: &'a Value) -> BoxFuture<'a, Result<Value, Status>>;
}

/// A function that does not have to wait.
impl<F: Fn(&Value) -> Result<Value, Status> + Send + Sync> Make for F {
    fn make<'a>(&'a self, old: &'a Value) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(std::future::ready(self(old)))
    }
}

/// Serves PUT of an object or a subresource.
///
/// # Errors
/// Errors of the steps.
pub async fn put(cx: &RequestContext, served: &Served, subresource: &str, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let view = cx.view(&accepted)?;
    let dry_run = cx.dry_run()?;
    let bytes = body.read().await?;
    let len = bytes.len();
    steps::record_body(len);
    steps::record("About to convert to expected version");
    let value = decode::object(cx, &served.gvk, &served.schema, &bytes)?;
    drop(bytes);
    let mut value = prepare::to_working(served, value).await?;
    steps::record("Conversion done");
    prepare::same_name(cx, meta_text(&value, "name"))?;
    value["metadata"]["name"] = cx.info.name.as_str().into();
    prepare::set_namespace(cx, served, &mut value)?;
    steps::record("About to store object in database");
    if subresource.is_empty() && served.options().allow_create_on_update && cx.stored(served, &cx.info.name).is_err() {
        match create_instead(cx, served, value.clone(), dry_run).await {
            Ok(object) => {
                steps::record_write(len, &Ok(()));
                return encode::object(StatusCode::CREATED, &accepted, served, &view, object).await;
            }
            // Another client created it: update it after all.
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
        form: TreeVersion::Working,
    };
    // A tree with a version is used for one attempt only, so it need not be cloned.
    let once = names_version(&value);
    let wanted = Mutex::new(value);
    let make = |_: &Value| -> Result<Value, Status> {
        let mut wanted = wanted.lock();
        Ok(if once { std::mem::take(&mut *wanted) } else { wanted.clone() })
    };
    let object = run(cx, served, &cx.info.name, &change, &make).await;
    steps::record_write(len, &object);
    let object = object?;
    encode::object(StatusCode::OK, &accepted, served, &view, object).await
}

fn names_version(object: &Value) -> bool {
    !matches!(meta_text(object, "resourceVersion"), "" | "0")
}

/// Removes the version from an object that is created instead of updated. Upstream's store ignores it, but parses it.
///
/// # Errors
/// 500 for a version that is not a number.
pub fn clear_version(object: &mut Value) -> Result<(), Status> {
    let version = meta_text(object, "resourceVersion");
    if !version.is_empty() && version.parse::<u64>().is_err() {
        return Err(invalid_version(version));
    }
    object["metadata"]["resourceVersion"] = "".into();
    Ok(())
}

fn invalid_version(version: &str) -> Status {
    let why = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
    Status::failure(500, Reason::Unknown, why)
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
    clear_version(&mut value)?;
    create::insert(cx, served, value, dry_run).await
}

/// Makes a change. `make` is called again after a conflict, unless the change requires a version.
///
/// # Errors
/// Errors of the steps.
pub async fn run(
    cx: &RequestContext,
    served: &Served,
    name: &str,
    change: &Change<'_>,
    make: &dyn Make,
) -> Result<Object, Status> {
    let attempt = |record: Arc<Record>| -> BoxFuture<'_, Result<Object, WriteError>> {
        Box::pin(async move {
            let old = served.one_working(&record).await?;
            let new = match change.form {
                TreeVersion::Working => make.make(&old).await?,
                TreeVersion::Served if !served.works_as_served() => {
                    let shown = served.working_to_served(old.clone()).await?;
                    prepare::to_working(served, make.make(&shown).await?).await?
                }
                TreeVersion::Served => prepare::to_working(served, make.make(&old).await?).await?,
            };
            let tied = check_version(served, name, change.basis, &new, &record)? && change.basis == Basis::Sent;
            match try_update(cx, served, name, change, &record, &old, new).await {
                Err(WriteError::Conflict) if tied => Err(Status::conflict(&served.gr, name, Status::MODIFIED).into()),
                outcome => outcome,
            }
        })
    };
    retry::on_newest(cx, served, name, attempt).await
}

/// Checks UID and resourceVersion of the new tree. Returns whether the write requires the version that was read.
fn check_version(served: &Served, name: &str, basis: Basis, new: &Value, record: &Record) -> Result<bool, Status> {
    let text = |f: &str| new["metadata"][f].as_str().unwrap_or("");
    let uid = text("uid");
    // The UID that a client sends is a precondition; a patch that changes the UID is rejected like any change of an immutable field.
    if basis == Basis::Sent && !uid.is_empty() && kelson_store::Uid::new(uid) != record.meta().uid {
        let key = record.key();
        return Err(uid_conflict(served, (&*key.namespace, name), uid, &record.meta().uid.to_string()));
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
        Err(_) => Err(invalid_version(version)),
    }
}

/// 409 for a write that requires another UID, in the words of upstream's storage.
pub fn uid_conflict(served: &Served, (namespace, name): (&str, &str), wanted: &str, found: &str) -> Status {
    let why = uid_mismatch(wanted, found);
    let path = kelson_schema::storage::path(&served.gr.group, &served.gr.resource);
    let parts = [&*path, namespace, name].into_iter().filter(|part| !part.is_empty());
    let key: String = parts.flat_map(|part| ["/", part]).collect();
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry{key}, ResourceVersion: 0, AdditionalErrorMsg: {why}"
    );
    Status::conflict(&served.gr, name, &why)
}

fn uid_mismatch(wanted: &str, found: &str) -> String {
    format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}")
}

/// The view that admission sees instead of the object, and the stored object in that view.
type ObjectView<'a> = Option<(&'a dyn AdmissionView, &'a Value)>;

async fn mutate(
    admission: &Admission<'_>,
    shown: ObjectView<'_>,
    mut new: Value,
    old: &Value,
) -> Result<Value, Status> {
    let Some((view, old_view)) = shown else {
        return Ok(admission.mutate(Some(new), Some(old)).await?.unwrap_or_default());
    };
    let admitted = admission.mutate(Some(view.show(&new)), Some(old_view)).await?.unwrap_or_default();
    view.take_over(&admitted, &mut new)?;
    Ok(new)
}

async fn validate(admission: &Admission<'_>, shown: ObjectView<'_>, new: Value, old: &Value) -> Result<Value, Status> {
    let Some((view, old_view)) = shown else {
        return Ok(admission.validate(Some(new), Some(old)).await?.unwrap_or_default());
    };
    admission.validate(Some(view.show(&new)), Some(old_view)).await?;
    Ok(new)
}

/// The validation errors of a change that do not depend on the time.
async fn validate_change(
    cx: &RequestContext,
    served: &Served,
    subresource: &str,
    new: &Value,
    old: &Value,
) -> FieldErrors {
    let mut errors = device_claims::check_status_update(cx, served, subresource, new, old).await;
    errors.extend(served.strategy.judge_update(subresource, new, old, &mut |warning| cx.warn(warning)));
    errors.extend(privileged::check(cx, served, new));
    errors
}

async fn try_update(
    cx: &RequestContext,
    served: &Served,
    name: &str,
    change: &Change<'_>,
    record: &Arc<Record>,
    old: &Value,
    mut new: Value,
) -> Result<Object, WriteError> {
    kelson_resources::metadata::keep_system_fields(&mut new, old);
    if change.basis == Basis::Sent {
        owners::deduplicate(&mut new, DedupStage::Sent).into_iter().for_each(|w| cx.warn(w));
    }
    if change.ownership == Ownership::Note {
        fields::track_fields(cx, served, Some(old), &mut new, change.manager).await?;
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
    new = mutate(&admission, shown, new, old).await?;
    owners::deduplicate(&mut new, DedupStage::Admitted).into_iter().for_each(|w| cx.warn(w));
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
    admit::check_escalation(cx, served, &new, Some(old))?;
    let reserved = cx.server.services.before_update(served, &mut new, old, change.dry_run).await?;
    let mut errors = validate_change(cx, served, change.subresource, &new, old).await;
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
    new = validate(&admission, shown, new, old).await?;
    fields::keep_old_times(&mut new, old);
    if change.dry_run {
        create::check_conversion(served, &new).await?;
        new["metadata"]["resourceVersion"] = record.revision().to_string().into();
        return Ok(Object::Tree(new));
    }
    if delete::ends_with_update(served, &new) {
        let last = new.clone();
        Committer::new(&cx.server).delete(served, record, Some(new)).await?;
        cx.server.services.after_delete(served, &last).await;
        return Ok(Object::Tree(last));
    }
    let stored = Committer::new(&cx.server).update(served, record, new).await?;
    reserved.confirm().await;
    Ok(Object::Record(stored))
}
