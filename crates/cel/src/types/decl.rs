//! The types of Kubernetes' data: the part of a schema that expressions use (`apiserver/pkg/cel/types.go`, `common/schemas.go`).
use std::collections::BTreeMap;
use std::sync::Arc;

use super::escape::escape;
use super::ty::Type;
use crate::syntax::RESERVED;

/// The largest request in upstream's estimates, in bytes.
pub const MAX_REQUEST_BYTES: i64 = 3 * 1024 * 1024;
/// The value for no bound (`math.MaxInt` upstream).
pub const UNBOUNDED: i64 = i64::MAX;

/// The way in which two lists are compared and joined (`x-kubernetes-list-type`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListKind {
    /// As lists, with their order.
    #[default]
    Atomic,
    /// As sets of scalars, ignoring the order.
    Set,
    /// As maps with these key properties, ignoring the order.
    Map(Vec<String>),
}

/// The format of a string that is a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `date`: midnight UTC of that day.
    Date,
    /// A string with `format: date-time`.
    DateTime,
}

/// The kind of a value, which determines how its JSON is read.
#[derive(Clone, Debug)]
pub enum DeclKind {
    /// Any value, read as plain JSON.
    Dyn,
    /// An integer or a string (`x-kubernetes-int-or-string`).
    IntOrString,
    /// The type `boolean` of schemas.
    Bool,
    /// The type `integer`, of 64 bits.
    Int,
    /// An unsigned integer. It does not occur in schemas of custom resources, only in variables that callers declare.
    Uint,
    /// The type `number`, which is a double in CEL.
    Double,
    /// A string without a format that CEL has a type for.
    String,
    /// `format: byte`, base64 in JSON.
    Bytes,
    /// A string with `format: duration`.
    Duration,
    /// `format: date` and `date-time`.
    Timestamp(Format),
    /// A type of a library, for variables that callers declare. It is never read from JSON.
    Named(Type),
    /// An array, and how two of them are compared.
    List(Arc<DeclType>, ListKind),
    /// An object with arbitrary keys and values of one type (`additionalProperties`).
    Map(Arc<DeclType>),
    /// An object with named properties, by their identifiers. Properties whose type expressions cannot use are not included; they are only
    /// compared.
    Object(Arc<str>, BTreeMap<String, DeclField>),
}

/// A property of an object type.
#[derive(Clone, Debug)]
pub struct DeclField {
    /// The name of the property in JSON.
    pub json: String,
    /// The type of the property's value.
    pub decl: Arc<DeclType>,
}

/// The type of a value in Kubernetes' data.
#[derive(Clone, Debug)]
pub struct DeclType {
    /// The kind of the value.
    pub kind: DeclKind,
    /// The most elements, entries, characters or bytes; 0 if the kind has none. Cost estimates use it.
    pub max_elements: i64,
    /// The bytes of the shortest JSON. Estimates of the sizes of lists around it use it.
    pub min_serialized: i64,
    /// Whether `null` is a value of the type.
    pub nullable: bool,
}

/// The name of an object type before [`DeclType::named`] gives it one.
const UNNAMED: &str = "object";

