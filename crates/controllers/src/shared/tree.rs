//! Small changes of object trees.
use serde_json::{Map, Value};

/// The map at `name`, made if it is not there.
pub fn map_at<'a>(tree: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    if !tree.is_object() {
        *tree = Value::Object(Map::new());
    }
    let slot = &mut tree[name];
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("made an object just now")
}

/// Sets a field, or removes it when it is to be absent.
pub fn put_unless(tree: &mut Value, name: &str, value: Value, absent: bool) {
    if !absent {
        tree[name] = value;
    } else if let Some(map) = tree.as_object_mut() {
        map.remove(name);
    }
}

/// Removes a field that is an empty map.
pub fn drop_if_empty(tree: &mut Value, name: &str) {
    if let Some(map) = tree.as_object_mut()
        && map.get(name).is_some_and(|v| v.as_object().is_some_and(Map::is_empty))
    {
        map.remove(name);
    }
}
