//! Walks over trees by schema: which fields a tree sets, how two trees differ, the merge of an applied configuration into a
//! live object, and the removal of fields. The rules are those of structured-merge-diff v6 `typed`.
use super::fields::{FieldSet, PathElement, Scalar};
use kelson_codec::Budget;
use kelson_schema::{Kind, ListType, Shape};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// How two trees differ. No path is in more than one of the sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Only in the first.
    pub removed: FieldSet,
    /// In both, with different values.
    pub modified: FieldSet,
    /// Only in the second.
    pub added: FieldSet,
}

impl Comparison {
    /// Leaves out paths and everything below them.
    pub fn without(mut self, ignored: &FieldSet) -> Self {
        self.removed.subtract_trees(ignored);
        self.modified.subtract_trees(ignored);
        self.added.subtract_trees(ignored);
        self
    }
}

/// How a place is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Atom {
    Scalar,
    AtomicList,
    List,
    AtomicMap,
    Map,
}

/// What the schema and the value together say a place is.
pub(super) fn atom(shape: &Shape, value: Option<&Value>) -> Atom {
    let map = |atomic| if atomic { Atom::AtomicMap } else { Atom::Map };
    let list = |ty| if ty == ListType::Atomic { Atom::AtomicList } else { Atom::List };
    match shape {
        Shape::Root(_) => map(shape.is_atomic()),
        Shape::Builtin(ty, _) => match ty.kind() {
            Kind::Struct(_) | Kind::Map(_) => map(shape.is_atomic()),
            Kind::List(_) | Kind::WrappedList(_) => list(shape.list_type()),
            Kind::RawExtension | Kind::Json | Kind::Any | Kind::FieldsV1 => atomic(value),
            Kind::SchemaOrBool(_) | Kind::SchemaOrArray(_) | Kind::SchemaOrStringArray(_) => atomic(value),
            _ => Atom::Scalar,
        },
        Shape::Dynamic(_) | Shape::Untyped => match value {
            Some(Value::Object(_)) => map(shape.is_atomic()),
            Some(Value::Array(_)) => list(shape.list_type()),
            _ => Atom::Scalar,
        },
    }
}

fn atomic(value: Option<&Value>) -> Atom {
    match value {
        Some(Value::Object(_)) => Atom::AtomicMap,
        Some(Value::Array(_)) => Atom::AtomicList,
        _ => Atom::Scalar,
    }
}

pub(super) fn child(shape: &Shape, key: &str) -> Shape {
    shape.child(key).unwrap_or(Shape::Untyped)
}

/// The path element of a list's element; the error names what is wrong with the element.
pub(super) fn element_of(shape: &Shape, item: &Value) -> Result<PathElement, String> {
    if shape.list_type() == ListType::Set {
        return match item {
            Value::Object(_) => Err("associative list without keys has an element that's a map type".into()),
            Value::Array(_) => Err("not supported: associative list with lists as elements".into()),
            Value::Null => Err("associative list without keys has an element that's an explicit null".into()),
            scalar => Ok(PathElement::Value(Scalar(scalar.clone()))),
        };
    }
    let map = match item {
        Value::Object(map) => map,
        Value::Null => return Err("associative list with keys may not have a null element".into()),
        _ => return Err("associative list with keys may not have non-map elements".into()),
    };
    let names = shape.map_keys();
    let element = shape.element();
    let mut keys: Vec<(String, Scalar)> = Vec::with_capacity(names.len());
    for name in &names {
        let value = map.get(name).cloned().or_else(|| element.child(name)?.default_value());
        if let Some(value) = value {
            keys.push((name.clone(), Scalar(value)));
        }
    }
    if keys.is_empty() {
        return Err(format!(
            "associative list with keys has an element that omits all key fields {names:?} (and doesn't have default values for any key fields)"
        ));
    }
    keys.sort();
    Ok(PathElement::Key(keys))
}

/// The fields that a tree sets.
pub fn field_set(shape: &Shape, value: &Value) -> FieldSet {
    collect(shape, value).1
}

/// Whether a place is a path of its own, and the paths below it.
fn collect(shape: &Shape, value: &Value) -> (bool, FieldSet) {
    match (atom(shape, Some(value)), value) {
        (Atom::Scalar | Atom::AtomicList | Atom::AtomicMap, _) => (true, FieldSet::default()),
        (Atom::List, Value::Array(items)) => (false, collect_list(shape, items)),
        (Atom::Map, Value::Object(map)) => {
            let mut set = FieldSet::default();
            for (key, value) in map {
                let (leaf, below) = collect(&child(shape, key), value);
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                set.put(PathElement::Field(key.clone()), leaf || empty || !shape.has_field(key), below);
            }
            (false, set)
        }
        _ => (false, FieldSet::default()),
    }
}

