//! What the objects of a kind look like: by the built-in table, by a schema that came at run time, or not known at all.
//! Whatever the request path does with the structure of an object goes through here, so that it is the same for all three.
use std::sync::Arc;

use kelson_codec::{DecodeError, Decoded, EncodeError, Encoding};
use kelson_schema::shape::Shape;
use kelson_schema::{Descriptions, Schema, TypeId};
use kelson_structural::publish::openapi::Dialect;
use serde_json::Value;

/// A schema made at run time, such as a custom resource's.
pub trait DynamicSchema: Send + Sync {
    /// Merge keys and list types for patches and apply.
    fn shape(&self) -> Shape;
    /// The canonical form of a decoded object: what the schema does not know is dropped, and reported when `strict`.
    ///
    /// # Errors
    /// What does not fit the schema's types.
    fn normalize(&self, object: Value, strict: bool) -> Result<Decoded, DecodeError>;
    /// As [`DynamicSchema::normalize`], for what an apply makes: nulls stay where null is no value, for validation to refuse.
    ///
    /// # Errors
    /// What does not fit the schema's types.
    fn normalize_applied(&self, object: Value) -> Result<Decoded, DecodeError> {
        self.normalize(object, false)
    }
    /// The kind's OpenAPI definition, without `x-kubernetes-group-version-kind`.
    fn openapi(&self, dialect: Dialect, texts: &Descriptions) -> Value;
}

/// The structure of a kind's objects.
#[derive(Clone)]
pub enum ObjectSchema {
    /// A type of the built-in table.
    Builtin(TypeId),
    /// Made at run time.
    Dynamic(Arc<dyn DynamicSchema>),
    /// Nothing is known: every field is kept as it came.
    Open,
}

impl ObjectSchema {
    /// A kind of the built-in table; open when the table does not have it.
    pub fn builtin(group: &str, version: &str, kind: &str) -> Self {
        Schema::builtin().by_gvk(group, version, kind).map_or(Self::Open, Self::Builtin)
    }
    /// A kind of `meta.k8s.io/v1`: options, and the objects of discovery.
    pub fn meta(kind: &str) -> Self {
        Self::builtin("meta.k8s.io", "v1", kind)
    }
    /// The kind of answers that are no object.
    pub fn status() -> Self {
        Self::builtin("", "v1", "Status")
    }
    /// `PartialObjectMetadata` in a version, or its list.
    pub fn partial(version: &str, list: bool) -> Self {
        Self::builtin("meta.k8s.io", version, if list { "PartialObjectMetadataList" } else { "PartialObjectMetadata" })
    }
    /// The kind that an object names itself.
    pub fn of_object(object: &Value) -> Self {
        let text = |k: &str| object[k].as_str().unwrap_or("");
        Schema::builtin().by_api_version(text("apiVersion"), text("kind")).map_or(Self::Open, Self::Builtin)
    }
    /// The built-in type; protobuf and the published documents are made by it.
    pub fn type_id(&self) -> Option<TypeId> {
        match self {
            Self::Builtin(ty) => Some(*ty),
            _ => None,
        }
    }
    /// Reads an object. With `strict`, unknown and duplicate fields are reported.
    ///
    /// # Errors
    /// For what does not read, or does not fit.
    pub fn decode(&self, encoding: Encoding, bytes: &[u8], strict: bool) -> Result<Decoded, DecodeError> {
        let mut decoded = kelson_codec::decode(encoding, self.type_id(), bytes, strict)?;
        let Self::Dynamic(schema) = self else { return Ok(decoded) };
        let fitted = schema.normalize(decoded.value, strict)?;
        decoded.strict.0.extend(fitted.strict.0);
        Ok(Decoded { value: fitted.value, strict: decoded.strict })
    }
    /// The canonical form of a tree that was changed by a patch.
    ///
    /// # Errors
    /// For what does not fit.
    pub fn normalize(&self, object: Value, strict: bool) -> Result<Decoded, DecodeError> {
        match self {
            Self::Builtin(ty) => kelson_codec::normalize(*ty, object, strict),
            Self::Dynamic(schema) => schema.normalize(object, strict),
            Self::Open => Ok(Decoded { value: object, ..Decoded::default() }),
        }
    }
    /// The canonical form of what an apply makes. Upstream drops the nulls of a custom resource when it reads one, and an apply
    /// comes behind that.
    ///
    /// # Errors
    /// For what does not fit.
    pub fn normalize_applied(&self, object: Value) -> Result<Decoded, DecodeError> {
        match self {
            Self::Dynamic(schema) => schema.normalize_applied(object),
            Self::Builtin(_) | Self::Open => self.normalize(object, false),
        }
    }
    /// Merge keys and list types for patches and apply.
    pub fn shape(&self) -> Shape {
        match self {
            Self::Builtin(ty) => Shape::Root(*ty),
            Self::Dynamic(schema) => schema.shape(),
            Self::Open => Shape::Untyped,
        }
    }
    /// Writes an object with its envelope.
    ///
    /// # Errors
    /// In protobuf, for kinds that have no such form.
    pub fn encode(&self, encoding: Encoding, object: &Value) -> Result<Vec<u8>, EncodeError> {
        kelson_codec::encode(encoding, self.type_id(), object)
    }
    /// Writes an object's protobuf message, without an envelope.
    ///
    /// # Errors
    /// For kinds that have no such form.
    pub fn message(&self, object: &Value) -> Result<Vec<u8>, EncodeError> {
        let ty = self.type_id().filter(|t| t.has_proto()).ok_or(EncodeError::NoProtobuf)?;
        kelson_codec::proto::encode_message(ty, object)
    }
}
