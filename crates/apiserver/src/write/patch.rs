//! Patch: JSON patch, merge patch and strategic merge patch, each turned into an update of the newest object. `apply` handles applies.
use bytes::Bytes;
use http::StatusCode;
use kelson_codec::{DecodeError, FieldValidation, StrictErrors};
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Gvk, Reason, Status};
use kelson_patch::{PatchError, PatchType};
use serde_json::Value;

use crate::catalog::{ObjectSchema, Served};
use crate::read::encode;
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::shared::context::RequestContext;
use crate::write::apply::{self, Configuration};
use crate::write::prepare::{self, meta_text};
use crate::write::update::{self, Basis, Change, Ownership, TreeVersion};
use crate::write::{decode, misfit, patched_json, steps};

const ACCEPTED: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
/// Patch types of custom resources. Only built-in types have the merge keys of a strategic merge.
const ACCEPTED_OF_DYNAMIC: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

/// A decoded patch.
pub struct Patch {
    kind: PatchType,
    /// Null for an apply.
    body: Value,
    config: Configuration,
    validation: FieldValidation,
    /// Errors of strict decoding: duplicate keys, and unknown fields of operations.
    found: StrictErrors,
}

impl Patch {
    /// The type of the request's patch. It is checked before anything else in the request.
    ///
    /// # Errors
    /// 415 for a content type that is not a patch type.
    pub fn kind(cx: &RequestContext, served: &Served) -> Result<PatchType, Status> {
        let accepted = match &served.schema {
            ObjectSchema::Builtin(_) => &ACCEPTED[..],
            ObjectSchema::Dynamic(_) | ObjectSchema::Open => &ACCEPTED_OF_DYNAMIC,
        };
        let media_type = decode::media_type(&cx.headers);
        let known = PatchType::of(&media_type).filter(|_| accepted.contains(&media_type.as_str()));
        known.ok_or_else(|| match &served.schema {
            // Upstream's routes of built-in kinds list the media types themselves.
            ObjectSchema::Builtin(_) => Status::unsupported_by_route(),
            ObjectSchema::Dynamic(_) | ObjectSchema::Open => Status::unsupported_media_type(accepted),
        })
    }

    /// Parses the body of a PATCH.
    ///
    /// # Errors
    /// 400, 413, 415, 422.
    pub fn new(cx: &RequestContext, served: &Served, body: &Bytes) -> Result<Self, Status> {
        let kind = Self::kind(cx, served)?;
        check_options(cx, kind)?;
        let validation = decode::validation(cx)?;
        let strict = validation != FieldValidation::Ignore;
        if kind == PatchType::Apply {
            let config = Configuration::read(validation, body)?;
            return Ok(Self { kind, body: Value::Null, config, validation, found: StrictErrors::default() });
        }
        // A missing object is reported before errors in the patch.
        cx.stored(served, &cx.info.name)?;
        let decoded = match kind {
            PatchType::StrategicMerge => kelson_codec::decode_patch(body, strict),
            _ => kelson_codec::decode_spelled_patch(body, strict),
        };
        let decoded = decoded.map_err(|e| unreadable(kind, strict, &e))?;
        check_form(kind, strict, &decoded.value)?;
        let found = if strict { findings(kind, &decoded.value, decoded.strict) } else { decoded.strict };
        let body = match (decoded.value, kind) {
            (Value::Null, PatchType::Json) => Value::Array(Vec::new()),
            (Value::Null, PatchType::Merge) => return Err(Status::bad_request("Invalid JSON Patch")),
            (Value::Null, _) => Value::Object(serde_json::Map::new()),
            (body, _) => body,
        };
        Ok(Self { kind, body, config: Configuration::default(), validation, found })
    }

    /// Applies the patch to `old`. Both trees are canonical and in the request's version.
    ///
    /// # Errors
    /// 400, 413, 422.
    pub fn apply(&self, cx: &RequestContext, schema: &ObjectSchema, old: &Value) -> Result<Value, Status> {
        let strict = self.validation != FieldValidation::Ignore;
        let patched = self.apply_unchecked(schema, old)?;
        let reset = prepare::empties_managed_fields(&patched);
        let decoded = schema.normalize(patched, strict).map_err(|e| self.misfit_error(schema, old, &e))?;
        let mut found = self.found.clone();
        found.0.extend(decoded.strict.0);
        match self.validation {
            FieldValidation::Strict if !found.is_empty() => {
                return Err(self.invalid(schema, &self.apply_unchecked(schema, old)?, &found.to_string()));
            }
            FieldValidation::Warn => found.0.into_iter().for_each(|text| cx.warn(text)),
            FieldValidation::Strict | FieldValidation::Ignore => {}
        }
        let mut value = match schema {
            ObjectSchema::Builtin(_) => self.keep_type(cx, schema, old, decoded.value)?,
            // Their strategy validates kind and version.
            ObjectSchema::Dynamic(_) | ObjectSchema::Open => decoded.value,
        };
        if reset {
            prepare::empty_managed_fields(&mut value);
        }
        Ok(value)
    }

