//! The schemas of a definition's versions. They are read from the definition's record when they are first needed, so that unused
//! definitions cost little more than their record.
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use kelson_codec::{DecodeError, Decoded};
use kelson_meta::Gvk;
use kelson_schema::Descriptions;
use kelson_schema::shape::Shape;
use kelson_store::Record;
use kelson_structural::publish::openapi::Dialect;
use kelson_structural::{Structural, Validator, object, publish};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::catalog::DynamicSchema;
use crate::catalog::record::parse;
use crate::custom::definition::Definition;

/// The schemas of one definition by version.
pub struct Schemas {
    /// The record of the definition; only its schemas are read.
    record: Mutex<Arc<Record>>,
    /// The first number of these schemas, unique in this process: one number for each version, and one more.
    number: u32,
    preserve_unknown: bool,
    versions: Vec<(Gvk, OnceLock<Arc<Compiled>>)>,
}

/// A compiled schema.
pub struct Compiled {
    validator: Option<Validator>,
    preserve_unknown: bool,
}

#[derive(Deserialize)]
struct SchemaDocument<'a> {
    #[serde(borrow)]
    spec: DocumentSpec<'a>,
}
#[derive(Deserialize)]
struct DocumentSpec<'a> {
    #[serde(borrow)]
    versions: Vec<DocumentVersion<'a>>,
}
#[derive(Deserialize)]
struct DocumentVersion<'a> {
    name: String,
    #[serde(borrow, default)]
    schema: Option<DocumentSchema<'a>>,
}
#[derive(Deserialize)]
struct DocumentSchema<'a> {
    #[serde(borrow, default, rename = "openAPIV3Schema")]
    text: Option<&'a RawValue>,
}

/// Reads a version's schema from a definition's record.
fn read(record: &Record, version: &str) -> Option<Value> {
    let bytes = record.bytes();
    let document: SchemaDocument<'_> = serde_json::from_slice(&bytes).ok()?;
    let version = document.spec.versions.into_iter().find(|v| v.name == version)?;
    serde_json::from_str(version.schema?.text?.get()).ok()
}

impl Schemas {
    /// The schemas of a definition in this record.
    pub fn new(definition: &Definition, record: &Arc<Record>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let names = definition.spec.versions.iter().map(|v| definition.gvk(&v.name));
        let numbers = u32::try_from(names.len()).unwrap_or(u32::MAX).saturating_add(1);
        Self {
            record: Mutex::new(Arc::clone(record)),
            number: NEXT.fetch_add(numbers, Ordering::Relaxed),
            preserve_unknown: definition.spec.preserve_unknown_fields,
            versions: names.map(|gvk| (gvk, OnceLock::new())).collect(),
        }
    }
    /// Replaces the record after a write that did not change the schemas, so that the old one can be freed.
    pub fn set_record(&self, record: &Arc<Record>) {
        *self.record.lock() = Arc::clone(record);
    }
    /// The number under which records cache their form for readers of a version, and the lowest such number of these schemas. `None`
    /// for an unknown version.
    pub fn form_of(&self, version: &str) -> Option<(u32, u32)> {
        let at = self.versions.iter().position(|(gvk, _)| gvk.version == version)?;
        Some((self.number + u32::try_from(at).ok()? + 1, self.number))
    }
    /// The mark of a record with an object of this version: these schemas' number, and whether they would change the object.
    pub fn mark_of(&self, version: &str, object: &Value) -> u32 {
        let complete = self.of(version).is_none_or(|schema| schema.is_complete(object));
        self.number << 1 | u32::from(!complete)
    }
    /// Whether these schemas leave a record of this version unchanged. The result is cached in the record's mark.
    pub fn is_complete(&self, version: &str, record: &Record) -> bool {
        let mut mark = record.mark();
        if mark >> 1 != self.number {
            mark = self.mark_of(version, &parse(record));
            record.set_mark(mark);
        }
        mark & 1 == 0
    }
    /// The compiled schema of a version.
    pub fn of(&self, version: &str) -> Option<&Arc<Compiled>> {
        let (gvk, place) = self.versions.iter().find(|(gvk, _)| gvk.version == version)?;
        Some(place.get_or_init(|| Arc::new(Compiled::new(gvk, self.text(version).as_ref(), self.preserve_unknown))))
    }
    /// The schema of a version as its author wrote it.
    fn text(&self, version: &str) -> Option<Value> {
        let record = Arc::clone(&self.record.lock());
        read(&record, version)
    }
    /// Prunes and defaults an object that was stored under an older schema.
    pub fn prune_and_default(&self, version: &str, object: &mut Value) {
        if let Some(schema) = self.of(version) {
            schema.prune(object);
            schema.default(object);
        }
    }
    /// Removes fields that the schema of a version does not have.
    pub fn prune(&self, version: &str, object: &mut Value) {
        if let Some(schema) = self.of(version) {
            schema.prune(object);
        }
    }
}

