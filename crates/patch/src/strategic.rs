//! Strategic merge patch: lists merge by the keys that the schema publishes, and directives in the patch delete,
//! replace and order elements. The rules are those of apimachinery `pkg/util/strategicpatch`. kubectl computes such
//! patches.
use crate::PatchError;
use crate::index::{Index, key_of};
use crate::printed::printed;
use kelson_codec::{Budget, Limits};
use kelson_schema::shape::Shape;
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

type Object = Map<String, Value>;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
const SET_ORDER: &str = "$setElementOrder";

/// Applies a patch to an object of a built-in kind. `shape` is the shape of that kind ([`Shape::of_kind`]).
///
/// # Errors
/// See [`PatchError`].
pub fn strategic_merge_patch(original: Value, patch: Value, shape: &Shape) -> Result<Value, PatchError> {
    strategic_merge_patch_within(original, patch, shape, &mut Budget::new(Limits::DOCUMENT))
}

/// Works like [`strategic_merge_patch`] with the caller's budget, which is charged one step for each element of a
/// merged list.
///
/// # Errors
/// See [`PatchError`].
pub fn strategic_merge_patch_within(
    original: Value,
    patch: Value,
    shape: &Shape,
    budget: &mut Budget,
) -> Result<Value, PatchError> {
    let (Value::Object(original), Value::Object(patch)) = (original, patch) else {
        return Err(PatchError::BadRequest("invalid JSON document".into()));
    };
    if matches!(shape, Shape::Dynamic(_) | Shape::Untyped) {
        return Err(PatchError::BadRequest("strategic merge patch format is not supported".into()));
    }
    merge_map(original, patch, shape, budget).map(Value::Object)
}

fn bad(message: &str) -> PatchError {
    PatchError::BadRequest(message.to_owned())
}

fn refuse(message: impl Into<String>) -> PatchError {
    PatchError::Internal(message.into())
}

fn no_merge_key(map: &Object, key: &str) -> PatchError {
    refuse(format!("map: {} does not contain declared merge key: {key}", printed(&Value::Object(map.clone()))))
}

fn bad_order() -> PatchError {
    bad("invalid patch format of setElementOrder list")
}

fn child(shape: &Shape, key: &str) -> Shape {
    shape.child(key).unwrap_or(Shape::Untyped)
}

