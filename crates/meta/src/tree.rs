//! Access to `serde_json::Value` trees. A missing value, `null` and the zero value of the type read alike, as in Go's
//! typed structs. Values of the wrong type read as missing, because the decoder has already rejected them.
use serde_json::{Map, Value};

/// Returns the value of a string, or `""`.
pub fn text(v: &Value) -> &str {
    v.as_str().unwrap_or_default()
}
/// Returns the elements of a list, or none.
pub fn items(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], Vec::as_slice)
}
/// Returns the entries of an object, or none.
pub fn entries(v: &Value) -> impl Iterator<Item = (&String, &Value)> {
    v.as_object().into_iter().flatten()
}
/// Returns an integer, if the value is one.
pub fn int(v: &Value) -> Option<i64> {
    v.as_i64()
}
/// Returns an integer, or 0.
pub fn int0(v: &Value) -> i64 {
    v.as_i64().unwrap_or_default()
}
/// Returns a boolean, or false.
pub fn flag(v: &Value) -> bool {
    v.as_bool().unwrap_or_default()
}
/// Returns whether the value is not null.
pub fn present(v: &Value) -> bool {
    !v.is_null()
}
/// Returns the number of elements or entries.
pub fn len(v: &Value) -> usize {
    match v {
        Value::Array(a) => a.len(),
        Value::Object(o) => o.len(),
        _ => 0,
    }
}
/// Returns whether the value is null or the zero value of its type.
pub fn empty(v: &Value) -> bool {
    match v {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_i64() == Some(0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}
/// Returns whether a list of strings contains `s`.
pub fn holds(list: &Value, s: &str) -> bool {
    items(list).iter().any(|x| x.as_str() == Some(s))
}

/// Compares trees like upstream's semantic comparison of typed objects in canonical form. A missing field, null and an
/// empty list are equal, at the top and in the fields of objects at any depth. An empty object counts as set: the
/// canonical form leaves empty maps out, so `{}` is a struct behind a pointer, or free-form data.
pub fn same(a: &Value, b: &Value) -> bool {
    // Most updates change little. Equal trees are found without looking up keys.
    a == b || same_but_void(a, b)
}

fn same_but_void(a: &Value, b: &Value) -> bool {
    fn void(v: &Value) -> bool {
        match v {
            Value::Null => true,
            Value::Array(a) => a.is_empty(),
            _ => false,
        }
    }
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            x.iter().all(|(k, v)| y.get(k).map_or_else(|| void(v), |w| same_but_void(v, w)))
                && y.iter().all(|(k, w)| x.contains_key(k) || void(w))
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(v, w)| same_but_void(v, w)),
        _ => a == b || (void(a) && void(b)),
    }
}

/// Returns the object at `key`, if it is one.
pub fn object_mut<'a>(v: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    v.get_mut(key).filter(|x| x.is_object())
}
/// Returns the value at a path of keys, if it exists.
pub fn at_mut<'a>(v: &'a mut Value, keys: &[&str]) -> Option<&'a mut Value> {
    keys.iter().try_fold(v, |v, k| v.get_mut(*k))
}
/// Returns the object at `key`, and creates it if it is missing or null. Returns `None` if `v` is no object or the
/// field has another type.
pub fn ensure<'a>(v: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    let o = v.as_object_mut()?;
    if o.get(key).is_none_or(Value::is_null) {
        o.insert(key.to_owned(), Value::Object(Map::new()));
    }
    o.get_mut(key).filter(|x| x.is_object())
}
/// Returns the elements at `key` for modification.
pub fn items_mut<'a>(v: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> {
    v.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}
