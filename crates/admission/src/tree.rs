//! Small reads and writes on object trees, shared by the plugins. Absent and null read alike, as in the API.
use serde_json::{Map, Value};

/// The value at a path of keys.
pub(crate) fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |v, key| v.get(key).unwrap_or(&Value::Null))
}

/// A string at a path; empty when absent.
pub(crate) fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).as_str().unwrap_or("")
}

/// The elements of a list at a path.
pub(crate) fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

/// The string values of a map at a path, e.g. labels.
pub(crate) fn strings<'a>(value: &'a Value, path: &[&str]) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
    at(value, path).as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or("")))
}

/// Makes the value at `path` an object and returns it; nothing along the way may be of another kind.
pub(crate) fn object_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Map<String, Value>> {
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
pub(crate) fn list_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Vec<Value>> {
    let (last, parents) = path.split_last()?;
    let entry = object_mut(value, parents)?.entry((*last).to_owned()).or_insert(Value::Null);
    if entry.is_null() {
        *entry = Value::Array(Vec::new());
    }
    entry.as_array_mut()
}

/// Sets the value at a path, making objects on the way.
pub(crate) fn set(value: &mut Value, path: &[&str], new: Value) {
    if let Some((last, parents)) = path.split_last()
        && let Some(map) = object_mut(value, parents)
    {
        map.insert((*last).to_owned(), new);
    }
}

/// Equal but for absent, null and empty, which mean the same.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    let empty = |v: &Value| match v {
        Value::Null => true,
        Value::Object(m) => m.is_empty(),
        Value::Array(l) => l.is_empty(),
        _ => false,
    };
    a == b || (empty(a) && empty(b))
}

/// Joins messages as upstream's aggregate error prints them.
pub(crate) fn aggregate(messages: &[String]) -> String {
    match messages {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}