fn collect_list(shape: &Shape, items: &[Value]) -> FieldSet {
    let elements: Vec<Option<PathElement>> = items.iter().map(|item| element_of(shape, item).ok()).collect();
    let (mut seen, mut repeated) = (BTreeSet::new(), BTreeSet::new());
    for element in elements.iter().flatten() {
        if !seen.insert(element) {
            repeated.insert(element);
        }
    }
    let of_element = shape.element();
    let mut set = FieldSet::default();
    for (item, element) in items.iter().zip(&elements) {
        let Some(element) = element else { continue };
        let below = if repeated.contains(element) { FieldSet::default() } else { collect(&of_element, item).1 };
        set.put(element.clone(), true, below);
    }
    set
}

/// Compares two trees of one type.
pub fn compare(shape: &Shape, old: &Value, new: &Value) -> Comparison {
    let found = compare_at(shape, Some(old), Some(new));
    Comparison { removed: found.removed.below, modified: found.modified.below, added: found.added.below }
}

/// Of a place in both trees: whether it has another value now, and the paths below it that are new or have another one.
pub(super) fn changed_or_added(shape: &Shape, old: &Value, new: &Value) -> (bool, FieldSet) {
    let Difference { modified, added, .. } = compare_at(shape, Some(old), Some(new));
    let mut below = modified.below;
    below.absorb(added.below);
    (modified.member || added.member, below)
}

/// One of the sets of a comparison as it is at a place: whether the place is in it, and the paths below.
#[derive(Default)]
struct Part {
    member: bool,
    below: FieldSet,
}

impl Part {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

/// How two values of one place differ.
#[derive(Default)]
struct Difference {
    removed: Part,
    modified: Part,
    added: Part,
}

impl Difference {
    /// Takes over what was found one step below; the element is made only when there is something.
    fn put(&mut self, found: Difference, element: impl FnOnce() -> PathElement) {
        let mut parts =
            [(found.removed, &mut self.removed), (found.modified, &mut self.modified), (found.added, &mut self.added)]
                .into_iter()
                .filter(|(part, _)| !part.is_empty())
                .peekable();
        if parts.peek().is_none() {
            return;
        }
        let mut element = Some(element());
        while let Some((part, into)) = parts.next() {
            let element = if parts.peek().is_some() { element.clone() } else { element.take() };
            if let Some(element) = element {
                into.below.put(element, part.member, part.below);
            }
        }
    }

