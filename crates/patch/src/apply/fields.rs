//! Sets of field paths, their order, and their FieldsV1 form (`f:`, `k:`, `v:`, `i:`, `.`).
use serde_json::{Map, Value};
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A scalar inside a path element, ordered as upstream orders values: numbers, strings, booleans, null.
#[derive(Debug, Clone, PartialEq)]
pub struct Scalar(pub Value);

impl Eq for Scalar {}

impl Scalar {
    fn rank(&self) -> u8 {
        match self.0 {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Null => 3,
            Value::Array(_) => 4,
            Value::Object(_) => 5,
        }
    }
}

impl Ord for Scalar {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
                (Some(a), Some(b)) => a.cmp(&b),
                _ => a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0)),
            },
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (a, b) => self.rank().cmp(&other.rank()).then_with(|| a.to_string().cmp(&b.to_string())),
        }
    }
}

impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathElement {
    /// A field or a map's key.
    Field(String),
    /// An element of an associative list, by its keys (sorted by name).
    Key(Vec<(String, Scalar)>),
    /// An element of a set.
    Value(Scalar),
    /// An element by its place.
    Index(i64),
}

impl PathElement {
    /// From a key of a FieldsV1 object; `None` when it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "f" => Some(Self::Field(rest.to_owned())),
            "v" => Some(Self::Value(Scalar(serde_json::from_str(rest).ok()?))),
            "k" => {
                let map: Map<String, Value> = serde_json::from_str(rest).ok()?;
                Some(Self::Key(map.into_iter().map(|(k, v)| (k, Scalar(v))).collect()))
            }
            "i" => Some(Self::Index(rest.parse().ok()?)),
            _ => None,
        }
    }

    /// As a key of a FieldsV1 object.
    pub fn serialize(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Value(v) => format!("v:{}", v.0),
            Self::Key(keys) => {
                let map: Map<String, Value> = keys.iter().map(|(k, v)| (k.clone(), v.0.clone())).collect();
                format!("k:{}", Value::Object(map))
            }
            Self::Index(i) => format!("i:{i}"),
        }
    }
}

/// `.name`, `[name="app"]`, `[="x"]`, `[0]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(keys) => {
                let keys: Vec<String> = keys.iter().map(|(k, v)| format!("{k}={}", v.0)).collect();
                write!(f, "[{}]", keys.join(","))
            }
            Self::Value(v) => write!(f, "[={}]", v.0),
            Self::Index(i) => write!(f, "[{i}]"),
        }
    }
}

/// Nesting read of a FieldsV1 object.
const FIELDS_DEPTH_MAX: usize = 100;

/// A set of paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    members: BTreeSet<PathElement>,
    children: BTreeMap<PathElement, FieldSet>,
}

impl FieldSet {
    /// A set of plain field paths, such as `[["status"], ["metadata", "name"]]`.
    pub fn of(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            let path: Vec<PathElement> = path.iter().map(|n| PathElement::Field((*n).to_owned())).collect();
            set.insert(&path);
        }
        set
    }

    /// Adds a path; the empty path is no member of anything.
    pub fn insert(&mut self, path: &[PathElement]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    /// Whether nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(FieldSet::is_empty)
    }

    /// Whether the one-step path is a member.
    pub(super) fn has_member(&self, element: &PathElement) -> bool {
        self.members.contains(element)
    }

    /// The paths below a step, if any.
    pub(super) fn below(&self, element: &PathElement) -> Option<&FieldSet> {
        self.children.get(element).filter(|set| !set.is_empty())
    }

    pub(super) fn children(&self) -> impl Iterator<Item = (&PathElement, &FieldSet)> {
        self.children.iter()
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &PathElement> {
        self.members.iter()
    }

    pub(super) fn with_parts(members: BTreeSet<PathElement>, children: BTreeMap<PathElement, FieldSet>) -> Self {
        Self { members, children }
    }

    /// Paths in either.
    pub fn union(&self, other: &Self) -> Self {
        let mut out = self.clone();
        out.extend(other);
        out
    }

    /// Adds the paths of another set; the cost is that of the other set alone.
    pub fn extend(&mut self, other: &Self) {
        self.members.extend(other.members.iter().cloned());
        for (element, set) in &other.children {
            match self.children.get_mut(element) {
                Some(mine) => mine.extend(set),
                None => {
                    self.children.insert(element.clone(), set.clone());
                }
            }
        }
    }

    /// Paths in both.
    pub fn intersection(&self, other: &Self) -> Self {
        let children = self.children.iter().filter_map(|(element, mine)| {
            let both = mine.intersection(other.children.get(element)?);
            (!both.is_empty()).then(|| (element.clone(), both))
        });
        Self { members: self.members.intersection(&other.members).cloned().collect(), children: children.collect() }
    }

    /// Paths of this set that are not in the other.
    pub fn difference(&self, other: &Self) -> Self {
        let children = self.children.iter().filter_map(|(element, mine)| {
            let rest = match other.children.get(element) {
                Some(theirs) => mine.difference(theirs),
                None => mine.clone(),
            };
            (!rest.is_empty()).then(|| (element.clone(), rest))
        });
        Self { members: self.members.difference(&other.members).cloned().collect(), children: children.collect() }
    }

    /// Like [`FieldSet::difference`], and members of the other set take everything below them along.
    pub fn recursive_difference(&self, other: &Self) -> Self {
        let children = self.children.iter().filter_map(|(element, mine)| {
            if other.members.contains(element) {
                return None;
            }
            let rest = match other.children.get(element) {
                Some(theirs) => mine.recursive_difference(theirs),
                None => mine.clone(),
            };
            (!rest.is_empty()).then(|| (element.clone(), rest))
        });
        Self { members: self.members.difference(&other.members).cloned().collect(), children: children.collect() }
    }

    /// All paths as text, members before what is below them, in order.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect("", &mut out);
        out
    }

    fn collect(&self, prefix: &str, out: &mut Vec<String>) {
        out.extend(self.members.iter().map(|m| format!("{prefix}{m}")));
        for (element, set) in &self.children {
            set.collect(&format!("{prefix}{element}"), out);
        }
    }

    /// The FieldsV1 form.
    pub fn to_fields_v1(&self) -> Value {
        let mut map = Map::new();
        for member in &self.members {
            map.insert(member.serialize(), Value::Object(Map::new()));
        }
        for (element, set) in self.children.iter().filter(|(_, set)| !set.is_empty()) {
            let mut below = set.to_fields_v1();
            if self.members.contains(element)
                && let Value::Object(below) = &mut below
            {
                below.insert(".".into(), Value::Object(Map::new()));
            }
            map.insert(element.serialize(), below);
        }
        Value::Object(map)
    }

    /// From the FieldsV1 form; `None` when it is malformed.
    pub fn from_fields_v1(fields: &Value) -> Option<Self> {
        match fields {
            Value::Null => Some(Self::default()),
            _ => Self::read(fields, 0).map(|(set, _)| set),
        }
    }

    /// The set below a node, and whether the node itself is a member.
    fn read(node: &Value, depth: usize) -> Option<(Self, bool)> {
        let map = node.as_object()?;
        if depth > FIELDS_DEPTH_MAX {
            return None;
        }
        let (mut set, mut own) = (Self::default(), map.is_empty());
        for (key, below) in map {
            if key == "." {
                own = true;
                continue;
            }
            let element = PathElement::parse(key)?;
            let (children, member) = Self::read(below, depth + 1)?;
            if member {
                set.members.insert(element.clone());
            }
            if !children.is_empty() {
                set.children.insert(element, children);
            }
        }
        Some((set, own))
    }
}
