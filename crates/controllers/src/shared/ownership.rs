//! Ownership of dependents by controller references. An owner keeps the dependents that it controls and selects, adopts
//! those that it selects and that have no controller, and releases those that it controls but no longer selects.
//! Upstream `controller_ref_manager.go`.
use std::sync::Arc;

use kelson_client::{Change, Client, ClientError, Object, PatchKind, WorkQueue, WriteOptions};
use kelson_meta::{LabelSelector, ObjectKey, ObjectMeta, OwnerReference};
use serde_json::{Value, json};

use super::informers::SharedInformer;
use crate::shared::context::SyncError;
use crate::views::Indexed;

/// The decision about one dependent of an owner, from the dependent's controller reference and the owner's selector.
/// See [`claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The owner controls and selects it.
    Keep,
    /// It has no controller and matches the selector, so the owner adopts it.
    Adopt,
    /// The owner controls it but no longer selects it.
    Release,
    /// It belongs to another owner or does not match.
    Ignore,
}

/// Decides about one dependent.
pub fn claim(owner: &ObjectMeta, selector: &LabelSelector, dependent: &ObjectMeta) -> Claim {
    let selected = selector.matches(&dependent.labels);
    match dependent.controller() {
        Some(c) if c.uid != owner.uid => Claim::Ignore,
        Some(_) if selected => Claim::Keep,
        Some(_) if owner.is_deleting() => Claim::Ignore,
        Some(_) => Claim::Release,
        None if selected
            && !owner.is_deleting()
            && !dependent.is_deleting()
            && owner.namespace == dependent.namespace =>
        {
            Claim::Adopt
        }
        None => Claim::Ignore,
    }
}

