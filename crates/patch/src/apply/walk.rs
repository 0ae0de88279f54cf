//! Walks over trees by schema: the classification of a location, the fields that a tree sets, and the removal of
//! fields. The rules are those of structured-merge-diff v6 `typed`.
use super::fields::{FieldSet, PathElement, Scalar, Step};
use kelson_schema::shape::ValueForm;
use kelson_schema::{Kind, ListType, Shape};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// The treatment of a location in field management.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Atom {
    Scalar,
    AtomicList,
    List,
    AtomicMap,
    Map,
}

/// Returns the treatment that the schema and the value determine together.
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
        // Null has the type of its location. Without a type it counts as a map.
        Shape::Dynamic(_) | Shape::Untyped => match (value, shape.form()) {
            (Some(Value::Object(_)), _) | (Some(Value::Null), ValueForm::Map | ValueForm::Any) => {
                map(shape.is_atomic())
            }
            (Some(Value::Array(_)), _) | (Some(Value::Null), ValueForm::List) => list(shape.list_type()),
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

/// Why an element of an associative list cannot be identified, with the messages of structured-merge-diff.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ElementError {
    /// The list is a set, and the element is a map.
    #[error("associative list without keys has an element that's a map type")]
    MapInSet,
    /// The list is a set, and the element is a list.
    #[error("not supported: associative list with lists as elements")]
    ListInSet,
    /// The list is a set, and the element is null.
    #[error("associative list without keys has an element that's an explicit null")]
    NullInSet,
    /// The elements of the list are identified by keys, and the element is null.
    #[error("associative list with keys may not have a null element")]
    Null,
    /// The elements of the list are identified by keys, and the element is neither a map nor null.
    #[error("associative list with keys may not have non-map elements")]
    NotMap,
    /// The element has none of the keys.
    #[error(
        "associative list with keys has an element that omits all key fields {0:?} (and doesn't have default values for any key fields)"
    )]
    NoKey(Vec<String>),
}

/// The path element of a list's element.
pub(super) fn element_of(shape: &Shape, item: &Value) -> Result<PathElement, ElementError> {
    if shape.list_type() == ListType::Set {
        return match item {
            Value::Object(_) => Err(ElementError::MapInSet),
            Value::Array(_) => Err(ElementError::ListInSet),
            Value::Null => Err(ElementError::NullInSet),
            scalar => Ok(PathElement::Value(Scalar(scalar.clone()))),
        };
    }
    let map = match item {
        Value::Object(map) => map,
        Value::Null => return Err(ElementError::Null),
        _ => return Err(ElementError::NotMap),
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
        return Err(ElementError::NoKey(names));
    }
    keys.sort();
    Ok(PathElement::Key(keys))
}

/// The fields that a tree sets.
pub fn field_set(shape: &Shape, value: &Value) -> FieldSet {
    collect(shape, value, None).below
}

/// The fields that a tree sets after [`remove_fields`] with `removed`.
pub(super) fn fields_without(shape: &Shape, value: &Value, removed: &FieldSet) -> FieldSet {
    collect(shape, value, Some(removed)).below
}

/// The fields that a location sets.
#[derive(Default)]
struct LocationFields {
    /// Whether the path of the location itself is in the set.
    leaf: bool,
    /// The paths below it.
    below: FieldSet,
    /// Whether the location is an object without remaining members.
    empty: bool,
}

fn collect(shape: &Shape, value: &Value, removed: Option<&FieldSet>) -> LocationFields {
    match (atom(shape, Some(value)), value) {
        (Atom::Scalar | Atom::AtomicList | Atom::AtomicMap, _) => {
            LocationFields { leaf: true, ..LocationFields::default() }
        }
        (Atom::List, Value::Array(items)) => {
            LocationFields { below: collect_list(shape, items, removed), ..LocationFields::default() }
        }
        (Atom::Map, Value::Object(map)) => {
            let mut steps = Vec::with_capacity(map.len());
            let mut empty = true;
            for (key, value) in map {
                let element = PathElement::Field(key.clone());
                if removed.is_some_and(|removed| removed.has_member(&element)) {
                    continue;
                }
                empty = false;
                let found = collect(&child(shape, key), value, removed.and_then(|removed| removed.below(&element)));
                let member = found.leaf || found.empty || value.is_null() || !shape.has_field(key);
                if member || !found.below.is_empty() {
                    steps.push(Step { element, member, below: found.below });
                }
            }
            LocationFields { leaf: false, below: FieldSet::of_steps(steps), empty }
        }
        _ => LocationFields::default(),
    }
}

