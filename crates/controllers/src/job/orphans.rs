//! Removal of the tracking finalizer from pods that no job will count, so that they can be deleted.
use super::JobController;
use super::orphan_key::OrphanKey;
use super::pods::is_tracked;
use crate::shared::context::SyncError;
use crate::shared::ownership::controller_key;
use crate::views::{JobView, PodView};

impl JobController {
    pub(super) async fn sync_orphans(&self, key: &OrphanKey) -> Result<(), SyncError> {
        match key {
            OrphanKey::Pod(key) => match self.pods.get(key) {
                Some(pod) => self.release_orphan(&pod).await,
                None => Ok(()),
            },
            OrphanKey::OfJob(namespace, uid) => {
                let mut first = None;
                for pod in self.pods.owned_or_orphaned(uid, namespace) {
                    if let Err(e) = self.release_orphan(&pod).await {
                        first = first.or(Some(e));
                    }
                }
                first.map_or(Ok(()), Err)
            }
        }
    }

    async fn release_orphan(&self, pod: &PodView) -> Result<(), SyncError> {
        if !is_tracked(pod) {
            return Ok(());
        }
        if let Some(owner) = pod.metadata.controller() {
            if controller_key::<JobView>(&pod.metadata).is_none() {
                // Its current controller may need the finalizer.
                return Ok(());
            }
            let job = self.resolve(&pod.metadata.namespace, owner);
            if job.is_some_and(|j| j.external_manager().is_some() || j.status.finished().is_none()) {
                return Ok(());
            }
        }
        Ok(self.take_finalizer(pod).await?)
    }
}
