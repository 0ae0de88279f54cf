//! The sync of one claim: it is bound to the volume it names or the best match, or a volume is provisioned.
use std::sync::Arc;

use kelson_client::{EventType, ObjectRef};
use kelson_meta::ObjectKey;
use kelson_volumes::{best, default_class, is_bound_to, mismatch, names};
use serde_json::json;

use super::Binder;
use crate::shared::context::SyncError;
use crate::views::{ClaimView, StorageClassView, VolumeView};

impl Binder {
    fn announce(&self, claim: &ClaimView, kind: EventType, reason: &str, message: impl Into<String>) {
        self.recorder.event(&ObjectRef::of(claim), kind, reason, message);
    }

    /// Syncs a claim whose binding was never completed.
    pub(super) async fn unbound_claim(&self, claim: Arc<ClaimView>) -> Result<(), SyncError> {
        if claim.spec.volume_name.is_empty() {
            return self.find_volume(claim).await;
        }
        let name = &claim.spec.volume_name;
        let Some(volume) = self.volumes.get(&ObjectKey::new("", name)) else {
            return self.set_claim_phase(&claim, "Pending", None).await.map(drop);
        };
        if volume.spec.claim_ref.is_none() {
            let Some(why) = mismatch(&volume, &claim) else { return self.bind(volume, claim).await };
            let text = format!("Cannot bind to requested volume {name:?}: {why}");
            self.announce(&claim, EventType::Warning, "VolumeMismatch", text);
        } else if is_bound_to(&volume, &claim) {
            return self.bind(volume, claim).await;
        } else {
            let text = format!("volume {name:?} already bound to a different claim.");
            self.announce(&claim, EventType::Warning, "FailedBinding", text);
        }
        self.set_claim_phase(&claim, "Pending", None).await.map(drop)
    }

    async fn find_volume(&self, claim: Arc<ClaimView>) -> Result<(), SyncError> {
        let class = self.classes.get(&ObjectKey::new("", claim.class()));
        let waits = claim.selected_node().is_none() && class.as_ref().is_some_and(|c| c.waits_for_consumer());
        if let Some(volume) = best(&claim, self.volumes.list(), waits) {
            return self.bind(volume, claim).await;
        }
        if !claim.has_class() && self.give_default_class(&claim).await? {
            return Ok(());
        }
        if waits {
            let (reason, text) = self.awaited_component(&claim);
            self.announce(&claim, EventType::Normal, reason, text);
        } else if !claim.class().is_empty() {
            return self.ask_for_volume(&claim, class.as_deref()).await;
        } else {
            let text = "no persistent volumes available for this claim and no storage class is set";
            self.announce(&claim, EventType::Normal, "FailedBinding", text);
        }
        self.set_claim_phase(&claim, "Pending", None).await.map(drop)
    }

    /// Sets the default class of a claim that was created before there was one.
    async fn give_default_class(&self, claim: &ClaimView) -> Result<bool, SyncError> {
        let classes = self.classes.list();
        let Some(class) = default_class(classes.iter().map(|c| &**c)) else { return Ok(false) };
        let name = class.metadata.name.clone();
        self.write_claim(claim, "", |v| v["spec"]["storageClassName"] = json!(name)).await?;
        Ok(true)
    }

    fn awaited_component(&self, claim: &ClaimView) -> (&'static str, String) {
        let m = &claim.metadata;
        let uses = |p: &crate::views::PodView| {
            p.metadata.namespace == m.namespace
                && p.spec.node_name.is_empty()
                && !p.is_terminal()
                && p.spec.claims.iter().any(|c| c.claim_name(&p.metadata.name) == m.name)
        };
        let mut pods: Vec<String> =
            self.pods.list().iter().filter(|p| uses(p)).map(|p| p.metadata.name.clone()).collect();
        pods.sort_unstable();
        match pods.as_slice() {
            [] => ("WaitForFirstConsumer", "waiting for first consumer to be created before binding".into()),
            [one] => ("WaitForPodScheduled", format!("waiting for pod {one} to be scheduled")),
            many => ("WaitForPodScheduled", format!("waiting for pods {} to be scheduled", many.join(","))),
        }
    }

    /// Requests a volume from the external provisioner of the class.
    async fn ask_for_volume(&self, claim: &ClaimView, class: Option<&StorageClassView>) -> Result<(), SyncError> {
        let failed = |text: String| self.announce(claim, EventType::Warning, "ProvisioningFailed", text);
        let Some(class) = class else {
            failed(format!("storageclass.storage.k8s.io {:?} not found", claim.class()));
            return Ok(());
        };
        let provisioner = class.provisioner.as_str();
        if provisioner.starts_with(names::IN_TREE_PREFIX) {
            failed(format!("no volume plugin matched name: {provisioner}"));
            return Ok(());
        }
        let write = |v: &mut serde_json::Value| {
            for annotation in [names::PROVISIONER, names::PROVISIONER_BETA] {
                v["metadata"]["annotations"][annotation] = json!(provisioner);
            }
        };
        let reported = claim.metadata.annotations.get(names::PROVISIONER).is_some_and(|p| p == provisioner);
        if !reported {
            self.write_claim(claim, "", write).await?;
        }
        let text = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
             system administrator. If volume creation is delayed, please verify that the provisioner is running and \
             correctly registered."
        );
        self.announce(claim, EventType::Normal, "ExternalProvisioning", text);
        Ok(())
    }

    /// Syncs a claim whose binding was completed. It is lost if its volume is gone or bound to another claim.
    pub(super) async fn bound_claim(&self, claim: &Arc<ClaimView>) -> Result<(), SyncError> {
        let name = &claim.spec.volume_name;
        let (reason, text) = if name.is_empty() {
            ("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
        } else {
            match self.volumes.get(&ObjectKey::new("", name)) {
                None => ("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"),
                Some(volume) if is_its(&volume, claim) => return self.bind(volume, Arc::clone(claim)).await,
                Some(_) => ("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly"),
            }
        };
        if claim.status.phase != "Lost" {
            self.set_claim_phase(claim, "Lost", None).await?;
            self.announce(claim, EventType::Warning, reason, text);
        }
        Ok(())
    }
}

fn is_its(volume: &VolumeView, claim: &ClaimView) -> bool {
    volume.spec.claim_ref.as_ref().is_none_or(|r| r.uid == claim.metadata.uid)
}
