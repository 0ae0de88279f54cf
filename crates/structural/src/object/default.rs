//! Sets defaults, and drops nulls without meaning (upstream `pkg/apiserver/schema/defaulting`).
use serde_json::Value;

use crate::schema::{Flags, Node};

/// Sets defaults of absent fields, and of nulls where null is not allowed.
pub fn default(value: &mut Value, node: &Node) {
    if !node.is(Flags::BELOW_DEFAULTS) {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, property) in node.properties() {
                let Some(wanted) = property.default_value() else { continue };
                let absent = match fields.get(name.as_ref()) {
                    None => true,
                    Some(Value::Null) => property.refuses_null(),
                    Some(_) => false,
                };
                if absent {
                    fields.insert(name.to_string(), wanted.clone());
                }
            }
            for (name, value) in fields.iter_mut() {
                if let Some(property) = node.property(name) {
                    default(value, property);
                } else if let Some(values) = node.values_of_map() {
                    element(value, values);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = node.items() else { return };
            list.iter_mut().for_each(|value| element(value, items));
        }
        _ => {}
    }
}

fn element(value: &mut Value, node: &Node) {
    if value.is_null()
        && node.refuses_null()
        && let Some(wanted) = node.default_value()
    {
        *value = wanted.clone();
    }
    default(value, node);
}

/// Drops nulls of fields where null is not allowed and there is no default, so that clients which write null for an
/// absent field are supported.
pub fn drop_nulls(value: &mut Value, node: &Node) {
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let Some(known) = node.field(name) else { return true };
            if value.is_null() && known.refuses_null() && known.default_value().is_none() {
                return false;
            }
            drop_nulls(value, known);
            true
        }),
        Value::Array(list) => {
            let Some(items) = node.items() else { return };
            list.iter_mut().for_each(|value| drop_nulls(value, items));
        }
        _ => {}
    }
}
