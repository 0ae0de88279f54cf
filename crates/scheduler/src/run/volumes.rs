//! Binds the volumes of a pod before the pod (PreBind): writes the choice, and waits for the binder and for
//! provisioners.
use kelson_client::{ClientError, PatchKind, WriteOptions};
use kelson_meta::ObjectKey;
use kelson_volumes::{ClaimView, VolumeView, is_bound_to, names};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::write::Writer;
use crate::cluster::storage::Progress;
use crate::core::PendingBinding;
use crate::metrics::ExtensionPoint;

impl Writer {
    /// Binds the volumes, then the pod. Only binding the pod takes a permit of `binds`.
    pub(super) async fn bind_volumes_and_pod(&self, binding: &PendingBinding, binds: &Semaphore) {
        let begun = std::time::Instant::now();
        let done = self.bind_volumes(binding).await;
        let scheduler = &binding.pod.spec.scheduler_name;
        self.metrics.bound_in(scheduler, ExtensionPoint::PreBind, done.is_ok(), begun.elapsed());
        if let Err(why) = done {
            return self.pre_bind_failed(&binding.pod, "VolumeBinding", &format!("binding volumes: {why}")).await;
        }
        // The semaphore is never closed.
        let Ok(_permit) = binds.acquire().await else { return };
        self.bind(&binding.pod).await;
    }

    async fn bind_volumes(&self, binding: &PendingBinding) -> Result<(), String> {
        let text = |e: ClientError| e.to_string();
        for (claim, volume) in &binding.plan.bind {
            self.bind_volume(claim, volume).await.map_err(text)?;
        }
        for claim in &binding.plan.provision {
            self.select_node(claim, &binding.plan.node).await.map_err(text)?;
        }
        let end = Instant::now() + self.voice(&binding.pod).volumes_within;
        loop {
            let known = self.shared.known.notified();
            tokio::pin!(known);
            // Registered before the check, so that no change is missed between check and wait.
            known.as_mut().enable();
            let progress = self.shared.core.lock().volumes_progress(binding);
            match progress {
                Progress::Done => return Ok(()),
                Progress::Failed(why) => return Err(why),
                Progress::Waits => {}
            }
            tokio::select! {
                () = known => {}
                () = tokio::time::sleep_until(end) => return Err("context deadline exceeded".into()),
            }
        }
    }

    /// Writes the claim into the volume; the volume binder does the rest.
    async fn bind_volume(&self, claim: &ObjectKey, volume: &str) -> Result<(), ClientError> {
        let (claim, volume) = {
            let core = self.shared.core.lock();
            let storage = &core.cluster.storage;
            (storage.claim(claim).cloned(), storage.volume(volume).cloned())
        };
        // A deleted claim or volume is noticed by the task that waits for the binding.
        let (Some(claim), Some(volume)) = (claim, volume) else { return Ok(()) };
        let (c, v) = (&claim.metadata, &volume.metadata);
        if volume.spec.claim_ref.as_ref().is_some_and(|r| r.uid == c.uid) {
            return Ok(());
        }
        let reference = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": c.namespace,
            "name": c.name, "uid": c.uid, "resourceVersion": c.resource_version});
        let mut patch = json!({"metadata": {"resourceVersion": v.resource_version}, "spec": {"claimRef": reference}});
        if !is_bound_to(&volume, &claim) {
            patch["metadata"]["annotations"] = json!({names::BOUND_BY_CONTROLLER: "yes"});
        }
        let options = WriteOptions::default();
        let new = self.client.patch_and_read::<VolumeView>("", &v.name, "", PatchKind::Merge, &patch, &options).await?;
        self.shared.core.lock().cluster.storage.wrote_volume(new);
        Ok(())
    }

    /// Writes the selected node into the claim, for its provisioner.
    async fn select_node(&self, claim: &ObjectKey, node: &str) -> Result<(), ClientError> {
        let known = self.shared.core.lock().cluster.storage.claim(claim).cloned();
        let Some(known) = known.filter(|c| c.selected_node() != Some(node)) else { return Ok(()) };
        let m = &known.metadata;
        let patch = json!({"metadata": {"resourceVersion": m.resource_version,
            "annotations": {names::SELECTED_NODE: node}}});
        let (options, kind) = (WriteOptions::default(), PatchKind::Merge);
        let new = self.client.patch_and_read::<ClaimView>(&m.namespace, &m.name, "", kind, &patch, &options).await?;
        self.shared.core.lock().cluster.storage.wrote_claim(new);
        Ok(())
    }
}
