//! Kelson codec: JSON, YAML and protobuf to and from one value tree, by the schema table. No kind has a codec of its own.
//!
//! Decoding yields the canonical form of an object: what Kubernetes' own round trip would store (empty optional values
//! dropped, required zero values present, quantities and times normalised), and the strict findings (unknown and duplicate
//! fields) beside it. What to do with a finding is the caller's: see [`FieldValidation`].
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod budget;
mod canonical;
mod document;
mod error;
pub mod json;
mod limits;
pub mod media;
pub mod proto;
mod scalar;
pub mod strict;
pub mod yaml;
mod zero;

pub use budget::{Budget, Exceeded, Limits};
pub use document::{Decoded, TypeMeta, canonical_json, go_kind};
pub use error::{DecodeError, EncodeError, StrictErrors};
pub use json::declared_json;
pub use limits::{DOCUMENT_BYTES_MAX, NESTING_DEPTH_MAX, STRICT_ERRORS_MAX};
pub use media::{Accept, Encoding, MediaType, TableRequest};
pub use scalar::{format_duration, go_duration, parse_duration};

use kelson_schema::TypeId;
use serde_json::Value;

/// `fieldValidation` of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Unknown and repeated fields are dropped, and nobody is told.
    Ignore,
    /// Drop, and give a warning for each.
    #[default]
    Warn,
    /// A document with unknown or repeated fields is refused.
    Strict,
}

impl FieldValidation {
    /// The query parameter's value; empty means the default. `None` for any other word.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Warn" => Some(Self::Warn),
            "Ignore" => Some(Self::Ignore),
            "Strict" => Some(Self::Strict),
            _ => None,
        }
    }
}

/// Reads `apiVersion` and `kind` of a document without decoding the rest.
pub fn peek(encoding: Encoding, data: &[u8]) -> Result<TypeMeta, DecodeError> {
    if data.len() > DOCUMENT_BYTES_MAX {
        return Err(DecodeError::TooLarge);
    }
    match encoding {
        Encoding::Json => json::peek(data),
        Encoding::Yaml => json::peek(&yaml::to_json(data)?.json),
        Encoding::Protobuf => proto::peek(data),
    }
}

/// Decodes a document as the given type; `None` decodes it as an object of unknown structure (a custom resource), which
/// protobuf cannot carry. `strict` collects findings; without it unknown fields are dropped silently.
pub fn decode(encoding: Encoding, ty: Option<TypeId>, data: &[u8], strict: bool) -> Result<Decoded, DecodeError> {
    if data.len() > DOCUMENT_BYTES_MAX {
        return Err(DecodeError::TooLarge);
    }
    match encoding {
        Encoding::Json => json::decode_within(ty, data, strict, &mut Budget::new(Limits::DOCUMENT)),
        Encoding::Yaml => yaml::decode(ty, data, strict),
        Encoding::Protobuf => {
            let ty = ty.ok_or_else(|| DecodeError::Proto("object has no protobuf encoding".into()))?;
            let (_, value) = proto::decode_within(ty, data, &mut Budget::new(Limits::DOCUMENT))?;
            Ok(Decoded { value, strict: StrictErrors::default() })
        }
    }
}

/// Decodes the JSON of a patch, within [`Limits::PATCH`]; see [`decode`].
///
/// # Errors
/// See [`DecodeError`].
pub fn decode_patch(data: &[u8], strict: bool) -> Result<Decoded, DecodeError> {
    if data.len() > DOCUMENT_BYTES_MAX {
        return Err(DecodeError::TooLarge);
    }
    json::decode_within(None, data, strict, &mut Budget::new(Limits::PATCH))
}

/// As [`decode_patch`], and whole floats (`1.0`, `1e0`) stay floats: a merge patch or JSON patch writes them into the object as
/// they are spelled, and a field that holds an integer does not take them.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode_spelled_patch(data: &[u8], strict: bool) -> Result<Decoded, DecodeError> {
    if data.len() > DOCUMENT_BYTES_MAX {
        return Err(DecodeError::TooLarge);
    }
    json::document(None, data, (strict, true), &mut Budget::new(Limits::PATCH))
}

/// Writes whole floats of a tree as integers, as decoding does.
pub fn canonical_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().filter(|_| number.is_f64()).and_then(json::canonical_float) {
                *number = whole;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(canonical_numbers),
        Value::Object(map) => map.values_mut().for_each(canonical_numbers),
        _ => {}
    }
}

/// Encodes an object. JSON ends without a newline.
pub fn encode(encoding: Encoding, ty: Option<TypeId>, value: &Value) -> Result<Vec<u8>, EncodeError> {
    match encoding {
        Encoding::Json => Ok(declared_json(value)),
        Encoding::Yaml => Ok(yaml::to_yaml(value).into_bytes()),
        Encoding::Protobuf => {
            let ty = ty.ok_or(EncodeError::NoProtobuf)?;
            proto::encode(ty, value)
        }
    }
}

/// The canonical form of an object of this type in which nothing is set.
pub fn zero_object(ty: TypeId) -> Value {
    Value::Object(zero::zero_struct(ty))
}

/// Brings a tree (a patched object, say) into canonical form; unknown fields are dropped and reported when `strict`.
///
/// # Errors
/// As [`decode`] of the tree's JSON.
pub fn normalize(ty: TypeId, mut value: Value, strict: bool) -> Result<Decoded, DecodeError> {
    if canonical::in_place(ty, &mut value) {
        return Ok(Decoded { value, strict: StrictErrors::default() });
    }
    let json = canonical_json(&value);
    // Not both trees at a time.
    drop(value);
    json::decode(Some(ty), &json, strict)
}
