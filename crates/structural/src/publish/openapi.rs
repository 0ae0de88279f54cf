//! A definition's schema in the published form, in OpenAPI 3 and in Swagger 2, which supports less (upstream
//! `pkg/controller/openapi/builder`). The author's descriptions and extensions stay, and the fields of every object are
//! added.
use kelson_meta::tree::{entries, flag, items};
use kelson_schema::{Descriptions, Schema, TypeId};
use serde_json::{Map, Value, json};

use crate::schema::is_int_or_string_pattern;

/// The document in which a schema is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Swagger 2.0: without `nullable`, `anyOf` and similar keywords. Parts that kubectl misinterprets are left out.
    V2,
    /// OpenAPI 3.0, which supports all of structural schemas.
    V3,
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
/// Keywords that are published unchanged.
const KEPT: &[&str] = &[
    "description",
    "title",
    "type",
    "default",
    "example",
    "externalDocs",
    "nullable",
    "format",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "enum",
    "maxProperties",
    "minProperties",
    "required",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
];
const CLAUSES: &[&str] = &["allOf", "anyOf", "oneOf"];
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";

/// Returns the definition of a kind, without `x-kubernetes-group-version-kind`. `schema` is `openAPIV3Schema`; without
/// one, the kind is an object with unknown fields. `preserve_unknown` is the old `spec.preserveUnknownFields`.
pub fn definition(schema: Option<&Value>, preserve_unknown: bool, dialect: Dialect, texts: &Descriptions) -> Value {
    let Some(schema) = schema else { return json!({"type": "object"}) };
    if dialect == Dialect::V2 && (preserve_unknown || flag(&schema[PRESERVE])) {
        // kubectl would reject fields that are not listed here.
        return json!({"type": "object"});
    }
    let writer = Writer { dialect, texts };
    let mut root = writer.place(schema);
    let properties = own_fields(&mut root);
    properties.insert("metadata".into(), writer.reference("ObjectMeta", writer.text("metadata")));
    for key in ["apiVersion", "kind"] {
        properties.insert(key.into(), writer.word(key));
    }
    root.into()
}

/// Returns the definition of a kind's list, without `x-kubernetes-group-version-kind`. `item` is the name of the kind's
/// definition.
pub fn list_definition(
    kind: &str,
    list_kind: &str,
    plural: &str,
    item: &str,
    dialect: Dialect,
    texts: &Descriptions,
) -> Value {
    let writer = Writer { dialect, texts };
    let mut properties = Map::new();
    for key in ["apiVersion", "kind"] {
        properties.insert(key.into(), writer.word(key));
    }
    let list = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";
    properties.insert(
        "items".into(),
        json!({
            "description": format!("List of {plural}. More info: {list}"),
            "items": {"$ref": writer.pointer(item)},
            "type": "array",
        }),
    );
    properties.insert("metadata".into(), writer.reference("ListMeta", writer.list_text()));
    json!({
        "description": format!("{list_kind} is a list of {kind}"),
        "properties": properties,
        "required": ["items"],
        "type": "object",
    })
}

struct Writer<'a> {
    dialect: Dialect,
    texts: &'a Descriptions,
}

