//! Patch: JSON patch, merge patch, strategic merge patch and apply, each made into an update of the newest object.
use bytes::Bytes;
use http::StatusCode;
use kelson_codec::{Encoding, FieldValidation};
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Reason, Status};
use kelson_patch::{PatchError, PatchType};
use kelson_schema::shape::Shape;
use serde_json::Value;

use crate::catalog::Served;
use crate::catalog::record::{Object, to_served};
use crate::read::encode;
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::shared::context::RequestContext;
use crate::write::create;
use crate::write::decode;
use crate::write::fields;
use crate::write::update::{self, Change};

const ACCEPTED: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// A decoded patch.
pub struct Patch {
    kind: PatchType,
    body: Value,
    validation: FieldValidation,
}

impl Patch {
    /// Reads the body of a PATCH.
    ///
    /// # Errors
    /// 400, 413, 415, 422.
    pub fn new(cx: &RequestContext, body: &Bytes) -> Result<Self, Status> {
        let kind =
            PatchType::of(&decode::media_type(&cx.headers)).ok_or_else(|| Status::unsupported_media_type(&ACCEPTED))?;
        check_options(cx, kind)?;
        let validation = decode::validation(cx)?;
        let body = match kind {
            PatchType::Apply => {
                let (value, duplicates) = kelson_codec::yaml::to_value(body)
                    .map_err(|e| Status::bad_request(format!("error decoding YAML: {e}")))?;
                if !duplicates.is_empty() && validation == FieldValidation::Strict {
                    return Err(Status::bad_request(format!(
                        "error decoding YAML: yaml: unmarshal errors:\n  {}",
                        duplicates.join("\n  ")
                    )));
                }
                value
            }
            _ => kelson_codec::decode(Encoding::Json, None, body, false).map_err(|e| decode::unreadable(&e))?.value,
        };
        Ok(Self { kind, body, validation })
    }

    /// The tree after the patch, canonical, in the form the request is in. `value` is the tree before.
    ///
    /// # Errors
    /// 400, 413, 422.
    pub fn apply(
        &self,
        cx: &RequestContext,
        shape: &Shape,
        ty: Option<kelson_schema::TypeId>,
        gvk: &kelson_meta::Gvk,
        mut value: Value,
    ) -> Result<Value, Status> {
        match self.kind {
            PatchType::Json => kelson_patch::json_patch(&mut value, &self.body).map_err(refused)?,
            PatchType::Merge => kelson_patch::merge_patch(&mut value, self.body.clone()),
            PatchType::StrategicMerge => {
                value = kelson_patch::strategic_merge_patch(value, self.body.clone(), shape).map_err(refused)?;
            }
            PatchType::Apply => return Err(Status::unsupported_media_type(&ACCEPTED)),
        }
        let Some(ty) = ty else { return Ok(value) };
        let strict = self.validation != FieldValidation::Ignore;
        let decoded =
            kelson_codec::normalize(ty, value, strict).map_err(|e| Status::cannot_be_handled(gvk, &e.to_string()))?;
        decode::strictness(cx, self.validation, gvk, &decoded.strict)?;
        Ok(decoded.value)
    }
    /// Whether it is an apply.
    pub fn is_apply(&self) -> bool {
        self.kind == PatchType::Apply
    }
}

fn refused(error: PatchError) -> Status {
    match error {
        PatchError::BadRequest(text) => Status::bad_request(text),
        PatchError::Unprocessable(text) => {
            let mut status =
                Status::failure(422, Reason::Invalid, "the server rejected our request due to an error in our request");
            status.details = Some(Box::default());
            tracing::debug!(text, "patch does not apply");
            status
        }
        PatchError::TooLarge(text) => Status::failure(413, Reason::RequestEntityTooLarge, text),
    }
}

fn check_options(cx: &RequestContext, kind: PatchType) -> Result<(), Status> {
    let mut errors = FieldErrors::new();
    if kind == PatchType::Apply {
        if cx.query.text("fieldManager").is_empty() {
            errors.required(&FieldPath::new("fieldManager"), "is required for apply patch");
        }
    } else if cx.query.has("force") {
        errors.forbidden(&FieldPath::new("force"), "may not be specified for non-apply patch");
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&GroupKind { group: "meta.k8s.io".into(), kind: "PatchOptions".into() }, "", &errors))
}

