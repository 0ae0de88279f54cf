//! Edits of objects in the corpus's notation, and the JSON that is sent.
use serde_json::{Map, Value};

/// Marks the second of two equal keys, which a tree cannot contain, until the tree is written as JSON.
const TWIN: char = '\u{1}';
/// The string fields that `repd` makes distinct.
const TEXTS: [&str; 12] = [
    "conditionType",
    "containerPort",
    "host",
    "ip",
    "key",
    "mountPath",
    "name",
    "path",
    "port",
    "resourceName",
    "topologyKey",
    "type",
];

/// Applies an edit.
pub fn apply(object: &mut Value, edit: &Value) {
    let path = edit[1].as_array().expect("a path");
    let count = edit[2].as_u64().unwrap_or(0);
    let op = edit[0].as_str().expect("an operation");
    if op == "unk" {
        *at(object, path) = unknown(at(object, path).take());
        return;
    }
    let (last, parents) = path.split_last().expect("a path with an end");
    if op == "d" && parents.iter().try_fold(&*object, step).is_none() {
        return;
    }
    let parent = at(object, parents);
    match op {
        "s" => put(parent, last, edit[2].clone()),
        "d" => drop_at(parent, last),
        "dup" => {
            let twin = format!("{}{TWIN}", last.as_str().expect("a key"));
            put(parent, &Value::String(twin), edit[2].clone());
        }
        "rep" | "repd" => {
            let list = at(parent, std::slice::from_ref(last));
            let first = list[0].clone();
            let copy = |i| if op == "rep" { first.clone() } else { distinct(&first, i) };
            *list = (0..count).map(copy).collect();
        }
        "many" => {
            let map = at(parent, std::slice::from_ref(last));
            let value = map.as_object().and_then(|m| m.values().next()).cloned().unwrap_or_default();
            for i in 0..count {
                put(map, &Value::String(format!("k{i}")), value.clone());
            }
        }
        other => panic!("no operation {other}"),
    }
}

/// The JSON of an object whose second keys are marked.
pub fn text(object: &Value) -> String {
    object.to_string().replace("\\u0001\":", "\":")
}

fn unknown(mut object: Value) -> Value {
    put(&mut object, &Value::String("unknownField".into()), Value::from(1));
    object
}

/// The value one step further.
fn step<'a>(value: &'a Value, step: &Value) -> Option<&'a Value> {
    step.as_str().map_or_else(|| value.get(position(step)), |key| value.get(key))
}

/// The value at a path. Missing objects on the way are created.
fn at<'a>(value: &'a mut Value, path: &[Value]) -> &'a mut Value {
    path.iter().fold(value, |value, step| match step {
        Value::String(key) => {
            if !value.is_object() {
                *value = Value::Object(Map::new());
            }
            value.as_object_mut().expect("an object").entry(key).or_insert_with(|| Value::Object(Map::new()))
        }
        index => {
            let index = position(index);
            if !value.is_array() {
                *value = Value::Array(Vec::new());
            }
            let list = value.as_array_mut().expect("a list");
            if list.len() <= index {
                list.push(Value::Object(Map::new()));
            }
            let end = list.len() - 1;
            &mut list[index.min(end)]
        }
    })
}

fn position(step: &Value) -> usize {
    step.as_u64().and_then(|i| usize::try_from(i).ok()).expect("a key or a position")
}

fn put(parent: &mut Value, step: &Value, value: Value) {
    match step {
        Value::String(key) => {
            if !parent.is_object() {
                *parent = Value::Object(Map::new());
            }
            parent.as_object_mut().expect("an object").insert(key.clone(), value);
        }
        index => {
            if !parent.is_array() {
                *parent = Value::Array(Vec::new());
            }
            let list = parent.as_array_mut().expect("a list");
            match list.get_mut(position(index)) {
                Some(entry) => *entry = value,
                None => list.push(value),
            }
        }
    }
}

fn drop_at(parent: &mut Value, step: &Value) {
    match (parent, step) {
        (Value::Object(map), Value::String(key)) => drop(map.remove(key)),
        (Value::Array(list), index) if position(index) < list.len() => drop(list.remove(position(index))),
        _ => {}
    }
}

fn distinct(value: &Value, i: u64) -> Value {
    let numbered = |value: &Value| match value {
        Value::String(text) => Value::String(format!("{text}{i}")),
        Value::Number(n) if n.is_i64() => {
            Value::from(n.as_i64().expect("a whole number") + i64::try_from(i).expect("small"))
        }
        other => other.clone(),
    };
    match value {
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| {
                let value = if TEXTS.contains(&key.as_str()) { numbered(value) } else { value.clone() };
                (key.clone(), value)
            };
            Value::Object(map.iter().map(entry).collect())
        }
        other => numbered(other),
    }
}
