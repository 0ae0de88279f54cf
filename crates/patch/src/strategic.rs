//! Strategic merge patch: lists merge by the keys the schema publishes, and directives inside the patch delete, replace and
//! order. The rules are those of apimachinery `pkg/util/strategicpatch`; the diff that makes such patches is kubectl's.
use crate::PatchError;
use kelson_schema::shape::Shape;
use serde_json::{Map, Value};

type Object = Map<String, Value>;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
const SET_ORDER: &str = "$setElementOrder";

/// Applies a patch to an object of a built-in kind. `shape` is the kind's ([`Shape::of_kind`]).
pub fn strategic_merge_patch(original: Value, patch: Value, shape: &Shape) -> Result<Value, PatchError> {
    let (Value::Object(original), Value::Object(patch)) = (original, patch) else {
        return Err(PatchError::BadRequest("invalid JSON document".into()));
    };
    if matches!(shape, Shape::Dynamic(_) | Shape::Untyped) {
        return Err(PatchError::BadRequest("strategic merge patch format is not supported".into()));
    }
    merge_map(original, patch, shape).map(Value::Object)
}

fn bad(message: &str) -> PatchError {
    PatchError::BadRequest(message.to_owned())
}

fn refuse(message: impl Into<String>) -> PatchError {
    PatchError::Unprocessable(message.into())
}

fn no_merge_key(map: &Object, key: &str) -> PatchError {
    refuse(format!("map: {} does not contain declared merge key: {key}", Value::Object(map.clone())))
}

fn bad_order() -> PatchError {
    bad("invalid patch format of setElementOrder list")
}

fn child(shape: &Shape, key: &str) -> Shape {
    shape.child(key).unwrap_or(Shape::Untyped)
}

fn merge_map(mut original: Object, mut patch: Object, shape: &Shape) -> Result<Object, PatchError> {
    if let Some(directive) = patch.get(DIRECTIVE).cloned() {
        return match directive.as_str() {
            Some("replace") => {
                patch.remove(DIRECTIVE);
                Ok(patch)
            }
            Some("delete") => Ok(Object::new()),
            _ => Err(refuse(format!("unknown patch type {directive} in map: {}", Value::Object(patch)))),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    ordered_lists(&mut original, &mut patch, shape)?;
    for (key, value) in patch {
        merge_entry(&mut original, &key, value, shape)?;
    }
    Ok(original)
}

fn merge_entry(original: &mut Object, key: &str, value: Value, shape: &Shape) -> Result<(), PatchError> {
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
            Some(Value::Object(merge_map(old, new, &place)?))
        }
        (Some(Value::Array(old)), Value::Array(new)) if strategy.merge || deletion => {
            let merge_key = place.field().map_or("", |f| f.patch_merge_key());
            Some(Value::Array(merge_list(old, new, &place.element(), merge_key, deletion)?))
        }
        (_, new @ (Value::Object(_) | Value::Array(_))) => Some(new),
        (_, new) => without_directives(new),
    };
    if let Some(value) = merged {
        original.insert(key.to_owned(), value);
    }
    Ok(())
}

/// `$retainKeys`: everything else goes.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), PatchError> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let malformed = || bad("invalid patch format of retainKeys");
    let retained = retained.as_array().cloned().ok_or_else(malformed)?;
    let keeps = |key: &str| retained.iter().any(|r| r.as_str() == Some(key));
    for (key, value) in patch.iter() {
        if !value.is_null() && !key.starts_with(DELETE_FROM_LIST) && !key.starts_with(SET_ORDER) && !keeps(key) {
            return Err(malformed());
        }
    }
    original.retain(|key, _| keeps(key));
    Ok(())
}

/// `$setElementOrder/<list>`: merges the list and puts it into the given order; elements the patch does not name keep
/// their relative place.
fn ordered_lists(original: &mut Object, patch: &mut Object, shape: &Shape) -> Result<(), PatchError> {
    let keys: Vec<String> = patch.keys().filter(|k| k.starts_with(SET_ORDER)).cloned().collect();
    for directive in keys {
        let order = match patch.remove(&directive) {
            Some(Value::Array(order)) => order,
            _ => return Err(refuse("expected a list in setElementOrder")),
        };
        let Some((SET_ORDER, key)) = directive.split_once('/') else { return Err(bad_order()) };
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
                merge_list(old.clone(), new, &place.element(), merge_key, false)?
            }
            (Some(_), Some(new)) => new,
        };
        let sorted = sort_elements(merged, &order, old.as_deref().unwrap_or(&[]), merge_key)?;
        original.insert(key.to_owned(), Value::Array(sorted));
    }
    Ok(())
}

