//! Walks over trees by schema: what a place is, which fields a tree sets, and the removal of fields. The rules are those of
//! structured-merge-diff v6 `typed`.
use super::fields::{FieldSet, PathElement, Scalar, Step};
use kelson_schema::{Kind, ListType, Shape};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

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
    let steps = items.iter().zip(&elements).filter_map(|(item, element)| {
        let element = element.as_ref()?;
        let below = if repeated.contains(element) { FieldSet::default() } else { collect(&of_element, item).1 };
        Some(Step { element: element.clone(), member: true, below })
    });
    FieldSet::of_steps(steps.collect())
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

pub(super) fn array(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn object(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}
