//! What expressions see of a kind's objects: of built-in kinds by the table, of others by the OpenAPI document of their version
//! (upstream `cel/common/schemas.go`, `cel/openapi/resolver`). A place without one type is not seen at all; one that holds
//! itself is an object without fields.
use kelson_cel::{DeclType, Format, ListKind};
use kelson_meta::Gvk;
use kelson_schema::{Field, FieldType, Kind, ListType, Schema, TypeId};
use serde_json::Value;

/// Returns the type of a built-in kind, or `None` for others.
pub fn builtin(kind: &Gvk) -> Option<DeclType> {
    let id = Schema::builtin().by_gvk(&kind.group, &kind.version, &kind.kind)?;
    Some(of_struct(id, &mut Vec::new()))
}

/// Returns the type of a struct. `within` are the enclosing types.
fn of_struct(id: TypeId, within: &mut Vec<TypeId>) -> DeclType {
    if within.contains(&id) {
        return empty();
    }
    within.push(id);
    let fields: Vec<(&str, DeclType, bool)> = id
        .json_fields()
        .filter_map(|field| Some((field.json(), of_field(field, within)?, field.is_required())))
        .collect();
    within.pop();
    DeclType::object(fields)
}

fn empty() -> DeclType {
    DeclType::object(std::iter::empty::<(&str, DeclType, bool)>())
}

fn of_field(field: Field, within: &mut Vec<TypeId>) -> Option<DeclType> {
    match field.ty().kind() {
        Kind::List(element) | Kind::WrappedList(element) => {
            let kind = match field.list_type() {
                Some(ListType::Set) => ListKind::Set,
                Some(ListType::Map) => ListKind::Map(field.map_keys().map(str::to_owned).collect()),
                _ => ListKind::Atomic,
            };
            Some(DeclType::list(of_value(element, within)?, None, kind))
        }
        _ => of_value(field.ty(), within),
    }
}

fn of_value(ty: FieldType, within: &mut Vec<TypeId>) -> Option<DeclType> {
    Some(match ty.kind() {
        Kind::Bool => DeclType::bool(),
        Kind::Int32 | Kind::Int64 => DeclType::int(),
        Kind::Double => DeclType::double(),
        Kind::String | Kind::Duration => DeclType::string(None),
        Kind::Bytes => DeclType::bytes(None),
        Kind::Time | Kind::MicroTime => DeclType::timestamp(Format::DateTime),
        Kind::IntOrString => DeclType::int_or_string(None),
        Kind::RawExtension | Kind::FieldsV1 => empty(),
        // These are published without a type, as they may be a number, a string or any value.
        Kind::Quantity | Kind::Json | Kind::Any => return None,
        Kind::SchemaOrBool(_) | Kind::SchemaOrArray(_) | Kind::SchemaOrStringArray(_) => return None,
        Kind::Struct(id) => of_struct(id, within),
        Kind::List(element) | Kind::WrappedList(element) => {
            DeclType::list(of_value(element, within)?, None, ListKind::Atomic)
        }
        Kind::Map(value) => DeclType::map(of_value(value, within)?, None),
    })
}

/// The prefix of references to other schemas of a document.
const REFERENCE: &str = "#/components/schemas/";

/// Returns the type of a kind from the OpenAPI v3 document of its group and version, or `None` if the document does not
/// have it.
pub fn published(document: &Value, kind: &Gvk) -> Option<DeclType> {
    let is = |g: &Value| g["group"] == *kind.group && g["version"] == *kind.version && g["kind"] == *kind.kind;
    let schemas = &document["components"]["schemas"];
    let mut all = schemas.as_object()?.iter();
    let (name, schema) = all.find(|(_, schema)| {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array();
        kinds.is_some_and(|kinds| kinds.iter().any(is))
    })?;
    Published { schemas, within: vec![name] }.resolved(schema, true)
}

/// A document, and the names of the enclosing schemas.
struct Published<'d> {
    schemas: &'d Value,
    within: Vec<&'d str>,
}

impl<'d> Published<'d> {
    /// Returns the type of a schema, which may be a reference.
    fn of(&mut self, schema: &'d Value) -> Option<DeclType> {
        let Some(name) = reference(schema) else { return self.resolved(schema, false) };
        if self.within.contains(&name) {
            return Some(empty());
        }
        let (name, schema) = self.schemas.as_object()?.get_key_value(name)?;
        self.within.push(name);
        let decl = self.resolved(schema, false);
        self.within.pop();
        decl
    }

