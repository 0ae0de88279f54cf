//! Fields that admission must not change: those that only the server sets, and the owners of fields.
use kelson_meta::tree::path::at;
use kelson_patch::apply::Managed;
use serde_json::Value;

use crate::{Notes, Operation};

/// Set by the server when an object is created; later changes are rejected by validation.
const OF_THE_SERVER: [&str; 4] = ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"];

/// Restores the protected fields of `after` from `before`. Invalid entries of `managedFields` are restored with a
/// warning, as upstream does.
pub fn protect(operation: Operation, before: &Value, after: &mut Value, notes: &mut Notes) {
    let (old, broken) = (at(before, &["metadata"]), broken_entries(before, after));
    let Some(meta) = after.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let mut restore = |field: &str| match old.get(field) {
        Some(value) => drop(meta.insert(field.to_owned(), value.clone())),
        None => drop(meta.remove(field)),
    };
    if operation == Operation::Create {
        OF_THE_SERVER.into_iter().for_each(&mut restore);
    }
    if let Some(why) = broken {
        restore("managedFields");
        notes.warn(format!(
            ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated \
             mutating admission controller; please fix your requests: {why}"
        ));
    }
}

fn broken_entries(before: &Value, after: &Value) -> Option<String> {
    let path = ["metadata", "managedFields"];
    if at(before, &path) == at(after, &path) {
        return None;
    }
    Managed::read(after).err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_server_sets_stays() {
        let before = json!({"metadata": {"name": "a", "uid": "u", "creationTimestamp": "t", "managedFields": []}});
        let changed = || {
            json!({"metadata": {"name": "b", "uid": "v", "deletionTimestamp": "d", "managedFields": [{"operation": "x"}],
                "labels": {"a": "b"}}})
        };
        let mut notes = Notes::default();
        let mut after = changed();
        protect(Operation::Create, &before, &mut after, &mut notes);
        let want = json!({"metadata": {"name": "b", "uid": "u", "creationTimestamp": "t", "managedFields": [],
            "labels": {"a": "b"}}});
        assert_eq!(after, want);
        assert!(notes.warnings[0].ends_with("operation must be `Apply` or `Update`"), "{:?}", notes.warnings);
        let mut after = changed();
        protect(Operation::Update, &before, &mut after, &mut notes);
        assert_eq!(after["metadata"]["uid"], "v", "is found by the validation of updates");
    }
}
