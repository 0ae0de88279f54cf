//! One view of a type for those who merge and apply, whether the type is built in, comes from a custom resource's schema,
//! or is not known at all.
use crate::{Field, FieldType, Kind, ListType, MapType, TypeId};
use serde_json::Value;
use std::sync::Arc;

/// A location in a type, for code that merges or compares trees of any kind: patches, apply and managed fields. The
/// location may belong to a built-in type, to a custom resource's schema or to no schema. [`Shape::child`] and
/// [`Shape::element`] go down one level, and the other methods return the list, map and patch rules of the location. A
/// clone is cheap.
#[derive(Debug, Clone)]
pub enum Shape {
    /// A value of a built-in type, with the field that contains it (for its list and patch rules).
    Builtin(FieldType, Option<Field>),
    /// The root of a built-in kind.
    Root(TypeId),
    /// A value described by a custom resource's schema.
    Dynamic(Arc<dyn DynamicShape>),
    /// Nothing is known: structure is deduced from the value.
    Untyped,
}

/// The type of a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScalarType {
    /// A number, whole or not.
    Numeric,
    /// A string of any form.
    Text,
    /// `true` or `false`.
    Boolean,
}

/// The form of the values that a location accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueForm {
    /// A JSON object.
    Map,
    /// A JSON list.
    List,
    /// One value of one type.
    Scalar(ScalarType),
    /// A number, a string or a boolean: a quantity, a time, an int-or-string.
    AnyScalar,
    /// Any JSON value.
    Any,
}

/// A place of a schema that came at run time, as [`Shape`] asks it.
pub trait DynamicShape: std::fmt::Debug + Send + Sync {
    /// The value under a key: a declared field, or an entry of a map; `None` when the schema says nothing of it.
    fn child(&self, key: &str) -> Option<Arc<dyn DynamicShape>>;
    /// Whether a key is a declared field.
    fn declares(&self, key: &str) -> bool;
    /// Whether keys that are not declared have no place here.
    fn is_closed(&self) -> bool;
    /// An element of a list.
    fn element(&self) -> Option<Arc<dyn DynamicShape>>;
    /// Returns how apply merges the list; atomic when unspecified.
    fn list_type(&self) -> Option<ListType>;
    /// Returns the fields that identify the elements of a list of type map.
    fn map_keys(&self) -> Vec<String>;
    /// Whether the place is owned as one value (`x-kubernetes-map-type: atomic`).
    fn is_atomic(&self) -> bool;
    /// The default of this place.
    fn default_value(&self) -> Option<Value>;
    /// Returns whether the value is a complete object, with `apiVersion`, `kind` and `metadata`.
    fn is_embedded(&self) -> bool;
    /// Returns the form of the values that the location accepts.
    fn form(&self) -> ValueForm;
}

/// Nesting allowed in a custom resource's schema.
pub const SCHEMA_DEPTH_MAX: usize = 200;

impl Shape {
    /// The shape of a kind's objects.
    pub fn of_kind(group: &str, version: &str, kind: &str) -> Shape {
        crate::Schema::builtin().by_gvk(group, version, kind).map_or(Shape::Untyped, Shape::Root)
    }

    /// The struct behind this place, when it is a built-in one.
    pub fn struct_type(&self) -> Option<TypeId> {
        match self {
            Shape::Root(id) => Some(*id),
            Shape::Builtin(ty, _) => match ty.kind() {
                Kind::Struct(id) => Some(id),
                _ => None,
            },
            _ => None,
        }
    }

    /// The value under a key of an object: a field, or a map's value. `None` where such a field cannot be.
    pub fn child(&self, key: &str) -> Option<Shape> {
        match self {
            Shape::Untyped => Some(Shape::Untyped),
            Shape::Dynamic(ty) if ty.is_embedded() && key == "metadata" => Some(object_meta()),
            Shape::Dynamic(ty) => match ty.child(key) {
                Some(child) => Some(Shape::Dynamic(child)),
                None => (!ty.is_closed() || self.has_field(key)).then_some(Shape::Untyped),
            },
            Shape::Root(id) => id.field_by_json(key).map(|f| Shape::Builtin(f.ty(), Some(f))),
            Shape::Builtin(ty, _) => match ty.kind() {
                Kind::Struct(id) => id.field_by_json(key).map(|f| Shape::Builtin(f.ty(), Some(f))),
                Kind::Map(value) => Some(Shape::Builtin(value, None)),
                _ => Some(Shape::Untyped),
            },
        }
    }

