//! Parameters of operations. Query parameters are the fields of options types. A version 2 document has each common parameter only once
//! (kube-openapi `pkg/builder/parameters.go`).
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use kelson_schema::{Descriptions, Field, FieldType, Kind, TypeId};
use serde_json::{Map, Value, json};

use super::version::OpenApiVersion;
use crate::catalog::ObjectSchema;
use crate::request::order::{Order, Ordered};

/// The location of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// A `{name}` in the path.
    Path,
    /// A parameter of the query.
    Query,
}

/// A path or query parameter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Parameter {
    /// The name; parameters are sorted by it.
    pub name: String,
    /// The location of the parameter.
    pub place: Location,
    ty: &'static str,
    text: String,
}

/// Parameters that are never shared in version 2 documents, because old versions of kubectl look for them at the operation.
const NEVER_SHARED: [&str; 2] = ["dryRun", "fieldValidation"];

impl Parameter {
    /// A path parameter.
    pub fn path(name: &str, text: impl Into<String>) -> Self {
        Self { name: name.to_owned(), place: Location::Path, ty: "string", text: text.into() }
    }
    /// A query parameter with a simple type.
    pub fn query(name: &str, ty: &'static str, text: impl Into<String>) -> Self {
        Self { name: name.to_owned(), place: Location::Query, ty, text: text.into() }
    }
    /// The fields of an options type that have a query form, without those in `without`.
    pub fn of_options(kind: &str, without: &[&str], texts: &Descriptions) -> Vec<Self> {
        let known = [ObjectSchema::meta(kind), ObjectSchema::builtin("", "v1", kind)];
        let Some(ty) = known.iter().find_map(ObjectSchema::type_id) else { return Vec::new() };
        let fields = ty.json_fields().filter(|f| !["kind", "apiVersion"].contains(&f.json()));
        fields.filter(|f| !without.contains(&f.json())).filter_map(|f| Self::of_field(ty, f, texts)).collect()
    }
    fn of_field(ty: TypeId, field: Field, texts: &Descriptions) -> Option<Self> {
        let text = texts.of(ty, Some(field)).unwrap_or_default();
        Some(Self::query(field.json(), simple(field.ty())?, text))
    }
    fn facts(&self, version: OpenApiVersion) -> Value {
        let place = if self.place == Location::Path { "path" } else { "query" };
        let mut facts = Map::new();
        facts.insert("description".into(), self.text.as_str().into());
        facts.insert("in".into(), place.into());
        facts.insert("name".into(), self.name.as_str().into());
        if self.place == Location::Path {
            facts.insert("required".into(), true.into());
        }
        if version == OpenApiVersion::V3 {
            facts.insert("schema".into(), json!({"type": self.ty, "uniqueItems": true}));
        } else {
            facts.insert("type".into(), self.ty.into());
            facts.insert("uniqueItems".into(), true.into());
        }
        facts.into()
    }
}

/// The type of a query parameter; `None` if it has no simple form.
fn simple(ty: FieldType) -> Option<&'static str> {
    match ty.kind() {
        Kind::Bool => Some("boolean"),
        Kind::Int32 | Kind::Int64 => Some("integer"),
        Kind::Double => Some("number"),
        Kind::String => Some("string"),
        Kind::List(element) => simple(element),
        _ => None,
    }
}

/// The common parameters of a version 2 document.
#[derive(Default)]
pub struct Shared(BTreeMap<String, Value>);

impl Shared {
    /// The parameter for an operation or path: itself, or a reference to the common one.
    pub fn place(&mut self, parameter: &Parameter, version: OpenApiVersion) -> Value {
        let facts = parameter.facts(version);
        let named = parameter.name == "name";
        if version == OpenApiVersion::V3 || named || NEVER_SHARED.contains(&parameter.name.as_str()) {
            return facts;
        }
        self.refer(&parameter.name, facts)
    }
    /// A reference to a common body parameter.
    pub fn body(&mut self, facts: Value) -> Value {
        self.refer("body", facts)
    }
    fn refer(&mut self, name: &str, facts: Value) -> Value {
        let name = format!("{name}-{}", digest(&facts));
        let reference = json!({"$ref": format!("#/parameters/{name}")});
        self.0.entry(name).or_insert(facts);
        reference
    }
    /// All common parameters by name.
    pub fn finish(self) -> Map<String, Value> {
        self.0.into_iter().collect()
    }
}

/// The order of members in the JSON from which the name is computed.
const ORDER: Order = &[("", &["uniqueItems", "type", "description", "name", "in", "required", "schema"])];

/// The unique part of a common parameter's name: eight characters of a 64-bit FNV-1 hash.
fn digest(facts: &Value) -> String {
    let text = serde_json::to_vec(&Ordered::new(facts, ORDER)).unwrap_or_default();
    let step = |sum: u64, byte: &u8| sum.wrapping_mul(0x0000_0100_0000_01b3) ^ u64::from(*byte);
    let sum = text.iter().fold(0xcbf2_9ce4_8422_2325, step);
    URL_SAFE.encode(&sum.to_be_bytes()[..6])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_computed_as_published() {
        // The only published parameter without a description.
        let body = json!({"in": "body", "name": "body",
            "schema": {"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"}});
        assert_eq!(format!("body-{}", digest(&body)), "body-2Y1dVQaQ");
    }

    #[test]
    fn options_are_parameters() {
        let texts = Descriptions::load();
        let names = |kind: &str, without: &[&str]| {
            let all = Parameter::of_options(kind, without, &texts);
            all.iter().map(|p| format!("{}:{}", p.name, p.ty)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            names("PatchOptions", &[]),
            "dryRun:string fieldManager:string fieldValidation:string force:boolean"
        );
        assert_eq!(names("PodProxyOptions", &[]), "path:string");
        assert_eq!(names("PatchOptions", &["force", "dryRun", "fieldManager", "fieldValidation"]), "");
        assert_eq!(names("Unheard", &[]), "");
    }
}
