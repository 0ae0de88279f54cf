//! The schema of a kind's objects: a built-in type, a schema of a custom resource, or none. All code of the request path that depends
//! on the structure of objects uses it, so that it works for all three.
use std::sync::Arc;

use kelson_codec::proto::MetadataEncoder;
use kelson_codec::{DecodeError, Decoded, EncodeError, Encoding};
use kelson_schema::shape::Shape;
use kelson_schema::{Descriptions, Schema, TypeId};
use kelson_structural::publish::openapi::Dialect;
use serde_json::Value;

/// A schema that is known only at runtime, such as a custom resource's.
pub trait DynamicSchema: Send + Sync {
    /// Merge keys and list types for patches and apply.
    fn shape(&self) -> Shape;
    /// The canonical form of a decoded object. Unknown fields are dropped, and reported if `strict`.
    ///
    /// # Errors
    /// A value does not have the type that the schema requires.
    fn normalize(&self, object: Value, strict: bool) -> Result<Decoded, DecodeError>;
    /// As [`DynamicSchema::normalize`], for the result of an apply: nulls that are not allowed are kept, so that validation rejects
    /// them.
    ///
    /// # Errors
    /// A value does not have the type that the schema requires.
    fn normalize_applied(&self, object: Value) -> Result<Decoded, DecodeError> {
        self.normalize(object, false)
    }
    /// The kind's OpenAPI definition without `x-kubernetes-group-version-kind`.
    fn openapi(&self, dialect: Dialect, texts: &Descriptions) -> Value;
}

/// The schema of a kind's objects.
#[derive(Clone)]
pub enum ObjectSchema {
    /// A built-in type.
    Builtin(TypeId),
    /// A schema of a custom resource.
    Dynamic(Arc<dyn DynamicSchema>),
    /// No schema: all fields are kept.
    Open,
}

impl ObjectSchema {
    /// The type of a built-in kind; [`ObjectSchema::Open`] if there is none.
    pub fn builtin(group: &str, version: &str, kind: &str) -> Self {
        Schema::builtin().by_gvk(group, version, kind).map_or(Self::Open, Self::Builtin)
    }
    /// A kind of `meta.k8s.io/v1`: options, and discovery documents.
    pub fn meta(kind: &str) -> Self {
        Self::builtin("meta.k8s.io", "v1", kind)
    }
    /// The kind `Status`.
    pub fn status() -> Self {
        Self::builtin("", "v1", "Status")
    }
    /// `PartialObjectMetadata` in a version, or its list.
    pub fn partial(version: &str, list: bool) -> Self {
        Self::builtin("meta.k8s.io", version, if list { "PartialObjectMetadataList" } else { "PartialObjectMetadata" })
    }
    /// An encoder of `PartialObjectMetadata` in a version.
    ///
    /// # Errors
    /// There is no such version.
    pub fn metadata_encoder(version: &str) -> Result<MetadataEncoder, EncodeError> {
        Self::partial(version, false).type_id().ok_or(EncodeError::NoProtobuf).and_then(MetadataEncoder::new)
    }
    /// The built-in kind that an object contains.
    pub fn of_object(object: &Value) -> Self {
        let text = |k: &str| object[k].as_str().unwrap_or("");
        Schema::builtin().by_api_version(text("apiVersion"), text("kind")).map_or(Self::Open, Self::Builtin)
    }
    /// The built-in type, which protobuf and published documents are based on.
    pub fn type_id(&self) -> Option<TypeId> {
        match self {
            Self::Builtin(ty) => Some(*ty),
            _ => None,
        }
    }
    /// Decodes an object. If `strict`, unknown and duplicate fields are reported.
    ///
    /// # Errors
    /// The bytes cannot be parsed, or do not fit the schema.
    pub fn decode(&self, encoding: Encoding, bytes: &[u8], strict: bool) -> Result<Decoded, DecodeError> {
        let mut decoded = kelson_codec::decode(encoding, self.type_id(), bytes, strict)?;
        let Self::Dynamic(schema) = self else { return Ok(decoded) };
        let fitted = schema.normalize(decoded.value, strict)?;
        decoded.strict.0.extend(fitted.strict.0);
        Ok(Decoded { value: fitted.value, strict: decoded.strict })
    }
    /// The canonical form of a patched tree.
    ///
    /// # Errors
    /// The tree does not fit the schema.
    pub fn normalize(&self, object: Value, strict: bool) -> Result<Decoded, DecodeError> {
        match self {
            Self::Builtin(ty) => kelson_codec::normalize(*ty, object, strict),
            Self::Dynamic(schema) => schema.normalize(object, strict),
            Self::Open => Ok(Decoded { value: object, ..Decoded::default() }),
        }
    }
    /// The canonical form of the result of an apply. Upstream drops nulls of custom resources when it decodes objects, but not after an
    /// apply.
    ///
    /// The tree does not fit the schema.
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
    /// Encodes an object with its envelope.
    ///
    /// # Errors
    /// Protobuf for a kind without a protobuf form.
    pub fn encode(&self, encoding: Encoding, object: &Value) -> Result<Vec<u8>, EncodeError> {
        kelson_codec::encode(encoding, self.type_id(), object)
    }
    /// Encodes an object's protobuf message without an envelope.
    ///
    /// # Errors
    /// The kind has no protobuf form.
    pub fn message(&self, object: &Value) -> Result<Vec<u8>, EncodeError> {
        let ty = self.type_id().filter(|t| t.has_proto()).ok_or(EncodeError::NoProtobuf)?;
        kelson_codec::proto::encode_message(ty, object)
    }

    /// The protobuf message, without envelope, of an object from its stored JSON.
    ///
    /// # Errors
    /// The kind has no protobuf form, or the bytes are not JSON of this type.
    pub fn stored_message(&self, object: &[u8]) -> Result<Vec<u8>, EncodeError> {
        let ty = self.type_id().filter(|t| t.has_proto()).ok_or(EncodeError::NoProtobuf)?;
        let text = std::str::from_utf8(object);
        let text = text.map_err(|error| EncodeError::Stored(DecodeError::Json(error.to_string())))?;
        kelson_codec::proto::encode_stored(ty, text)
    }
}
