//! Parses `JSONSchemaProps` in a definition's tree. Constructs that a structural schema cannot have are rejected with
//! upstream's message (`pkg/apiserver/schema/convert.go`); `definition` checks whether it is structural.
use std::sync::Arc;

use kelson_meta::tree::{entries, flag, items, text};
use kelson_schema::{ListType, shape::SCHEMA_DEPTH_MAX};
use serde_json::Value;

use super::format::Format;
use super::node::{Additional, Bound, Child, Flags, Name, Node, Rare, Rule, Type, Values};
use super::table;

/// Why a schema cannot be structural. The message is for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A keyword that structural schemas do not have.
    #[error("OpenAPIV3Schema '{0}' is not supported")]
    Unsupported(&'static str),
    /// `items` with a schema for each element.
    #[error("OpenAPIV3Schema 'items' must be a schema, but is an array")]
    ItemsArray,
    /// `x-kubernetes-preserve-unknown-fields` is false, which is not allowed because it is the default.
    #[error("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined")]
    PreserveFalse,
    /// The schema is nested deeper than [`SCHEMA_DEPTH_MAX`].
    #[error("OpenAPIV3Schema is nested too deeply")]
    TooDeep,
}

/// Reads a schema.
///
/// # Errors
/// Fails for constructs that structural schemas do not support.
pub(super) fn parse(schema: &Value) -> Result<Arc<Node>, SchemaError> {
    node(schema, SchemaPlace::default()).map(|child| child.0)
}

/// Keywords that structural schemas do not support, in the order in which they are reported.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("id", "id"),
    ("$schema", "schema"),
    ("$ref", "$ref"),
    ("patternProperties", "patternProperties"),
    ("dependencies", "dependencies"),
    ("additionalItems", "additionalItems"),
    ("definitions", "definitions"),
];

fn supported(schema: &Value) -> Result<(), SchemaError> {
    for &(key, reported) in UNSUPPORTED {
        let set = match &schema[key] {
            Value::Null => false,
            Value::String(s) => !s.is_empty(),
            Value::Object(o) if key != "additionalItems" => !o.is_empty(),
            _ => true,
        };
        if set {
            return Err(SchemaError::Unsupported(reported));
        }
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == false {
        return Err(SchemaError::PreserveFalse);
    }
    Ok(())
}

/// The position of a part in its schema.
#[derive(Clone, Copy, Default)]
struct SchemaPlace {
    depth: usize,
    /// Whether unknown fields are preserved here or above.
    open: bool,
}

impl SchemaPlace {
    fn below(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }
}

fn node(schema: &Value, mut place: SchemaPlace) -> Result<Child, SchemaError> {
    if place.depth > SCHEMA_DEPTH_MAX {
        return Err(SchemaError::TooDeep);
    }
    supported(schema)?;
    let mut node = Node { ty: Type::of(text(&schema["type"])), ..Node::default() };
    for (key, flag_of) in [
        ("nullable", Flags::NULLABLE),
        ("x-kubernetes-preserve-unknown-fields", Flags::PRESERVE),
        ("x-kubernetes-embedded-resource", Flags::EMBEDDED),
        ("x-kubernetes-int-or-string", Flags::INT_OR_STRING),
        ("exclusiveMaximum", Flags::EXCLUSIVE_MAXIMUM),
        ("exclusiveMinimum", Flags::EXCLUSIVE_MINIMUM),
    ] {
        node.flags.set(flag_of, flag(&schema[key]));
    }
    place.open |= node.is(Flags::PRESERVE);
    node.flags.set(Flags::OPEN, place.open);
    node.flags.set(Flags::ATOMIC, schema["x-kubernetes-map-type"] == "atomic");
    node.list_type = match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => Some(ListType::Set),
        Some("map") => Some(ListType::Map),
        Some(_) => Some(ListType::Atomic),
        None => None,
    };
    let mut properties = Vec::new();
    for (key, property) in entries(&schema["properties"]) {
        properties.push((table::name(key), self::node(property, place.below())?));
    }
    // The keys of a tree may already be sorted, depending on its map type.
    properties.sort_by(|(a, _), (b, _)| a.cmp(b));
    node.properties = properties.into();
    node.additional = match &schema["additionalProperties"] {
        Value::Bool(true) => Additional::Yes,
        Value::Bool(false) => Additional::No,
        values @ Value::Object(_) => Additional::Schema(self::node(values, place.below())?),
        _ => Additional::Unset,
    };
    node.items = match &schema["items"] {
        Value::Array(list) if !list.is_empty() => return Err(SchemaError::ItemsArray),
        element @ Value::Object(_) => Some(self::node(element, place.below())?),
        _ => None,
    };
    node.values = values(schema, node.is(Flags::INT_OR_STRING), place)?;
    node.rare = rare(schema);
    below(&mut node);
    Ok(table::node(node))
}

