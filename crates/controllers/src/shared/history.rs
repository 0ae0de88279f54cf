//! The history of a DaemonSet or StatefulSet: one ControllerRevision per template, numbered in the order in which the
//! templates were last current. `kubectl rollout history` and `undo` read it. Upstream `pkg/controller/history`.
use std::collections::BTreeMap;

use kelson_client::{Client, ClientError, DeleteOptions, Object, PatchKind, WriteOptions};
use kelson_meta::tree::same;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::ownership::controller_ref;
use crate::views::ControllerRevisionView;

/// The label that identifies a pod's revision. Its value is the template's hash for pods of a DaemonSet, and the
/// revision's name for pods of a StatefulSet.
pub const HASH_LABEL: &str = "controller-revision-hash";

/// Returns a stable hash of a normalized template in the alphabet of generated names.
pub fn hash(template: &Value, collisions: Option<i32>) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    const PRIME: u32 = 16_777_619;
    let mut h: u32 = 2_166_136_261;
    let text = template.to_string();
    let salt = collisions.map(i32::to_le_bytes).unwrap_or_default();
    let salt = if collisions.is_some() { &salt[..] } else { &[] };
    for b in text.as_bytes().iter().chain(salt) {
        h = (h ^ u32::from(*b)).wrapping_mul(PRIME);
    }
    h.to_string().bytes().map(|b| char::from(ALPHABET[usize::from(b) % ALPHABET.len()])).collect()
}

/// Returns a revision's data: a strategic merge patch that restores `template`. Returns `None` if the template is not a
/// JSON object.
pub fn data_of(template: &RawValue) -> Option<Value> {
    let mut template: Value = serde_json::from_str(template.get()).ok()?;
    template.as_object_mut()?.insert("$patch".to_owned(), json!("replace"));
    Some(json!({"spec": {"template": template}}))
}

/// Whether a revision has this data. Absent fields, null and empty maps are equal, so that revisions written by
/// upstream are recognized.
pub fn is_of(revision: &ControllerRevisionView, data: &Value) -> bool {
    let kept = revision.data.as_deref().and_then(|d| serde_json::from_str::<Value>(d.get()).ok());
    kept.is_some_and(|kept| same(&kept, data))
}

/// Returns the number for a revision that is newer than all of these.
pub fn next_number<'a>(revisions: impl IntoIterator<Item = &'a ControllerRevisionView>) -> i64 {
    revisions.into_iter().map(|r| r.revision).max().unwrap_or(0).saturating_add(1)
}

/// Sorts revisions from oldest to newest. Equal numbers are sorted by creation time and name.
pub fn sort(revisions: &mut [impl AsRef<ControllerRevisionView>]) {
    revisions.sort_by(|a, b| {
        let (a, b) = (a.as_ref(), b.as_ref());
        (a.revision, &a.metadata.creation_timestamp, &a.metadata.name).cmp(&(
            b.revision,
            &b.metadata.creation_timestamp,
            &b.metadata.name,
        ))
    });
}

/// A revision to create.
pub struct NewRevision<'a> {
    pub name: String,
    /// The labels of the template, and the hash label.
    pub labels: BTreeMap<String, String>,
    /// The annotations of the owner.
    pub annotations: &'a BTreeMap<String, String>,
    /// The revision's data, see [`data_of`].
    pub data: &'a Value,
    pub number: i64,
}

/// The outcome of [`create`].
pub enum RevisionOutcome {
    /// The revision exists. It may have existed before, since the cache can be outdated.
    Revision(Box<ControllerRevisionView>),
    /// A revision with other data has the name.
    Collision,
}

/// Creates a revision of `owner`.
pub async fn create<O: Object>(
    client: &Client,
    owner: &O,
    new: &NewRevision<'_>,
) -> Result<RevisionOutcome, ClientError> {
    let body = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {
            "name": new.name, "namespace": owner.namespace(), "labels": new.labels, "annotations": new.annotations,
            "ownerReferences": [controller_ref(owner)],
        },
        "data": new.data, "revision": new.number,
    });
    match client.create::<ControllerRevisionView>(owner.namespace(), &body).await {
        Ok(made) => Ok(RevisionOutcome::Revision(Box::new(made))),
        Err(e) if e.is_already_exists() => {
            let there: ControllerRevisionView = client.get(owner.namespace(), &new.name).await?;
            Ok(if is_of(&there, new.data) {
                RevisionOutcome::Revision(Box::new(there))
            } else {
                RevisionOutcome::Collision
            })
        }
        Err(e) => Err(e),
    }
}

/// Updates a revision with a merge patch.
pub async fn patch(
    client: &Client,
    revision: &ControllerRevisionView,
    mut change: Value,
) -> Result<ControllerRevisionView, ClientError> {
    let m = &revision.metadata;
    change["metadata"]["uid"] = json!(m.uid);
    let options = WriteOptions::default();
    client.patch_and_read(&m.namespace, &m.name, "", PatchKind::Merge, &change, &options).await
}

/// Deletes a revision. Succeeds if it does not exist.
pub async fn delete(client: &Client, revision: &ControllerRevisionView) -> Result<(), ClientError> {
    let m = &revision.metadata;
    let options = DeleteOptions::default().with_uid(&m.uid);
    match client.delete::<ControllerRevisionView>(&m.namespace, &m.name, &options).await {
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn raw(v: &Value) -> Box<RawValue> {
        RawValue::from_string(v.to_string()).unwrap()
    }
    fn revision(name: &str, number: i64, data: &Value) -> Arc<ControllerRevisionView> {
        let v = json!({"metadata": {"name": name}, "revision": number, "data": data});
        Arc::new(serde_json::from_str(&v.to_string()).unwrap())
    }

    #[test]
    fn equality_numbers_and_order() {
        let data = data_of(&raw(&json!({"metadata": {"labels": {"a": "b"}}, "spec": {"x": 1}}))).unwrap();
        assert_eq!(data["spec"]["template"]["$patch"], "replace");
        let foreign = json!({"spec": {"template": {"$patch": "replace",
            "metadata": {"creationTimestamp": null, "labels": {"a": "b"}}, "spec": {"x": 1}}}});
        let other =
            json!({"spec": {"template": {"$patch": "replace", "metadata": {"labels": {"a": "b"}}, "spec": {"x": 2}}}});
        assert!(is_of(&revision("a", 1, &data), &data) && is_of(&revision("a", 1, &foreign), &data));
        assert!(!is_of(&revision("a", 1, &other), &data) && !is_of(&ControllerRevisionView::default(), &data));
        let mut all = [revision("c", 3, &data), revision("b", 1, &data), revision("a", 3, &data)];
        assert_eq!((next_number(all.iter().map(|r| &**r)), next_number([])), (4, 1));
        sort(&mut all);
        assert_eq!(all.iter().map(|r| r.metadata.name.as_str()).collect::<Vec<_>>(), ["b", "a", "c"]);
        assert!(data_of(&raw(&json!(3))).is_none());
    }

    #[test]
    fn hashes_differ_by_template_and_collisions() {
        let (a, b) = (json!({"x": 1}), json!({"x": 2}));
        assert_eq!(hash(&a, None), hash(&a, None));
        let all = [hash(&a, None), hash(&b, None), hash(&a, Some(0)), hash(&a, Some(1))];
        assert!((1..all.len()).all(|i| !all[i..].contains(&all[i - 1])), "{all:?}");
    }
}
