//! Revisions, hashes and annotations of a deployment's replica sets: what `kubectl rollout history` and `undo` read.
use std::collections::BTreeMap;

use kelson_meta::ObjectMeta;
use serde_json::Value;
use serde_json::value::RawValue;

/// The label that distinguishes the pods of a deployment's replica sets.
pub const HASH_LABEL: &str = "pod-template-hash";
/// The annotation with the revision of a replica set, and with the newest revision of a deployment.
pub const REVISION: &str = "deployment.kubernetes.io/revision";
/// The annotation with earlier revisions of a replica set that was rolled back to.
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// The annotation with the deployment's size at the last scaling of the set.
pub const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// The annotation with the deployment's maximum size at the last scaling of the set.
pub const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
/// The maximum length of the revision history in bytes.
const HISTORY_MAX_BYTES: usize = 2000;
/// Annotations of the deployment that are not copied to its replica sets.
const NOT_COPIED: &[&str] = &[
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    "deprecated.deployment.rollback.to",
];

/// Normalizes a pod template for comparison: removes the hash label and empty metadata.
pub fn normalize(template: &RawValue) -> Option<Value> {
    let mut v: Value = serde_json::from_str(template.get()).ok()?;
    if let Some(meta) = v.get_mut("metadata").and_then(Value::as_object_mut) {
        if let Some(labels) = meta.get_mut("labels").and_then(Value::as_object_mut) {
            labels.remove(HASH_LABEL);
        }
        meta.retain(|_, v| !v.is_null() && v.as_object().is_none_or(|m| !m.is_empty()));
    }
    if v.get("metadata").is_some_and(|m| m.as_object().is_none_or(serde_json::Map::is_empty)) {
        v.as_object_mut()?.remove("metadata");
    }
    Some(v)
}

/// Returns the revision of a set, or 0 if it has none.
pub fn revision(meta: &ObjectMeta) -> i64 {
    meta.annotations.get(REVISION).and_then(|r| r.parse().ok()).unwrap_or(0)
}

/// Returns the annotations of the newest replica set: those of the deployment, the revision and the history. `existing`
/// are the set's annotations, empty for a new set.
pub fn annotations_for(
    deployment: &BTreeMap<String, String>,
    existing: &BTreeMap<String, String>,
    new_revision: i64,
) -> BTreeMap<String, String> {
    let mut out = existing.clone();
    for (k, v) in deployment {
        if !NOT_COPIED.contains(&k.as_str()) {
            out.insert(k.clone(), v.clone());
        }
    }
    let old_text = existing.get(REVISION);
    let old = match old_text.map(|t| t.parse::<i64>()) {
        None => 0,
        Some(Ok(n)) => n,
        // An invalid revision was written by another client; keep it.
        Some(Err(_)) => return out,
    };
    if old < new_revision {
        out.insert(REVISION.to_owned(), new_revision.to_string());
        if let Some(old) = old_text {
            let mut history: Vec<&str> = existing
                .get(REVISION_HISTORY)
                .map(|h| h.split(',').filter(|p| !p.is_empty()).collect())
                .unwrap_or_default();
            history.push(old);
            while history.len() > 1 && history.iter().map(|p| p.len() + 1).sum::<usize>() > HISTORY_MAX_BYTES {
                history.remove(0);
            }
            out.insert(REVISION_HISTORY.to_owned(), history.join(","));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::history::hash;

    fn raw(s: &str) -> Box<RawValue> {
        RawValue::from_string(s.to_owned()).unwrap()
    }
    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn templates_compare_without_the_hash() {
        let a = raw(r#"{"metadata":{"labels":{"a":"b"},"creationTimestamp":null},"spec":{"x":1}}"#);
        let b = raw(r#"{"metadata":{"labels":{"a":"b","pod-template-hash":"zz"}},"spec":{"x":1}}"#);
        let c = raw(r#"{"metadata":{"labels":{"a":"b"}},"spec":{"x":2}}"#);
        let (a, b, c) = (normalize(&a).unwrap(), normalize(&b).unwrap(), normalize(&c).unwrap());
        assert_eq!(a, b);
        assert_ne!(a, c);
        assert_eq!(hash(&a, None), hash(&b, None));
        assert_ne!(hash(&a, None), hash(&c, None));
        assert_ne!(hash(&a, None), hash(&a, Some(1)));
        assert!(hash(&a, None).bytes().all(|b| b"bcdfghjklmnpqrstvwxz2456789".contains(&b)));
    }

    #[test]
    fn revisions_and_history() {
        let deployment = map(&[("note", "x"), (REVISION, "9"), ("kubernetes.io/change-cause", "try")]);
        let new = annotations_for(&deployment, &BTreeMap::new(), 1);
        assert_eq!(new, map(&[("note", "x"), (REVISION, "1"), ("kubernetes.io/change-cause", "try")]));
        let back = annotations_for(&deployment, &new, 3);
        assert_eq!((back[REVISION].as_str(), back[REVISION_HISTORY].as_str()), ("3", "1"));
        let again = annotations_for(&deployment, &back, 5);
        assert_eq!((again[REVISION].as_str(), again[REVISION_HISTORY].as_str()), ("5", "1,3"));
        assert_eq!(annotations_for(&deployment, &again, 2), again, "never back");
        let odd = map(&[(REVISION, "x")]);
        assert_eq!(annotations_for(&BTreeMap::new(), &odd, 2), odd);
    }
}