    /// Returns the type of a schema that is not a reference. The root of an object always has a kind, a version and a
    /// name.
    fn resolved(&mut self, schema: &'d Value, root: bool) -> Option<DeclType> {
        if schema["format"] == "int-or-string" || schema["x-kubernetes-int-or-string"] == true {
            return Some(DeclType::int_or_string(schema["maxLength"].as_i64()));
        }
        let root = root || schema["x-kubernetes-embedded-resource"] == true;
        Some(match schema["type"].as_str()? {
            "boolean" => DeclType::bool(),
            "integer" => DeclType::int(),
            "number" => DeclType::double(),
            "string" => string(schema),
            "array" => DeclType::list(self.of(schema.get("items")?)?, schema["maxItems"].as_i64(), list_kind(schema)),
            "object" => match schema.get("additionalProperties").filter(|s| s.is_object()) {
                Some(entry) => DeclType::map(self.of(entry)?, schema["maxProperties"].as_i64()),
                None => self.object(schema, root),
            },
            _ => return None,
        })
    }

    fn object(&mut self, schema: &'d Value, root: bool) -> DeclType {
        let implied = root && !self.says_what_every_object_has(schema);
        let required = |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|r| r == name));
        let mut fields: Vec<(&str, DeclType, bool)> = Vec::new();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            if implied && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                continue;
            }
            if let Some(decl) = self.of(property) {
                fields.push((name, decl, required(name) && property.get("default").is_none()));
            }
        }
        if implied {
            let text = || DeclType::string(None);
            let metadata = DeclType::object([("name", text(), false), ("generateName", text(), false)]);
            for (name, decl) in [("apiVersion", text()), ("kind", text()), ("metadata", metadata)] {
                fields.push((name, decl, required(name)));
            }
        }
        DeclType::object(fields)
    }

    fn says_what_every_object_has(&self, schema: &Value) -> bool {
        let properties = schema["properties"].as_object();
        let is = |name: &str, ty: &str| properties.and_then(|p| p.get(name)).is_some_and(|p| p["type"] == ty);
        let metadata = properties.and_then(|p| p.get("metadata"));
        let metadata = metadata.map(|m| reference(m).map_or(m, |name| &self.schemas[name]));
        is("kind", "string")
            && is("apiVersion", "string")
            && metadata.is_some_and(|m| {
                let text = |name: &str| m["properties"][name]["type"] == "string";
                m["type"] == "object" && text("name") && text("generateName")
            })
    }
}

/// Returns the name of the schema that this one references. The reference may be wrapped for the sake of a description.
fn reference(schema: &Value) -> Option<&str> {
    let named = schema["$ref"].as_str().map(|r| r.strip_prefix(REFERENCE).unwrap_or(r));
    named.or_else(|| schema["allOf"].as_array()?.iter().find_map(reference))
}

fn list_kind(schema: &Value) -> ListKind {
    match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => ListKind::Set,
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
            ListKind::Map(keys.filter_map(Value::as_str).map(str::to_owned).collect())
        }
        _ => ListKind::Atomic,
    }
}

