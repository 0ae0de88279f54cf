//! The history of a daemon set: finds or creates the revision of its template, merges duplicates, and deletes the
//! oldest.
use std::collections::BTreeMap;
use std::collections::HashSet;
use std::sync::Arc;

use kelson_client::{Object, PatchKind, WriteOptions};
use serde_json::{Value, json};

use super::{DaemonSetController, selector};
use crate::shared::context::{SyncError, update_value};
use crate::shared::history::{self, HASH_LABEL, NewRevision, RevisionOutcome};
use crate::shared::ownership::claim_all;
use crate::views::{ControllerRevisionView, DaemonSetView, PodView};

/// The default number of old revisions to keep.
const LIMIT_DEFAULT: i32 = 10;

/// A set's revisions.
pub struct DaemonSetRevisions {
    /// Hash of the current template.
    pub hash: String,
    pub old: Vec<Arc<ControllerRevisionView>>,
}

impl DaemonSetController {
    /// Returns the set's revisions. Creates or renumbers the current one if necessary.
    pub(super) async fn revisions_of(&self, set: &Arc<DaemonSetView>) -> Result<DaemonSetRevisions, SyncError> {
        let data = set.spec.template.raw.as_deref().and_then(history::data_of);
        let data = data.ok_or_else(|| SyncError::Other("invalid pod template".into()))?;
        let candidates = self.revisions.owned_or_orphaned(set.uid(), set.namespace());
        let all = claim_all(&self.client, &**set, &set.metadata, &selector(set), candidates, |r| &r.metadata).await?;
        let (mut current, mut old) = (Vec::new(), Vec::new());
        for revision in all {
            // The revision was created without the label. Its name is as unique as a hash.
            let revision = if revision.metadata.labels.contains_key(HASH_LABEL) {
                revision
            } else {
                let label = json!({"metadata": {"labels": {HASH_LABEL: revision.metadata.name}}});
                Arc::new(history::patch(&self.client, &revision, label).await?)
            };
            let same = history::is_of(&revision, &data);
            if same { &mut current } else { &mut old }.push(revision);
        }
        history::sort(&mut current);
        let number = history::next_number(old.iter().map(|r| &**r));
        let current = match current.pop() {
            None => self.make_revision(set, &data, number).await?,
            Some(kept) => {
                self.merge_revisions(set, &kept, &current).await?;
                if kept.revision < number {
                    history::patch(&self.client, &kept, json!({"revision": number})).await?;
                }
                kept
            }
        };
        let hash = current.metadata.labels.get(HASH_LABEL).cloned().unwrap_or_default();
        Ok(DaemonSetRevisions { hash, old })
    }

    async fn make_revision(
        &self,
        set: &Arc<DaemonSetView>,
        data: &Value,
        number: i64,
    ) -> Result<Arc<ControllerRevisionView>, SyncError> {
        let hash = history::hash(data, set.status.collision_count);
        let mut labels: BTreeMap<String, String> = set.spec.template.labels.clone();
        labels.insert(HASH_LABEL.to_owned(), hash.clone());
        let name = format!("{}-{hash}", set.metadata.name);
        let new = NewRevision { name: name.clone(), labels, annotations: &set.metadata.annotations, data, number };
        match history::create(&self.client, &**set, &new).await? {
            RevisionOutcome::Revision(made) => Ok(Arc::from(made)),
            RevisionOutcome::Collision => {
                let m = &set.metadata;
                let count = set.status.collision_count.unwrap_or(0).saturating_add(1);
                let write = |v: &mut Value| v["status"]["collisionCount"] = json!(count);
                let (namespace, seen) = (&m.namespace, &m.resource_version);
                update_value::<DaemonSetView>(&self.client, namespace, &m.name, "status", seen, write).await?;
                Err(SyncError::Other(format!("another revision is named {name:?}, trying another hash")))
            }
        }
    }

    /// Relabels pods of duplicate revisions with the one that is kept, and deletes the others.
    async fn merge_revisions(
        &self,
        set: &Arc<DaemonSetView>,
        kept: &ControllerRevisionView,
        doubles: &[Arc<ControllerRevisionView>],
    ) -> Result<(), SyncError> {
        if doubles.is_empty() {
            return Ok(());
        }
        let hash = kept.metadata.labels.get(HASH_LABEL);
        for pod in self.pods_of(set).await?.iter().filter(|p| p.metadata.labels.get(HASH_LABEL) != hash) {
            let label = json!({"metadata": {"uid": pod.metadata.uid, "labels": {HASH_LABEL: hash}}});
            let (namespace, name) = (pod.namespace(), pod.name());
            let options = WriteOptions::default();
            self.client.patch::<PodView>(namespace, name, "", PatchKind::Merge, &label, &options).await?;
        }
        for double in doubles {
            history::delete(&self.client, double).await?;
        }
        Ok(())
    }

    /// Deletes old revisions above the limit, the oldest first, except those of existing pods.
    pub(super) async fn forget_revisions(
        &self,
        set: &DaemonSetView,
        mut old: Vec<Arc<ControllerRevisionView>>,
        pods: &[Arc<PodView>],
    ) -> Result<(), SyncError> {
        let limit = usize::try_from(set.spec.revision_history_limit.unwrap_or(LIMIT_DEFAULT)).unwrap_or(0);
        let surplus = old.len().saturating_sub(limit);
        if surplus == 0 {
            return Ok(());
        }
        let live: HashSet<&String> = pods.iter().filter_map(|p| p.metadata.labels.get(HASH_LABEL)).collect();
        history::sort(&mut old);
        old.retain(|r| r.metadata.labels.get(HASH_LABEL).is_none_or(|h| !live.contains(h)));
        for revision in old.iter().take(surplus) {
            history::delete(&self.client, revision).await?;
        }
        Ok(())
    }
}
