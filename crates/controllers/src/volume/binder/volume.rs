//! The sync of one volume: it is available, bound to its claim, or reclaimed after its claim is gone.
use std::sync::Arc;

use kelson_client::{EventType, ObjectRef};
use kelson_meta::ObjectKey;
use kelson_volumes::{ClaimReference, modes_differ, names};

use super::{Binder, BinderKey};
use crate::shared::context::SyncError;
use crate::views::{ClaimView, VolumeView};

/// Whether the volume has been released.
fn is_let_go(volume: &VolumeView) -> bool {
    matches!(volume.status.phase.as_str(), "Released" | "Failed")
}

impl Binder {
    pub(super) async fn sync_volume(&self, name: &str) -> Result<(), SyncError> {
        let Some(volume) = self.volumes.get(&ObjectKey::new("", name)) else { return Ok(()) };
        let reference = volume.spec.claim_ref.as_ref().filter(|r| !r.uid.is_empty());
        let Some(reference) = reference else {
            return self.set_volume_phase(&volume, "Available", "").await.map(drop);
        };
        let Some(claim) = self.claim_of(&volume, reference).await? else { return self.release(&volume).await };
        if claim.spec.volume_name.is_empty() {
            return self.finish(&volume, &claim);
        }
        if claim.spec.volume_name == name {
            return self.set_volume_phase(&volume, "Bound", "").await.map(drop);
        }
        let made_for_it = volume.metadata.annotations.contains_key(names::PROVISIONED_BY)
            && volume.spec.persistent_volume_reclaim_policy == "Delete";
        match made_for_it {
            true => self.release(&volume).await,
            false => self.unbind(&volume).await,
        }
    }

    /// Returns the claim with the name and UID in a volume. Before a volume is released, the API server is asked, as
    /// the volume may be newer than the cached claims.
    async fn claim_of(
        &self,
        volume: &VolumeView,
        reference: &ClaimReference,
    ) -> Result<Option<Arc<ClaimView>>, SyncError> {
        let known = self.claims.get(&ObjectKey::new(&reference.namespace, &reference.name));
        let is_it = |c: &ClaimView| c.metadata.uid == reference.uid;
        if known.as_deref().is_some_and(is_it) {
            return Ok(known);
        }
        if known.is_none() && is_let_go(volume) {
            return Ok(None);
        }
        let stored = self.client.get_opt::<ClaimView>(&reference.namespace, &reference.name).await?;
        Ok(stored.filter(is_it).map(Arc::new))
    }

    /// Queues the claim of a volume that was chosen for it and is not yet in the claim's spec.
    fn finish(&self, volume: &VolumeView, claim: &ClaimView) -> Result<(), SyncError> {
        if !modes_differ(claim, volume) {
            self.queue.add(BinderKey::Claim(claim.metadata.key()));
            return Ok(());
        }
        let (v, c) = (&volume.metadata.name, &claim.metadata.name);
        let reported = "due to incompatible volumeMode.";
        let text = format!("Cannot bind PersistentVolume to requested PersistentVolumeClaim {c:?} {reported}");
        self.recorder.event(&ObjectRef::of(volume), EventType::Warning, "VolumeMismatch", text);
        let text = format!("Cannot bind PersistentVolume {v:?} to requested PersistentVolumeClaim {reported}");
        self.recorder.event(&ObjectRef::of(claim), EventType::Warning, "VolumeMismatch", text);
        Ok(())
    }

    /// Releases a volume whose claim is gone.
    async fn release(&self, volume: &Arc<VolumeView>) -> Result<(), SyncError> {
        let volume = match is_let_go(volume) {
            true => Arc::clone(volume),
            false => self.set_volume_phase(volume, "Released", "").await?,
        };
        match volume.spec.persistent_volume_reclaim_policy.as_str() {
            "Retain" => Ok(()),
            "Delete" => self.delete(&volume).await,
            "Recycle" => self.fail(&volume, "VolumeFailedRecycle", "No recycler plugin found for the volume!").await,
            _ => {
                let text = "Volume has unrecognized PersistentVolumeReclaimPolicy";
                self.fail(&volume, "VolumeUnknownReclaimPolicy", text).await
            }
        }
    }

    /// Requests the deletion from the volume's provisioner. Fails for volumes without one.
    async fn delete(&self, volume: &Arc<VolumeView>) -> Result<(), SyncError> {
        let text = match volume.metadata.annotations.get(names::PROVISIONED_BY).map(String::as_str) {
            Some(p) if !p.is_empty() && !p.starts_with(names::IN_TREE_PREFIX) => return Ok(()),
            Some(p) if !p.is_empty() => format!("no volume plugin matched name: {p}"),
            _ => {
                let name = &volume.metadata.name;
                format!("error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched")
            }
        };
        self.fail(volume, "VolumeFailedDelete", &text).await
    }

    async fn fail(&self, volume: &Arc<VolumeView>, reason: &str, text: &str) -> Result<(), SyncError> {
        if volume.status.phase != "Failed" {
            self.set_volume_phase(volume, "Failed", text).await?;
            self.recorder.event(&ObjectRef::of(&**volume), EventType::Warning, reason, text);
        }
        Ok(())
    }
}