    /// Checks that a patch does not change the kind or version. A strategic merge ignores them.
    fn keep_type(
        &self,
        cx: &RequestContext,
        schema: &ObjectSchema,
        old: &Value,
        mut value: Value,
    ) -> Result<Value, Status> {
        if self.kind != PatchType::StrategicMerge && value["apiVersion"].as_str().is_none_or(str::is_empty) {
            // Upstream decodes such an object as one without a type, which has no name.
            return Err(prepare::nameless(&cx.info.name));
        }
        let differs = |field: &str| value.get(field).is_some_and(|given| *given != "" && *given != old[field]);
        if self.kind != PatchType::StrategicMerge && (differs("apiVersion") || differs("kind")) {
            let text = |field: &str| value[field].as_str().or(old[field].as_str()).unwrap_or_default();
            let stored = |field: &str| old[field].as_str().unwrap_or_default();
            let (group, version) = stored("apiVersion").split_once('/').unwrap_or(("", stored("apiVersion")));
            let why = decode::other_kind(text("apiVersion"), text("kind"), &Gvk::new(group, version, stored("kind")));
            return Err(self.invalid(schema, &self.apply_unchecked(schema, old)?, &why));
        }
        for field in ["apiVersion", "kind"] {
            value[field] = old[field].clone();
        }
        Ok(value)
    }
    /// The tree after the patch, before validation.
    fn apply_unchecked(&self, schema: &ObjectSchema, old: &Value) -> Result<Value, Status> {
        let mut value = old.clone();
        match self.kind {
            PatchType::Json => kelson_patch::json_patch(&mut value, &self.body).map_err(patch_error)?,
            PatchType::Merge => kelson_patch::merge_patch(&mut value, self.body.clone()),
            PatchType::StrategicMerge => {
                value = kelson_patch::strategic_merge_patch(value, self.body.clone(), &schema.shape())
                    .map_err(patch_error)?;
            }
            PatchType::Apply => return Err(Status::unsupported_media_type(&ACCEPTED)),
        }
        if schema.type_id().is_none() {
            kelson_codec::canonical_numbers(&mut value);
        }
        Ok(value)
    }
    /// The error for a patched tree that is not an object of the kind.
    fn misfit_error(&self, schema: &ObjectSchema, old: &Value, error: &DecodeError) -> Status {
        if matches!(error, DecodeError::TooLarge | DecodeError::OverBudget(_)) {
            return decode::unreadable(error);
        }
        // The patch is applied again, so that valid patches do not have to keep the tree.
        let patched = match self.apply_unchecked(schema, old) {
            Ok(patched) => patched,
            Err(status) => return status,
        };
        let strategic = schema.type_id().filter(|_| self.kind == PatchType::StrategicMerge);
        let why = strategic.and_then(|ty| misfit::explain(ty, &patched));
        self.invalid(schema, &patched, &why.unwrap_or_else(|| error.to_string()))
    }
    /// The error for an invalid result. It contains the patch for a strategic merge, otherwise the result.
    fn invalid(&self, schema: &ObjectSchema, patched: &Value, why: &str) -> Status {
        let shown = match self.kind {
            PatchType::StrategicMerge => kelson_patch::printed(&self.body),
            kind => patched_json::render(kind, &self.body, schema.type_id(), patched),
        };
        let mut errors = FieldErrors::new();
        errors.invalid(&FieldPath::new("patch"), shown, why);
        Status::invalid(&GroupKind::default(), "", &errors)
    }
    /// Whether it is a server-side apply.
    pub fn is_apply(&self) -> bool {
        self.kind == PatchType::Apply
    }
    /// The configuration of a server-side apply.
    pub fn config(&self) -> &Configuration {
        &self.config
    }
}

/// The error for a body that is not JSON. Strict decoding has another prefix in upstream.
fn unreadable(kind: PatchType, strict: bool, error: &DecodeError) -> Status {
    match error {
        DecodeError::TooLarge | DecodeError::OverBudget(_) => decode::unreadable(error),
        _ if strict && kind != PatchType::StrategicMerge => {
            Status::bad_request(format!("error decoding patch: {error}"))
        }
        _ => Status::bad_request(error.to_string()),
    }
}

