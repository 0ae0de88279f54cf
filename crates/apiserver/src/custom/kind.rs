//! The behaviour of a custom resource on the request path: its options, made from a version of its definition, and its rules. Upstream:
//! `registry/customresource/{strategy,status_strategy,validator}.go`.
use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use kelson_meta::{FieldErrors, Status};
use kelson_resources::{Context, Errors, Options, Parts, Path, ScalePaths, Strategy, Text, Texts, metadata};
use kelson_store::FieldNames;
use kelson_structural::Validator;
use serde_json::Value;

use crate::catalog::order::compare_versions;
use crate::catalog::{Conversion, ObjectSchema, Served};
use crate::custom::columns::PrinterColumns;
use crate::custom::conditions::TERMINATING;
use crate::custom::convert::Conversions;
use crate::custom::definition::{Definition, Scale, Version, keys};
use crate::custom::schema::{Schemas, VersionSchema};

/// One version of a definition as a served resource.
pub fn served(definition: &Definition, version: &Version, schemas: &Arc<Schemas>, by: &Arc<Conversions>) -> Served {
    let (gvr, gvk) = (definition.gvr(&version.name), definition.gvk(&version.name));
    let schema = VersionSchema { schemas: Arc::clone(schemas), version: version.name.clone() };
    let kind = CustomKind::new(definition, version, schemas);
    let mut served = Served::dynamic(gvr, gvk, Arc::new(kind), ObjectSchema::Dynamic(Arc::new(schema)));
    let names = &definition.status.accepted_names;
    served.singular.clone_from(&names.singular);
    served.list_kind.clone_from(&names.list_kind);
    served.short_names.clone_from(&names.short_names);
    served.categories.clone_from(&names.categories);
    served.conversion = Conversion::By(Arc::clone(by) as _);
    // Objects are stored once for all versions, with the selectable fields of all.
    let fields = definition.spec.versions.iter().flat_map(|v| &v.selectable_fields);
    let mut fields: Vec<&str> = fields.map(|f| f.json_path.trim_start_matches('.')).collect();
    fields.sort_unstable();
    fields.dedup();
    served.field_names = FieldNames::new(fields);
    served.warning = deprecation(definition, version);
    served.terminating = definition.has(TERMINATING);
    served
}

/// The warning for a deprecated version.
fn deprecation(definition: &Definition, version: &Version) -> Option<String> {
    if !version.deprecated {
        return None;
    }
    if let Some(text) = &version.deprecation_warning {
        return Some(text.clone());
    }
    let spec = &definition.spec;
    let named = |version: &str| format!("{}/{version} {}", spec.group, spec.names.kind);
    let better = |v: &&Version| v.served && !v.deprecated && compare_versions(&v.name, &version.name).is_lt();
    let best = spec.versions.iter().filter(better).min_by(|a, b| compare_versions(&a.name, &b.name));
    let text = format!("{} is deprecated", named(&version.name));
    Some(best.map_or(text.clone(), |best| format!("{text}; use {}", named(&best.name))))
}

/// The behaviour of one version of a custom resource.
pub struct CustomKind {
    options: Options,
    api_version: String,
    version: String,
    scale: Option<Scale>,
    columns: PrinterColumns,
    schemas: Arc<Schemas>,
}

fn texts(path: &str) -> Texts {
    Cow::Owned(keys(path).into_iter().map(Text::Owned).collect())
}

impl CustomKind {
    fn new(definition: &Definition, version: &Version, schemas: &Arc<Schemas>) -> Self {
        let storage = definition.storage().map_or("", |v| v.name.as_str());
        let names = &definition.status.accepted_names;
        let group = definition.spec.group.clone();
        let plural = names.plural.clone();
        let mut options = Options::of_kind(group, plural, definition.gvk(storage), definition.is_namespaced());
        options.generation = true;
        options.allow_unconditional_update = false;
        if version.has_status() {
            options.subresources = Cow::Owned(vec![Text::Borrowed("status")]);
        }
        options.scale = version.scale().map(|scale| ScalePaths {
            spec_replicas: texts(&scale.spec_replicas_path),
            status_replicas: texts(&scale.status_replicas_path),
            selector: scale.label_selector_path.as_deref().map(texts).unwrap_or_default(),
        });
        let fields = version.selectable_fields.iter().map(|f| f.json_path.trim_start_matches('.').to_owned());
        options.fields = Cow::Owned(fields.map(Text::Owned).collect());
        let columns = PrinterColumns::of(version);
        options.columns = Cow::Owned(columns.headers().to_vec());
        Self {
            api_version: format!("{}/{}", definition.spec.group, version.name),
            version: version.name.clone(),
            scale: version.scale().cloned(),
            columns,
            options,
            schemas: Arc::clone(schemas),
        }
    }

