//! Validates that lists of type set and map have no equal elements (upstream `pkg/apiserver/schema/listtype`).
use std::collections::HashMap;
use std::hash::Hash;

use kelson_meta::path::{Errors, Path};
use kelson_schema::ListType;
use serde_json::{Map, Value};

use crate::schema::{Flags, Node};

/// Returns the errors of lists in this value and below it.
pub fn check_lists(value: &Value, node: &Node, path: &Path<'_>, e: &mut Errors) {
    if !node.is(Flags::BELOW_LISTS) {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if let Some(property) = node.property(key) {
                    check_lists(value, property, &path.child(key), e);
                } else if let Some(values) = node.values_of_map() {
                    check_lists(value, values, &path.key(key), e);
                }
            }
        }
        Value::Array(list) => {
            match node.list_type() {
                Some(ListType::Set) => {
                    repeated(list.iter(), |i| e.duplicate(&path.index(i), &list[i]));
                }
                Some(ListType::Map) => by_keys(list, node, path, e),
                _ => {}
            }
            let Some(items) = node.items() else { return };
            for (i, element) in list.iter().enumerate() {
                check_lists(element, items, &path.index(i), e);
            }
        }
        _ => {}
    }
}

/// Reports the second of equal elements; a third is not reported again.
fn repeated<K: Eq + Hash>(elements: impl ExactSizeIterator<Item = K>, mut report: impl FnMut(usize)) {
    let mut seen = HashMap::with_capacity(elements.len());
    for (i, element) in elements.enumerate() {
        let times = seen.entry(element).or_insert(0_u32);
        *times = times.saturating_add(1);
        if *times == 2 {
            report(i);
        }
    }
}

fn by_keys(list: &[Value], node: &Node, path: &Path<'_>, e: &mut Errors) {
    if let Some((i, other)) = list.iter().enumerate().find(|(_, v)| !v.is_object() && !v.is_null()) {
        return e.invalid(&path.index(i), other, "must be an object for an array of list-type map");
    }
    // Elements without a value for a key are equal in that key.
    let keys = |element: &'_ Value| -> Vec<Option<Value>> {
        node.map_keys().iter().map(|key| element.get(key.as_ref()).cloned()).collect()
    };
    repeated(list.iter().map(keys), |i| {
        let shown: Map<String, Value> = node
            .map_keys()
            .iter()
            .filter_map(|key| Some((key.to_string(), list[i].get(key.as_ref())?.clone())))
            .collect();
        e.duplicate(&path.index(i), shown);
    });
}