impl Compiled {
    fn new(gvk: &Gvk, schema: Option<&Value>, preserve_unknown: bool) -> Self {
        let anything = || json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let parsed = schema.map_or_else(|| Structural::parse(&anything()), Structural::parse);
        let structural = parsed.or_else(|error| {
            tracing::error!(%gvk, %error, "cannot parse a stored schema; accepting all fields");
            Structural::parse(&anything())
        });
        Self { validator: structural.ok().map(Validator::new), preserve_unknown }
    }
    /// The structural schema.
    pub fn structural(&self) -> Option<&Structural> {
        self.validator.as_ref().map(Validator::schema)
    }
    /// Validates objects against the schema.
    pub fn validator(&self) -> Option<&Validator> {
        self.validator.as_ref()
    }
    fn prune(&self, value: &mut Value) {
        let Some(schema) = self.structural().filter(|_| !self.preserve_unknown) else { return };
        object::prune(value, schema.resource(), &mut object::Unknown::new(false));
        // The schema may describe the root's metadata, but does not apply to nulls there.
        let metadata = value.get_mut("metadata").map(Value::take);
        object::drop_nulls(value, schema.declared());
        if let (Some(metadata), Some(fields)) = (metadata, value.as_object_mut()) {
            fields.insert("metadata".to_owned(), metadata);
        }
    }
    /// Whether pruning and defaulting leave an object unchanged.
    fn is_complete(&self, value: &Value) -> bool {
        let Some(schema) = self.structural() else { return true };
        let pruned =
            || object::is_pruned(value, schema.resource()) && object::has_no_void_nulls(value, schema.declared());
        (self.preserve_unknown || pruned()) && object::is_defaulted(value, schema.declared())
    }
    /// Sets the schema's defaults.
    pub fn default(&self, value: &mut Value) {
        if let Some(schema) = self.structural() {
            object::default(value, schema.declared());
        }
    }
}

/// The schema of one version.
pub struct VersionSchema {
    /// The schemas of the definition.
    pub schemas: Arc<Schemas>,
    /// The name of the version.
    pub version: String,
}

impl DynamicSchema for VersionSchema {
    fn shape(&self) -> Shape {
        let schema = self.schemas.of(&self.version).and_then(|schema| schema.structural());
        schema.map_or(Shape::Untyped, |schema| publish::shape(schema.resource()))
    }
    fn normalize(&self, object: Value, strict: bool) -> Result<Decoded, DecodeError> {
        match self.schemas.of(&self.version).and_then(|schema| schema.structural()) {
            Some(schema) => object::fit(schema, object, self.schemas.preserve_unknown, strict),
            None => Ok(Decoded { value: object, ..Decoded::default() }),
        }
    }
    fn normalize_applied(&self, object: Value) -> Result<Decoded, DecodeError> {
        match self.schemas.of(&self.version).and_then(|schema| schema.structural()) {
            Some(schema) => object::fit_applied(schema, object, self.schemas.preserve_unknown),
            None => Ok(Decoded { value: object, ..Decoded::default() }),
        }
    }
    fn openapi(&self, dialect: Dialect, texts: &Descriptions) -> Value {
        let schema = self.schemas.text(&self.version);
        publish::openapi::definition(schema.as_ref(), self.schemas.preserve_unknown, dialect, texts)
    }
}