fn string(schema: &Value) -> DeclType {
    let max = schema["maxLength"].as_i64();
    match schema["format"].as_str() {
        Some("byte") => DeclType::bytes(max),
        Some("duration") => DeclType::duration(),
        Some("date") => DeclType::timestamp(Format::Date),
        Some("date-time") => DeclType::timestamp(Format::DateTime),
        _ => DeclType::string(max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy_types::check::check;
    use serde_json::json;
    use std::sync::Arc;

    /// Returns the warnings for one expression on objects of a type.
    fn reported(decl: DeclType, expression: &str) -> String {
        let policy = json!({"spec": {"validations": [{"expression": expression}]}});
        let objects = [(Gvk::new("g", "v1", "K"), Arc::new(decl))];
        check(&policy, &objects, None).into_iter().map(|w| w.warning).collect()
    }

    #[test]
    fn fields_of_builtin_kinds() {
        let reported = |group: &str, kind: &str, expression: &str| {
            reported(builtin(&Gvk::new(group, "v1", kind)).expect("built in"), expression)
        };
        for (group, kind, expression) in [
            (
                "",
                "Pod",
                "object.spec.containers.all(c, c.image.startsWith('x') && c.ports.all(p, p.containerPort > 1))",
            ),
            ("", "Pod", "object.metadata.creationTimestamp > timestamp('2026-01-01T00:00:00Z')"),
            ("", "Pod", "object.metadata.labels['a'] == 'b' && object.kind == 'Pod'"),
            ("apps", "Deployment", "object.spec.replicas <= 5 && has(object.spec.template.spec.hostNetwork)"),
            ("", "Service", "object.spec.ports.all(p, p.targetPort == 80 || p.targetPort == 'web')"),
            ("apps", "ControllerRevision", "has(object.data)"),
        ] {
            assert_eq!(reported(group, kind, expression), "", "{expression}");
        }
        for (group, kind, expression, want) in [
            ("", "Pod", "object.spec.replicas > 1", "undefined field 'replicas'"),
            ("", "Pod", "object.spec.containers.all(c, c.imagePolicy == 'x')", "undefined field 'imagePolicy'"),
            ("apps", "Deployment", "object.spec.replicas == '5'", "no matching overload"),
            ("apps", "Deployment", "object.spec.paused > 1", "no matching overload"),
            ("", "Pod", "object.spec.containers[0].resources.limits['cpu'] == '1'", "undefined field 'limits'"),
            (
                "apiextensions.k8s.io",
                "CustomResourceDefinition",
                "object.spec.versions.all(v, v.schema.openAPIV3Schema.properties['a'].type == 'x')",
                "undefined field 'type'",
            ),
        ] {
            let reported = reported(group, kind, expression);
            assert!(reported.contains(want), "{expression}: {reported}");
        }
        assert!(builtin(&Gvk::new("example.com", "v1", "Widget")).is_none());
    }

    #[test]
    fn fields_of_published_kinds() {
        let kind = json!([{"group": "example.com", "version": "v1", "kind": "Widget"}]);
        let metadata = json!({"allOf": [{"$ref": "#/components/schemas/meta"}]});
        let spec = json!({"type": "object", "properties": {
            "size": {"type": "integer"}, "share": {"type": "number"}, "any": {},
            "port": {"x-kubernetes-int-or-string": true}, "born": {"type": "string", "format": "date-time"},
            "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "limits": {"type": "object", "additionalProperties": {"type": "integer"}},
            "inner": {"type": "object", "x-kubernetes-embedded-resource": true},
            "next": {"$ref": "#/components/schemas/widget"}}});
        let document = json!({"components": {"schemas": {
            "meta": {"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}}}},
            "widget": {"type": "object", "x-kubernetes-group-version-kind": kind, "properties": {
                "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": metadata, "spec": spec}}}}});
        let reported = |expression: &str| {
            reported(published(&document, &Gvk::new("example.com", "v1", "Widget")).expect("published"), expression)
        };
        for expression in [
            "object.spec.size > 1 && object.spec.share < 0.5 && object.metadata.labels['a'] == 'b'",
            "object.spec.port == 1 || object.spec.port == 'x'",
            "object.spec.born > timestamp('2026-01-01T00:00:00Z') && object.spec.tags.all(t, t != '')",
            "object.spec.limits['x'] == 1 && object.spec.inner.metadata.name == 'a'",
            "has(object.spec.next)",
        ] {
            assert_eq!(reported(expression), "", "{expression}");
        }
        for (expression, want) in [
            ("object.spec.volume > 1", "undefined field 'volume'"),
            ("object.spec.any == 1", "undefined field 'any'"),
            ("object.spec.next.spec.size == 1", "undefined field 'spec'"),
            ("object.spec.size == 'x'", "no matching overload"),
            ("object.spec.inner.spec == 'x'", "undefined field 'spec'"),
        ] {
            let reported = reported(expression);
            assert!(reported.contains(want), "{expression}: {reported}");
        }
        assert!(published(&document, &Gvk::new("example.com", "v2", "Widget")).is_none());
    }

    #[test]
    fn a_root_without_a_name_has_one() {
        let kind = json!([{"group": "example.com", "version": "v1", "kind": "Open"}]);
        let open = json!({"type": "object", "x-kubernetes-group-version-kind": kind});
        let document = json!({"components": {"schemas": {"open": open}}});
        let decl = || published(&document, &Gvk::new("example.com", "v1", "Open")).expect("published");
        assert_eq!(reported(decl(), "object.metadata.name == 'x' && object.kind != ''"), "");
        assert!(reported(decl(), "object.metadata.labels['a'] == ''").contains("undefined field 'labels'"));
    }
}
