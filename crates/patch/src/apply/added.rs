//! The fields that a new object sets, as a tree of FieldsV1 nodes that borrow their names from the object. A create
//! takes no fields from other managers, so no sets are compared or kept. The result equals that of `compare::compare`
//! with the empty object.
use super::{
    compare,
    fields::{FieldSet, PathElement, Step},
    managed::ManagerId,
    walk::{self, Atom},
};
use kelson_codec::json::write_text;
use kelson_schema::Shape;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The first size of the output buffer. The entries of most creates are shorter.
const GUESS_BYTES: usize = 2048;

/// An owned path, or an ancestor of owned paths.
pub(super) struct Node<'a> {
    name: Name<'a>,
    /// Whether the path of this node is in the set.
    member: bool,
    below: Vec<Node<'a>>,
}

/// The last element of a node's path.
enum Name<'a> {
    /// A field, or a key of a map.
    Field(&'a str),
    /// Any other element, as it is spelled in FieldsV1.
    Spelled(String),
}

impl Name<'_> {
    fn of(element: &PathElement) -> Self {
        Self::Spelled(element.serialize())
    }

    fn is(&self, element: &PathElement) -> bool {
        match (self, element) {
            (Self::Field(name), PathElement::Field(field)) => name == field,
            (Self::Field(_), _) => false,
            (Self::Spelled(text), element) => *text == element.serialize(),
        }
    }

    fn spelled(self) -> String {
        match self {
            Self::Field(name) => ["f:", name].concat(),
            Self::Spelled(text) => text,
        }
    }
}

/// The result for one location: whether its path is in the set, and the nodes below it.
type OfPlace<'a> = (bool, Vec<Node<'a>>);

/// Returns the fields of `new` that differ from `base`, which is the empty object of the type.
pub(super) fn added_to<'a>(shape: &Shape, base: &Value, new: &'a Value) -> Vec<Node<'a>> {
    // The root is not a path.
    differing(shape, base, new).map(|(_, nodes)| nodes).unwrap_or_default()
}

/// Removes the members of `set` and everything below them.
pub(super) fn remove_trees(nodes: &mut Vec<Node<'_>>, set: &FieldSet) {
    remove(nodes, set, true);
}

/// Removes the members of `set`, but not the nodes below them.
pub(super) fn remove_members(nodes: &mut Vec<Node<'_>>, set: &FieldSet) {
    remove(nodes, set, false);
}

fn remove(nodes: &mut Vec<Node<'_>>, set: &FieldSet, trees: bool) {
    for step in set.steps() {
        let Some(at) = nodes.iter().position(|node| node.name.is(&step.element)) else { continue };
        let node = &mut nodes[at];
        if step.member && trees {
            node.below.clear();
        } else {
            remove(&mut node.below, &step.below, trees);
        }
        node.member &= !step.member;
        if !node.member && node.below.is_empty() {
            nodes.remove(at);
        }
    }
}

/// Converts the nodes to a FieldsV1 object.
pub(super) fn to_map(nodes: Vec<Node<'_>>) -> Map<String, Value> {
    let value = |node: Node<'_>| {
        let mut map = to_map(node.below);
        if node.member && !map.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        (node.name.spelled(), Value::Object(map))
    };
    nodes.into_iter().map(value).collect()
}