    /// The place itself differs.
    fn whole(&mut self, old: Option<&Value>, new: Option<&Value>) {
        match (old, new) {
            (None, _) => self.added.member = true,
            (_, None) => self.removed.member = true,
            _ => self.modified.member = true,
        }
    }
}

fn compare_at(shape: &Shape, old: Option<&Value>, new: Option<&Value>) -> Difference {
    let mut out = Difference::default();
    if let (None, Some(new)) = (old, new) {
        out.added = Part { member: true, below: all_added(shape, new) };
        return out;
    }
    let kinds = match (old, new) {
        (Some(_), None) => [Some(atom(shape, old)), None],
        (None, _) => [Some(atom(shape, new)), None],
        _ => {
            let (a, b) = (atom(shape, old), atom(shape, new));
            [Some(a), Some(b).filter(|b| *b != a)]
        }
    };
    let mut leaf = false;
    for kind in kinds.into_iter().flatten() {
        leaf = match kind {
            Atom::Scalar | Atom::AtomicList | Atom::AtomicMap => true,
            Atom::List => {
                let (a, b) = (array(old), array(new));
                a.is_empty() && b.is_empty() || {
                    compare_lists(shape, a, b, &mut out);
                    false
                }
            }
            Atom::Map => {
                let (a, b) = (object(old), object(new));
                a.is_none_or(Map::is_empty) && b.is_none_or(Map::is_empty) || {
                    compare_maps(shape, a, b, &mut out);
                    false
                }
            }
        };
        if leaf && old != new {
            out.whole(old, new);
        }
    }
    if !leaf && (old.is_none() || new.is_none()) {
        out.whole(old, new);
    }
    out
}

/// The paths below a value that was not there before; all of them are members, and so is the value's own. Most of what a
/// create sets is such.
fn all_added(shape: &Shape, new: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    match (atom(shape, Some(new)), new) {
        (Atom::List, Value::Array(items)) => {
            let of_element = shape.element();
            for (element, items) in by_element(shape, items) {
                // Duplicates count as one value.
                let below = if let [only] = items[..] { all_added(&of_element, only) } else { FieldSet::default() };
                set.put(element, true, below);
            }
        }
        (Atom::Map, Value::Object(map)) => {
            for (key, value) in map {
                set.put(PathElement::Field(key.clone()), true, all_added(&child(shape, key), value));
            }
        }
        _ => {}
    }
    set
}

fn array(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn object(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

fn compare_maps(
    shape: &Shape,
    old: Option<&Map<String, Value>>,
    new: Option<&Map<String, Value>>,
    out: &mut Difference,
) {
    for (key, a) in old.into_iter().flatten() {
        let found = compare_at(&child(shape, key), Some(a), new.and_then(|new| new.get(key)));
        out.put(found, || PathElement::Field(key.clone()));
    }
    for (key, b) in new.into_iter().flatten() {
        if old.is_none_or(|old| !old.contains_key(key)) {
            let found = compare_at(&child(shape, key), None, Some(b));
            out.put(found, || PathElement::Field(key.clone()));
        }
    }
}

fn by_element<'a>(shape: &Shape, items: &'a [Value]) -> BTreeMap<PathElement, Vec<&'a Value>> {
    let mut out: BTreeMap<PathElement, Vec<&Value>> = BTreeMap::new();
    for item in items {
        if let Ok(element) = element_of(shape, item) {
            out.entry(element).or_default().push(item);
        }
    }
    out
}

fn compare_lists(shape: &Shape, old: &[Value], new: &[Value], out: &mut Difference) {
    if old == new {
        return;
    }
    let (old, new) = (by_element(shape, old), by_element(shape, new));
    let of_element = shape.element();
    for element in old.keys().chain(new.keys().filter(|k| !old.contains_key(*k))) {
        let (a, b) = (old.get(element).map_or(&[][..], Vec::as_slice), new.get(element).map_or(&[][..], Vec::as_slice));
        let found = match (a, b) {
            ([], [] | [_]) | ([_], [] | [_]) => compare_at(&of_element, a.first().copied(), b.first().copied()),
            // Duplicates count as one value.
            ([_, _, ..], [_, _, ..]) => {
                let mut found = Difference::default();
                found.modified.member = a != b;
                found
            }
            ([_, _, ..], _) => {
                let mut found = b.first().map(|b| compare_at(&of_element, None, Some(b))).unwrap_or_default();
                found.removed.member = true;
                found
            }
            _ => {
                let mut found = a.first().map(|a| compare_at(&of_element, Some(a), None)).unwrap_or_default();
                found.added.member = true;
                found
            }
        };
        out.put(found, || element.clone());
    }
}

/// Merges an applied configuration into a live tree. Errors name the path and what is wrong there. The budget is charged a
/// step for each element of a list that is merged.
pub fn merge(shape: &Shape, live: &Value, config: &Value, budget: &mut Budget) -> Result<Value, String> {
    Ok(merge_at(shape, Some(live), Some(config), &mut Vec::new(), budget)?.unwrap_or(Value::Null))
}

fn locate(path: &[PathElement], message: &str) -> String {
    let path: String = path.iter().map(ToString::to_string).collect();
    format!("{path}: {message}")
}

fn merge_at(
    shape: &Shape,
    live: Option<&Value>,
    config: Option<&Value>,
    path: &mut Vec<PathElement>,
    budget: &mut Budget,
) -> Result<Option<Value>, String> {
    let right = || config.or(live).cloned();
    let Some(new) = config else { return Ok(live.cloned()) };
    match atom(shape, Some(new)) {
        Atom::Scalar | Atom::AtomicList | Atom::AtomicMap => Ok(right()),
        Atom::List => {
            let (a, b) = (array(live), array(config));
            if a.is_empty() && b.is_empty() {
                return Ok(right());
            }
            let merged = merge_lists(shape, a, b, path, budget)?;
            Ok((!merged.is_empty()).then_some(Value::Array(merged)))
        }
        Atom::Map => {
            let (a, b) = (object(live), object(config));
            if a.is_none_or(Map::is_empty) && b.is_none_or(Map::is_empty) {
                return Ok(right());
            }
            let mut out = a.cloned().unwrap_or_default();
            for (key, value) in b.into_iter().flatten() {
                if shape.child(key).is_none() {
                    path.push(PathElement::Field(key.clone()));
                    return Err(locate(path, "field not declared in schema"));
                }
                path.push(PathElement::Field(key.clone()));
                let merged = merge_at(&child(shape, key), out.get(key), Some(value), path, budget)?;
                path.pop();
                match merged {
                    Some(value) => out.insert(key.clone(), value),
                    None => out.remove(key),
                };
            }
            Ok((!out.is_empty()).then_some(Value::Object(out)))
        }
    }
}

/// The configuration's order wins; elements that only the live list has stay where they were between their neighbours.
fn merge_lists(
    shape: &Shape,
    live: &[Value],
    config: &[Value],
    path: &mut Vec<PathElement>,
    budget: &mut Budget,
) -> Result<Vec<Value>, String> {
    budget.steps(live.len() + config.len()).map_err(|e| locate(path, &e.to_string()))?;
    let index = |items: &[Value]| -> Result<Vec<PathElement>, String> {
        let elements = items
            .iter()
            .enumerate()
            .map(|(i, item)| element_of(shape, item).map_err(|why| locate(path, &format!("element {i}: {why}"))));
        elements.collect()
    };
    let (left, right) = (index(live)?, index(config)?);
    let mut named = BTreeSet::new();
    if let Some(twice) = right.iter().find(|e| !named.insert(*e)) {
        return Err(locate(path, &format!("duplicate entries for key {twice}")));
    }
    // A live element that is there twice has no value to merge with.
    let mut live_values: BTreeMap<&PathElement, Option<&Value>> = BTreeMap::new();
    for (element, value) in left.iter().zip(live) {
        live_values.entry(element).and_modify(|value| *value = None).or_insert(Some(value));
    }
    let of_element = shape.element();
    let mut out = Vec::with_capacity(live.len().max(config.len()));
    let mut shared = right.iter().filter(|e| live_values.contains_key(e));
    let mut next_shared = shared.next();
    let mut done = BTreeSet::new();
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        budget.steps(1).map_err(|e| locate(path, &e.to_string()))?;
        let equal = l < left.len() && r < right.len() && left[l] == right[r];
        if l < left.len() && !equal {
            let shared_here = named.contains(&left[l]);
            if r < right.len() && shared_here && next_shared.is_some_and(|s| *s != left[l]) {
                // It moved: it comes when the configuration's order reaches it.
                l += 1;
                continue;
            }
            if !shared_here {
                out.push(live[l].clone());
                l += 1;
                continue;
            }
            if done.contains(&left[l]) {
                l += 1;
            }
        }
        if r < right.len() {
            let element = &right[r];
            done.insert(element);
            path.push(element.clone());
            let merged =
                merge_at(&of_element, live_values.get(element).copied().flatten(), Some(&config[r]), path, budget)?;
            path.pop();
            out.extend(merged);
            if equal || next_shared == Some(element) {
                next_shared = shared.next();
            }
            l += usize::from(equal);
            r += 1;
        }
    }
    Ok(out)
}