/// Serves PATCH of an object or one of its views.
///
/// # Errors
/// Whatever the steps refuse.
pub async fn patch(
    cx: &RequestContext,
    served: &Served,
    subresource: &str,
    body: RequestBody,
) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let view = cx.view()?;
    let dry_run = cx.dry_run()?;
    let patch = Patch::new(cx, &body.read().await?)?;
    let name = &cx.info.name;
    let change = Change {
        subresource,
        manager: subresource,
        kind: &served.gvk,
        dry_run,
        applied: patch.is_apply(),
        admitted: true,
        patched: true,
    };
    if patch.is_apply() {
        let (object, created) = apply(cx, served, &patch, &change).await?;
        let code = if created { StatusCode::CREATED } else { StatusCode::OK };
        return encode::object(code, &accepted, served, &view, object);
    }
    let shape = Shape::of_kind(&served.gvk.group, &served.gvk.version, &served.gvk.kind);
    let object = update::run(cx, served, name, &change, |old, _| {
        let old = to_served(served, old.clone())?;
        let mut new = patch.apply(cx, &shape, served.ty, &served.gvk, old)?;
        check_identity(cx, &new)?;
        create::prepare_decoded(served, &mut new)?;
        create::to_storage(served, new)
    })
    .await?;
    encode::object(StatusCode::OK, &accepted, served, &view, object)
}

/// A patch cannot rename or move.
fn check_identity(cx: &RequestContext, new: &Value) -> Result<(), Status> {
    let name = new["metadata"]["name"].as_str().unwrap_or("");
    if name != cx.info.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            cx.info.name
        )));
    }
    Ok(())
}

async fn apply(
    cx: &RequestContext,
    served: &Served,
    patch: &Patch,
    change: &Change<'_>,
) -> Result<(Object, bool), Status> {
    let config = &patch.body;
    check_config(cx, served, patch)?;
    let force = cx.query.flag("force");
    let subresource = change.subresource;
    let merged = |live: Option<&Value>| -> Result<Value, Status> {
        let live = live.map(|l| to_served(served, l.clone())).transpose()?;
        let merged = fields::apply(cx, served, live.as_ref(), config, subresource, force)?;
        let mut merged = match served.ty {
            Some(ty) => {
                kelson_codec::normalize(ty, merged, false)
                    .map_err(|e| Status::cannot_be_handled(&served.gvk, &e.to_string()))?
                    .value
            }
            None => merged,
        };
        create::prepare_decoded(served, &mut merged)?;
        create::to_storage(served, merged)
    };
    for _ in 0..2 {
        let exists = cx.server.store.get(served.store, cx.namespace(served), &cx.info.name).is_some();
        if exists {
            let wanted_uid = config["metadata"]["uid"].as_str().unwrap_or("").to_owned();
            let object = update::run(cx, served, &cx.info.name, change, |old, _| {
                let mut new = merged(Some(old))?;
                if !wanted_uid.is_empty() {
                    new["metadata"]["uid"] = wanted_uid.as_str().into();
                }
                Ok(new)
            })
            .await?;
            return Ok((object, false));
        }
        if !subresource.is_empty() {
            return Err(Status::not_found(&served.gr, &cx.info.name));
        }
        if config["metadata"]["uid"].as_str().is_some_and(|u| !u.is_empty()) {
            let why = format!(
                "uid mismatch: the provided object specified uid {}, and no existing object was found",
                config["metadata"]["uid"].as_str().unwrap_or("")
            );
            return Err(Status::conflict(&served.gr, &cx.info.name, &why));
        }
        match create::applied(cx, served, merged(None)?, change.dry_run).await {
            // Somebody was faster: apply to what they made.
            Err(status) if status.is(Reason::AlreadyExists) => {}
            other => return other.map(|object| (object, true)),
        }
    }
    Err(Status::conflict(&served.gr, &cx.info.name, Status::MODIFIED))
}

/// The configuration must be this object; unknown fields are told or refused.
fn check_config(cx: &RequestContext, served: &Served, patch: &Patch) -> Result<(), Status> {
    let config = &patch.body;
    let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
    if !config.is_object() {
        return Err(Status::bad_request("error decoding YAML: the configuration is not an object"));
    }
    let name = text(&config["metadata"]["name"]);
    if !name.is_empty() && name != cx.info.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            cx.info.name
        )));
    }
    let namespace = text(&config["metadata"]["namespace"]);
    if served.namespaced && !namespace.is_empty() && namespace != cx.info.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if patch.validation == FieldValidation::Ignore {
        return Ok(());
    }
    let Some(ty) = served.ty else { return Ok(()) };
    match kelson_codec::normalize(ty, config.clone(), true) {
        Ok(decoded) => decode::strictness(cx, patch.validation, &served.gvk, &decoded.strict),
        // The merge finds it again and says where it stands.
        Err(_) => Ok(()),
    }
}
