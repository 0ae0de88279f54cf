//! The types of expressions.
use std::fmt;
use std::sync::Arc;

/// A CEL type. `Display` prints it as in cel-go's messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// Any type. Operations are checked during the evaluation.
    Dyn,
    /// The type of a part whose error is already reported.
    Error,
    /// `null_type`, whose only value is `null`.
    Null,
    /// The type `bool`.
    Bool,
    /// A signed 64-bit integer.
    Int,
    /// An unsigned 64-bit integer.
    Uint,
    /// A 64-bit floating-point number.
    Double,
    /// `string`, a sequence of code points.
    String,
    /// `bytes`, a sequence of octets.
    Bytes,
    /// A point in time.
    Timestamp,
    /// A length of time.
    Duration,
    /// A list with elements of one type.
    List(Arc<Type>),
    /// A map, with the types of its keys and values.
    Map(Arc<(Type, Type)>),
    /// `optional_type(T)`, a value that may be absent.
    Optional(Arc<Type>),
    /// The type of a type, with the type that it denotes.
    Type(Option<Arc<Type>>),
    /// An object with named fields. Its declaration is found by this name.
    Object(Arc<str>),
    /// A type of a library without fields, such as `net.IP`.
    Opaque(Arc<str>),
    /// A type parameter of an overload, by its letter.
    Param(u8),
    /// A type variable of the checker.
    Var(u32),
}

impl Type {
    /// The type `list(element)`.
    pub fn list(element: Type) -> Type {
        Type::List(Arc::new(element))
    }
    /// The type `map(key, value)`.
    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new((key, value)))
    }
    /// The type `optional_type(value)`.
    pub fn optional(value: Type) -> Type {
        Type::Optional(Arc::new(value))
    }
    /// The object type with this name.
    pub fn object(name: &str) -> Type {
        Type::Object(name.into())
    }
    /// Whether the type is not known, so that no operation is an error.
    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Type::Dyn | Type::Error)
    }
    /// The inner type of an optional, and whether the type was an optional.
    pub(crate) fn unwrap_optional(&self) -> (&Type, bool) {
        match self {
            Type::Optional(inner) => (inner, true),
            other => (other, false),
        }
    }
    /// Whether values of the type have size 1: numbers, booleans and times.
    pub(crate) fn is_scalar(&self) -> bool {
        match self {
            Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
            Type::Optional(inner) => inner.is_scalar(),
            _ => false,
        }
    }
    /// The name of the type in `type(x)` and in errors of conversions.
    pub(crate) fn name(&self) -> &str {
        match self {
            Type::Dyn => "dyn",
            Type::Error => "!error!",
            Type::Null => "null_type",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Uint => "uint",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Timestamp => "google.protobuf.Timestamp",
            Type::Duration => "google.protobuf.Duration",
            Type::List(_) => "list",
            Type::Map(_) => "map",
            Type::Optional(_) => "optional_type",
            Type::Type(_) => "type",
            Type::Object(name) | Type::Opaque(name) => name,
            Type::Param(_) | Type::Var(_) => "dyn",
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Null => f.write_str("null"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Duration => f.write_str("duration"),
            Type::List(element) => write!(f, "list({element})"),
            Type::Map(entry) => write!(f, "map({}, {})", entry.0, entry.1),
            Type::Optional(inner) => write!(f, "optional_type({inner})"),
            Type::Type(Some(inner)) => write!(f, "type({inner})"),
            Type::Param(letter) => write!(f, "{}", char::from(*letter)),
            Type::Var(n) => write!(f, "_var{n}"),
            other => f.write_str(other.name()),
        }
    }
}