    fn check_type(&self, object: &Value, e: &mut Errors) -> bool {
        let text = |k: &str| object[k].as_str().unwrap_or("");
        let mut good = true;
        for (field, wanted) in [("kind", self.options.kind()), ("apiVersion", &self.api_version)] {
            if text(field) != wanted {
                e.invalid(&Path::new(field), text(field), format!("must be {wanted}"));
                good = false;
            }
        }
        good
    }

    /// Adds the errors of the schema and the scale to those of the metadata.
    fn checked(
        &self,
        metadata: Errors,
        object: &Value,
        spec: bool,
        check: impl FnOnce(&Validator, FieldErrors, &mut FieldErrors),
    ) -> FieldErrors {
        let mut errors = metadata.finish();
        let mut counted = Errors::new();
        self.check_scale(object, spec, &mut counted);
        let counted = counted.finish();
        match self.schemas.of(&self.version).and_then(|schema| schema.validator()) {
            Some(validator) => check(validator, counted, &mut errors),
            None => errors.extend(counted),
        }
        errors
    }

    fn check_scale(&self, object: &Value, spec: bool, e: &mut Errors) {
        let Some(scale) = &self.scale else { return };
        let counts = [(&scale.spec_replicas_path, spec), (&scale.status_replicas_path, true)];
        for (path, _) in counts.into_iter().filter(|(_, asked)| *asked) {
            count(object, path, e);
        }
        let Some(path) = &scale.label_selector_path else { return };
        match at(object, path) {
            Ok(Value::Null | Value::String(_)) => {}
            Ok(other) => e.invalid(&Path::new(path), "", format!(".{}{}", join(path), mismatch(other, "string"))),
            Err(why) => e.invalid(&Path::new(path), "", why),
        }
    }
}

fn join(path: &str) -> String {
    path.trim_start_matches('.').to_owned()
}

/// Upstream's message for a value of another type.
fn mismatch(value: &Value, wanted: &str) -> String {
    let (shown, ty) = match value {
        Value::Bool(b) => (b.to_string(), "bool"),
        Value::Number(n) if n.is_i64() => (n.to_string(), "int64"),
        Value::Number(n) => (n.to_string(), "float64"),
        Value::String(s) => (s.clone(), "string"),
        Value::Array(_) => (kelson_patch::printed(value), "[]interface {}"),
        Value::Object(_) => (kelson_patch::printed(value), "map[string]interface {}"),
        Value::Null => ("<nil>".to_owned(), "<nil>"),
    };
    format!(" accessor error: {shown} is of the type {ty}, expected {wanted}")
}

/// The value at a path; null if it is missing, an error if a value on the way is not an object.
fn at<'a>(object: &'a Value, path: &str) -> Result<&'a Value, String> {
    let mut value = object;
    let mut seen = String::new();
    for key in keys(path) {
        seen.push('.');
        seen.push_str(&key);
        match value {
            Value::Object(map) => value = map.get(&key).unwrap_or(&Value::Null),
            Value::Null => return Ok(&Value::Null),
            other => return Err(format!("{seen}{}", mismatch(other, "map[string]interface{}"))),
        }
    }
    Ok(value)
}

fn count(object: &Value, path: &str, e: &mut Errors) {
    let place = Path::new(path);
    match at(object, path) {
        Ok(Value::Null) => {}
        Ok(value) => match value.as_i64() {
            None => e.invalid(&place, 0, format!(".{}{}", join(path), mismatch(value, "int64"))),
            Some(n) if n < 0 => e.invalid(&place, n, "should be a non-negative integer"),
            Some(n) if n > i64::from(i32::MAX) => {
                e.invalid(&place, n, format!("should be less than or equal to {}", i32::MAX));
            }
            Some(_) => {}
        },
        Err(why) => e.invalid(&place, 0, why),
    }
}

