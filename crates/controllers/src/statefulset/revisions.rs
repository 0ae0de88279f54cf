//! The revisions of a stateful set: the current one, the update revision, and the history.
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use kelson_client::Object;
use serde_json::{Value, json};

use super::plan::revision_of;
use super::{StatefulSetController, selector};
use crate::shared::context::SyncError;
use crate::shared::history::{self, NewRevision, RevisionOutcome};
use crate::shared::ownership::claim_all;
use crate::views::{ControllerRevisionView, PodView, StatefulSetView};

/// The label with the hash of a revision.
const REVISION_HASH_LABEL: &str = "controller.kubernetes.io/hash";
/// The maximum length of the set's name in a revision's name.
const PREFIX_MAX: usize = 223;
/// The default number of old revisions to keep.
const LIMIT_DEFAULT: i32 = 10;

/// A set's revisions.
pub struct StatefulSetRevisions {
    /// The revision before the update.
    pub current: Arc<ControllerRevisionView>,
    /// The revision that pods are updated to.
    pub update: Arc<ControllerRevisionView>,
    /// The number of hash collisions.
    pub collisions: i32,
    all: Vec<Arc<ControllerRevisionView>>,
}

/// Returns the pod template of a revision.
pub fn template_of(revision: &ControllerRevisionView) -> Result<Value, SyncError> {
    let data: Option<Value> = revision.data.as_deref().and_then(|d| serde_json::from_str(d.get()).ok());
    let mut template = data.map(|d| d["spec"]["template"].clone()).unwrap_or_default();
    match template.as_object_mut() {
        Some(map) => map.remove("$patch"),
        None => return Err(SyncError::Other(format!("revision {} has no template", revision.metadata.name))),
    };
    Ok(template)
}

impl StatefulSetController {
    /// Returns the set's revisions. Creates or renumbers the newest if necessary.
    pub(super) async fn revisions_of(&self, set: &Arc<StatefulSetView>) -> Result<StatefulSetRevisions, SyncError> {
        let data = set.spec.template.as_deref().and_then(history::data_of);
        let data = data.ok_or_else(|| SyncError::Other("invalid pod template".into()))?;
        let candidates = self.revisions.owned_or_orphaned(set.uid(), set.namespace());
        let mut all =
            claim_all(&self.client, &**set, &set.metadata, &selector(set), candidates, |r| &r.metadata).await?;
        history::sort(&mut all);
        let number = history::next_number(all.iter().map(|r| &**r));
        let mut collisions = set.status.collision_count.unwrap_or(0);
        let equal = all.iter().rposition(|r| history::is_of(r, &data));
        let update = match equal {
            Some(i) if i + 1 == all.len() => Arc::clone(&all[i]),
            // Rolled back: an old revision becomes the newest.
            Some(i) => Arc::new(history::patch(&self.client, &all[i], json!({"revision": number})).await?),
            None => self.make_revision(set, &data, number, &mut collisions).await?,
        };
        let current = all.iter().find(|r| r.metadata.name == set.status.current_revision).map_or(&update, |r| r);
        Ok(StatefulSetRevisions { current: Arc::clone(current), update: Arc::clone(&update), collisions, all })
    }

    async fn make_revision(
        &self,
        set: &Arc<StatefulSetView>,
        data: &Value,
        number: i64,
        collisions: &mut i32,
    ) -> Result<Arc<ControllerRevisionView>, SyncError> {
        let template_labels = &data["spec"]["template"]["metadata"]["labels"];
        let mut labels: BTreeMap<String, String> = serde_json::from_value(template_labels.clone()).unwrap_or_default();
        let mut prefix = set.metadata.name.clone();
        prefix.truncate(PREFIX_MAX);
        loop {
            let hash = history::hash(data, Some(*collisions));
            labels.insert(REVISION_HASH_LABEL.to_owned(), hash.clone());
            let annotations = &set.metadata.annotations;
            let name = format!("{prefix}-{hash}");
            let new = NewRevision { name, labels: labels.clone(), annotations, data, number };
            match history::create(&self.client, &**set, &new).await? {
                RevisionOutcome::Revision(made) => return Ok(Arc::from(made)),
                RevisionOutcome::Collision => *collisions = collisions.saturating_add(1),
            }
        }
    }

    /// Deletes revisions above the limit, the oldest first, except those in use.
    pub(super) async fn forget_revisions(
        &self,
        set: &StatefulSetView,
        revisions: &StatefulSetRevisions,
        pods: &BTreeMap<i64, Arc<PodView>>,
    ) -> Result<(), SyncError> {
        let Ok(limit) = usize::try_from(set.spec.revision_history_limit.unwrap_or(LIMIT_DEFAULT)) else {
            return Ok(());
        };
        let mut live: HashSet<&str> = pods.values().map(|p| revision_of(p)).collect();
        live.extend([revisions.current.metadata.name.as_str(), revisions.update.metadata.name.as_str()]);
        let old: Vec<_> = revisions.all.iter().filter(|r| !live.contains(r.metadata.name.as_str())).collect();
        for revision in &old[..old.len().saturating_sub(limit)] {
            history::delete(&self.client, revision).await?;
        }
        Ok(())
    }
}