/// Returns the JSON of a `managedFields` list with one entry for a plain write. The fields are in the order of their
/// type's declaration.
pub(super) fn entries(nodes: &[Node<'_>], id: &ManagerId, time: &str) -> Option<String> {
    let mut out = Vec::with_capacity(GUESS_BYTES);
    let mut field = |before: &str, text: &str| {
        out.extend_from_slice(before.as_bytes());
        write_text(text, &mut out);
    };
    field("[{\"manager\":", &id.manager);
    field(",\"operation\":", id.operation.name());
    field(",\"apiVersion\":", &id.api_version);
    field(",\"time\":", time);
    out.extend_from_slice(b",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":");
    write_node(false, nodes, &mut out);
    if !id.subresource.is_empty() {
        out.extend_from_slice(b",\"subresource\":");
        write_text(&id.subresource, &mut out);
    }
    out.extend_from_slice(b"}]");
    // The buffer contains only strings, so this cannot fail.
    String::from_utf8(out).ok()
}

fn write_node(member: bool, below: &[Node<'_>], out: &mut Vec<u8>) {
    out.push(b'{');
    let dotted = member && !below.is_empty();
    if dotted {
        // The dot sorts before all names.
        out.extend_from_slice(b"\".\":{}");
    }
    for (i, node) in below.iter().enumerate() {
        if i > 0 || dotted {
            out.push(b',');
        }
        match &node.name {
            Name::Field(name) => {
                out.extend_from_slice(b"\"f:");
                let at = out.len();
                write_text(name, out);
                // `write_text` has written a second opening quote.
                out.remove(at);
            }
            Name::Spelled(text) => write_text(text, out),
        }
        out.push(b':');
        write_node(node.member, &node.below, out);
    }
    out.push(b'}');
}

/// Returns the node of a location. Returns `None` if nothing at or below it differs.
fn differing<'a>(shape: &Shape, base: &Value, new: &'a Value) -> Option<OfPlace<'a>> {
    let kind = walk::atom(shape, Some(new));
    if walk::atom(shape, Some(base)) != kind {
        return compared(shape, base, new);
    }
    match (kind, base, new) {
        (Atom::Map, Value::Object(old), Value::Object(map)) if !old.is_empty() || !map.is_empty() => {
            let mut nodes = Vec::with_capacity(map.len());
            for (key, value) in map {
                let of_field = walk::child(shape, key);
                let found = match old.get(key) {
                    Some(old) => differing(&of_field, old, value),
                    None => Some((true, whole(&of_field, value))),
                };
                nodes.extend(found.map(|(member, below)| Node { name: Name::Field(key), member, below }));
            }
            (!nodes.is_empty()).then_some((false, nodes))
        }
        // The list was empty, so each element is new, while the list itself is not.
        (Atom::List, Value::Null, Value::Array(items)) if !items.is_empty() => {
            let nodes = whole(shape, new);
            (!nodes.is_empty()).then_some((false, nodes))
        }
        (Atom::Scalar | Atom::AtomicList | Atom::AtomicMap, ..) => (base != new).then_some((true, Vec::new())),
        _ => compared(shape, base, new),
    }
}

/// Compares by sets. Used for the values that an empty object rarely has.
fn compared<'a>(shape: &Shape, base: &Value, new: &Value) -> Option<OfPlace<'a>> {
    let (is_member, set) = compare::changed_or_added(shape, base, new);
    (is_member || !set.is_empty()).then(|| (is_member, nodes_of(&set)))
}

fn nodes_of<'a>(set: &FieldSet) -> Vec<Node<'a>> {
    let node = |step: &Step| Node { name: Name::of(&step.element), member: step.member, below: nodes_of(&step.below) };
    sorted(set.steps().iter().map(node).collect())
}

/// Sorts nodes into the order in which they are written.
fn sorted(mut nodes: Vec<Node<'_>>) -> Vec<Node<'_>> {
    let spelled = |node: &Node<'_>| match &node.name {
        Name::Spelled(text) => text.clone(),
        Name::Field(name) => ["f:", name].concat(),
    };
    if nodes.len() > 1 {
        nodes.sort_by_cached_key(spelled);
    }
    nodes
}

/// Returns the nodes below a value that did not exist before. The path of the value itself is in the set too.
fn whole<'a>(shape: &Shape, new: &'a Value) -> Vec<Node<'a>> {
    match (walk::atom(shape, Some(new)), new) {
        (Atom::List, Value::Array(items)) => {
            let of_element = shape.element();
            let mut nodes: BTreeMap<PathElement, Vec<Node<'a>>> = BTreeMap::new();
            for item in items {
                let Ok(element) = walk::element_of(shape, item) else { continue };
                // Duplicates count as one value.
                nodes.entry(element).and_modify(Vec::clear).or_insert_with(|| whole(&of_element, item));
            }
            let node = |(element, below): (PathElement, _)| Node { name: Name::of(&element), member: true, below };
            sorted(nodes.into_iter().map(node).collect())
        }
        (Atom::Map, Value::Object(map)) => {
            let node = |(key, value): (&'a String, &'a Value)| {
                let below = whole(&walk::child(shape, key), value);
                Node { name: Name::Field(key), member: true, below }
            };
            map.iter().map(node).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Computes the expected result with the sets of `compare`.
    fn by_sets(shape: &Shape, base: &Value, new: &Value, ignored: &FieldSet) -> Value {
        let mut found = compare::compare(shape, base, new).without(ignored);
        found.modified.absorb(found.added);
        found.modified.to_fields_v1()
    }

    #[test]
    fn as_a_comparison_with_the_empty_object() {
        let ignored = [FieldSet::of(&[&["status"]]), FieldSet::of(&[&["spec", "nodeName"], &["metadata", "labels"]])];
        let container = json!({
            "name": "a", "image": "i", "args": ["x", "x"], "env": [{"name": "A", "value": "1"}, {"name": "B"}],
            "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP", "name": "again"}],
            "resources": {}, "securityContext": {"capabilities": {"add": ["A"]}},
        });
        let pods = [
            json!({}),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "creationTimestamp": null}, "spec": {}}),
            json!({"metadata": {"labels": {"a": "b"}, "annotations": {}, "finalizers": ["x", "y", "x"],
                "ownerReferences": [{"uid": "u", "kind": "K"}], "creationTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"spec": {"containers": [container, {"name": "b"}], "nodeName": "n", "tolerations": [{"key": "k"}],
                "nodeSelector": {"a": "b"}, "volumes": [{"name": "v", "configMap": {"name": "c"}}, {"name": "w"}]},
                "status": {"phase": "Running", "conditions": [{"type": "Ready"}]}}),
            json!({"spec": {"containers": null, "volumes": [], "hostAliases": [{}]}, "status": null}),
            json!({"spec": {"containers": [{"image": "no name"}, null, 7]}, "unknown": {"a": [1]}, "metadata": []}),
        ];
        let shape = Shape::of_kind("", "v1", "Pod");
        let empty = shape.struct_type().map(kelson_codec::zero_object).unwrap();
        let bases =
            [empty, json!({}), json!({"spec": {"containers": [{"name": "a"}], "nodeName": "m"}, "metadata": 1})];
        for shape in [shape, Shape::Untyped] {
            for (base, new) in bases.iter().flat_map(|base| pods.iter().map(move |new| (base, new))) {
                for ignored in &ignored {
                    let mut found = added_to(&shape, base, new);
                    remove_trees(&mut found, ignored);
                    let expected = by_sets(&shape, base, new, ignored);
                    let mut text = Vec::new();
                    write_node(false, &found, &mut text);
                    assert_eq!(String::from_utf8(text).unwrap(), expected.to_string(), "{base} {new}");
                    assert_eq!(Value::Object(to_map(found)), expected, "{base} {new}");
                }
            }
        }
    }
}
