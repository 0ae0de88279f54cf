//! The codec of Kelson: it converts JSON, YAML and protobuf to one value tree and back, guided by the schema table. No kind has a
//! separate codec.
//!
//! Decoding returns the canonical form of an object, which is what Kubernetes would store after its own round trip: empty optional
//! values are dropped, required zero values are present, quantities and times are normalized. It also returns the strict findings, which
//! are unknown and duplicate fields; the caller decides what to do with them, see [`FieldValidation`].
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `limits`, `budget`, `error`, `scalar`, `media` | bounds, Go's spelling of scalars, media types |
//! | `document`, `zero`, `strict` | what a document declares itself to be, the value of an absent field, and the unknown and duplicate fields of a document at every level |
//! | `json/`, `proto/`, `canonical` | the encodings, and the form that is stored; the words of a strict finding are made in `json/` only |
//! | `yaml/` | YAML, and `settings`: a mapping of options as it is written |
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
pub use scalar::{format_duration, go_duration};

use kelson_schema::TypeId;
use serde_json::Value;

/// `fieldValidation` of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Unknown and duplicate fields are dropped silently.
    Ignore,
    /// Unknown and duplicate fields are dropped, with a warning for each.
    #[default]
    Warn,
    /// A document with unknown or duplicate fields is rejected.
    Strict,
}

impl FieldValidation {
    /// Parses the query parameter's value. An empty value means the default; an unknown value returns `None`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Warn" => Some(Self::Warn),
            "Ignore" => Some(Self::Ignore),
            "Strict" => Some(Self::Strict),
            _ => None,
        }
    }
}

/// Reads `apiVersion` and `kind` of a document without decoding the rest of it.
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

/// Decodes a document as the given type. With `None` it is decoded as an object of unknown structure (a custom resource), which
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

/// Decodes as [`decode_patch`] does, but whole floats (`1.0`, `1e0`) stay floats: a merge patch or JSON patch writes them into the
/// object as they are spelled, and an integer field does not accept them.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode_spelled_patch(data: &[u8], strict: bool) -> Result<Decoded, DecodeError> {
    if data.len() > DOCUMENT_BYTES_MAX {
        return Err(DecodeError::TooLarge);
    }
    json::document(None, data, (strict, true), &mut Budget::new(Limits::PATCH))
}

/// Converts the whole floats of a tree to integers, as decoding does.
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

/// Encodes an object. The JSON has no newline at the end.
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

/// Returns the canonical form of an object of this type without any values set.
pub fn zero_object(ty: TypeId) -> Value {
    Value::Object(zero::zero_struct(ty))
}

/// Brings a tree, such as a patched object, into canonical form. Unknown fields are dropped, and reported if `strict` is set.
///
/// # Errors
/// Returns what [`decode`] returns for the tree's JSON.
pub fn normalize(ty: TypeId, mut value: Value, strict: bool) -> Result<Decoded, DecodeError> {
    if canonical::in_place(ty, &mut value) {
        return Ok(Decoded { value, strict: StrictErrors::default() });
    }
    let json = canonical_json(&value);
    // This avoids two trees in memory at the same time.
    drop(value);
    json::decode(Some(ty), &json, strict)
}
