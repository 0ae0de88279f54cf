//! Create: POST to a collection. The object is decoded, defaulted, admitted, validated, named and committed. Also creates by PUT or
//! apply, for which this file checks the permission to `create`.
use http::StatusCode;
use kelson_admission::Operation;
use kelson_meta::{Status, format_seconds, generate_name};
use serde_json::Value;

use crate::catalog::Served;
use crate::catalog::record::Object;
use crate::read::encode;
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::shared::context::RequestContext;
use crate::write::admit::{self, Admission};
use crate::write::commit::{Committer, WriteError};
use crate::write::draft::Draft;
use crate::write::owners::{self, DedupStage};
use crate::write::prepare::{self, meta_text};
use crate::write::{decode, device_claims, fields, permission, privileged, steps, warn};

/// Names tried for a `generateName` (as upstream).
const GENERATED_NAMES_MAX: usize = 8;

/// Serves POST on a collection.
///
/// # Errors
/// Errors of the steps.
pub async fn create(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let view = cx.view(&accepted)?;
    let dry_run = cx.dry_run()?;
    let bytes = body.read().await?;
    let len = bytes.len();
    steps::record_body(len);
    steps::record("About to convert to expected version");
    let value = decode::object(cx, &served.gvk, &served.schema, &bytes)?;
    drop(bytes);
    let value = prepare::to_working(served, value).await?;
    steps::record("Conversion done");
    steps::record("About to store object in database");
    let object = insert(cx, served, value, dry_run).await;
    steps::record_write(len, &object);
    let object = object?;
    encode::object(StatusCode::CREATED, &accepted, served, &view, object).await
}

/// Admits, validates and stores a decoded object. On a dry run it returns what would be stored.
///
/// # Errors
/// Errors of the steps.
pub async fn insert(cx: &RequestContext, served: &Served, mut value: Value, dry_run: bool) -> Result<Object, Status> {
    prepare::set_namespace(cx, served, &mut value)?;
    set_server_fields(cx, &mut value, dry_run)?;
    owners::deduplicate(&mut value, DedupStage::Sent).into_iter().for_each(|w| cx.warn(w));
    let draft = fields::track_new(cx, served, value, dry_run).await?;
    admit_and_store(cx, served, draft, dry_run).await
}

/// As [`insert`], for a merged configuration, which already has its `managedFields`.
///
/// # Errors
/// Errors of the steps.
pub async fn insert_applied(
    cx: &RequestContext,
    served: &Served,
    mut value: Value,
    dry_run: bool,
) -> Result<Object, Status> {
    value["metadata"]["name"] = cx.info.name.as_str().into();
    prepare::set_namespace(cx, served, &mut value)?;
    set_server_fields(cx, &mut value, dry_run)?;
    admit_and_store(cx, served, value.into(), dry_run).await
}

async fn admit_and_store(cx: &RequestContext, served: &Served, draft: Draft, dry_run: bool) -> Result<Object, Status> {
    let name = meta_text(&draft.value, "name").to_owned();
    if served.terminating {
        let why = "create not allowed while custom resource definition is terminating";
        return Err(Status::forbidden(&served.gr, &name, why));
    }
    let admission =
        Admission { cx, served, kind: &served.gvk, operation: Operation::Create, name: &name, dry_run, options: None };
    let mut draft = admission.mutate_draft(draft).await?;
    let value = &mut draft.value;
    owners::deduplicate(value, DedupStage::Admitted).into_iter().for_each(|w| cx.warn(w));
    // A webhook may have set the name, but must not have changed the namespace.
    prepare::check_namespace(cx, served, value)?;
    let name = meta_text(value, "name").to_owned();
    let admission = Admission { name: &name, ..admission };
    served.strategy.default(served.working_version(), value)?;
    cx.server.gated.drop_from(&served.gr.group, &served.gr.resource, value, None);
    let generate = meta_text(value, "generateName").to_owned();
    if name.is_empty() && generate.is_empty() && served.strategy.options().names_itself {
        value["metadata"]["name"] = uuid::Uuid::new_v4().to_string().into();
    }
    if !name.is_empty() || generate.is_empty() {
        served.strategy.prepare_create(&cx.strategy_cx(), value);
        admit::check_escalation(cx, served, value, None)?;
        let finished = finish(cx, served, &admission, draft, dry_run).await;
        return finished.map_err(|(refused, name)| refused.status(served, &name));
    }
    for attempt in 1.. {
        let mut candidate = if attempt < GENERATED_NAMES_MAX { draft.clone() } else { std::mem::take(&mut draft) };
        candidate.value["metadata"]["name"] = generate_name(&generate).into();
        // Prepared fields may depend on the name, such as a job's labels.
        served.strategy.prepare_create(&cx.strategy_cx(), &mut candidate.value);
        admit::check_escalation(cx, served, &candidate.value, None)?;
        match finish(cx, served, &admission, candidate, dry_run).await {
            Err((WriteError::Exists, _)) if attempt < GENERATED_NAMES_MAX => {}
            Err((WriteError::Exists, name)) => return Err(generated_name_exists(served, &name)),
            other => return other.map_err(|(refused, name)| refused.status(served, &name)),
        }
    }
    Err(Status::internal("failed to generate a name"))
}

