//! What the checker knows of an expression's value.
use std::fmt;
use std::sync::Arc;

/// A CEL type. `Display` prints it as cel-go's messages do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// Anything; what is asked of it is checked when it is evaluated.
    Dyn,
    /// What stands for a fault already reported.
    Error,
    /// `null_type`, of the one value `null`.
    Null,
    /// `bool`, true or false.
    Bool,
    /// A signed number of 64 bits.
    Int,
    /// An unsigned number of 64 bits.
    Uint,
    /// A floating-point number of 64 bits.
    Double,
    /// `string`, a sequence of code points.
    String,
    /// `bytes`, a sequence of octets.
    Bytes,
    /// A point in time.
    Timestamp,
    /// A length of time.
    Duration,
    /// A list of elements of one type.
    List(Arc<Type>),
    /// Key and value.
    Map(Arc<(Type, Type)>),
    /// `optional_type(T)`, a value that may be absent.
    Optional(Arc<Type>),
    /// The type of a type, of the type it stands for.
    Type(Option<Arc<Type>>),
    /// An object with named fields, by the name under which its declaration is found.
    Object(Arc<str>),
    /// A library's type without fields, such as `net.IP`.
    Opaque(Arc<str>),
    /// A parameter of an overload, by its letter.
    Param(u8),
    /// A type that the checker has yet to find out.
    Var(u32),
}

impl Type {
    /// `list(element)`, ordered and of one type.
    pub fn list(element: Type) -> Type {
        Type::List(Arc::new(element))
    }
    /// `map(key, value)`, by keys of one type.
    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new((key, value)))
    }
    /// `optional_type(value)`, a value that may be absent.
    pub fn optional(value: Type) -> Type {
        Type::Optional(Arc::new(value))
    }
    /// An object type by its name.
    pub fn object(name: &str) -> Type {
        Type::Object(name.into())
    }
    /// Nothing is known that could be wrong.
    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Type::Dyn | Type::Error)
    }
    /// The inner type of an optional, and whether it was one.
    pub(crate) fn unwrap_optional(&self) -> (&Type, bool) {
        match self {
            Type::Optional(inner) => (inner, true),
            other => (other, false),
        }
    }
    /// Numbers, truth values and times have size 1 wherever sizes are asked.
    pub(crate) fn is_scalar(&self) -> bool {
        match self {
            Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
            Type::Optional(inner) => inner.is_scalar(),
            _ => false,
        }
    }
    /// The name that `type(x)` has and that conversions name in their errors.
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