fn merge_map(
    mut original: Object,
    mut patch: Object,
    shape: &Shape,
    budget: &mut Budget,
) -> Result<Object, PatchError> {
    if let Some(directive) = patch.get(DIRECTIVE).cloned() {
        return match directive.as_str() {
            Some("replace") => {
                patch.remove(DIRECTIVE);
                Ok(patch)
            }
            Some("delete") => Ok(Object::new()),
            _ => Err(refuse(format!("unknown patch type: {} in map: {}", printed(&directive), printed(&patch.into())))),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    ordered_lists(&mut original, &mut patch, shape, budget)?;
    for (key, value) in patch {
        merge_entry(&mut original, &key, value, shape, budget)?;
    }
    Ok(original)
}

fn merge_entry(
    original: &mut Object,
    key: &str,
    value: Value,
    shape: &Shape,
    budget: &mut Budget,
) -> Result<(), PatchError> {
    let (key, deletion) = match key.split_once('/') {
        Some((DELETE_FROM_LIST, rest)) => (rest, true),
        None if key.starts_with(DELETE_FROM_LIST) => {
            return Err(bad("invalid patch format of primitive list"));
        }
        _ => (key, false),
    };
    if value.is_null() {
        original.remove(key);
        return Ok(());
    }
    let same_kind = original.get(key).map(|old| std::mem::discriminant(old) == std::mem::discriminant(&value));
    if same_kind != Some(true) {
        if !deletion {
            let mut value = value;
            discard_nulls(&mut value);
            match without_directives(value) {
                Some(value) => original.insert(key.to_owned(), value),
                None => original.remove(key),
            };
        }
        return Ok(());
    }
    let place = child(shape, key);
    let strategy = place.field().map(|f| f.patch_strategy()).unwrap_or_default();
    let merged = match (original.remove(key), value) {
        (Some(Value::Object(old)), Value::Object(new)) if !strategy.replace => {
            Some(Value::Object(merge_map(old, new, &place, budget)?))
        }
        (Some(Value::Array(old)), Value::Array(new)) if strategy.merge || deletion => {
            let merge_key = place.field().map_or("", |f| f.patch_merge_key());
            Some(Value::Array(merge_list(old, new, &place.element(), merge_key, deletion, budget)?))
        }
        (_, new @ (Value::Object(_) | Value::Array(_))) => Some(new),
        (_, new) => without_directives(new),
    };
    if let Some(value) = merged {
        original.insert(key.to_owned(), value);
    }
    Ok(())
}

/// Handles `$retainKeys`: removes all fields that it does not name.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), PatchError> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let malformed = || bad("invalid patch format of retainKeys");
    let retained: HashSet<&str> = retained.as_array().ok_or_else(malformed)?.iter().filter_map(Value::as_str).collect();
    let keeps = |key: &str| retained.contains(key);
    for (key, value) in patch.iter() {
        if !value.is_null() && !key.starts_with(DELETE_FROM_LIST) && !key.starts_with(SET_ORDER) && !keeps(key) {
            return Err(malformed());
        }
    }
    original.retain(|key, _| keeps(key));
    Ok(())
}

/// Handles `$setElementOrder/<list>`: merges the list and sorts it into the given order. Elements that the patch does
/// not name keep their relative position.
fn ordered_lists(
    original: &mut Object,
    patch: &mut Object,
    shape: &Shape,
    budget: &mut Budget,
) -> Result<(), PatchError> {
    let keys: Vec<String> = patch.keys().filter(|k| k.starts_with(SET_ORDER)).cloned().collect();
    for directive in keys {
        let order = match patch.remove(&directive) {
            Some(Value::Array(order)) => order,
            _ => return Err(refuse("expected a list in setElementOrder")),
        };
        let Some((SET_ORDER, key)) = directive.split_once('/') else { return Err(bad_order()) };
        // The lists of a map are not declared fields.
        if shape.struct_type().is_some() && !shape.has_field(key) {
            return Err(refuse(format!("unable to find api field for the json field {key:?}")));
        }
        let place = child(shape, key);
        let merge_key = place.field().map_or("", |f| f.patch_merge_key());
        let strategy = place.field().map(|f| f.patch_strategy()).unwrap_or_default();
        let list = |value: Option<Value>| match value {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(refuse(format!("expected a []interface {{}}, but received {other}"))),
        };
        let old = list(original.get(key).cloned())?;
        let new = list(patch.remove(key))?;
        check_order(new.as_deref().unwrap_or(&[]), &order, merge_key)?;
        let merged = match (&old, new) {
            (None, None) => continue,
            (Some(old), None) => old.clone(),
            (None, Some(new)) => match without_directives(Value::Array(new)) {
                Some(Value::Array(items)) => items,
                _ => continue,
            },
            (Some(old), Some(new)) if strategy.merge => {
                merge_list(old.clone(), new, &place.element(), merge_key, false, budget)?
            }
            (Some(_), Some(new)) => new,
        };
        if !merge_key.is_empty()
            && let Some(odd) = order.iter().find(|element| element.get(merge_key).is_none())
        {
            return Err(refuse(format!(
                "element {} of {SET_ORDER} does not have the merge key {merge_key}",
                printed(odd)
            )));
        }
        let sorted = sort_elements(merged, &order, old.as_deref().unwrap_or(&[]), merge_key, budget)?;
        original.insert(key.to_owned(), Value::Array(sorted));
    }
    Ok(())
}

/// Checks that the patch's list has the order of its `$setElementOrder`.
fn check_order(patch: &[Value], order: &[Value], merge_key: &str) -> Result<(), PatchError> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut places = order.iter();
    for item in patch.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
        let key = key_of(item, merge_key)
            .ok_or_else(|| no_merge_key(item.as_object().unwrap_or(&Object::new()), merge_key))?;
        if !places.any(|place| key_of(place, merge_key) == Some(key)) {
            return Err(refuse(format!(
                "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
                printed(&Value::from(patch.to_vec())),
                printed(&Value::from(order.to_vec()))
            )));
        }
    }
    Ok(())
}

