//! The processing of an object by its schema, in the order of a request: conversion (metadata, unknown fields, nulls),
//! defaults, validation.
mod complete;
mod correlate;
mod default;
mod embedded;
mod formats;
mod lists;
mod metadata;
mod prune;
mod validate;

use kelson_codec::{DecodeError, Decoded, StrictErrors};
use kelson_meta::path::Path;
use serde_json::Value;

use crate::schema::{Node, Structural};

pub use complete::{has_no_void_nulls, is_defaulted, is_pruned};
pub use correlate::{MapList, Old};
pub use default::{default, drop_nulls};
pub use embedded::check_embedded;
pub use lists::check_lists;
use metadata::coerce;
pub use metadata::coerce_at;
pub use prune::{Unknown, prune};
pub use validate::validate;

/// Converts a decoded object to the form of its schema: metadata is converted to its type, unknown fields and nulls
/// without meaning are dropped, and embedded objects are checked. With `strict`, unknown fields are reported. Upstream:
/// `unstructuredSchemaCoercer`.
///
/// # Errors
/// Fails for metadata, here or in embedded objects, that does not match its type.
pub fn fit(schema: &Structural, object: Value, preserve_unknown: bool, strict: bool) -> Result<Decoded, DecodeError> {
    fitted(schema, object, preserve_unknown, strict, true)
}

/// Works like [`fit`] for the result of an apply: nulls stay where null is not allowed.
///
/// # Errors
/// Fails like [`fit`].
pub fn fit_applied(schema: &Structural, object: Value, preserve_unknown: bool) -> Result<Decoded, DecodeError> {
    fitted(schema, object, preserve_unknown, false, false)
}

fn fitted(
    schema: &Structural,
    mut object: Value,
    preserve_unknown: bool,
    strict: bool,
    without_nulls: bool,
) -> Result<Decoded, DecodeError> {
    for key in ["kind", "apiVersion"] {
        if let Some(value) = object.get(key)
            && !value.is_string()
        {
            let shown = if value.is_null() { "<nil>".to_owned() } else { value.to_string() };
            let message = format!(".{key} accessor error: {shown} is of the type {}, expected string", go_type(value));
            return Err(DecodeError::Json(message));
        }
    }
    let mut found = Vec::new();
    metadata::canonical(&mut object, &Path::new(""), strict.then_some(&mut found))?;
    if !preserve_unknown {
        let mut unknown = Unknown::new(strict);
        prune(&mut object, schema.resource(), &mut unknown);
        found.extend(unknown.sorted().iter().map(|path| format!("unknown field \"{path}\"")));
        if without_nulls {
            drop_nulls_of_resource(&mut object, schema.declared());
        }
    }
    let mut embedded = Vec::new();
    coerce(&mut object, schema.declared(), strict.then_some(&mut embedded))?;
    embedded.sort();
    found.extend(embedded);
    found.truncate(kelson_codec::STRICT_ERRORS_MAX);
    Ok(Decoded { value: object, strict: StrictErrors(found) })
}

/// Drops nulls. The root's own metadata is already in canonical form, so the schema does not apply to it.
fn drop_nulls_of_resource(object: &mut Value, node: &Node) {
    let metadata = object.get_mut("metadata").map(Value::take);
    drop_nulls(object, node);
    if let (Some(metadata), Some(fields)) = (metadata, object.as_object_mut()) {
        fields.insert("metadata".to_owned(), metadata);
    }
}

/// Returns the name of a decoded value's type in Go's reflection, as errors show it.
pub fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