impl DeclType {
    fn simple(kind: DeclKind, max_elements: i64, min_serialized: i64) -> DeclType {
        DeclType { kind, max_elements, min_serialized, nullable: false }
    }
    /// The type of any value, such as admission's `object`.
    pub fn dynamic() -> DeclType {
        Self::simple(DeclKind::Dyn, 0, 1)
    }
    /// An int-or-string whose strings have at most `max_length` code points.
    pub fn int_or_string(max_length: Option<i64>) -> DeclType {
        Self::simple(DeclKind::IntOrString, string_elements(max_length), 1)
    }
    /// The boolean type.
    pub fn bool() -> DeclType {
        Self::simple(DeclKind::Bool, 0, 4)
    }
    /// The type `integer`, of 64 bits.
    pub fn int() -> DeclType {
        Self::simple(DeclKind::Int, 0, 1)
    }
    /// The type `number`, which is a double in CEL.
    pub fn double() -> DeclType {
        Self::simple(DeclKind::Double, 0, 1)
    }
    /// A string of at most `max_length` code points.
    pub fn string(max_length: Option<i64>) -> DeclType {
        Self::simple(DeclKind::String, string_elements(max_length), 2)
    }
    /// A string with one of these values. The longest bounds its size.
    pub fn string_enum<'s>(values: impl IntoIterator<Item = &'s str>) -> DeclType {
        let longest = values.into_iter().map(str::len).max().unwrap_or(0);
        Self::simple(DeclKind::String, longest as i64, 2)
    }
    /// A string with `format: byte` and at most this length.
    pub fn bytes(max_length: Option<i64>) -> DeclType {
        Self::simple(DeclKind::Bytes, max_length.map_or(MAX_REQUEST_BYTES - 2, |n| n.max(0)), 2)
    }
    /// A string with `format: duration`.
    pub fn duration() -> DeclType {
        Self::simple(DeclKind::Duration, 32, 3)
    }
    /// A string with `format: date` or `date-time`.
    pub fn timestamp(format: Format) -> DeclType {
        match format {
            Format::Date => Self::simple(DeclKind::Timestamp(format), 12, 12),
            Format::DateTime => Self::simple(DeclKind::Timestamp(format), 32, 21),
        }
    }
    /// The type of a library, such as the authorizer's.
    pub fn of(ty: Type) -> DeclType {
        Self::simple(DeclKind::Named(ty), 0, 1)
    }
    /// A list of at most `max_items`. By default, the size of a request bounds the number.
    pub fn list(element: DeclType, max_items: Option<i64>, kind: ListKind) -> DeclType {
        let max = max_items.map_or((MAX_REQUEST_BYTES - 2) / (element.min_serialized + 1), |n| n.max(0));
        Self::simple(DeclKind::List(Arc::new(element), kind), max, 2)
    }
    /// A map with at most `max_properties`. By default, the size of a request bounds the number.
    pub fn map(value: DeclType, max_properties: Option<i64>) -> DeclType {
        let max = max_properties.map_or((MAX_REQUEST_BYTES - 2) / (value.min_serialized + 6), |n| n.max(0));
        Self::simple(DeclKind::Map(Arc::new(value)), max, 2)
    }
    /// An object with these properties (by their names in JSON). The flag says whether a property is required and has no default, so that the
    /// shortest JSON has it. Properties whose name has no identifier are left out.
    pub fn object<'s>(properties: impl IntoIterator<Item = (&'s str, DeclType, bool)>) -> DeclType {
        let mut fields = BTreeMap::new();
        let mut min = 2;
        for (name, decl, always) in properties {
            if always {
                min += name.len() as i64 + decl.min_serialized + 4;
            }
            if let Some(identifier) = escape(name) {
                fields.insert(identifier.into_owned(), DeclField { json: name.into(), decl: Arc::new(decl) });
            }
        }
        Self::simple(DeclKind::Object(UNNAMED.into(), fields), 0, min)
    }
    /// An object type with a name, such as `kubernetes.AdmissionRequest`.
    pub fn object_named<'s>(name: &str, properties: impl IntoIterator<Item = (&'s str, DeclType, bool)>) -> DeclType {
        let mut decl = Self::object(properties);
        if let DeclKind::Object(own, _) = &mut decl.kind {
            *own = name.into();
        }
        decl
    }
    /// The same type with `null` as an additional value.
    pub fn nullable(self) -> DeclType {
        DeclType { nullable: true, ..self }
    }

    /// The same type with a name for each object type in it, by which the checker finds it. The names are paths that begin with `name`
    /// (`MaybeAssignTypeName` upstream).
    pub fn named(&self, name: &str) -> DeclType {
        let kind = match &self.kind {
            DeclKind::Object(own, fields) => {
                let name = if &**own == UNNAMED { name } else { own };
                let fields = fields.iter().map(|(identifier, field)| {
                    let decl = Arc::new(field.decl.named(&format!("{name}.{identifier}")));
                    (identifier.clone(), DeclField { json: field.json.clone(), decl })
                });
                DeclKind::Object(name.into(), fields.collect())
            }
            DeclKind::List(element, kind) => {
                DeclKind::List(Arc::new(element.named(&format!("{name}.@idx"))), kind.clone())
            }
            DeclKind::Map(value) => DeclKind::Map(Arc::new(value.named(&format!("{name}.@elem")))),
            other => other.clone(),
        };
        DeclType { kind, ..*self }
    }

    /// The type for the checker.
    pub fn ty(&self) -> Type {
        match &self.kind {
            DeclKind::Dyn | DeclKind::IntOrString => Type::Dyn,
            DeclKind::Bool => Type::Bool,
            DeclKind::Int => Type::Int,
            DeclKind::Uint => Type::Uint,
            DeclKind::Double => Type::Double,
            DeclKind::String => Type::String,
            DeclKind::Bytes => Type::Bytes,
            DeclKind::Duration => Type::Duration,
            DeclKind::Timestamp(_) => Type::Timestamp,
            DeclKind::Named(ty) => ty.clone(),
            DeclKind::List(element, _) => Type::list(element.ty()),
            DeclKind::Map(value) => Type::map(Type::String, value.ty()),
            DeclKind::Object(name, _) => Type::Object(name.clone()),
        }
    }

    /// The property with this identifier.
    pub fn field(&self, identifier: &str) -> Option<&DeclField> {
        match &self.kind {
            // Reserved words can also be selected without an escape.
            DeclKind::Object(_, fields) => fields
                .get(identifier)
                .or_else(|| RESERVED.contains(&identifier).then(|| fields.get(&format!("__{identifier}__"))).flatten()),
            _ => None,
        }
    }

    /// The most values of this type in one request. It is multiplied with the cost of a rule.
    pub fn max_cardinality(&self) -> u64 {
        (MAX_REQUEST_BYTES / (self.min_serialized + 1)) as u64
    }

    /// Calls `visit` with every object type in this type, including itself.
    pub(crate) fn objects<'d>(self: &'d Arc<DeclType>, visit: &mut dyn FnMut(&'d Arc<str>, &'d Arc<DeclType>)) {
        match &self.kind {
            DeclKind::Object(name, fields) => {
                visit(name, self);
                fields.values().for_each(|f| f.decl.objects(visit));
            }
            DeclKind::List(element, _) => element.objects(visit),
            DeclKind::Map(value) => value.objects(visit),
            _ => {}
        }
    }
}

/// The most bytes of a string: a code point has up to four bytes, and estimates count bytes.
fn string_elements(max_length: Option<i64>) -> i64 {
    max_length.map_or(MAX_REQUEST_BYTES - 2, |n| n.max(0).saturating_mul(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let entry = DeclType::object([
            ("name", DeclType::string(Some(10)), true),
            ("a-b", DeclType::int(), false),
            ("é", DeclType::int(), false),
        ]);
        assert_eq!(entry.min_serialized, 2 + 4 + 2 + 4);
        assert_eq!(entry.field("name").map(|f| f.decl.max_elements), Some(40));
        assert_eq!(entry.field("a__dash__b").map(|f| f.json.as_str()), Some("a-b"));
        let list = DeclType::list(entry, None, ListKind::Atomic);
        assert_eq!(list.max_elements, (3 * 1024 * 1024 - 2) / 13);
        let named = list.named("self");
        assert_eq!(named.ty().to_string(), "list(self.@idx)");
        assert_eq!(DeclType::map(DeclType::bool(), None).max_elements, (3 * 1024 * 1024 - 2) / 10);
        assert_eq!(DeclType::bool().max_cardinality(), 3 * 1024 * 1024 / 5);
    }
}
