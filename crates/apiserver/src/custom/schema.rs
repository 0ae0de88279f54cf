//! The schemas of a definition's versions. They are read from the definition's record when they are first needed, so that
//! definitions which nobody uses cost little more than their record.
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

/// The schemas of one definition, by version.
pub struct Schemas {
    /// The definition as it is stored; only its schemas are read.
    record: Mutex<Arc<Record>>,
    /// The first of the numbers that these schemas have in this process: one for each version, and one more.
    number: u32,
    preserve_unknown: bool,
    versions: Vec<(Gvk, OnceLock<Arc<Compiled>>)>,
}

/// A schema ready for use.
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

/// A version's schema as it stands in a definition's record.
fn read(record: &Record, version: &str) -> Option<Value> {
    let bytes = record.bytes();
    let document: SchemaDocument<'_> = serde_json::from_slice(&bytes).ok()?;
    let version = document.spec.versions.into_iter().find(|v| v.name == version)?;
    serde_json::from_str(version.schema?.text?.get()).ok()
}

impl Schemas {
    /// Those of a definition, which stands in this record.
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
    /// The definition was written again with the same schemas; the old record need not be kept for them.
    pub fn moved_to(&self, record: &Arc<Record>) {
        *self.record.lock() = Arc::clone(record);
    }
    /// The number under which records keep the form that readers of a version see, and the lowest such number of these schemas.
    /// `None` for a version that they do not have.
    pub fn form_of(&self, version: &str) -> Option<(u32, u32)> {
        let at = self.versions.iter().position(|(gvk, _)| gvk.version == version)?;
        Some((self.number + u32::try_from(at).ok()? + 1, self.number))
    }
    /// What a record is marked with whose JSON is an object of this version: whether these schemas leave it as it is.
    pub fn mark_of(&self, version: &str, object: &Value) -> u32 {
        let complete = self.of(version).is_none_or(|schema| schema.is_complete(object));
        self.number << 1 | u32::from(!complete)
    }
    /// Whether these schemas leave a record as it is which is of this version. It is looked into once.
    pub fn complete(&self, version: &str, record: &Record) -> bool {
        let mut mark = record.mark();
        if mark >> 1 != self.number {
            mark = self.mark_of(version, &parse(record));
            record.set_mark(mark);
        }
        mark & 1 == 0
    }
    /// The schema of a version.
    pub fn of(&self, version: &str) -> Option<&Arc<Compiled>> {
        let (gvk, place) = self.versions.iter().find(|(gvk, _)| gvk.version == version)?;
        Some(place.get_or_init(|| Arc::new(Compiled::new(gvk, self.text(version).as_ref(), self.preserve_unknown))))
    }
    /// The schema of a version as its author wrote it.
    fn text(&self, version: &str) -> Option<Value> {
        let record = Arc::clone(&self.record.lock());
        read(&record, version)
    }
    /// Brings an object that was stored under an older schema up to this one.
    pub fn bring_up(&self, version: &str, object: &mut Value) {
        if let Some(schema) = self.of(version) {
            schema.prune(object);
            schema.default(object);
        }
    }
    /// Drops what the schema of a version does not know.
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
            tracing::error!(%gvk, %error, "a stored schema does not read; objects are kept as they come");
            Structural::parse(&anything())
        });
        Self { validator: structural.ok().map(Validator::new), preserve_unknown }
    }
    /// The schema, for those who look into it.
    pub fn structural(&self) -> Option<&Structural> {
        self.validator.as_ref().map(Validator::schema)
    }
    /// Judges objects by the schema.
    pub fn validator(&self) -> Option<&Validator> {
        self.validator.as_ref()
    }
    fn prune(&self, value: &mut Value) {
        let Some(schema) = self.structural().filter(|_| !self.preserve_unknown) else { return };
        object::prune(value, schema.resource(), &mut object::Unknown::new(false));
        // The schema may describe the root's metadata, but says nothing of nulls there.
        let metadata = value.get_mut("metadata").map(Value::take);
        object::drop_nulls(value, schema.declared());
        if let (Some(metadata), Some(fields)) = (metadata, value.as_object_mut()) {
            fields.insert("metadata".to_owned(), metadata);
        }
    }
    /// Whether pruning and defaulting leave an object as it is.
    fn is_complete(&self, value: &Value) -> bool {
        let Some(schema) = self.structural() else { return true };
        let pruned =
            || object::is_pruned(value, schema.resource()) && object::has_no_void_nulls(value, schema.declared());
        (self.preserve_unknown || pruned()) && object::is_defaulted(value, schema.declared())
    }
    /// Fills in what the schema declares as default.
    pub fn default(&self, value: &mut Value) {
        if let Some(schema) = self.structural() {
            object::default(value, schema.declared());
        }
    }
}

/// One version's schema as the request path asks for it.
pub struct VersionSchema {
    /// The schemas of the definition, shared by its versions.
    pub schemas: Arc<Schemas>,
    /// Which of them.
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