/// Returns the owner reference that makes `owner` the controller of an object.
pub fn controller_ref<O: Object>(owner: &O) -> OwnerReference {
    OwnerReference {
        api_version: O::TYPE.api_version(),
        kind: O::TYPE.kind.to_owned(),
        name: owner.name().to_owned(),
        uid: owner.uid().to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Returns the key of the object's controller, if that is an `O`.
pub fn controller_key<O: Object>(meta: &ObjectMeta) -> Option<ObjectKey> {
    let c = meta.controller().filter(|c| c.kind == O::TYPE.kind)?;
    (c.api_version == O::TYPE.api_version()).then(|| ObjectKey::new(&meta.namespace, &c.name))
}

/// Queues the owners that are affected by a change of a dependent: its controller, its previous controller, and for a
/// dependent without a controller all owners that select it, as they may adopt it.
pub fn enqueue_owners<O: Indexed, D: Object>(
    owners: &SharedInformer<O>,
    queue: &WorkQueue<ObjectKey>,
    change: &Change<D>,
    meta: impl Fn(&D) -> &ObjectMeta,
    selects: impl Fn(&O, &ObjectMeta) -> bool,
) {
    let dependent = meta(change.object());
    let owner = controller_key::<O>(dependent);
    if let Change::Updated { old, .. } = change {
        let before = controller_key::<O>(meta(old));
        if before != owner
            && let Some(k) = before
        {
            queue.add(k);
        }
    }
    if let Some(k) = owner {
        return queue.add(k);
    }
    let relevant = match change {
        Change::Added(_) => true,
        Change::Updated { old, .. } => {
            let old = meta(old);
            old.labels != dependent.labels || old.controller() != dependent.controller()
        }
        Change::Deleted(_) => false,
    };
    if relevant && dependent.controller().is_none() {
        for o in owners.list() {
            if o.namespace() == dependent.namespace && selects(&o, dependent) {
                queue.add(o.key());
            }
        }
    }
}

/// Adopts and releases `candidates` for `owner` and returns the dependents that it controls. Before the first adoption
/// it reads the owner from the API server, since it may be deleted or replaced by another object of the same name.
/// Adopted dependents are returned as they were cached.
pub async fn claim_all<O: Object, T: Object>(
    client: &Client,
    owner: &O,
    owner_meta: &ObjectMeta,
    selector: &LabelSelector,
    candidates: Vec<Arc<T>>,
    meta: impl Fn(&T) -> &ObjectMeta,
) -> Result<Vec<Arc<T>>, SyncError> {
    claim_tracked(client, owner, owner_meta, selector, candidates, meta, None).await
}

/// Like [`claim_all`]. Adoption also adds `finalizer`, and release removes it.
pub async fn claim_tracked<O: Object, T: Object>(
    client: &Client,
    owner: &O,
    owner_meta: &ObjectMeta,
    selector: &LabelSelector,
    candidates: Vec<Arc<T>>,
    meta: impl Fn(&T) -> &ObjectMeta,
    finalizer: Option<&str>,
) -> Result<Vec<Arc<T>>, SyncError> {
    let mut held = Vec::with_capacity(candidates.len());
    let mut may_adopt = false;
    for c in candidates {
        match claim(owner_meta, selector, meta(&c)) {
            Claim::Keep => held.push(c),
            Claim::Ignore => {}
            Claim::Release => release(client, owner, &*c, finalizer).await?,
            Claim::Adopt => {
                if !may_adopt {
                    check_adopter::<O>(client, owner).await?;
                    may_adopt = true;
                }
                let mut patch = json!({"metadata": {"ownerReferences": [controller_ref(owner)], "uid": c.uid()}});
                if let Some(f) = finalizer {
                    patch["metadata"]["finalizers"] = json!([f]);
                }
                let o = WriteOptions::default();
                match client.patch::<T>(c.namespace(), c.name(), "", PatchKind::Strategic, &patch, &o).await {
                    Ok(_) => held.push(c),
                    Err(e) if e.is_not_found() => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
    }
    Ok(held)
}

async fn check_adopter<O: Object>(client: &Client, owner: &O) -> Result<(), SyncError> {
    let fresh: Value = crate::shared::context::get_value::<O>(client, owner.namespace(), owner.name()).await?;
    if fresh["metadata"]["uid"] != owner.uid() {
        let (kind, key) = (O::TYPE.kind, owner.key());
        return Err(SyncError::Other(format!(
            "original {kind} {key} is gone: got another uid, wanted {}",
            owner.uid()
        )));
    }
    if !fresh["metadata"]["deletionTimestamp"].is_null() {
        return Err(SyncError::Other(format!("{} has just been deleted", owner.key())));
    }
    Ok(())
}

async fn release<O: Object, T: Object>(
    client: &Client,
    owner: &O,
    dependent: &T,
    finalizer: Option<&str>,
) -> Result<(), ClientError> {
    let mut patch = json!({"metadata": {
        "ownerReferences": [{"$patch": "delete", "uid": owner.uid()}], "uid": dependent.uid()
    }});
    if let Some(f) = finalizer {
        patch["metadata"]["$deleteFromPrimitiveList/finalizers"] = json!([f]);
    }
    let o = WriteOptions::default();
    let sent = client.patch::<T>(dependent.namespace(), dependent.name(), "", PatchKind::Strategic, &patch, &o).await;
    match sent {
        Ok(_) => Ok(()),
        // The object is deleted, or its UID or owners changed, so there is nothing to release.
        Err(e) if e.is_not_found() || e.status().is_some_and(|s| s.code == 422) => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(uid: &str, labels: &[(&str, &str)], controller: Option<&str>, deleting: bool) -> ObjectMeta {
        ObjectMeta {
            uid: uid.into(),
            namespace: "n".into(),
            labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            owner_references: controller
                .map(|u| OwnerReference { uid: u.into(), controller: Some(true), ..OwnerReference::default() })
                .into_iter()
                .collect(),
            deletion_timestamp: deleting.then(|| "2026-01-01T00:00:00Z".to_owned()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn who_claims_what() {
        let s = LabelSelector::parse("a=b").unwrap();
        let yes: &[(&str, &str)] = &[("a", "b")];
        let no: &[(&str, &str)] = &[("a", "c")];
        let rows = [
            (false, yes, Some("me"), false, Claim::Keep),
            (false, yes, Some("other"), false, Claim::Ignore),
            (false, no, Some("me"), false, Claim::Release),
            (true, no, Some("me"), false, Claim::Ignore),
            (false, yes, None, false, Claim::Adopt),
            (false, yes, None, true, Claim::Ignore),
            (true, yes, None, false, Claim::Ignore),
            (false, no, None, false, Claim::Ignore),
        ];
        for (going, labels, controller, deleting, want) in rows {
            let owner = meta("me", &[], None, going);
            assert_eq!(claim(&owner, &s, &meta("p", labels, controller, deleting)), want, "{labels:?} {controller:?}");
        }
    }
}
