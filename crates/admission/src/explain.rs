//! Lists what a plugin changed: the paths of the fields that differ.
use kelson_meta::tree::same;
use serde_json::Value;

/// The maximum number of paths listed for one plugin.
const FIELDS_MAX: usize = 16;
/// Replaces the paths beyond that number.
const MORE: &str = "…";

/// A plugin that changed the object of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The name of the plugin, as in `--enable-admission-plugins`.
    pub plugin: &'static str,
    /// The webhooks and policies for which it changed the object, in their order.
    pub actors: Vec<String>,
    /// The paths of the changed fields, from the object's root.
    pub fields: Vec<String>,
}

impl std::fmt::Display for Changed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.plugin)?;
        if !self.actors.is_empty() {
            write!(f, " ({})", self.actors.join(", "))?;
        }
        write!(f, " changed {}", self.fields.join(", "))
    }
}

/// Returns the paths at which two objects differ; for a subtree that only one of them has, the path of its root.
pub fn fields(before: &Value, after: &Value) -> Vec<String> {
    let (mut found, mut path) = (Vec::new(), String::new());
    compare(before, after, &mut path, &mut found);
    if found.len() > FIELDS_MAX {
        found.truncate(FIELDS_MAX);
        found.push(MORE.to_owned());
    }
    found
}

fn compare(before: &Value, after: &Value, path: &mut String, found: &mut Vec<String>) {
    if found.len() > FIELDS_MAX || before == after {
        return;
    }
    let length = path.len();
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let added = new.keys().filter(|k| !old.contains_key(*k));
            for key in old.keys().chain(added) {
                let null = Value::Null;
                let (was, is) = (old.get(key).unwrap_or(&null), new.get(key).unwrap_or(&null));
                if plain(key) {
                    if length > 0 {
                        path.push('.');
                    }
                    path.push_str(key);
                } else {
                    path.push_str(&format!("[{key:?}]"));
                }
                compare(was, is, path, found);
                path.truncate(length);
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            for i in 0..old.len().max(new.len()) {
                let at = |list: &Vec<Value>| list.get(i).cloned().unwrap_or_default();
                path.push_str(&format!("[{i}]"));
                compare(&at(old), &at(new), path, found);
                path.truncate(length);
            }
        }
        // Two forms of an empty value are equal.
        (before, after) if same(before, after) => {}
        _ => found.push(path.clone()),
    }
}

fn plain(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_of_what_differs() {
        for (before, after, want) in [
            (json!({"a": 1}), json!({"a": 1}), vec![]),
            (json!({"a": 1}), json!({"a": 2, "b": {"c": 3}}), vec!["a", "b"]),
            (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"c": 2}}), vec!["a.b"]),
            (json!({"l": [1, 2]}), json!({"l": [1, 3, {"x": 1}]}), vec!["l[1]", "l[2]"]),
            (json!({"labels": {"a/b": "c"}}), json!({"labels": {"a/b": "d"}}), vec!["labels[\"a/b\"]"]),
            (json!({}), json!({"spec": null, "l": []}), vec![]),
            (json!({}), json!({"spec": {}}), vec!["spec"]),
        ] {
            assert_eq!(fields(&before, &after), want, "{before} {after}");
        }
        let many: Vec<Value> = (0..100).map(Value::from).collect();
        let reported = fields(&json!({"l": []}), &json!({"l": many}));
        assert_eq!((reported.len(), reported.last().unwrap().as_str()), (FIELDS_MAX + 1, MORE));
    }
}