fn generated_name_exists(served: &Served, name: &str) -> Status {
    let mut status = Status::already_exists(&served.gr, name);
    status.message = format!("{}, the server was not able to generate a unique name for the object", status.message);
    status.details.get_or_insert_default().retry_after_seconds = 1;
    status
}

/// The steps after the name is known: allocation, validation, validating admission and storage.
async fn finish(
    cx: &RequestContext,
    served: &Served,
    admission: &Admission<'_>,
    mut draft: Draft,
    dry_run: bool,
) -> Result<Object, (WriteError, String)> {
    let value = &mut draft.value;
    let name = meta_text(value, "name").to_owned();
    let fail = |refused: WriteError| (refused, name.clone());
    let reserved = cx.server.services.before_create(served, value, dry_run).await;
    let reserved = reserved.map_err(|s| fail(s.into()))?;
    let mut errors = device_claims::check_create(cx, served, value);
    errors.extend(served.strategy.judge_create(value));
    errors.extend(privileged::check(cx, served, value));
    if !errors.is_empty() {
        let kind = served.storage.group_kind();
        return Err(fail(Status::invalid(&kind, &name, &errors).into()));
    }
    served.strategy.canonicalize(value);
    warn::add(cx, served, value, None);
    permission::check_create(cx, served).await.map_err(|s| fail(s.into()))?;
    let draft = admission.validate_draft(draft).await.map_err(|s| fail(s.into()))?;
    let namespace = cx.namespace(served);
    if dry_run {
        if cx.server.store.get(served.store, namespace, &name).is_some() {
            return Err(fail(WriteError::Exists));
        }
        check_conversion(served, &draft.value).await.map_err(|s| fail(s.into()))?;
        return Ok(Object::Tree(draft.value));
    }
    let record = Committer::new(&cx.server).create(served, namespace, &name, draft).await.map_err(fail)?;
    reserved.confirm().await;
    Ok(Object::Record(record))
}

/// Checks on a dry run that the object can be converted to the stored version.
///
/// # Errors
/// The converter's error.
pub(super) async fn check_conversion(served: &Served, value: &Value) -> Result<(), Status> {
    if served.converts() {
        served.working_to_stored(value.clone()).await?;
    }
    Ok(())
}

/// Sets the metadata that only the server may set.
fn set_server_fields(cx: &RequestContext, value: &mut Value, dry_run: bool) -> Result<(), Status> {
    let now = cx.server.clock.now();
    let version = meta_text(value, "resourceVersion");
    // The store rejects it, which a dry run does not reach.
    if !dry_run && !version.is_empty() && version != "0" {
        return Err(Status::failure(
            500,
            kelson_meta::Reason::Unknown,
            "resourceVersion should not be set on objects to be created",
        ));
    }
    let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) else { return Ok(()) };
    for field in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        meta.remove(field);
    }
    if !dry_run {
        meta.remove("resourceVersion");
    }
    meta.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
    meta.insert("creationTimestamp".into(), format_seconds(now).into());
    Ok(())
}
