//! What expressions see of a kind's objects: of built-in kinds by the table, of custom ones by their schema.
use std::sync::Arc;

use kelson_admission::policies::type_check::Types;
use kelson_cel::{DeclType, Format, ListKind};
use kelson_meta::Gvk;
use kelson_schema::{Field, FieldType, Kind, ListType, TypeId};

use crate::catalog::{Catalog, ObjectSchema};

/// The catalog as the type checker asks it.
pub struct Declared<'a>(pub &'a Catalog);

impl Types for Declared<'_> {
    fn kind_of(&self, group: &str, version: &str, resource: &str) -> Option<Gvk> {
        self.0.find(group, version, resource).map(|served| served.gvk.clone())
    }
    fn type_of(&self, kind: &Gvk) -> Option<Arc<DeclType>> {
        let all = self.0.of(&kind.group, &kind.version)?;
        let served = all.iter().find(|served| served.gvk == *kind)?;
        match &served.schema {
            ObjectSchema::Builtin(id) => Some(Arc::new(of_struct(*id, &mut Vec::new()))),
            ObjectSchema::Dynamic(schema) => schema.declared_type(),
            ObjectSchema::Open => None,
        }
    }
}

/// `within` are the types around this one: a type that holds itself is anything there.
fn of_struct(id: TypeId, within: &mut Vec<TypeId>) -> DeclType {
    if within.contains(&id) {
        return DeclType::dynamic();
    }
    within.push(id);
    let fields: Vec<(&str, DeclType, bool)> =
        id.json_fields().map(|field| (field.json(), of_field(field, within), field.is_required())).collect();
    within.pop();
    DeclType::object(fields)
}

fn of_field(field: Field, within: &mut Vec<TypeId>) -> DeclType {
    match field.ty().kind() {
        Kind::List(element) | Kind::WrappedList(element) => {
            let kind = match field.list_type() {
                Some(ListType::Set) => ListKind::Set,
                Some(ListType::Map) => ListKind::Map(field.map_keys().map(str::to_owned).collect()),
                _ => ListKind::Atomic,
            };
            DeclType::list(of_value(element, within), None, kind)
        }
        _ => of_value(field.ty(), within),
    }
}

fn of_value(ty: FieldType, within: &mut Vec<TypeId>) -> DeclType {
    match ty.kind() {
        Kind::Bool => DeclType::bool(),
        Kind::Int32 | Kind::Int64 => DeclType::int(),
        Kind::Double => DeclType::double(),
        Kind::String | Kind::Duration => DeclType::string(None),
        Kind::Bytes => DeclType::bytes(None),
        Kind::Time | Kind::MicroTime => DeclType::timestamp(Format::DateTime),
        Kind::IntOrString => DeclType::int_or_string(None),
        // A number or a text; whatever else has no fixed type of its own.
        Kind::Quantity | Kind::RawExtension | Kind::FieldsV1 | Kind::Json | Kind::Any => DeclType::dynamic(),
        Kind::SchemaOrBool(_) | Kind::SchemaOrArray(_) | Kind::SchemaOrStringArray(_) => DeclType::dynamic(),
        Kind::Struct(id) => of_struct(id, within),
        Kind::List(element) | Kind::WrappedList(element) => {
            DeclType::list(of_value(element, within), None, ListKind::Atomic)
        }
        Kind::Map(value) => DeclType::map(of_value(value, within), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_admission::policies::type_check;
    use serde_json::json;

    /// The warnings for one expression on pods, deployments or definitions.
    fn told(group: &str, resource: &str, expression: &str) -> String {
        let catalog = Catalog::builtin();
        let rules =
            json!([{"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource], "operations": ["*"]}]);
        let policy = json!({"spec": {"matchConstraints": {"resourceRules": rules},
            "validations": [{"expression": expression}]}});
        type_check::check(&policy, &Declared(&catalog)).into_iter().map(|w| w.warning).collect()
    }

    #[test]
    fn fields_of_builtin_kinds() {
        for (group, resource, expression) in [
            (
                "",
                "pods",
                "object.spec.containers.all(c, c.image.startsWith('x') && c.ports.all(p, p.containerPort > 1))",
            ),
            ("", "pods", "object.metadata.creationTimestamp > timestamp('2026-01-01T00:00:00Z')"),
            ("", "pods", "object.spec.containers[0].resources.limits['cpu'] == '1'"),
            ("", "pods", "object.metadata.labels['a'] == 'b' && object.kind == 'Pod'"),
            ("apps", "deployments", "object.spec.replicas <= 5 && has(object.spec.template.spec.hostNetwork)"),
            ("", "services", "object.spec.ports.all(p, p.targetPort == 80 || p.targetPort == 'web')"),
            (
                "apiextensions.k8s.io",
                "customresourcedefinitions",
                "object.spec.versions.all(v, v.schema.openAPIV3Schema.properties['a'].properties['b'].type == 'x')",
            ),
        ] {
            assert_eq!(told(group, resource, expression), "", "{expression}");
        }
        for (group, resource, expression, want) in [
            ("", "pods", "object.spec.replicas > 1", "undefined field 'replicas'"),
            ("", "pods", "object.spec.containers.all(c, c.imagePolicy == 'x')", "undefined field 'imagePolicy'"),
            ("apps", "deployments", "object.spec.replicas == '5'", "no matching overload"),
            ("apps", "deployments", "object.spec.paused > 1", "no matching overload"),
        ] {
            let told = told(group, resource, expression);
            assert!(told.contains(want), "{expression}: {told}");
        }
    }
}