impl Writer<'_> {
    fn pointer(&self, name: &str) -> String {
        match self.dialect {
            Dialect::V2 => format!("#/definitions/{name}"),
            Dialect::V3 => format!("#/components/schemas/{name}"),
        }
    }
    /// Returns a reference with a description. In OpenAPI 3 a reference has no siblings.
    fn reference(&self, ty: &str, text: &str) -> Value {
        let to = json!({"$ref": self.pointer(&format!("{META}.{ty}"))});
        match self.dialect {
            Dialect::V2 => json!({"description": text, "$ref": to["$ref"]}),
            Dialect::V3 => json!({"description": text, "allOf": [to]}),
        }
    }
    /// Returns the description of a field that every object has.
    fn text(&self, field: &str) -> &'static str {
        self.text_of(by_kind("PartialObjectMetadata"), field)
    }
    fn list_text(&self) -> &'static str {
        self.text_of(by_kind("PartialObjectMetadataList"), "metadata")
    }
    fn text_of(&self, ty: Option<TypeId>, field: &str) -> &'static str {
        ty.and_then(|ty| self.texts.of(ty, ty.field_by_json(field))).unwrap_or_default()
    }
    fn word(&self, field: &str) -> Value {
        json!({"description": self.text(field), "type": "string"})
    }

    /// Converts a node of the schema, with those below it.
    fn place(&self, schema: &Value) -> Map<String, Value> {
        let mut out = Map::new();
        for &key in KEPT {
            let value = &schema[key];
            if !unset(key, value) {
                out.insert(key.to_owned(), value.clone());
            }
        }
        let mut below = true;
        match self.dialect {
            Dialect::V3 => self.clauses(schema, &mut out),
            Dialect::V2 => below = simplify(schema, &mut out),
        }
        let children = |key: &str| below.then(|| &schema[key]).filter(|v| v.is_object());
        if let Some(properties) = children("properties").filter(|p| entries(p).next().is_some()) {
            let properties = entries(properties).map(|(k, p)| (k.clone(), self.place(p).into()));
            out.insert("properties".to_owned(), Value::Object(properties.collect()));
        }
        if let Some(element) = children("items") {
            out.insert("items".to_owned(), self.place(element).into());
        }
        match &schema["additionalProperties"] {
            values @ Value::Object(_) => {
                out.insert("additionalProperties".to_owned(), self.place(values).into());
            }
            Value::Bool(any) => {
                out.insert("additionalProperties".to_owned(), (*any).into());
            }
            _ => {}
        }
        if flag(&schema["x-kubernetes-embedded-resource"]) && !(self.dialect == Dialect::V2 && flag(&schema[PRESERVE]))
        {
            self.embedded(&mut out);
        }
        out
    }

    /// Converts `anyOf` and similar keywords, including those of an int-or-string.
    fn clauses(&self, schema: &Value, out: &mut Map<String, Value>) {
        for &key in CLAUSES {
            let list = items(&schema[key]);
            if !list.is_empty() {
                out.insert(key.to_owned(), list.iter().map(|c| Value::from(self.nested(c))).collect());
            }
        }
        if schema["not"].is_object() {
            out.insert("not".to_owned(), self.nested(&schema["not"]).into());
        }
        if flag(&schema[INT_OR_STRING]) && !is_int_or_string_pattern(schema) {
            let either = json!([{"type": "integer"}, {"type": "string"}]);
            if out.contains_key("anyOf") {
                let mut all = vec![json!({"anyOf": either})];
                all.extend(out.remove("allOf").and_then(|all| all.as_array().cloned()).unwrap_or_default());
                out.insert("allOf".to_owned(), all.into());
            } else {
                out.insert("anyOf".to_owned(), either);
            }
        }
    }

    fn nested(&self, clause: &Value) -> Map<String, Value> {
        self.place(clause)
    }

    /// Adds the fields of every object to an embedded object.
    fn embedded(&self, out: &mut Map<String, Value>) {
        let properties = own_fields(out);
        for key in ["apiVersion", "kind"] {
            properties.insert(key.into(), self.word(key));
        }
        properties.insert("metadata".into(), self.reference("ObjectMeta", self.text("metadata")));
        let required = out.entry("required").or_insert_with(|| json!([]));
        for key in ["kind", "apiVersion"] {
            if let Some(required) = required.as_array_mut()
                && !required.iter().any(|r| r == key)
            {
                required.push(key.into());
            }
        }
    }
}

/// Reduces a node to Swagger 2, as kubectl reads it. Returns whether its fields and elements can be described.
fn simplify(schema: &Value, out: &mut Map<String, Value>) -> bool {
    let nullable = flag(&schema["nullable"]);
    let preserve = flag(&schema[PRESERVE]);
    out.remove("nullable");
    let below = !nullable && !preserve;
    let elements = below && schema["items"].is_object();
    let untyped = match out.get("type").and_then(Value::as_str) {
        Some("array") => nullable || !elements,
        Some("object") => nullable || preserve,
        _ => nullable,
    };
    if untyped {
        out.remove("type");
    }
    let void = |field: &str| below && flag(&schema["properties"][field]["nullable"]);
    if flag(&schema["additionalProperties"]["nullable"]) {
        out.remove("required");
    } else if let Some(required) = out.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|field| !field.as_str().is_some_and(void));
        if required.is_empty() {
            out.remove("required");
        }
    }
    below
}

fn own_fields(place: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let properties = place.entry("properties").or_insert_with(|| json!({}));
    if !properties.is_object() {
        *properties = json!({});
    }
    properties.as_object_mut().expect("made an object above")
}

/// Reports whether a keyword has no effect. A default or example of zero has one.
fn unset(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set && !matches!(key, "default" | "example"),
        Value::String(text) => text.is_empty() && !matches!(key, "default" | "example"),
        Value::Array(list) => list.is_empty() && !matches!(key, "default" | "example"),
        _ => false,
    }
}

fn by_kind(kind: &str) -> Option<TypeId> {
    Schema::builtin().by_gvk("meta.k8s.io", "v1", kind)
}
