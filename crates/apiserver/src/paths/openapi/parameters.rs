//! Parameters of operations. What may stand in a query is what the options types of the table have for fields; a version 2
//! document has each parameter that many operations share once (kube-openapi `pkg/builder/parameters.go`).
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use kelson_schema::{Descriptions, Field, FieldType, Kind, TypeId};
use serde_json::{Map, Value, json};

use super::version::OpenApiVersion;
use crate::catalog::ObjectSchema;
use crate::request::order::{Order, Ordered};

/// Where a parameter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// A `{name}` of the path.
    Path,
    /// Behind the question mark.
    Query,
}

/// A parameter that is no body.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Parameter {
    /// Sorted by it.
    pub name: String,
    /// Where it stands.
    pub place: Location,
    ty: &'static str,
    text: String,
}

/// Parameters that documents of version 2 never share, because old versions of kubectl look for them by where they stand.
const NEVER_SHARED: [&str; 2] = ["dryRun", "fieldValidation"];

impl Parameter {
    /// A part of the path.
    pub fn path(name: &str, text: impl Into<String>) -> Self {
        Self { name: name.to_owned(), place: Location::Path, ty: "string", text: text.into() }
    }
    /// A query parameter of a simple type.
    pub fn query(name: &str, ty: &'static str, text: impl Into<String>) -> Self {
        Self { name: name.to_owned(), place: Location::Query, ty, text: text.into() }
    }
    /// The fields of an options type that a query can say, but for those in `without`.
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

/// The type of a query parameter; `None` for what has no simple form there.
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

/// The parameters that operations of a version 2 document share.
#[derive(Default)]
pub struct Shared(BTreeMap<String, Value>);

impl Shared {
    /// What stands at an operation or a path: the parameter, or a reference to the one that all share.
    pub fn place(&mut self, parameter: &Parameter, version: OpenApiVersion) -> Value {
        let facts = parameter.facts(version);
        let named = parameter.name == "name";
        if version == OpenApiVersion::V3 || named || NEVER_SHARED.contains(&parameter.name.as_str()) {
            return facts;
        }
        self.refer(&parameter.name, facts)
    }
    /// A reference to a body whose type is not the kind's own.
    pub fn body(&mut self, facts: Value) -> Value {
        self.refer("body", facts)
    }
    fn refer(&mut self, name: &str, facts: Value) -> Value {
        let name = format!("{name}-{}", digest(&facts));
        let reference = json!({"$ref": format!("#/parameters/{name}")});
        self.0.entry(name).or_insert(facts);
        reference
    }
    /// All of them by name.
    pub fn finish(self) -> Map<String, Value> {
        self.0.into_iter().collect()
    }
}

/// The order of a parameter's facts in the text that its name is made of.
const ORDER: Order = &[("", &["uniqueItems", "type", "description", "name", "in", "required", "schema"])];

/// What makes names of shared parameters unique: eight characters of a 64-bit FNV-1 sum.
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
    fn names_are_made_as_published() {
        // The published parameter that has no sentence in it.
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