fn collect_list(shape: &Shape, items: &[Value], removed: Option<&FieldSet>) -> FieldSet {
    let named = |item| element_of(shape, pruned(shape, item, removed)?.as_ref()).ok();
    let elements: Vec<Option<PathElement>> = items.iter().map(named).collect();
    let mut sorted: Vec<&PathElement> = elements.iter().flatten().collect();
    sorted.sort_unstable();
    let repeated: BTreeSet<PathElement> =
        sorted.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone()).collect();
    drop(sorted);
    let of_element = shape.element();
    let mut steps = Vec::with_capacity(items.len());
    for (item, element) in items.iter().zip(elements) {
        let (Some(element), Some(item)) = (element, pruned(shape, item, removed)) else { continue };
        // Duplicates count as one value.
        let alone = !repeated.contains(&element);
        let below = if alone { collect(&of_element, &item, None).below } else { FieldSet::default() };
        steps.push(Step { element, member: true, below });
    }
    FieldSet::of_steps(steps)
}

/// Returns a list element without the removed fields. It may lose a key and so be identified differently.
fn pruned<'a>(shape: &Shape, item: &'a Value, removed: Option<&FieldSet>) -> Option<Cow<'a, Value>> {
    let Some(removed) = removed else { return Some(Cow::Borrowed(item)) };
    let element = element_of(shape, item).ok()?;
    if removed.has_member(&element) {
        return None;
    }
    let Some(below) = removed.below(&element) else { return Some(Cow::Borrowed(item)) };
    let mut rest = item.clone();
    remove_fields(&shape.element(), &mut rest, below);
    Some(Cow::Owned(rest))
}

/// Removes the fields of a set from a tree. Objects and lists that become empty stay.
pub fn remove_fields(shape: &Shape, value: &mut Value, remove: &FieldSet) {
    match (atom(shape, Some(value)), value) {
        (Atom::List, Value::Array(items)) => {
            let of_element = shape.element();
            items.retain_mut(|item| {
                let Ok(element) = element_of(shape, item) else { return true };
                if remove.has_member(&element) {
                    return false;
                }
                if let Some(below) = remove.below(&element) {
                    remove_fields(&of_element, item, below);
                }
                true
            });
        }
        (Atom::Map, Value::Object(map)) => {
            for step in remove.steps() {
                let PathElement::Field(key) = &step.element else { continue };
                if step.member {
                    map.remove(key);
                } else if let Some(value) = map.get_mut(key) {
                    remove_fields(&child(shape, key), value, &step.below);
                }
            }
        }
        (Atom::AtomicList, Value::Array(items)) => items.clear(),
        (Atom::AtomicMap, Value::Object(map)) => map.clear(),
        _ => {}
    }
}

/// Adds the declared fields on the way to every path: a set with `.a.b.c` also gets `.a` if `a` is a declared field.
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_without_others_are_those_of_the_pruned_tree() {
        let pod = Shape::of_kind("", "v1", "Pod");
        let tree = json!({
            "metadata": {"labels": {"a": "1", "b": "2"}, "finalizers": ["x", "y", "y"], "annotations": {}},
            "spec": {
                "containers": [{"name": "c", "image": "i", "args": ["1"], "env": [{"name": "e", "value": "v"}]}, {"name": "d"}],
                "nodeSelector": {"k": "v"}, "securityContext": {"runAsUser": 1},
            },
        });
        let field = |name: &str| PathElement::Field(name.into());
        let keyed = |name: &str| PathElement::Key(vec![("name".into(), Scalar(name.into()))]);
        let paths = [
            vec![field("metadata"), field("labels"), field("a")],
            vec![field("metadata"), field("labels"), field("b")],
            vec![field("metadata"), field("finalizers"), PathElement::Value(Scalar("x".into()))],
            vec![field("metadata"), field("finalizers"), PathElement::Value(Scalar("y".into()))],
            vec![field("metadata"), field("annotations")],
            vec![field("spec"), field("containers"), keyed("c")],
            vec![field("spec"), field("containers"), keyed("c"), field("image")],
            // The element loses its key.
            vec![field("spec"), field("containers"), keyed("c"), field("name")],
            vec![field("spec"), field("containers"), keyed("c"), field("args"), PathElement::Index(0)],
            vec![field("spec"), field("containers"), keyed("c"), field("env"), keyed("e"), field("value")],
            vec![field("spec"), field("containers"), keyed("d"), field("image")],
            vec![field("spec"), field("nodeSelector"), field("k")],
            vec![field("spec"), field("securityContext"), field("runAsUser")],
            vec![field("status")],
        ];
        for shape in [pod, Shape::Untyped] {
            for chosen in (0_u32..1 << paths.len()).step_by(7) {
                let mut removed = FieldSet::default();
                let of = |i: usize| chosen >> i & 1 == 1;
                paths.iter().enumerate().filter(|(i, _)| of(*i)).for_each(|(_, path)| removed.insert(path));
                let mut pruned = tree.clone();
                remove_fields(&shape, &mut pruned, &removed);
                assert_eq!(
                    fields_without(&shape, &tree, &removed),
                    field_set(&shape, &pruned),
                    "{:?}",
                    removed.paths()
                );
            }
        }
    }
}