    /// An element of a list.
    pub fn element(&self) -> Shape {
        match self {
            Shape::Dynamic(ty) => ty.element().map_or(Shape::Untyped, Shape::Dynamic),
            Shape::Builtin(ty, _) => match ty.kind() {
                Kind::List(elem) | Kind::WrappedList(elem) => Shape::Builtin(elem, None),
                _ => Shape::Untyped,
            },
            _ => Shape::Untyped,
        }
    }

    /// Whether a key is a declared field rather than an entry of a map.
    pub fn has_field(&self, key: &str) -> bool {
        match self {
            Shape::Untyped => false,
            Shape::Dynamic(ty) => {
                ty.declares(key) || ty.is_embedded() && matches!(key, "apiVersion" | "kind" | "metadata")
            }
            _ => self.struct_type().is_some_and(|id| id.position(key).is_some()),
        }
    }

    /// Returns how apply treats a list at this location; unknown lists are atomic.
    pub fn list_type(&self) -> ListType {
        match self {
            Shape::Builtin(_, Some(f)) => f.list_type().unwrap_or(ListType::Atomic),
            Shape::Dynamic(ty) => ty.list_type().unwrap_or(ListType::Atomic),
            _ => ListType::Atomic,
        }
    }

    /// The keys of an associative list.
    pub fn map_keys(&self) -> Vec<String> {
        match self {
            Shape::Builtin(_, Some(f)) => f.map_keys().map(str::to_owned).collect(),
            Shape::Dynamic(ty) => ty.map_keys(),
            _ => Vec::new(),
        }
    }

    /// Whether a struct or map at this place, or a value of no known structure, is owned as one value.
    pub fn is_atomic(&self) -> bool {
        match self {
            Shape::Untyped => false,
            Shape::Root(id) => id.atomic(),
            Shape::Dynamic(ty) => ty.is_atomic(),
            Shape::Builtin(ty, field) => match (field.and_then(Field::map_type), ty.kind()) {
                (Some(map_type), _) => map_type == MapType::Atomic,
                (None, Kind::Struct(id)) => id.atomic(),
                _ => false,
            },
        }
    }

    /// Returns the form of the values that this location accepts; null belongs to every form.
    pub fn form(&self) -> ValueForm {
        match self {
            Shape::Dynamic(ty) => ty.form(),
            Shape::Root(_) => ValueForm::Map,
            Shape::Builtin(ty, _) => match ty.kind() {
                Kind::Int32 | Kind::Int64 | Kind::Double => ValueForm::Scalar(ScalarType::Numeric),
                Kind::String | Kind::Bytes | Kind::Duration => ValueForm::Scalar(ScalarType::Text),
                Kind::Bool => ValueForm::Scalar(ScalarType::Boolean),
                Kind::Time | Kind::MicroTime | Kind::Quantity | Kind::IntOrString => ValueForm::AnyScalar,
                Kind::Struct(_) | Kind::Map(_) | Kind::RawExtension | Kind::FieldsV1 => ValueForm::Map,
                Kind::List(_) | Kind::WrappedList(_) => ValueForm::List,
                Kind::Json
                | Kind::Any
                | Kind::SchemaOrBool(_)
                | Kind::SchemaOrArray(_)
                | Kind::SchemaOrStringArray(_) => ValueForm::Any,
            },
            Shape::Untyped => ValueForm::Any,
        }
    }

    /// The default at this place, for map keys that a list's element leaves out. Fields that are always written have the nothing of their
    /// type as default, as upstream's definitions say.
    pub fn default_value(&self) -> Option<Value> {
        match self {
            Shape::Builtin(_, Some(f)) => match (f.default(), self.form()) {
                (Some(default), _) => serde_json::from_str(default).ok(),
                (None, _) if f.is_pointer() || f.omit_empty() => None,
                (None, ValueForm::Scalar(ScalarType::Text)) => Some(Value::from("")),
                (None, ValueForm::Scalar(ScalarType::Numeric)) => Some(Value::from(0)),
                _ => None,
            },
            Shape::Dynamic(ty) => ty.default_value(),
            _ => None,
        }
    }

    /// The field this place is, when it is one of a built-in struct.
    pub fn field(&self) -> Option<Field> {
        match self {
            Shape::Builtin(_, field) => *field,
            _ => None,
        }
    }
}

fn object_meta() -> Shape {
    crate::Schema::builtin()
        .by_gvk("meta.k8s.io", "v1", "PartialObjectMetadata")
        .and_then(|id| id.field_by_json("metadata"))
        .map_or(Shape::Untyped, |f| Shape::Builtin(f.ty(), Some(f)))
}