fn key_of<'a>(item: &'a Value, merge_key: &str) -> Option<&'a Value> {
    if merge_key.is_empty() { Some(item) } else { item.as_object()?.get(merge_key) }
}

/// The patch's list must follow the order it announces.
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
                Value::from(patch.to_vec()),
                Value::from(order.to_vec())
            )));
        }
    }
    Ok(())
}

fn merge_list(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    element: &Shape,
    merge_key: &str,
    deletion: bool,
) -> Result<Vec<Value>, PatchError> {
    let Some(first) = original.first().or(patch.first()) else { return Ok(original) };
    if first.is_array() {
        return Err(refuse("lists of lists are not supported"));
    }
    if original.iter().chain(&patch).any(|v| std::mem::discriminant(v) != std::mem::discriminant(first)) {
        return Err(refuse(format!("list element types are not identical: {}", Value::from(patch))));
    }
    if !first.is_object() {
        if deletion {
            original.retain(|v| !patch.contains(v));
            return Ok(original);
        }
        let mut merged: Vec<Value> = Vec::with_capacity(original.len() + patch.len());
        for v in original.iter().chain(&patch) {
            if !merged.contains(v) {
                merged.push(v.clone());
            }
        }
        return sort_elements(merged, &patch, &original, "");
    }
    if merge_key.is_empty() {
        return Err(refuse("cannot merge lists without merge key"));
    }
    let (mut merged, patch, before) = special_elements(original, patch, merge_key)?;
    for item in &patch {
        let Value::Object(item) = item else { continue };
        let key = item.get(merge_key).ok_or_else(|| no_merge_key(item, merge_key))?.clone();
        match merged.iter_mut().find(|old| old.get(merge_key) == Some(&key)) {
            Some(Value::Object(old)) => *old = merge_map(std::mem::take(old), item.clone(), element)?,
            _ => merged.push(Value::Object(item.clone())),
        }
    }
    sort_elements(merged, &patch, &before, merge_key)
}

/// `$patch: delete` and `$patch: replace` elements of a list of objects. Gives the list to merge into, what is left of the
/// patch, and the list whose order counts.
#[allow(clippy::type_complexity)]
fn special_elements(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    merge_key: &str,
) -> Result<(Vec<Value>, Vec<Value>, Vec<Value>), PatchError> {
    let (mut rest, mut replace) = (Vec::new(), false);
    for item in patch {
        let Some(directive) = item.get(DIRECTIVE) else {
            rest.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let map = item.as_object().cloned().unwrap_or_default();
                let key = map.get(merge_key).ok_or_else(|| no_merge_key(&map, merge_key))?;
                original.retain(|old| old.get(merge_key) != Some(key));
            }
            Some("replace") => replace = true,
            Some("merge") => return Err(refuse("merging lists cannot yet be specified in the patch")),
            _ => return Err(refuse(format!("unknown patch type {directive} in map: {item}"))),
        }
    }
    if replace {
        return Ok((rest.clone(), Vec::new(), rest));
    }
    let before = original.clone();
    Ok((original, rest, before))
}

/// Puts the elements that the patch names into the patch's order, and the others between them, where the live list had them
/// as far as that is possible.
fn sort_elements(
    merged: Vec<Value>,
    order: &[Value],
    live: &[Value],
    merge_key: &str,
) -> Result<Vec<Value>, PatchError> {
    let place = |list: &[Value], item: &Value| {
        let key = key_of(item, merge_key);
        list.iter().position(|v| key_of(v, merge_key) == key)
    };
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for item in merged {
        if key_of(&item, merge_key).is_none() {
            return Err(no_merge_key(item.as_object().unwrap_or(&Object::new()), merge_key));
        }
        if place(order, &item).is_some() { named.push(item) } else { others.push(item) }
    }
    named.sort_by_key(|item| place(order, item));
    others.sort_by_key(|item| place(live, item).unwrap_or(usize::MAX));
    let mut out = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let take_other = match (others.peek(), named.peek()) {
            (None, None) => return Ok(out),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(other), Some(name)) => match (place(live, other), place(live, name)) {
                (Some(a), Some(b)) => a < b,
                _ => false,
            },
        };
        out.extend(if take_other { others.next() } else { named.next() });
    }
}

/// A new value without its directives; `None` when a directive says it is not to be.
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
