//! The merge of an applied configuration into a live object, by schema.
use super::fields::PathElement;
use super::walk::{Atom, array, atom, child, element_of, object};
use kelson_codec::Budget;
use kelson_schema::Shape;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

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