/// Removes the fields of a set from a tree. What becomes empty stays, empty.
pub fn remove_fields(shape: &Shape, value: &Value, remove: &FieldSet) -> Value {
    match (atom(shape, Some(value)), value) {
        (Atom::List, Value::Array(items)) => {
            let of_element = shape.element();
            let kept = items.iter().filter_map(|item| {
                let Ok(element) = element_of(shape, item) else { return Some(item.clone()) };
                if remove.has_member(&element) {
                    return None;
                }
                Some(
                    remove
                        .below(&element)
                        .map_or_else(|| item.clone(), |below| remove_fields(&of_element, item, below)),
                )
            });
            Value::Array(kept.collect())
        }
        (Atom::Map, Value::Object(map)) => {
            let kept = map.iter().filter_map(|(key, value)| {
                let element = PathElement::Field(key.clone());
                if remove.has_member(&element) {
                    return None;
                }
                let value = match remove.below(&element) {
                    Some(below) => remove_fields(&child(shape, key), value, below),
                    None => value.clone(),
                };
                Some((key.clone(), value))
            });
            Value::Object(kept.collect())
        }
        (Atom::AtomicList, Value::Array(_)) => Value::Array(Vec::new()),
        (Atom::AtomicMap, Value::Object(_)) => Value::Object(Map::new()),
        (_, other) => other.clone(),
    }
}

/// Adds the named fields on the way to every path: a set of `.a.b.c` also owns `.a` when `a` is a declared field.
pub(super) fn with_named_fields(set: &FieldSet, shape: &Shape) -> FieldSet {
    let mut out = FieldSet::default();
    for step in set.steps() {
        let (named, next) = match &step.element {
            PathElement::Field(name) => (!step.below.is_empty() && shape.has_field(name), child(shape, name)),
            _ => (false, shape.element()),
        };
        out.put(step.element.clone(), step.member || named, with_named_fields(&step.below, &next));
    }
    out
}
