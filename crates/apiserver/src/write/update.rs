//! Update: what PUT, PATCH, apply and the subresources that change an object share: read, change, check, admit,
//! validate, commit, and try again where the client left room for it.
use std::sync::Arc;

use http::StatusCode;
use kelson_admission::Operation;
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Gvk, Status};
use kelson_store::Record;
use serde_json::Value;

use crate::catalog::Served;
use crate::catalog::record::{Object, parse};
use crate::read::encode;
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::shared::context::RequestContext;
use crate::write::admit;
use crate::write::admit::Admission;
use crate::write::commit::{self, Refused};
use crate::write::create;
use crate::write::decode;
use crate::write::fields;

/// Times a write without a fixed resourceVersion is made again on the newest object.
const RETRIES_MAX: usize = 10;

/// One change of a stored object.
pub struct Change<'a> {
    /// The view that the strategy judges by; empty for the object itself.
    pub subresource: &'a str,
    /// The door that `managedFields` name.
    pub manager: &'a str,
    /// Kind that admission sees.
    pub kind: &'a Gvk,
    /// Nothing is to be stored.
    pub dry_run: bool,
    /// The changed tree's `managedFields` are already right (apply).
    pub applied: bool,
    /// Asks admission; off for changes the server makes as part of another admitted request.
    pub admitted: bool,
    /// The wanted tree was made from the stored one: that it names its version ties it to nothing.
    pub patched: bool,
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
    let mut value = decode::object(cx, &served.gvk, served.ty, &bytes)?;
    drop(bytes);
    create::prepare_decoded(served, &mut value)?;
    let mut value = create::to_storage(served, value)?;
    check_name(cx, &mut value)?;
    create::set_namespace(cx, served, &mut value)?;
    let options = served.options();
    if subresource.is_empty()
        && options.allow_create_on_update
        && cx.server.store.get(served.store, cx.namespace(served), &cx.info.name).is_none()
    {
        let object = create_instead(cx, served, value.clone(), dry_run).await;
        match object {
            Ok(object) => return encode::object(StatusCode::CREATED, &accepted, served, &view, object),
            // Somebody was faster: it is an update after all.
            Err(status) if status.is(kelson_meta::Reason::AlreadyExists) => {}
            Err(status) => return Err(status),
        }
    }
    let change = Change {
        subresource,
        manager: subresource,
        kind: &served.gvk,
        dry_run,
        applied: false,
        admitted: true,
        patched: false,
    };
    let object = run(cx, served, &cx.info.name, &change, |_, _| Ok(value.clone())).await?;
    encode::object(StatusCode::OK, &accepted, served, &view, object)
}

async fn create_instead(
    cx: &RequestContext,
    served: &Served,
    mut value: Value,
    dry_run: bool,
) -> Result<Object, Status> {
    let meta = &value["metadata"];
    let text = |f: &str| meta[f].as_str().unwrap_or("").to_owned();
    let (uid, version) = (text("uid"), text("resourceVersion"));
    if !uid.is_empty() {
        return Err(uid_mismatch(served, &cx.info.name, &uid, ""));
    }
    if !version.is_empty() && version != "0" {
        return Err(Status::not_found(&served.gr, &cx.info.name));
    }
    value["metadata"]["resourceVersion"] = "".into();
    create::store(cx, served, value, dry_run).await
}

fn check_name(cx: &RequestContext, value: &mut Value) -> Result<(), Status> {
    let given = value["metadata"]["name"].as_str().unwrap_or("");
    if given.is_empty() {
        value["metadata"]["name"] = cx.info.name.as_str().into();
    } else if given != cx.info.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({})",
            cx.info.name
        )));
    }
    Ok(())
}

/// Makes a change: `make` gets the stored tree and its record, and gives the tree wanted, in the stored form. It is
/// called again when somebody else wrote in between and the wanted tree names no resourceVersion.
///
/// # Errors
/// Whatever the steps refuse.
pub async fn run(
    cx: &RequestContext,
    served: &Served,
    name: &str,
    change: &Change<'_>,
    mut make: impl FnMut(&Value, &Arc<Record>) -> Result<Value, Status>,
) -> Result<Object, Status> {
    let namespace = cx.namespace(served);
    for attempt in 0.. {
        let found = cx.server.store.get(served.store, namespace, name);
        let record = found.ok_or_else(|| Status::not_found(&served.gr, name))?;
        let old = parse(&record);
        let new = make(&old, &record)?;
        let pinned = check_version(served, name, &new, &record)? && !change.patched;
        match once(cx, served, name, change, &record, &old, new).await {
            Err(Refused::Conflict) if !pinned && attempt < RETRIES_MAX => {}
            Err(refused) => return Err(refused.status(served, name)),
            Ok(object) => return Ok(object),
        }
    }
    Err(Status::conflict(&served.gr, name, Status::MODIFIED))
}

/// Whether the wanted tree is tied to the version that was read.
fn check_version(served: &Served, name: &str, new: &Value, record: &Record) -> Result<bool, Status> {
    let text = |f: &str| new["metadata"][f].as_str().unwrap_or("");
    let uid = text("uid");
    if !uid.is_empty() && kelson_store::Uid::new(uid) != record.meta().uid {
        return Err(uid_mismatch(served, name, uid, &record.meta().uid.to_string()));
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
            let mut errors = FieldErrors::new();
            let why = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
            errors.invalid(&FieldPath::new("resourceVersion"), version, why);
            Err(Status::invalid(&served.gvk.group_kind(), name, &errors))
        }
    }
}

fn uid_mismatch(served: &Served, name: &str, wanted: &str, found: &str) -> Status {
    let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}");
    Status::conflict(&served.gr, name, &why)
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
    if !change.applied {
        fields::note(cx, served, Some(old), &mut new, change.manager)?;
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
    if change.admitted {
        new = admission.mutate(Some(new), Some(old)).await?.unwrap_or_default();
    }
    served.strategy.default(&served.storage.version, &mut new)?;
    let strategy_cx = cx.strategy_cx();
    let main = change.subresource.is_empty();
    if main {
        served.strategy.prepare_update(&strategy_cx, &mut new, old);
    } else {
        served.strategy.prepare_subresource_update(&strategy_cx, change.subresource, &mut new, old);
    }
    new["metadata"]["resourceVersion"] = record.revision().to_string().into();
    admit::escalation(cx, served, &new, Some(old))?;
    let reserved = cx.server.services.before_update(served, &mut new, old, change.dry_run)?;
    let errors = if main {
        served.strategy.validate_update(&new, old)
    } else {
        served.strategy.validate_subresource_update(change.subresource, &new, old)
    };
    if !errors.is_empty() {
        return Err(Status::invalid(&served.gvk.group_kind(), name, &errors).into());
    }
    served.strategy.canonicalize(&mut new);
    if main {
        served.strategy.warnings(&new, Some(old)).into_iter().for_each(|w| cx.warn(w));
    }
    if change.admitted {
        new = admission.validate(Some(new), Some(old)).await?.unwrap_or_default();
    }
    fields::keep_old_times(&mut new, old);
    if change.dry_run {
        new["metadata"]["resourceVersion"] = record.revision().to_string().into();
        return Ok(Object::Tree(new));
    }
    if crate::write::delete::ends_with_update(served, &new) {
        let last = new.clone();
        commit::delete(&cx.server, served, record, Some(new)).await?;
        cx.server.services.after_delete(served, &last);
        return Ok(Object::Tree(last));
    }
    let stored = commit::update(&cx.server, served, record, new).await?;
    reserved.keep();
    Ok(Object::Record(stored))
}
