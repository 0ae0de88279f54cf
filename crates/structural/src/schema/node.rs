//! One node of a structural schema (KEP-1979, upstream `pkg/apiserver/schema/structural.go`), in a compact form: equal
//! nodes are shared between all definitions, and descriptions are not kept.
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use kelson_schema::ListType;
use serde_json::Value;

use super::format::Format;

/// A string that all schemas share.
pub type Name = Arc<str>;

/// The `type` of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the keyword it is named as")]
pub enum Type {
    /// Unknown fields are preserved, the node is an int-or-string, or it is a clause of `anyOf` and similar keywords.
    #[default]
    None,
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    /// Returns the type of a schema's keyword. An unknown keyword is no type.
    pub fn of(word: &str) -> Self {
        match word {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => Self::None,
        }
    }
    /// Returns the schema's keyword. Empty for no type.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// The boolean properties of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u16);

#[allow(missing_docs, reason = "each is the keyword it is named as")]
impl Flags {
    pub const NULLABLE: Self = Self(1);
    pub const PRESERVE: Self = Self(1 << 1);
    pub const EMBEDDED: Self = Self(1 << 2);
    pub const INT_OR_STRING: Self = Self(1 << 3);
    pub const ATOMIC: Self = Self(1 << 4);
    pub const EXCLUSIVE_MAXIMUM: Self = Self(1 << 5);
    pub const EXCLUSIVE_MINIMUM: Self = Self(1 << 6);
    /// Unknown fields are preserved at this node or above.
    pub const OPEN: Self = Self(1 << 7);
    /// A field or element at this node or below may get a default.
    pub const BELOW_DEFAULTS: Self = Self(1 << 8);
    /// There is an embedded object at this node or below.
    pub const BELOW_EMBEDDED: Self = Self(1 << 9);
    /// There is a list of type set or map at this node or below.
    pub const BELOW_LISTS: Self = Self(1 << 10);
    /// There is a validation rule at this node or below.
    pub const BELOW_RULES: Self = Self(1 << 11);
    /// The flags that a node inherits from those below it.
    const BELOW: u16 = 0b1111 << 8;

    /// Whether all of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    pub(super) fn set(&mut self, other: Self, on: bool) {
        if on {
            self.0 |= other.0;
        }
    }
    /// Inherits the flags of a child.
    pub(super) fn inherit(&mut self, child: &Node) {
        self.0 |= child.flags.0 & Self::BELOW;
    }
}

/// A child of a node. Nodes are shared, so two nodes are equal exactly if their addresses are equal.
#[derive(Clone, Debug)]
pub struct Child(pub(super) Arc<Node>);

