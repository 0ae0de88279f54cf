//! The fields of every object, at the root and in embedded objects. They are converted to the form of their types, or
//! rejected (upstream `pkg/apiserver/schema/objectmeta`).
use std::sync::LazyLock;

use kelson_codec::{DecodeError, StrictErrors};
use kelson_meta::path::Path;
use kelson_meta::{FieldError, FieldErrorKind};
use kelson_schema::{Kind, Schema, TypeId};
use serde_json::Value;

use crate::schema::{Flags, Node};

/// The type of `metadata`.
static OBJECT_META: LazyLock<Option<TypeId>> = LazyLock::new(|| {
    let kind = Schema::builtin().by_gvk("meta.k8s.io", "v1", "PartialObjectMetadata")?;
    match kind.field_by_json("metadata")?.ty().kind() {
        Kind::Struct(id) => Some(id),
        _ => None,
    }
});

/// The prefix of an unknown field's error in the decoder.
const UNKNOWN_FIELD: &str = "unknown field \"";

/// Converts an object's `metadata` to the canonical form in place. Unknown fields are dropped. With `found`, they are
/// added to it as fields below `parent`.
///
/// # Errors
/// Returns the decoder's error for a value that does not match its type.
pub fn canonical(object: &mut Value, parent: &Path<'_>, found: Option<&mut Vec<String>>) -> Result<(), DecodeError> {
    let (Some(ty), Some(metadata)) = (*OBJECT_META, object.get_mut("metadata")) else { return Ok(()) };
    let decoded = kelson_codec::normalize(ty, metadata.take(), found.is_some())?;
    *metadata = decoded.value;
    if let Some(found) = found {
        let StrictErrors(messages) = decoded.strict;
        let at = parent.child("metadata").field();
        found.extend(messages.iter().map(|m| match m.strip_prefix(UNKNOWN_FIELD) {
            Some(rest) => format!("{UNKNOWN_FIELD}{at}.{rest}"),
            None => m.clone(),
        }));
    }
    Ok(())
}

/// Checks `apiVersion`, `kind` and `metadata` of every object embedded in this value, and brings them into canonical form.
///
/// # Errors
/// Returns the first value that does not match its type, in the form of a field error.
pub fn coerce(value: &mut Value, node: &Node, found: Option<&mut Vec<String>>) -> Result<(), DecodeError> {
    let walked = Coercion { found }.walk(value, node, &Path::new(""));
    walked.map_err(|fault| DecodeError::Json(fault.to_string()))
}

/// Converts a value at `path`, with the error unchanged.
///
/// # Errors
/// Returns the first value that does not match its type.
pub fn coerce_at(value: &mut Value, node: &Node, path: &Path<'_>) -> Result<(), FieldError> {
    Coercion { found: None }.walk(value, node, path)
}

struct Coercion<'a> {
    found: Option<&'a mut Vec<String>>,
}

impl Coercion<'_> {
    fn walk(&mut self, value: &mut Value, node: &Node, path: &Path<'_>) -> Result<(), FieldError> {
        if !node.is(Flags::BELOW_EMBEDDED) {
            return Ok(());
        }
        if node.is(Flags::EMBEDDED) && value.is_object() {
            self.embedded(value, path)?;
        }
        match value {
            Value::Object(fields) => {
                for (key, value) in fields.iter_mut() {
                    if let Some(property) = node.property(key) {
                        self.walk(value, property, &path.child(key))?;
                    } else if let Some(values) = node.values_of_map() {
                        self.walk(value, values, &path.key(key))?;
                    }
                }
            }
            Value::Array(list) => {
                let Some(items) = node.items() else { return Ok(()) };
                for (i, element) in list.iter_mut().enumerate() {
                    self.walk(element, items, &path.index(i))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn embedded(&mut self, object: &mut Value, path: &Path<'_>) -> Result<(), FieldError> {
        for key in ["apiVersion", "kind"] {
            if let Some(value) = object.get(key)
                && !value.is_string()
            {
                return Err(refused(&path.child(key), value, "must be a string"));
            }
        }
        let metadata = object.get("metadata").cloned();
        canonical(object, path, self.found.as_deref_mut())
            .map_err(|why| refused(&path.child("metadata"), &metadata.unwrap_or_default(), &why.to_string()))?;
        let created = object.get_mut("metadata").and_then(Value::as_object_mut);
        if let Some(metadata) = created
            && metadata.get("creationTimestamp").is_some_and(Value::is_null)
        {
            metadata.remove("creationTimestamp");
        }
        Ok(())
    }
}

fn refused(path: &Path<'_>, value: &Value, why: &str) -> FieldError {
    let path = path.field().to_string();
    FieldError { kind: FieldErrorKind::Invalid, path, value: Some(value.to_string()), detail: why.to_owned() }
}
