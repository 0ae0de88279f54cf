//! What a new object sets, as FieldsV1 at once: a create has nobody to take fields from, so no sets are compared and none
//! is kept. The result is that of `compare::compare` with the empty object.
use super::{
    compare,
    fields::{FieldSet, PathElement},
    walk::{self, Atom},
};
use kelson_schema::Shape;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The fields of `new` that are not as in `base`, which is the empty object of the type.
pub(super) fn added_to(shape: &Shape, base: &Value, new: &Value) -> Map<String, Value> {
    match differing(shape, base, new) {
        Some(Value::Object(mut map)) => {
            // The root is no path.
            map.remove(".");
            map
        }
        _ => Map::new(),
    }
}

/// Takes members of `set` out of a FieldsV1 object, and all that is below them.
pub(super) fn remove_trees(map: &mut Map<String, Value>, set: &FieldSet) {
    for step in set.steps() {
        let key = step.element.serialize();
        if step.member {
            map.remove(&key);
        } else if let Some(Value::Object(below)) = map.get_mut(&key)
            && !below.is_empty()
        {
            remove_trees(below, &step.below);
            if below.len() == 1 && below.contains_key(".") {
                below.clear();
            } else if below.is_empty() {
                map.remove(&key);
            }
        }
    }
}

/// The node of a place in both objects; `None` when nothing at or below it differs.
fn differing(shape: &Shape, base: &Value, new: &Value) -> Option<Value> {
    let kind = walk::atom(shape, Some(new));
    if walk::atom(shape, Some(base)) != kind {
        return compared(shape, base, new);
    }
    match (kind, base, new) {
        (Atom::Map, Value::Object(old), Value::Object(map)) if !old.is_empty() || !map.is_empty() => {
            let mut out = Map::new();
            for (key, value) in map {
                let of_field = walk::child(shape, key);
                let node = match old.get(key) {
                    Some(old) => differing(&of_field, old, value),
                    None => Some(whole(&of_field, value)),
                };
                out.extend(node.map(|node| (field(key), node)));
            }
            (!out.is_empty()).then_some(Value::Object(out))
        }
        // The list was empty, so that each element is new, and the list itself is not.
        (Atom::List, Value::Null, Value::Array(items)) if !items.is_empty() => {
            let Value::Object(mut elements) = whole(shape, new) else { return None };
            elements.remove(".");
            (!elements.is_empty()).then_some(Value::Object(elements))
        }
        (Atom::Scalar | Atom::AtomicList | Atom::AtomicMap, ..) => (base != new).then(member),
        _ => compared(shape, base, new),
    }
}

/// The same by sets, for what an empty object hardly has.
fn compared(shape: &Shape, base: &Value, new: &Value) -> Option<Value> {
    let (is_member, set) = compare::changed_or_added(shape, base, new);
    if !is_member && set.is_empty() {
        return None;
    }
    let Value::Object(mut below) = set.to_fields_v1() else { return None };
    if is_member && !below.is_empty() {
        below.insert(".".to_owned(), member());
    }
    Some(Value::Object(below))
}

/// The node of a value that was not there before: a member, and so is all below it.
fn whole(shape: &Shape, new: &Value) -> Value {
    let mut out = Map::new();
    match (walk::atom(shape, Some(new)), new) {
        (Atom::List, Value::Array(items)) if !items.is_empty() => {
            let of_element = shape.element();
            let mut nodes: BTreeMap<PathElement, Value> = BTreeMap::new();
            for item in items {
                let Ok(element) = walk::element_of(shape, item) else { continue };
                // Duplicates count as one value.
                nodes.entry(element).and_modify(|node| *node = member()).or_insert_with(|| whole(&of_element, item));
            }
            out.extend(nodes.into_iter().map(|(element, node)| (element.serialize(), node)));
        }
        (Atom::Map, Value::Object(map)) if !map.is_empty() => {
            // The least key comes first: nothing is moved to make room for it.
            out.insert(".".to_owned(), member());
            for (key, value) in map {
                out.insert(field(key), whole(&walk::child(shape, key), value));
            }
            return Value::Object(out);
        }
        _ => {}
    }
    if !out.is_empty() {
        out.insert(".".to_owned(), member());
    }
    Value::Object(out)
}

fn field(name: &str) -> String {
    ["f:", name].concat()
}

/// What stands for a path that has none below it.
fn member() -> Value {
    Value::Object(Map::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// As the sets say it.
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
                    assert_eq!(Value::Object(found), by_sets(&shape, base, new, ignored), "{base} {new}");
                }
            }
        }
    }
}
