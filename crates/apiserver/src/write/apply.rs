//! Server-side apply: merges a configuration into the newest object, or creates a new one.
use futures::future::BoxFuture;
use kelson_codec::{DecodeError, FieldValidation, Limits};
use kelson_meta::{Reason, Status};
use serde_json::Value;

use crate::catalog::record::Object;
use crate::catalog::{ObjectSchema, Served};
use crate::shared::context::RequestContext;
use crate::write::prepare::{self, meta_text};
use crate::write::update::{self, Change, Make};
use crate::write::{create, fields};

/// The configuration of an apply request.
#[derive(Default)]
pub struct Configuration {
    /// The fields that are applied.
    pub fields: Value,
    /// Errors for keys that the YAML contains twice; the last one counts.
    repeated: Vec<String>,
    validation: FieldValidation,
}

impl Configuration {
    /// Parses the body of an apply. An empty body is a configuration without fields.
    ///
    /// # Errors
    /// 400 if it is not an object.
    pub fn read(validation: FieldValidation, body: &[u8]) -> Result<Self, Status> {
        let undecoded = |why: String| Status::bad_request(format!("error decoding YAML: {why}"));
        let read = kelson_codec::yaml::to_value_within(body, Limits::PATCH);
        let (value, repeated) = read.map_err(|e| match e {
            DecodeError::Yaml(why) => undecoded(format!("error converting YAML to JSON: {why}")),
            other => undecoded(other.to_string()),
        })?;
        let fields = match value {
            Value::Object(_) => value,
            Value::Null => Value::Object(serde_json::Map::new()),
            other => {
                let kind = kelson_codec::go_kind(&other, "null");
                return Err(undecoded(format!(
                    "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
                )));
            }
        };
        Ok(Self { fields, repeated, validation })
    }

    /// Rejects duplicate keys or returns a warning, depending on `fieldValidation`. Upstream checks them during the merge.
    ///
    /// # Errors
    /// 400 under `Strict`.
    pub fn check_repeated(&self, cx: &RequestContext) -> Result<(), Status> {
        if self.repeated.is_empty() {
            return Ok(());
        }
        let found = format!("error converting YAML to JSON: yaml: unmarshal errors:\n  {}", self.repeated.join("\n  "));
        match self.validation {
            FieldValidation::Strict => Err(Status::bad_request(format!("error strict decoding YAML: {found}"))),
            FieldValidation::Warn => {
                cx.warn(found);
                Ok(())
            }
            FieldValidation::Ignore => Ok(()),
        }
    }

    /// Checks that the configuration is for the object of the request. The merge checks its fields.
    fn check(&self, cx: &RequestContext, served: &Served) -> Result<(), Status> {
        let config = &self.fields;
        let text = |key: &str| config[key].as_str().unwrap_or("");
        let (version, kind) = (text("apiVersion"), text("kind"));
        if version.is_empty() || kind.is_empty() {
            let slash = if version.contains('/') { "" } else { "/" };
            return Err(Status::bad_request(format!("invalid object type: {slash}{version}, Kind={kind}")));
        }
        prepare::check_name(cx, config)?;
        prepare::check_namespace(cx, served, config)
    }
}

/// An apply to one object.
struct Apply<'a> {
    cx: &'a RequestContext,
    served: &'a Served,
    config: &'a Configuration,
    subresource: &'a str,
}

impl Apply<'_> {
    async fn merged(&self, live: Option<&Value>) -> Result<Value, Status> {
        let Self { cx, served, config, subresource } = self;
        let merged = fields::apply(cx, served, live, &config.fields, subresource, cx.query.flag("force")).await?;
        config.check_repeated(cx)?;
        // The merged object must have the name in the path.
        prepare::same_name(cx, meta_text(&merged, "name"))?;
        let mut merged = served.schema.normalize_applied(merged).map_err(|e| self.unfit(&e))?.value;
        prepare::set_namespace(cx, served, &mut merged)?;
        Ok(merged)
    }

    /// The error for a merged object that is not valid for the kind. Upstream converts it to the type before any other check.
    fn unfit(&self, error: &DecodeError) -> Status {
        match self.served.schema {
            ObjectSchema::Builtin(_) if !matches!(error, DecodeError::TooLarge | DecodeError::OverBudget(_)) => {
                let (namespace, name) = (&self.cx.info.namespace, &self.cx.info.name);
                let Served { gvk, .. } = self.served;
                let gv = if gvk.group.is_empty() { format!("/{}", gvk.version) } else { gvk.api_version() };
                let kind = &gvk.kind;
                let why = format!(
                    "failed to convert new object ({namespace}/{name}; {gv}, Kind={kind}) to proper version: {error}"
                );
                Status::failure(500, Reason::Unknown, why)
            }
            _ => Status::cannot_be_handled(&self.served.gvk, &error.to_string()),
        }
    }
}

impl Make for Apply<'_> {
    fn make<'a>(&'a self, old: &'a Value) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move {
            let mut new = self.merged(Some(old)).await?;
            let wanted_uid = meta_text(&self.config.fields, "uid");
            if !wanted_uid.is_empty() {
                new["metadata"]["uid"] = wanted_uid.into();
            }
            Ok(new)
        })
    }
}

/// Applies a configuration. The boolean says whether the object was created.
///
/// # Errors
/// Errors of the steps.
pub async fn apply(
    cx: &RequestContext,
    served: &Served,
    config: &Configuration,
    change: &Change<'_>,
) -> Result<(Object, bool), Status> {
    let name = &cx.info.name;
    config.check(cx, served)?;
    let wanted_uid = meta_text(&config.fields, "uid");
    let apply = Apply { cx, served, config, subresource: change.subresource };
    // Try again once if another client creates the object in between; it may be deleted again.
    for _ in 0..2 {
        if cx.stored(served, name).is_ok() {
            return Ok((update::run(cx, served, name, change, &apply).await?, false));
        }
        if !change.subresource.is_empty() {
            return Err(Status::not_found(&served.gr, name));
        }
        if !wanted_uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {wanted_uid}, and no existing object was found"
            );
            return Err(Status::conflict(&served.gr, name, &why));
        }
        let mut merged = apply.merged(None).await?;
        update::clear_version(&mut merged)?;
        let new = prepare::to_working(served, merged).await?;
        match create::insert_applied(cx, served, new, change.dry_run).await {
            Err(status) if status.is(Reason::AlreadyExists) => {}
            other => return other.map(|object| (object, true)),
        }
    }
    Err(Status::conflict(&served.gr, name, Status::MODIFIED))
}
