//! Merges an applied configuration into a live object by its schema.
use super::fields::PathElement;
use super::fit::{self, Misfit, MisfitKind, Misfits};
use super::walk::{Atom, array, atom, child, element_of, object};
use kelson_codec::{Budget, Exceeded};
use kelson_schema::Shape;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The reason why a configuration cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// The configuration does not fit its schema.
    #[error(transparent)]
    Unfit(#[from] Misfits),
    /// The merged tree exceeds the budget.
    #[error(transparent)]
    TooLarge(#[from] Exceeded),
}

/// Merges an applied configuration into a live tree, after a check against the schema. The budget is charged for the
/// merged tree, and one step for each element of a merged list.
///
/// # Errors
/// See [`MergeError`].
pub fn merge(shape: &Shape, live: &Value, config: &Value, budget: &mut Budget) -> Result<Value, MergeError> {
    fit::check(shape, config)?;
    merge_checked(shape, live, config, budget)
}

fn merge_checked(shape: &Shape, live: &Value, config: &Value, budget: &mut Budget) -> Result<Value, MergeError> {
    Ok(merge_at(shape, Some(live), Some(config), &mut Vec::new(), budget)?.unwrap_or(Value::Null))
}

/// Works like [`merge`] for a configuration that is already checked, and leaves out `metadata.managedFields` of the
/// live object, which may be as large as the rest.
pub(super) fn merge_bare(
    shape: &Shape,
    live: &Value,
    config: &Value,
    budget: &mut Budget,
) -> Result<Value, MergeError> {
    let (Value::Object(whole), Some(metadata)) = (live, object(live.get("metadata"))) else {
        return merge_checked(shape, live, config, budget);
    };
    let mut merged = merge_maps(shape, Some(whole), object(Some(config)), &["metadata"], &mut Vec::new(), budget)?;
    let path = &mut vec![PathElement::Field("metadata".into())];
    let of_metadata = child(shape, "metadata");
    let of_config = object(config.get("metadata"));
    let metadata = merge_maps(&of_metadata, Some(metadata), of_config, &["managedFields"], path, budget)?;
    if !metadata.is_empty() {
        budget.member(merged.len(), "metadata")?;
        merged.insert("metadata".into(), Value::Object(metadata));
    }
    Ok(Value::Object(merged))
}

fn locate(path: &[PathElement], fault: MisfitKind) -> MergeError {
    MergeError::Unfit(Misfit { path: path.to_vec(), fault }.into())
}

/// Copies a part of one of the two trees and charges the budget for it.
fn take_over(value: &Value, budget: &mut Budget) -> Result<Value, Exceeded> {
    budget.tree(value)?;
    Ok(value.clone())
}

fn merge_at(
    shape: &Shape,
    live: Option<&Value>,
    config: Option<&Value>,
    path: &mut Vec<PathElement>,
    budget: &mut Budget,
) -> Result<Option<Value>, MergeError> {
    let Some(new) = config else { return Ok(live.map(|live| take_over(live, budget)).transpose()?) };
    match atom(shape, Some(new)) {
        Atom::Scalar | Atom::AtomicList | Atom::AtomicMap => Ok(Some(take_over(new, budget)?)),
        Atom::List => {
            let (a, b) = (array(live), array(config));
            if a.is_empty() && b.is_empty() {
                return Ok(Some(take_over(new, budget)?));
            }
            let merged = merge_lists(shape, a, b, path, budget)?;
            Ok((!merged.is_empty()).then_some(Value::Array(merged)))
        }
        Atom::Map => {
            let (a, b) = (object(live), object(config));
            if a.is_none_or(Map::is_empty) && b.is_none_or(Map::is_empty) {
                return Ok(Some(take_over(new, budget)?));
            }
            let merged = merge_maps(shape, a, b, &[], path, budget)?;
            Ok((!merged.is_empty()).then_some(Value::Object(merged)))
        }
    }
}

/// Merges two maps. The fields that only the live object has come first, so no value is copied and then overwritten.
/// The fields in `passed_over` are left to the caller.
fn merge_maps(
    shape: &Shape,
    live: Option<&Map<String, Value>>,
    config: Option<&Map<String, Value>>,
    passed_over: &[&str],
    path: &mut Vec<PathElement>,
    budget: &mut Budget,
) -> Result<Map<String, Value>, MergeError> {
    let mut out = Map::new();
    let passes = |key: &String| passed_over.contains(&key.as_str());
    for (key, value) in live.into_iter().flatten().filter(|(key, _)| !passes(key)) {
        if config.is_none_or(|config| !config.contains_key(key)) {
            budget.member(out.len(), key)?;
            out.insert(key.clone(), take_over(value, budget)?);
        }
    }
    for (key, value) in config.into_iter().flatten().filter(|(key, _)| !passes(key)) {
        path.push(PathElement::Field(key.clone()));
        let Some(of_field) = shape.child(key) else {
            return Err(locate(path, MisfitKind::Undeclared));
        };
        let live = live.and_then(|live| live.get(key));
        let merged = merge_at(&of_field, live, Some(value), path, budget)?;
        path.pop();
        if let Some(value) = merged {
            budget.member(out.len(), key)?;
            out.insert(key.clone(), value);
        }
    }
    Ok(out)
}

fn append(out: &mut Vec<Value>, value: Value, budget: &mut Budget) -> Result<(), Exceeded> {
    budget.element(out.len())?;
    out.push(value);
    Ok(())
}

/// Merges two lists. The order is that of the configuration. Elements that only the live list has keep their position
/// relative to their neighbours.
fn merge_lists(
    shape: &Shape,
    live: &[Value],
    config: &[Value],
    path: &mut Vec<PathElement>,
    budget: &mut Budget,
) -> Result<Vec<Value>, MergeError> {
    budget.steps(live.len() + config.len())?;
    let index = |items: &[Value]| -> Result<Vec<PathElement>, MergeError> {
        let elements = items.iter().enumerate().map(|(index, item)| {
            element_of(shape, item).map_err(|error| locate(path, MisfitKind::Element { index, error }))
        });
        elements.collect()
    };
    let (left, right) = (index(live)?, index(config)?);
    let mut named = BTreeSet::new();
    if let Some(twice) = right.iter().find(|e| !named.insert(*e)) {
        return Err(locate(path, MisfitKind::Duplicate(twice.clone())));
    }
    // A repeated live element has no value to merge with.
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
        budget.steps(1)?;
        let equal = l < left.len() && r < right.len() && left[l] == right[r];
        if l < left.len() && !equal {
            let shared_here = named.contains(&left[l]);
            if r < right.len() && shared_here && next_shared.is_some_and(|s| *s != left[l]) {
                // The element has moved. It is added when the loop reaches it in the configuration.
                l += 1;
                continue;
            }
            if !shared_here {
                append(&mut out, take_over(&live[l], budget)?, budget)?;
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
            if let Some(value) = merged {
                append(&mut out, value, budget)?;
            }
            if equal || next_shared == Some(element) {
                next_shared = shared.next();
            }
            l += usize::from(equal);
            r += 1;
        }
    }
    Ok(out)
}