/// Sets `key` if it is missing or null (the default of a pointer field).
pub fn default_to(v: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(o) = v.as_object_mut()
        && o.get(key).is_none_or(Value::is_null)
    {
        o.insert(key.to_owned(), value.into());
    }
}
/// Sets `key` if it is missing, null or zero (the default of a plain field).
pub fn default_zero(v: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(o) = v.as_object_mut()
        && o.get(key).is_none_or(empty)
    {
        o.insert(key.to_owned(), value.into());
    }
}
/// Sets a member of an object. Other values are not changed.
pub fn set(v: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(o) = v.as_object_mut() {
        o.insert(key.to_owned(), value.into());
    }
}
/// Removes a member of an object. Other values are not changed.
pub fn remove(v: &mut Value, key: &str) {
    if let Some(o) = v.as_object_mut() {
        o.remove(key);
    }
}
/// Returns the map at `key`, and replaces any other value there. `v` itself becomes an object.
pub fn map_at<'a>(v: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    fn made(v: &mut Value) -> &mut Map<String, Value> {
        if !v.is_object() {
            *v = Value::Object(Map::new());
        }
        let Value::Object(map) = v else { unreachable!("made an object just now") };
        map
    }
    made(made(v).entry(key).or_insert(Value::Null))
}
/// Sets a member of an object, or removes it if `absent` is true (a field with `omitempty`).
pub fn put_unless(v: &mut Value, key: &str, value: Value, absent: bool) {
    if absent { remove(v, key) } else { set(v, key, value) }
}
/// Removes a member if it is an empty object.
pub fn drop_if_empty(v: &mut Value, key: &str) {
    if v.get(key).and_then(Value::as_object).is_some_and(Map::is_empty) {
        remove(v, key);
    }
}
/// Sets `key` to its value in `old`, or removes it if `old` lacks it.
pub fn restore(new: &mut Value, old: &Value, key: &str) {
    match old.get(key) {
        Some(v) if new.get(key) != Some(v) => set(new, key, v.clone()),
        Some(_) => {}
        None => remove(new, key),
    }
}

/// The same functions with a path of keys from an outer object.
pub mod path {
    use serde_json::{Map, Value};

    /// Returns the value at a path of keys.
    pub fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
        path.iter().fold(value, |v, key| v.get(key).unwrap_or(&Value::Null))
    }

    /// Returns the string at a path, or the empty string.
    pub fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
        at(value, path).as_str().unwrap_or("")
    }

    /// Returns the elements of the list at a path.
    pub fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
        at(value, path).as_array().map_or(&[], Vec::as_slice)
    }

    /// Returns the string values of the map at a path, for example labels.
    pub fn strings<'a>(value: &'a Value, path: &[&str]) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        at(value, path).as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or("")))
    }

    /// Makes the value at `path` an object and returns it. Fails if a value on the path has another type.
    pub fn object_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Map<String, Value>> {
        let mut v = value;
        for key in path {
            if v.is_null() {
                *v = Value::Object(Map::new());
            }
            v = v.as_object_mut()?.entry((*key).to_owned()).or_insert(Value::Null);
        }
        if v.is_null() {
            *v = Value::Object(Map::new());
        }
        v.as_object_mut()
    }

    /// Makes the value at `path` a list and returns it.
    pub fn list_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Vec<Value>> {
        let (last, parents) = path.split_last()?;
        let entry = object_mut(value, parents)?.entry((*last).to_owned()).or_insert(Value::Null);
        if entry.is_null() {
            *entry = Value::Array(Vec::new());
        }
        entry.as_array_mut()
    }

    /// Sets the value at a path and creates the objects on it.
    pub fn set(value: &mut Value, path: &[&str], new: Value) {
        if let Some((last, parents)) = path.split_last()
            && let Some(map) = object_mut(value, parents)
        {
            map.insert((*last).to_owned(), new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sameness() {
        assert!(same(&json!({"a": 1, "b": null, "d": []}), &json!({"a": 1})));
        assert!(!same(&json!({"a": 1, "c": {}}), &json!({"a": 1})));
        assert!(!same(&json!(null), &json!({"x": {}})));
        assert!(same(&json!({"x": null}), &json!({})));
        assert!(!same(&json!({"a": 1}), &json!({"a": 2})));
        assert!(!same(&json!({"a": 0}), &json!({})));
        assert!(!same(&json!([1]), &json!([1, 2])));
        // Nested fields compare like those at the top: upstream compares decoded objects, in which both sides are
        // equal.
        assert!(same(&json!({"a": {"b": 1, "c": null}}), &json!({"a": {"b": 1}})));
        assert!(same(&json!([{"a": []}]), &json!([{}])));
        assert!(!same(&json!([{}]), &json!([])));
        assert!(!same(&json!({"a": {"b": false}}), &json!({})));
        assert!(!same(&json!({"a": ""}), &json!({})));
    }

    #[test]
    fn defaults_keep_what_is_there() {
        let mut v = json!({"a": 0, "b": "x", "n": null});
        default_to(&mut v, "a", 1);
        default_zero(&mut v, "a2", 1);
        default_zero(&mut v, "b", "y");
        default_to(&mut v, "n", 3);
        assert_eq!(v, json!({"a": 0, "a2": 1, "b": "x", "n": 3}));
        default_zero(&mut v, "a", 1);
        assert_eq!(v["a"], 1);
    }
}