fn merge_list(
    original: Vec<Value>,
    patch: Vec<Value>,
    element: &Shape,
    merge_key: &str,
    deletion: bool,
    budget: &mut Budget,
) -> Result<Vec<Value>, PatchError> {
    let Some(first) = original.first().or(patch.first()) else { return Ok(original) };
    if first.is_array() {
        return Err(PatchError::Unprocessable("lists of lists are not supported".into()));
    }
    if original.iter().chain(&patch).any(|v| std::mem::discriminant(v) != std::mem::discriminant(first)) {
        let both = [Value::from(original), Value::from(patch)];
        let why = format!("list element types are not identical: {}", printed(&Value::from(both.to_vec())));
        return Err(refuse(why));
    }
    if !first.is_object() {
        if deletion {
            let deleted = Index::new(&patch, "", budget)?;
            let mut kept = Vec::with_capacity(original.len());
            for item in original {
                if !deleted.has(&item, budget)? {
                    kept.push(item);
                }
            }
            return Ok(kept);
        }
        budget.steps(original.len() + patch.len())?;
        let mut seen = HashSet::new();
        let merged = original.iter().chain(&patch).filter(|v| seen.insert(*v)).cloned().collect();
        // This frees the memory before the sort allocates other sets.
        drop(seen);
        return sort_elements(merged, &patch, &original, "", budget);
    }
    if merge_key.is_empty() {
        return Err(refuse("cannot merge lists without merge key"));
    }
    let (before, patch) = special_elements(original, patch, merge_key, budget)?;
    let mut merged = before.clone();
    budget.steps(before.len() + patch.len())?;
    let mut places: HashMap<&Value, usize> = HashMap::with_capacity(before.len() + patch.len());
    for (place, item) in before.iter().enumerate() {
        if let Some(key) = key_of(item, merge_key) {
            places.entry(key).or_insert(place);
        }
    }
    for value in &patch {
        let Value::Object(item) = value else { continue };
        let key = item.get(merge_key).ok_or_else(|| no_merge_key(item, merge_key))?;
        match places.get(key).and_then(|place| merged.get_mut(*place)) {
            Some(Value::Object(old)) => *old = merge_map(std::mem::take(old), item.clone(), element, budget)?,
            _ => {
                places.insert(key, merged.len());
                merged.push(value.clone());
            }
        }
    }
    sort_elements(merged, &patch, &before, merge_key, budget)
}

/// Handles the elements of a list of objects with `$patch: delete` or `$patch: replace`. Returns the list to merge into
/// and the remaining elements of the patch.
fn special_elements(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    merge_key: &str,
    budget: &mut Budget,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let (mut rest, mut deleted, mut replace) = (Vec::new(), HashSet::new(), false);
    budget.steps(original.len() + patch.len())?;
    for mut item in patch {
        let Some(directive) = item.get(DIRECTIVE) else {
            rest.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") => match item.get_mut(merge_key) {
                Some(key) => drop(deleted.insert(key.take())),
                None => return Err(no_merge_key(item.as_object().unwrap_or(&Object::new()), merge_key)),
            },
            Some("replace") => replace = true,
            Some("merge") => return Err(refuse("merging lists cannot yet be specified in the patch")),
            _ => return Err(refuse(format!("unknown patch type: {} in map: {}", printed(directive), printed(&item)))),
        }
    }
    if replace {
        return Ok((rest, Vec::new()));
    }
    if !deleted.is_empty() {
        original.retain(|old| old.get(merge_key).is_none_or(|key| !deleted.contains(key)));
    }
    Ok((original, rest))
}

/// Sorts the elements that the patch names into the patch's order. The others are put between them, in the order of the
/// live list as far as possible.
fn sort_elements(
    mut merged: Vec<Value>,
    order: &[Value],
    live: &[Value],
    merge_key: &str,
    budget: &mut Budget,
) -> Result<Vec<Value>, PatchError> {
    let (order, live) = (Index::new(order, merge_key, budget)?, Index::new(live, merge_key, budget)?);
    // Each element has its index in the live list. Those in the order have their index in it before that.
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for (at, item) in merged.iter().enumerate() {
        let Some(key) = key_of(item, merge_key) else {
            return Err(no_merge_key(item.as_object().unwrap_or(&Object::new()), merge_key));
        };
        let (ordered, lived) = (order.place(key, budget)?, live.place(key, budget)?);
        match ordered {
            Some(place) => named.push((place, lived, at)),
            None => others.push((lived, at)),
        }
    }
    named.sort_by_key(|(place, ..)| *place);
    others.sort_by_key(|(lived, _)| lived.unwrap_or(usize::MAX));
    let mut out = Vec::with_capacity(merged.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let take_other = match (others.peek(), named.peek()) {
            (None, None) => return Ok(out),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some((Some(other), _)), Some((_, Some(name), _))) => other < name,
            _ => false,
        };
        let next = if take_other { others.next().map(|(_, at)| at) } else { named.next().map(|(.., at)| at) };
        out.extend(next.map(|at| merged[at].take()));
    }
}

/// Returns a new value without directives. Returns `None` if it is an object with `$patch`.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) => {
            if map.contains_key(DIRECTIVE) {
                return None;
            }
            Some(Value::Object(map.into_iter().filter_map(|(k, v)| Some((k, without_directives(v)?))).collect()))
        }
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(without_directives).collect())),
        other => Some(other),
    }
}

fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(discard_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}
