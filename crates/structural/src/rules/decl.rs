//! The types of a schema in expressions (upstream `apiserver/pkg/cel/common/schemas.go`).
use std::collections::HashMap;
use std::sync::Arc;

use kelson_cel::{DeclKind, DeclType, Format, ListKind, escape};
use kelson_schema::ListType;
use serde_json::Value;

use crate::schema::{Flags, Node, Type};

/// The types of nodes. Equal nodes share one type.
#[derive(Default)]
pub struct Decls {
    made: HashMap<(*const Node, bool), Option<Arc<DeclType>>>,
}

impl Decls {
    /// Returns the type of a node, or `None` if expressions cannot see it. The root of an object has a kind, a version
    /// and a name even if the schema does not declare them. The node must live as long as this table.
    pub fn of(&mut self, node: &Node, root: bool) -> Option<Arc<DeclType>> {
        let key = (std::ptr::from_ref(node), root);
        if let Some(made) = self.made.get(&key) {
            return made.clone();
        }
        let decl = self.make(node, root).map(|decl| Arc::new(if node.refuses_null() { decl } else { decl.nullable() }));
        self.made.insert(key, decl.clone());
        decl
    }

    fn below(&mut self, node: &Node) -> Option<Arc<DeclType>> {
        self.of(node, node.is(Flags::EMBEDDED))
    }

    fn make(&mut self, node: &Node, root: bool) -> Option<DeclType> {
        let values = node.values();
        if node.is(Flags::INT_OR_STRING) {
            return Some(DeclType::int_or_string(values.and_then(|v| v.max_length)));
        }
        match node.ty() {
            Type::None => None,
            Type::Boolean => Some(DeclType::bool()),
            Type::Integer => Some(DeclType::int()),
            Type::Number => Some(DeclType::double()),
            Type::String => Some(string(node)),
            Type::Array => {
                let element = self.below(node.items()?)?;
                let kind = match node.list_type() {
                    Some(ListType::Set) => ListKind::Set,
                    Some(ListType::Map) => ListKind::Map(node.map_keys().iter().map(ToString::to_string).collect()),
                    _ => ListKind::Atomic,
                };
                let max = values.and_then(|v| v.max_items);
                let sized = DeclType::list((*element).clone(), max, kind.clone());
                Some(DeclType { kind: DeclKind::List(element, kind), ..sized })
            }
            Type::Object => match node.values_of_map() {
                Some(entry) => {
                    let entry = self.below(entry)?;
                    let sized = DeclType::map((*entry).clone(), values.and_then(|v| v.max_properties));
                    Some(DeclType { kind: DeclKind::Map(entry), ..sized })
                }
                None => Some(self.object(node, root)),
            },
        }
    }

    fn object(&mut self, node: &Node, root: bool) -> DeclType {
        let required = node.values().map_or(&[][..], |v| &v.required);
        let implied = root && !says_what_every_object_has(node);
        let mut fields: Vec<(&str, Arc<DeclType>, bool)> = Vec::with_capacity(node.properties().len());
        for (name, property) in node.properties() {
            if implied && matches!(name.as_ref(), "apiVersion" | "kind" | "metadata") {
                continue;
            }
            if let Some(decl) = self.below(property) {
                fields.push((name, decl, required.contains(name) && property.default_value().is_none()));
            }
        }
        if implied {
            let text = || DeclType::string(None);
            let metadata = DeclType::object([("name", text(), false), ("generateName", text(), false)]);
            for (name, decl) in [("apiVersion", text()), ("kind", text()), ("metadata", metadata)] {
                fields.push((name, Arc::new(decl), required.iter().any(|r| r.as_ref() == name)));
            }
        }
        let mut object = DeclType::object(fields.iter().map(|(name, decl, always)| (*name, (**decl).clone(), *always)));
        if let DeclKind::Object(_, made) = &mut object.kind {
            // The copies were only needed for the sizes. The stored types are shared.
            for (name, decl, _) in fields {
                if let Some(field) = escape(name).and_then(|identifier| made.get_mut(identifier.as_ref())) {
                    field.decl = decl;
                }
            }
        }
        object
    }
}

fn string(node: &Node) -> DeclType {
    let values = node.values();
    let max = values.and_then(|v| v.max_length);
    let format = values.and_then(|v| v.format.as_ref()).map(|(_, name)| name.as_ref());
    match format {
        Some("byte") => return DeclType::bytes(max),
        Some("duration") => return DeclType::duration(),
        Some("date") => return DeclType::timestamp(Format::Date),
        Some("date-time") => return DeclType::timestamp(Format::DateTime),
        _ => {}
    }
    match values.map(|v| &v.allowed) {
        Some(allowed) if max.is_none() && !allowed.is_empty() => {
            DeclType::string_enum(allowed.iter().filter_map(Value::as_str))
        }
        _ => DeclType::string(max),
    }
}

/// Reports whether an author described all fields of every object.
fn says_what_every_object_has(node: &Node) -> bool {
    let is = |node: &Node, name: &str, ty: Type| node.property(name).is_some_and(|p| p.ty() == ty);
    is(node, "kind", Type::String)
        && is(node, "apiVersion", Type::String)
        && node.property("metadata").is_some_and(|metadata| {
            metadata.ty() == Type::Object
                && is(metadata, "name", Type::String)
                && is(metadata, "generateName", Type::String)
        })
}
