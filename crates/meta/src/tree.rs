//! Reading and shaping `serde_json::Value` trees. Absent, `null` and the type's zero value read alike, as in the
//! reference's typed structs; wrong types read as absent (the decoder has refused them before).
use serde_json::{Map, Value};

/// The text of a string, else `""`.
pub fn text(v: &Value) -> &str {
    v.as_str().unwrap_or_default()
}
/// The elements of a list, else none.
pub fn items(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], Vec::as_slice)
}
/// The entries of an object, else none.
pub fn entries(v: &Value) -> impl Iterator<Item = (&String, &Value)> {
    v.as_object().into_iter().flatten()
}
/// An integer, when there is one.
pub fn int(v: &Value) -> Option<i64> {
    v.as_i64()
}
/// An integer, else 0.
pub fn int0(v: &Value) -> i64 {
    v.as_i64().unwrap_or_default()
}
/// A boolean, else false.
pub fn flag(v: &Value) -> bool {
    v.as_bool().unwrap_or_default()
}
/// Whether there is something other than null.
pub fn present(v: &Value) -> bool {
    !v.is_null()
}
/// How many elements or entries.
pub fn len(v: &Value) -> usize {
    match v {
        Value::Array(a) => a.len(),
        Value::Object(o) => o.len(),
        _ => 0,
    }
}
/// Null, or the zero value of its type.
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
/// Whether a list of strings holds `s`.
pub fn holds(list: &Value, s: &str) -> bool {
    items(list).iter().any(|x| x.as_str() == Some(s))
}

/// Equality as the reference's semantic comparison of typed objects in canonical form, where an absent field, null and an empty
/// list decode to the same: at the top, and for the fields of objects at any depth. An empty object is something that was set: the
/// canonical form leaves empty maps out, so that `{}` is a struct behind a pointer, or the document of somebody else.
pub fn same(a: &Value, b: &Value) -> bool {
    // Most updates change little: where trees are equal, that is found without looking any key up.
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

/// The object at `key`, when it is one.
pub fn object_mut<'a>(v: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    v.get_mut(key).filter(|x| x.is_object())
}
/// The value at a path of keys, when it is there.
pub fn at_mut<'a>(v: &'a mut Value, keys: &[&str]) -> Option<&'a mut Value> {
    keys.iter().try_fold(v, |v, k| v.get_mut(*k))
}
/// The object at `key`, made when absent or null; `None` when `v` is no object or the field holds something else.
pub fn ensure<'a>(v: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    let o = v.as_object_mut()?;
    if o.get(key).is_none_or(Value::is_null) {
        o.insert(key.to_owned(), Value::Object(Map::new()));
    }
    o.get_mut(key).filter(|x| x.is_object())
}
/// The elements at `key`, for change.
pub fn items_mut<'a>(v: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> {
    v.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}
/// Sets `key` when it is absent or null (a pointer field's default).
pub fn default_to(v: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(o) = v.as_object_mut()
        && o.get(key).is_none_or(Value::is_null)
    {
        o.insert(key.to_owned(), value.into());
    }
}
/// Sets `key` when it is absent, null or its type's zero (a plain field's default).
pub fn default_zero(v: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(o) = v.as_object_mut()
        && o.get(key).is_none_or(empty)
    {
        o.insert(key.to_owned(), value.into());
    }
}
/// Sets a member of an object; does nothing to values that are no objects.
pub fn set(v: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(o) = v.as_object_mut() {
        o.insert(key.to_owned(), value.into());
    }
}
/// Removes a member of an object; does nothing to values that are no objects.
pub fn remove(v: &mut Value, key: &str) {
    if let Some(o) = v.as_object_mut() {
        o.remove(key);
    }
}
/// The map at `key`, made in place of whatever else is there; `v` itself becomes an object.
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
/// Sets a member of an object, or removes it where it is to be absent (a field with `omitempty`).
pub fn put_unless(v: &mut Value, key: &str, value: Value, absent: bool) {
    if absent { remove(v, key) } else { set(v, key, value) }
}
/// Removes a member that is an empty object.
pub fn drop_if_empty(v: &mut Value, key: &str) {
    if v.get(key).and_then(Value::as_object).is_some_and(Map::is_empty) {
        remove(v, key);
    }
}
/// Makes `key` what it is in `old`, absence included.
pub fn restore(new: &mut Value, old: &Value, key: &str) {
    match old.get(key) {
        Some(v) if new.get(key) != Some(v) => set(new, key, v.clone()),
        Some(_) => {}
        None => remove(new, key),
    }
}

/// The same reads and changes by a path of keys from an outer object.
pub mod path {
    use serde_json::{Map, Value};

    /// The value at a path of keys.
    pub fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
        path.iter().fold(value, |v, key| v.get(key).unwrap_or(&Value::Null))
    }

    /// A string at a path; empty when absent.
    pub fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
        at(value, path).as_str().unwrap_or("")
    }

    /// The elements of a list at a path.
    pub fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
        at(value, path).as_array().map_or(&[], Vec::as_slice)
    }

    /// The string values of a map at a path, e.g. labels.
    pub fn strings<'a>(value: &'a Value, path: &[&str]) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        at(value, path).as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or("")))
    }

    /// Makes the value at `path` an object and returns it; nothing along the way may be of another kind.
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

    /// The same for a list.
    pub fn list_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Vec<Value>> {
        let (last, parents) = path.split_last()?;
        let entry = object_mut(value, parents)?.entry((*last).to_owned()).or_insert(Value::Null);
        if entry.is_null() {
            *entry = Value::Array(Vec::new());
        }
        entry.as_array_mut()
    }

    /// Sets the value at a path, making objects on the way.
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
        // Nested as at the top: upstream compares decoded objects, in which the two sides of each are one.
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
