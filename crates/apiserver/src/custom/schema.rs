//! The schemas of a definition's versions. They are read from the definition's record when they are first needed, so that
//! definitions which nobody uses cost little more than their record.
use std::sync::{Arc, OnceLock};

use kelson_codec::{DecodeError, Decoded};
use kelson_meta::Gvk;
use kelson_schema::shape::{DynamicType, Shape};
use kelson_schema::{Schema, TypeId};
use kelson_store::Record;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::catalog::DynamicSchema;
use crate::custom::definition::Definition;

/// The schemas of one definition, by version.
pub struct Schemas {
    /// The definition as it is stored; only its schemas are read.
    record: Mutex<Arc<Record>>,
    /// The revision at which these schemas came. Objects written later fit them as they are.
    since: u64,
    preserve_unknown: bool,
    versions: Vec<(Gvk, OnceLock<Arc<Compiled>>)>,
}

/// A schema ready for use.
pub struct Compiled {
    shape: Arc<DynamicType>,
    openapi: Value,
}

#[derive(Deserialize)]
struct Document<'a> {
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
    let document: Document<'_> = serde_json::from_slice(record.bytes()).ok()?;
    let version = document.spec.versions.into_iter().find(|v| v.name == version)?;
    serde_json::from_str(version.schema?.text?.get()).ok()
}

impl Schemas {
    /// Those of a definition, which stands in this record.
    pub fn new(definition: &Definition, record: &Arc<Record>) -> Self {
        let names = definition.spec.versions.iter().map(|v| definition.gvk(&v.name));
        Self {
            record: Mutex::new(Arc::clone(record)),
            since: record.revision(),
            preserve_unknown: definition.spec.preserve_unknown_fields,
            versions: names.map(|gvk| (gvk, OnceLock::new())).collect(),
        }
    }
    /// The definition was written again with the same schemas; the old record need not be kept for them.
    pub fn moved_to(&self, record: &Arc<Record>) {
        *self.record.lock() = Arc::clone(record);
    }
    /// The revision at which these schemas came.
    pub fn since(&self) -> u64 {
        self.since
    }
    /// The schema of a version.
    pub fn of(&self, version: &str) -> Option<&Arc<Compiled>> {
        let (gvk, place) = self.versions.iter().find(|(gvk, _)| gvk.version == version)?;
        Some(place.get_or_init(|| {
            let record = Arc::clone(&self.record.lock());
            Arc::new(Compiled::new(gvk, read(&record, version).unwrap_or_default(), self.preserve_unknown))
        }))
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
    fn new(_gvk: &Gvk, openapi: Value, _preserve_unknown: bool) -> Self {
        Self { shape: DynamicType::from_openapi(&openapi, true), openapi }
    }
    fn prune(&self, _object: &mut Value) {}
    /// Fills in what the schema declares as default.
    pub fn default(&self, _object: &mut Value) {}
}

/// One version's schema as the request path asks for it.
pub struct VersionSchema {
    /// The definition's.
    pub schemas: Arc<Schemas>,
    /// Which of them.
    pub version: String,
}

/// The type whose only field besides the kind is an object's metadata.
fn metadata_type() -> Option<TypeId> {
    Schema::builtin().by_gvk("meta.k8s.io", "v1", "PartialObjectMetadata")
}

impl DynamicSchema for VersionSchema {
    fn shape(&self) -> Shape {
        self.schemas.of(&self.version).map_or(Shape::Untyped, |schema| Shape::Dynamic(Arc::clone(&schema.shape)))
    }
    fn normalize(&self, mut object: Value, strict: bool) -> Result<Decoded, DecodeError> {
        let mut findings = Decoded::default();
        if let (Some(ty), Some(metadata)) = (metadata_type(), object.get_mut("metadata").filter(|m| !m.is_null())) {
            let whole = serde_json::json!({"metadata": metadata.take()});
            let mut fitted = kelson_codec::normalize(ty, whole, strict)?;
            *metadata = fitted.value["metadata"].take();
            findings.strict = fitted.strict;
        }
        if let Some(schema) = self.schemas.of(&self.version) {
            schema.prune(&mut object);
        }
        findings.value = object;
        Ok(findings)
    }
    fn openapi(&self) -> Value {
        self.schemas.of(&self.version).map(|schema| schema.openapi.clone()).unwrap_or_default()
    }
}