impl Child {
    /// Returns the node, to keep it.
    pub fn arc(&self) -> &Arc<Node> {
        &self.0
    }
}
impl Deref for Child {
    type Target = Node;
    fn deref(&self) -> &Node {
        &self.0
    }
}
impl PartialEq for Child {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Child {}
impl Hash for Child {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// The meaning of `additionalProperties` for undeclared fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the keyword it is named as")]
pub enum Additional {
    /// It is not set: unknown fields are pruned.
    #[default]
    Unset,
    No,
    /// `true`: any value is preserved.
    Yes,
    /// The schema of the values.
    Schema(Child),
}

/// A bound of numbers, comparable by its bits.
#[derive(Clone, Copy, Debug)]
pub struct Bound(pub f64);

impl PartialEq for Bound {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}
impl Eq for Bound {}
impl Hash for Bound {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

/// Requirements for values besides their type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the keyword it is named as")]
pub struct Values {
    /// `format` as written, where it is one that is checked.
    pub format: Option<(Format, Name)>,
    pub maximum: Option<Bound>,
    pub minimum: Option<Bound>,
    pub multiple_of: Option<Bound>,
    /// `maxLength`, in characters.
    pub max_length: Option<i64>,
    /// `minLength`, in characters.
    pub min_length: Option<i64>,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    /// `pattern`, in the syntax of RE2.
    pub pattern: Option<Name>,
    pub allowed: Box<[Value]>,
    pub required: Box<[Name]>,
    pub all_of: Box<[Child]>,
    pub any_of: Box<[Child]>,
    pub one_of: Box<[Child]>,
    pub not: Option<Child>,
}

/// One of `x-kubernetes-validations`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The expression that must hold.
    pub rule: Name,
    /// The message for the client if the rule fails. May be empty.
    pub message: Name,
    /// An expression for the message. May be empty.
    pub message_expression: Name,
    /// The reason of the error, such as `FieldValueForbidden`. Empty for `FieldValueInvalid`.
    pub reason: Name,
    /// The field below this position at which the error is reported; may be empty.
    pub field_path: Name,
    /// Whether `oldSelf` is an optional value.
    pub optional_old_self: Option<bool>,
}

/// Rarely used parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the keyword it is named as")]
pub struct Rare {
    /// The `default`. Null if there is none.
    pub default: Value,
    pub map_keys: Box<[Name]>,
    pub rules: Box<[Rule]>,
}

/// A node of a schema. It is immutable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Node {
    pub(super) ty: Type,
    pub(super) flags: Flags,
    pub(super) list_type: Option<ListType>,
    pub(super) properties: Box<[(Name, Child)]>,
    pub(super) additional: Additional,
    pub(super) items: Option<Child>,
    pub(super) values: Option<Box<Values>>,
    pub(super) rare: Option<Box<Rare>>,
}

impl Node {
    /// The `type`. See [`Type::None`] for nodes without one.
    pub fn ty(&self) -> Type {
        self.ty
    }
    /// Reports whether all these properties hold.
    pub fn is(&self, flags: Flags) -> bool {
        self.flags.has(flags)
    }
    /// Returns how apply merges the list; atomic if not set.
    pub fn list_type(&self) -> Option<ListType> {
        self.list_type
    }
    /// The declared fields, sorted by their names.
    pub fn properties(&self) -> &[(Name, Child)] {
        &self.properties
    }
    /// The declared field with this name. Entries of maps are not declared.
    pub fn property(&self, name: &str) -> Option<&Child> {
        let at = self.properties.binary_search_by(|(n, _)| n.as_ref().cmp(name)).ok()?;
        Some(&self.properties[at].1)
    }
    /// Returns which undeclared fields are allowed.
    pub fn additional(&self) -> &Additional {
        &self.additional
    }
    /// The schema of a map's values, if it has one.
    pub fn values_of_map(&self) -> Option<&Child> {
        match &self.additional {
            Additional::Schema(values) => Some(values),
            _ => None,
        }
    }
    /// The schema of the field or map entry `name`.
    pub fn field(&self, name: &str) -> Option<&Child> {
        self.property(name).or_else(|| self.values_of_map())
    }
    /// Reports whether apply rejects fields that are not declared here: some are declared, and no others are allowed.
    pub fn is_closed(&self) -> bool {
        let room = !matches!(self.additional, Additional::Unset | Additional::No);
        let any = self.properties.is_empty() && self.additional == Additional::Unset;
        !(room || any || self.is(Flags::OPEN) && self.additional == Additional::Unset)
    }
    /// The schema of a list's elements.
    pub fn items(&self) -> Option<&Child> {
        self.items.as_ref()
    }
    /// Returns the requirements for values, if there are any besides the type.
    pub fn values(&self) -> Option<&Values> {
        self.values.as_deref()
    }
    /// `default`, when there is one that is not null.
    pub fn default_value(&self) -> Option<&Value> {
        self.rare.as_ref().map(|r| &r.default).filter(|d| !d.is_null())
    }
    /// Returns the keys of a list of type map.
    pub fn map_keys(&self) -> &[Name] {
        self.rare.as_ref().map_or(&[], |r| &r.map_keys)
    }
    /// The rules of this node in their order in the schema.
    pub fn rules(&self) -> &[Rule] {
        self.rare.as_ref().map_or(&[], |r| &r.rules)
    }
    /// Returns this position as an embedded object.
    pub(super) fn as_embedded(&self) -> Self {
        let mut node = self.clone();
        node.flags.set(Flags::EMBEDDED, true);
        node.flags.set(Flags::BELOW_EMBEDDED, true);
        node
    }
    /// Reports whether null is not allowed here.
    pub fn refuses_null(&self) -> bool {
        !self.is(Flags::NULLABLE)
    }
    /// Returns the size of this position and those below it, counting shared ones for each use.
    pub fn bytes(&self) -> usize {
        let mut seen = std::collections::HashSet::new();
        self.count(&mut seen)
    }

    fn count(&self, seen: &mut std::collections::HashSet<*const Node>) -> usize {
        if !seen.insert(std::ptr::from_ref(self)) {
            return 0;
        }
        let mut bytes = size_of::<Self>() + 2 * size_of::<usize>() + size_of_val(&*self.properties);
        let values = self.values.as_deref();
        bytes += values.map_or(0, |v| size_of::<Values>() + size_of_val(&*v.allowed) + size_of_val(&*v.required));
        bytes += self.rare.as_deref().map_or(0, |r| size_of::<Rare>() + size_of_val(&*r.rules));
        let nested = values.into_iter().flat_map(|v| v.all_of.iter().chain(&*v.any_of).chain(&*v.one_of).chain(&v.not));
        let below = self.properties.iter().map(|(_, c)| c).chain(self.values_of_map()).chain(&self.items).chain(nested);
        bytes + below.map(|c| c.count(seen)).sum::<usize>()
    }
}