/// Checks that a JSON patch is a list of operations and another patch an object.
fn check_form(kind: PatchType, strict: bool, body: &Value) -> Result<(), Status> {
    // Null is an empty list or object.
    if body.is_null() {
        return Ok(());
    }
    let found = kelson_codec::go_kind(body, "null");
    let (wanted, ty) = match (kind, strict) {
        (PatchType::Json, true) => ("array", "[]handlers.jsonPatchOp"),
        (PatchType::Json, false) => ("array", "jsonpatch.Patch"),
        // Upstream's library takes a list as the new document.
        (PatchType::Merge, false) if body.is_array() => return Ok(()),
        _ => ("object", "map[string]interface {}"),
    };
    let why = if found != wanted {
        format!("json: cannot unmarshal {found} into Go value of type {ty}")
    } else if let Some(why) = body.as_array().filter(|_| strict).and_then(|all| all.iter().find_map(invalid_operation))
    {
        why
    } else {
        return Ok(());
    };
    Err(unreadable(kind, strict, &DecodeError::Json(why)))
}

/// The error message for an element of a JSON patch that is not an operation.
fn invalid_operation(element: &Value) -> Option<String> {
    let Some(fields) = element.as_object() else {
        let found = Some(kelson_codec::go_kind(element, "null")).filter(|_| !element.is_null())?;
        return Some(format!("json: cannot unmarshal {found} into Go value of type handlers.jsonPatchOp"));
    };
    let texts = ["op", "path", "from"].into_iter().filter_map(|key| Some((key, fields.get(key)?)));
    let (key, odd) = texts.into_iter().find(|(_, value)| !value.is_string() && !value.is_null())?;
    let found = kelson_codec::go_kind(odd, "null");
    Some(format!("json: cannot unmarshal {found} into Go struct field jsonPatchOp.{key} of type string"))
}

/// The errors of strict decoding: duplicate keys, and unknown fields of JSON patch operations.
fn findings(kind: PatchType, body: &Value, repeated: StrictErrors) -> StrictErrors {
    if kind != PatchType::Json {
        return repeated;
    }
    let unknown = body.as_array().into_iter().flatten().enumerate().flat_map(|(i, operation)| {
        let keys = operation.as_object().into_iter().flat_map(serde_json::Map::keys);
        let unknown = keys.filter(|key| !["op", "path", "from", "value"].contains(&key.as_str()));
        unknown.map(move |key| format!("unknown field \"[{i}].{key}\""))
    });
    let all = repeated.0.into_iter().chain(unknown).take(kelson_codec::STRICT_ERRORS_MAX);
    StrictErrors(all.map(|text| format!("json patch {text}")).collect())
}

fn patch_error(error: PatchError) -> Status {
    match error {
        PatchError::BadRequest(text) => Status::bad_request(text),
        PatchError::Unprocessable(text) => {
            let mut status =
                Status::failure(422, Reason::Invalid, "the server rejected our request due to an error in our request");
            status.details = Some(Box::default());
            tracing::debug!(text, "patch cannot be applied");
            status
        }
        PatchError::Internal(text) => Status::failure(500, Reason::Unknown, text),
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
/// Errors of the steps.
pub async fn patch(
    cx: &RequestContext,
    served: &Served,
    subresource: &str,
    body: RequestBody,
) -> Result<Answer, Status> {
    Patch::kind(cx, served)?;
    let accepted = cx.accept()?;
    let view = cx.view(&accepted)?;
    let dry_run = cx.dry_run()?;
    let bytes = body.read().await?;
    steps::record_body(bytes.len());
    let patch = Patch::new(cx, served, &bytes)?;
    drop(bytes);
    steps::record("About to apply patch");
    let name = &cx.info.name;
    let change = Change {
        subresource,
        manager: subresource,
        kind: &served.gvk,
        admission_view: None,
        dry_run,
        ownership: if patch.is_apply() { Ownership::Merged } else { Ownership::Note },
        basis: Basis::Stored,
        form: TreeVersion::Served,
    };
    if patch.is_apply() {
        let (object, created) = apply::apply(cx, served, patch.config(), &change).await?;
        steps::record("Object stored in database");
        let code = if created { StatusCode::CREATED } else { StatusCode::OK };
        return encode::object(code, &accepted, served, &view, object).await;
    }
    let make = |old: &Value| -> Result<Value, Status> {
        let mut new = patch.apply(cx, &served.schema, old)?;
        // A patch cannot change name or namespace.
        prepare::same_name(cx, meta_text(&new, "name"))?;
        prepare::set_namespace(cx, served, &mut new)?;
        Ok(new)
    };
    let object = update::run(cx, served, name, &change, &make).await?;
    steps::record("Object stored in database");
    encode::object(StatusCode::OK, &accepted, served, &view, object).await
}
