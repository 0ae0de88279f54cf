//! What a value is made of. Values hold lists and maps, and these hold values, which is why they stand together; what each of
//! them does is in the files above.
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json};

use super::opaque::Opaque;
use super::time::Timestamp;
use crate::types::decl::{DeclType, ListKind};

/// A value; `'a` is the life of the data and the program that it may borrow from.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// The one value of `null_type`.
    Null,
    /// A truth value.
    Bool(bool),
    /// A signed number.
    Int(i64),
    /// An unsigned number.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// A `string`; text of the object stays where it is.
    Text(Text<'a>),
    /// A `bytes` value, shared.
    Bytes(Arc<[u8]>),
    /// A point in time.
    Timestamp(Timestamp),
    /// A length of time in nanoseconds.
    Duration(i64),
    /// A `list`; one of the object stays where it is.
    List(List<'a>),
    /// A map, or an object of Kubernetes' data.
    Map(Map<'a>),
    /// Something or nothing.
    Optional(Option<Arc<Value<'a>>>),
    /// A type, by its name.
    Type(Text<'a>),
    /// A value of a library's own type.
    Opaque(Opaque<'a>),
    /// Data that no expression has a type for: it is only compared.
    Unknown(&'a Json),
    /// The named expressions of a policy, evaluated when they are asked for.
    Variables,
}

/// Text that is borrowed from data or an expression, or was made while evaluating.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    /// Text of the object that is looked at.
    Borrowed(&'a str),
    /// Made, or a constant of a program.
    Shared(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(s) => s,
            Text::Shared(s) => s,
        }
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}
impl Eq for Text<'_> {}
impl PartialOrd for Text<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Text<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

/// A list. Reading an element may fail where data is not what its type says.
#[derive(Clone, Debug)]
pub enum List<'a> {
    /// Elements of data, of this type, compared in this way.
    Json(&'a [Json], &'a DeclType, &'a ListKind),
    /// Values; with the way of comparing that a typed list hands on to what is made of it.
    Values(Arc<Vec<Value<'a>>>, Option<&'a ListKind>),
    /// Two lists after each other, not copied.
    Joined(Arc<Joined<'a>>),
}

/// Two lists as one; see [`List::Joined`].
#[derive(Debug)]
pub struct Joined<'a> {
    pub(super) left: List<'a>,
    pub(super) right: List<'a>,
    pub(super) len: usize,
    pub(super) depth: u32,
}

/// A map or an object.
#[derive(Clone, Debug)]
pub enum Map<'a> {
    /// JSON of plain keys whose values are of this type.
    Json(&'a JsonMap<String, Json>, &'a DeclType),
    /// JSON of an object type: keys are identifiers of its properties.
    Object(&'a JsonMap<String, Json>, &'a DeclType),
    /// Values by key.
    Values(Arc<Entries<'a>>),
    /// The same, where asking for a key that is not there gives an empty map: the domains of a device's attributes.
    Domains(Arc<Entries<'a>>),
    /// What `Name{…}` makes.
    Struct(Arc<Struct<'a>>),
}

pub(crate) type Entries<'a> = BTreeMap<Key<'a>, (Value<'a>, Value<'a>)>;

/// An object made by its constructor.
#[derive(Debug)]
pub struct Struct<'a> {
    /// The name of its type.
    pub name: Arc<str>,
    /// Fields that were set, in the order of the expression.
    pub fields: Vec<(Arc<str>, Value<'a>)>,
}

/// Keys by which values are found: whole numbers of all types are one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key<'a> {
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Number(i128),
    Text(Text<'a>),
}
