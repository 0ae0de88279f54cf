//! Checks whether an object already has the form of its schema: no field to prune, no null to drop and no default to
//! set. `prune`, `drop_nulls` and `default` would not change such an object. The check does not copy it.
use serde_json::Value;

use super::prune::is_meta;
use crate::schema::{Additional, Flags, Node};

/// Reports whether `prune` would drop no field.
pub fn is_pruned(value: &Value, node: &Node) -> bool {
    is_known(value, Some(node))
}

fn is_known(value: &Value, node: Option<&Node>) -> bool {
    let Some(node) = node else { return has_no_fields(value) };
    if node.is(Flags::PRESERVE) {
        return is_kept(value, node);
    }
    match value {
        Value::Object(fields) => fields.iter().all(|(key, value)| {
            if node.is(Flags::EMBEDDED) && is_meta(key) {
                return true;
            }
            match (node.property(key), node.additional()) {
                (Some(property), _) => is_known(value, Some(property)),
                (None, Additional::Schema(values)) => is_known(value, Some(values)),
                (None, Additional::Yes | Additional::No) => has_no_fields(value),
                (None, Additional::Unset) => false,
            }
        }),
        Value::Array(list) => list.iter().all(|element| is_known(element, node.items().map(|c| &**c))),
        _ => true,
    }
}

/// Reports whether objects in a part without a schema have no fields.
fn has_no_fields(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(list) => list.iter().all(has_no_fields),
        _ => true,
    }
}

/// Checks a part in which every field is preserved, and pruned again below fields that the schema describes.
fn is_kept(value: &Value, node: &Node) -> bool {
    match value {
        Value::Object(fields) => fields.iter().all(|(key, value)| {
            if node.is(Flags::EMBEDDED) && is_meta(key) {
                return true;
            }
            match (node.property(key), node.additional()) {
                (Some(property), _) => is_known(value, Some(property)),
                (None, Additional::Schema(values)) => is_known(value, Some(values)),
                (None, Additional::Yes | Additional::No) => has_no_fields(value),
                (None, Additional::Unset) => true,
            }
        }),
        Value::Array(list) => node.items().is_none_or(|items| list.iter().all(|element| is_kept(element, items))),
        _ => true,
    }
}

/// Reports whether there is no null where null is not allowed. The root's own metadata is not checked.
pub fn has_no_void_nulls(value: &Value, node: &Node) -> bool {
    let Value::Object(fields) = value else { return is_without_nulls(value, node) };
    fields.iter().all(|(name, value)| name == "metadata" || field_is_without_nulls(name, value, node))
}

fn is_without_nulls(value: &Value, node: &Node) -> bool {
    match value {
        Value::Object(fields) => fields.iter().all(|(name, value)| field_is_without_nulls(name, value, node)),
        Value::Array(list) => node.items().is_none_or(|items| list.iter().all(|value| is_without_nulls(value, items))),
        _ => true,
    }
}

fn field_is_without_nulls(name: &str, value: &Value, node: &Node) -> bool {
    let Some(known) = node.field(name) else { return true };
    let void = value.is_null() && known.refuses_null() && known.default_value().is_none();
    !void && is_without_nulls(value, known)
}

/// Reports whether every default is set.
pub fn is_defaulted(value: &Value, node: &Node) -> bool {
    if !node.is(Flags::BELOW_DEFAULTS) {
        return true;
    }
    match value {
        Value::Object(fields) => {
            let filled = node.properties().iter().all(|(name, property)| {
                property.default_value().is_none()
                    || fields.get(name.as_ref()).is_some_and(|value| !value.is_null() || !property.refuses_null())
            });
            filled
                && fields.iter().all(|(name, value)| match (node.property(name), node.values_of_map()) {
                    (Some(property), _) => is_defaulted(value, property),
                    (None, Some(values)) => is_element_defaulted(value, values),
                    (None, None) => true,
                })
        }
        Value::Array(list) => {
            node.items().is_none_or(|items| list.iter().all(|value| is_element_defaulted(value, items)))
        }
        _ => true,
    }
}

fn is_element_defaulted(value: &Value, node: &Node) -> bool {
    let void = value.is_null() && node.refuses_null() && node.default_value().is_some();
    !void && is_defaulted(value, node)
}