/// Sets the flags for this node and those below it, so that walks can skip parts.
fn below(node: &mut Node) {
    let mut flags = node.flags;
    let children = node.properties.iter().map(|(_, c)| c).chain(node.values_of_map()).chain(&node.items);
    for child in children {
        flags.inherit(child);
        // Null becomes the default of its node, also in lists and maps.
        flags.set(Flags::BELOW_DEFAULTS, child.default_value().is_some());
    }
    flags.set(Flags::BELOW_EMBEDDED, node.is(Flags::EMBEDDED));
    flags.set(Flags::BELOW_LISTS, matches!(node.list_type, Some(ListType::Set | ListType::Map)));
    flags.set(Flags::BELOW_RULES, !node.rules().is_empty());
    node.flags = flags;
}

fn names(list: &Value) -> Box<[Name]> {
    items(list).iter().filter_map(Value::as_str).map(table::name).collect()
}

fn optional_name(value: &Value) -> Option<Name> {
    value.as_str().filter(|s| !s.is_empty()).map(table::name)
}

fn values(schema: &Value, int_or_string: bool, place: SchemaPlace) -> Result<Option<Box<Values>>, SchemaError> {
    let clauses = |key: &str| -> Result<Box<[Child]>, SchemaError> {
        items(&schema[key]).iter().map(|clause| node(clause, place.below())).collect()
    };
    let bound = |key: &str| schema[key].as_f64().map(Bound);
    let ty = if int_or_string { "" } else { text(&schema["type"]) };
    let format = text(&schema["format"]);
    let values = Values {
        format: Format::at(ty, format).map(|f| (f, table::name(format))),
        maximum: bound("maximum"),
        minimum: bound("minimum"),
        multiple_of: bound("multipleOf"),
        max_length: schema["maxLength"].as_i64(),
        min_length: schema["minLength"].as_i64(),
        max_items: schema["maxItems"].as_i64(),
        min_items: schema["minItems"].as_i64(),
        max_properties: schema["maxProperties"].as_i64(),
        min_properties: schema["minProperties"].as_i64(),
        pattern: optional_name(&schema["pattern"]),
        allowed: items(&schema["enum"]).into(),
        required: names(&schema["required"]),
        all_of: clauses("allOf")?,
        any_of: clauses("anyOf")?,
        one_of: clauses("oneOf")?,
        not: schema.get("not").filter(|n| n.is_object()).map(|n| node(n, place.below())).transpose()?,
    };
    Ok((values != Values::default()).then(|| Box::new(values)))
}

fn rare(schema: &Value) -> Option<Box<Rare>> {
    let rule = |rule: &Value| {
        let name = |key: &str| table::name(text(&rule[key]));
        Rule {
            rule: name("rule"),
            message: name("message"),
            message_expression: name("messageExpression"),
            reason: name("reason"),
            field_path: name("fieldPath"),
            optional_old_self: rule["optionalOldSelf"].as_bool(),
        }
    };
    let rare = Rare {
        default: schema["default"].clone(),
        map_keys: names(&schema["x-kubernetes-list-map-keys"]),
        rules: items(&schema["x-kubernetes-validations"]).iter().map(rule).collect(),
    };
    (rare != Rare::default()).then(|| Box::new(rare))
}
