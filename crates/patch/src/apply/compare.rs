//! Compares two trees of one type by schema.
use super::fields::{FieldSet, PathElement, Step};
use super::walk::{Atom, array, atom, child, element_of, object};
use kelson_schema::Shape;
use serde_json::{Map, Value};

/// The differences of two trees. No path is in more than one of the sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields that only the first tree has.
    pub removed: FieldSet,
    /// Fields that both trees have with different values.
    pub modified: FieldSet,
    /// Fields that only the second tree has.
    pub added: FieldSet,
}

impl Comparison {
    /// Removes paths and everything below them.
    pub fn without(mut self, ignored: &FieldSet) -> Self {
        self.removed.subtract_trees(ignored);
        self.modified.subtract_trees(ignored);
        self.added.subtract_trees(ignored);
        self
    }
}

/// Compares two trees of one type.
pub fn compare(shape: &Shape, old: &Value, new: &Value) -> Comparison {
    let found = compare_at(shape, Some(old), Some(new));
    Comparison { removed: found.removed.below, modified: found.modified.below, added: found.added.below }
}

/// Compares a location of both trees. Returns whether its value differs, and the paths below it that are new or differ.
pub(super) fn changed_or_added(shape: &Shape, old: &Value, new: &Value) -> (bool, FieldSet) {
    let Difference { modified, added, .. } = compare_at(shape, Some(old), Some(new));
    let mut below = modified.below;
    below.absorb(added.below);
    (modified.member || added.member, below)
}

/// The part of one of the sets at a location: whether the location's path is in the set, and the paths below it.
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

/// The difference of two values at one location.
#[derive(Default)]
struct Difference {
    removed: Part,
    modified: Part,
    added: Part,
}

impl Difference {
    /// Adds the difference of a child. The path element is made only if there is one.
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

    /// Marks the location itself as different.
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

/// The paths below a value that did not exist before. All of them are in the set, and so is the path of the value. Most
/// fields that a create sets are such.
fn all_added(shape: &Shape, new: &Value) -> FieldSet {
    match (atom(shape, Some(new)), new) {
        (Atom::List, Value::Array(items)) => {
            let of_element = shape.element();
            let elements = by_element(shape, items);
            let mut steps = Vec::with_capacity(elements.len());
            let mut elements = elements.into_iter().peekable();
            while let Some((element, item)) = elements.next() {
                let mut alone = true;
                while elements.next_if(|(next, _)| *next == element).is_some() {
                    alone = false;
                }
                // Duplicates count as one value.
                let below = if alone { all_added(&of_element, item) } else { FieldSet::default() };
                steps.push(Step { element, member: true, below });
            }
            FieldSet::of_steps(steps)
        }
        (Atom::Map, Value::Object(map)) => {
            let step = |(key, value): (&String, &Value)| {
                let below = all_added(&child(shape, key), value);
                Step { element: PathElement::Field(key.clone()), member: true, below }
            };
            FieldSet::of_steps(map.iter().map(step).collect())
        }
        _ => FieldSet::default(),
    }
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

/// The elements of a list sorted by their path elements. Equal ones keep their order.
fn by_element<'a>(shape: &Shape, items: &'a [Value]) -> Vec<(PathElement, &'a Value)> {
    let mut out = Vec::with_capacity(items.len());
    out.extend(items.iter().filter_map(|item| Some((element_of(shape, item).ok()?, item))));
    out.sort_by(|(a, _), (b, _)| a.cmp(b));
    out
}

/// Removes the elements with this name from the front of a sorted list.
fn next_of<'a, 'b>(rest: &mut &'b [(PathElement, &'a Value)], name: &PathElement) -> &'b [(PathElement, &'a Value)] {
    let count = rest.iter().take_while(|(element, _)| element == name).count();
    let (found, behind) = rest.split_at(count);
    *rest = behind;
    found
}

fn compare_lists(shape: &Shape, old: &[Value], new: &[Value], out: &mut Difference) {
    if old == new {
        return;
    }
    let (old, new) = (by_element(shape, old), by_element(shape, new));
    let of_element = shape.element();
    let (mut old, mut new) = (&old[..], &new[..]);
    while let Some(element) = [old.first(), new.first()].into_iter().flatten().map(|(element, _)| element).min() {
        let (a, b) = (next_of(&mut old, element), next_of(&mut new, element));
        let (first_a, first_b) = (a.first().map(|(_, value)| *value), b.first().map(|(_, value)| *value));
        let found = match (a, b) {
            ([], [] | [_]) | ([_], [] | [_]) => compare_at(&of_element, first_a, first_b),
            // Duplicates count as one value.
            ([_, _, ..], [_, _, ..]) => {
                let mut found = Difference::default();
                found.modified.member = a != b;
                found
            }
            ([_, _, ..], _) => {
                let mut found = first_b.map(|b| compare_at(&of_element, None, Some(b))).unwrap_or_default();
                found.removed.member = true;
                found
            }
            _ => {
                let mut found = first_a.map(|a| compare_at(&of_element, Some(a), None)).unwrap_or_default();
                found.added.member = true;
                found
            }
        };
        out.put(found, || element.clone());
    }
}
