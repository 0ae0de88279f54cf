//! JSON merge patch, RFC 7386. Nulls in lists are treated as in upstream's library (`gopkg.in/evanphx/json-patch.v4`).
use serde_json::Value;

/// Merges a patch into a document. Objects are merged by member, null removes a member, and any other value replaces
/// it. A value that replaces nothing, or something other than an object, loses the null members of all its objects,
/// including those in lists.
pub fn merge_patch(target: &mut Value, patch: Value) {
    match (&mut *target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, mut value) in patch {
                if value.is_null() {
                    target.remove(&key);
                } else if let Some(old) = target.get_mut(&key).filter(|old| !old.is_null()) {
                    merge_patch(old, value);
                } else {
                    prune_nulls(&mut value);
                    target.insert(key, value);
                }
            }
        }
        // A value that replaces an object is used unchanged.
        (Value::Object(_), new) => *target = new,
        (_, mut new) => {
            prune_nulls(&mut new);
            *target = new;
        }
    }
}

/// Removes the members of objects that are null, at every depth. Null elements of lists stay.
fn prune_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(prune_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The examples of RFC 7386, appendix A.
    #[test]
    fn examples_of_the_standard() {
        let cases = [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a":"b"}), json!(["c"]), json!(["c"])),
            (json!({"a":"foo"}), json!(null), json!(null)),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
        ];
        for (mut target, patch, expected) in cases {
            merge_patch(&mut target, patch.clone());
            assert_eq!(target, expected, "patch {patch}");
        }
    }

    #[test]
    fn nulls_below_lists_are_pruned_where_a_value_is_put_in() {
        let cases = [
            (
                json!({"limits": [{"type": "Container", "max": {"cpu": "1"}}]}),
                json!({"limits": [{"type": "Container", "max": {"cpu": "2", "memory": null}, "min": {"cpu": null}}]}),
                json!({"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {}}]}),
            ),
            (json!({}), json!({"l": [{"a": null}, null, [{"b": null}]]}), json!({"l": [{}, null, [{}]]})),
            (json!({"l": 1}), json!({"l": {"a": null, "b": [{"a": null}]}}), json!({"l": {"b": [{}]}})),
            (json!({"l": null}), json!({"l": {"a": null}}), json!({"l": {}})),
            // A list that replaces an object is used unchanged.
            (json!({"l": {"x": 1}}), json!({"l": [{"a": null}]}), json!({"l": [{"a": null}]})),
        ];
        for (mut target, patch, expected) in cases {
            merge_patch(&mut target, patch.clone());
            assert_eq!(target, expected, "patch {patch}");
        }
    }
}
