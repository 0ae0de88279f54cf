//! The types of values. They are in one file because values contain lists and maps, and these contain values; their methods are in
//! other files.
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json};

use super::opaque::Opaque;
use super::time::Timestamp;
use crate::types::decl::{DeclType, ListKind};

/// A value. It may borrow from data and from the program, for the lifetime `'a`.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// The value `null`.
    Null,
    /// A `bool`: true or false.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// A `string`. A string of the object is borrowed.
    Text(Text<'a>),
    /// A `bytes` value with shared content.
    Bytes(Arc<[u8]>),
    /// A point in time.
    Timestamp(Timestamp),
    /// A length of time in nanoseconds.
    Duration(i64),
    /// A `list`. A list of the object is borrowed.
    List(List<'a>),
    /// A map, or an object of Kubernetes' data.
    Map(Map<'a>),
    /// An optional, with or without a value.
    Optional(Option<Arc<Value<'a>>>),
    /// A type, with its name.
    Type(Text<'a>),
    /// A value of a library's type.
    Opaque(Opaque<'a>),
    /// Data that has no type in expressions. It is only compared.
    Unknown(&'a Json),
    /// The named expressions of a policy, which are evaluated on first use.
    Variables,
}

/// A string, either borrowed from data or an expression, or made during the evaluation.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    /// A string of the data.
    Borrowed(&'a str),
    /// A string that was made, or a constant of a program.
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

/// A list. Reading an element may fail if the data does not have its declared type.
#[derive(Clone, Debug)]
pub enum List<'a> {
    /// Elements of data, with their type and how they are compared.
    Json(&'a [Json], &'a DeclType, &'a ListKind),
    /// Values. If they come from a typed list, they are compared as its elements are.
    Values(Arc<Vec<Value<'a>>>, Option<&'a ListKind>),
    /// Two concatenated lists, which are not copied.
    Joined(Arc<Joined<'a>>),
}

/// Two concatenated lists; see [`List::Joined`].
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
    /// A JSON object with arbitrary keys and values of this type.
    Json(&'a JsonMap<String, Json>, &'a DeclType),
    /// A JSON object of an object type. The keys are the identifiers of its properties.
    Object(&'a JsonMap<String, Json>, &'a DeclType),
    /// Values by key.
    Values(Arc<Entries<'a>>),
    /// Values by key, where a missing key reads as an empty map: the domains of a device's attributes.
    Domains(Arc<Entries<'a>>),
    /// The result of `Name{…}`.
    Struct(Arc<Struct<'a>>),
}

pub(crate) type Entries<'a> = BTreeMap<Key<'a>, (Value<'a>, Value<'a>)>;

/// An object that was made by a constructor.
#[derive(Debug)]
pub struct Struct<'a> {
    /// The name of the object's type.
    pub name: Arc<str>,
    /// The fields that were set, in the order of the expression.
    pub fields: Vec<(Arc<str>, Value<'a>)>,
}

/// A key of a map. Equal integers of all types are the same key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key<'a> {
    /// A key of type `bool`.
    Bool(bool),
    /// A key of a type of integers.
    Number(i128),
    Text(Text<'a>),
}