impl Strategy for CustomKind {
    fn has_rules(&self) -> bool {
        let validator = self.schemas.of(&self.version).and_then(|schema| schema.validator());
        validator.is_some_and(Validator::has_rules)
    }
    fn options(&self) -> &Options {
        &self.options
    }
    fn default(&self, version: &str, object: &mut Value) -> Result<(), Status> {
        if let Some(schema) = self.schemas.of(version) {
            schema.default(object);
        }
        Ok(())
    }
    fn prepare_create(&self, _cx: &Context<'_>, object: &mut Value) {
        if self.options.has_status()
            && let Some(map) = object.as_object_mut()
        {
            map.remove("status");
        }
        object["metadata"]["generation"] = 1.into();
    }
    fn validate_create(&self, object: &Value) -> FieldErrors {
        let mut e = Errors::new();
        if self.check_type(object, &mut e) {
            metadata::check(&self.options, &object["metadata"], &mut e);
        }
        self.checked(e, object, true, |validator, counted, errors| validator.check_create(object, counted, errors))
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        if let (true, Some(map)) = (self.options.has_status(), new.as_object_mut()) {
            match old.get("status") {
                Some(status) => drop(map.insert("status".into(), status.clone())),
                None => drop(map.remove("status")),
            }
        }
        // A change of anything but the metadata counts.
        let count = |object: &Value| object["metadata"]["generation"].as_i64().filter(|g| *g > 0).unwrap_or(1);
        let generation = count(old) + i64::from(differ(new, old));
        new["metadata"]["generation"] = generation.into();
    }
    fn validate_update(&self, new: &Value, old: &Value) -> FieldErrors {
        self.judge_update("", new, old, &mut drop)
    }
    fn judge_update(&self, subresource: &str, new: &Value, old: &Value, warn: &mut dyn FnMut(String)) -> FieldErrors {
        let mut e = Errors::new();
        if self.check_type(new, &mut e) {
            metadata::check_update(&self.options, subresource, new, old, &mut e);
        }
        let main = subresource.is_empty();
        self.checked(e, new, main, |validator, counted, errors| {
            let warnings = match main {
                true => validator.check_update(new, old, counted, errors),
                false => validator.check_status_update(new, old, counted, errors),
            };
            warnings.into_iter().for_each(warn);
        })
    }
    fn prepare_subresource_update(&self, _cx: &Context<'_>, _subresource: &str, new: &mut Value, old: &Value) {
        let status = new.get_mut("status").map(Value::take);
        let managed = new["metadata"].get_mut("managedFields").map(Value::take);
        new.clone_from(old);
        if let Some(map) = new.as_object_mut() {
            match status {
                Some(status) => drop(map.insert("status".into(), status)),
                None => drop(map.remove("status")),
            }
        }
        if let Some(metadata) = new["metadata"].as_object_mut() {
            match managed {
                Some(managed) => drop(metadata.insert("managedFields".into(), managed)),
                None => drop(metadata.remove("managedFields")),
            }
        }
    }
    fn validate_subresource_update(&self, subresource: &str, new: &Value, old: &Value) -> FieldErrors {
        self.judge_update(subresource, new, old, &mut drop)
    }
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        metadata::finalizer_warnings(&new["metadata"], old.map(|o| &o["metadata"]))
    }
    fn reset_fields(&self, subresource: &str) -> Vec<Texts> {
        let path = |key: &'static str| Cow::Owned(vec![Text::Borrowed(key)]);
        match subresource {
            "" if self.options.has_status() => vec![path("status")],
            "status" => vec![path("metadata"), path("spec")],
            _ => Vec::new(),
        }
    }
    /// The paths of columns are the user's, and may lead anywhere.
    fn row_parts(&self) -> Parts {
        Parts::All
    }
    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        self.columns.row(object, now)
    }
}

/// Whether two objects differ outside their metadata.
fn differ(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return a != b };
    let others = |key: &&String| *key != "metadata";
    a.keys().chain(b.keys()).filter(others).any(|key| a.get(key) != b.get(key))
}
