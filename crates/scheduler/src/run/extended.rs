//! The claim for extended resources of a pod (KEP-5004): created when the pod is about to be bound, recorded in the
//! pod's status, and deleted if the pod could not be bound.
use kelson_client::{ClientError, DeleteOptions, PatchKind, WriteOptions};
use kelson_devices::{ResourceClaimView, names};
use kelson_meta::ObjectKey;
use serde_json::json;
use tokio::time::Instant;

use super::write::Writer;
use crate::cluster::devices::{ClaimPlan, ExtendedPlan};
use crate::view::Pod;

/// The maximum number of attempts to delete a claim when other clients write it at the same time.
const TRIES_MAX: usize = 5;

impl Writer {
    /// Creates the claim for a pod's extended resources, allocates its devices, and records it in the pod's status.
    pub(super) async fn bind_extended(&self, plan: &ExtendedPlan, pod: &Pod) -> Result<ClaimPlan, String> {
        let (namespace, name) = (pod.namespace(), &*pod.name);
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": &*pod.uid, "controller": true});
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {
                "namespace": namespace, "generateName": format!("{name}-extended-resources-"),
                "ownerReferences": [owner], "annotations": {names::EXTENDED_RESOURCE_CLAIM: "true"},
            },
            "spec": {"devices": {"requests": plan.requests}},
        });
        let created = self.client.create::<ResourceClaimView>(namespace, &claim).await;
        self.metrics.claim_created(created.is_ok());
        // The claim has no name yet.
        let whose = || format!("create claim for extended resources {namespace}/");
        let claim = created.map_err(|e| format!("{}: {e}", whose()))?;
        let (key, uid) = (claim.metadata.key(), claim.metadata.uid.clone());
        self.shared.core.lock().cluster.devices.made_claim(claim);
        let made = ClaimPlan { key, uid, allocation: Some(plan.allocation.clone()) };
        self.bind_claim(&made, pod).await?;
        let status = json!({"resourceClaimName": made.key.name, "requestMappings": plan.mappings});
        let patch = json!({"metadata": {"uid": &*pod.uid}, "status": {"extendedResourceClaimStatus": status}});
        let (kind, options) = (PatchKind::Strategic, WriteOptions::default());
        let named = self.client.patch::<Pod>(namespace, name, "status", kind, &patch, &options).await;
        named.map_err(|e| format!("update pod {namespace}/{name} ExtendedResourceClaimStatus: {e}"))?;
        Ok(made)
    }

    /// Deletes the claim of a pod that was not bound (Unreserve).
    pub(super) async fn drop_extended(&self, pod: &Pod) {
        let made = self.shared.core.lock().cluster.devices.extended_claim_of(&pod.uid).cloned();
        if let Some(key) = made {
            self.drop_claim(&key).await;
        }
    }

    /// Deletes a claim for extended resources. If that fails, the pod's next attempt deletes it.
    pub(super) async fn drop_claim(&self, key: &ObjectKey) {
        let known = self.shared.core.lock().cluster.devices.claim(key).cloned();
        let Some(mut claim) = known.map(|c| ResourceClaimView::clone(&c)) else { return };
        let uid = claim.metadata.uid.clone();
        for _ in 0..TRIES_MAX {
            let done = self.try_drop(key, &claim).await;
            let Err(e) = done else { return };
            if !e.is_conflict() {
                if e.is_not_found() {
                    self.shared.core.lock().put_resource_claim(key.clone(), None, Instant::now());
                } else {
                    tracing::info!(claim = %key, error = %e, "deleting the resource claim for extended resources failed");
                }
                return;
            }
            match self.client.get_opt::<ResourceClaimView>(&key.namespace, &key.name).await {
                Ok(Some(fresh)) if fresh.metadata.uid == uid => claim = fresh,
                _ => return,
            }
        }
    }

    async fn try_drop(&self, key: &ObjectKey, claim: &ResourceClaimView) -> Result<(), ClientError> {
        if claim.is_protected() {
            let kept: Vec<&String> = claim.metadata.finalizers.iter().filter(|f| *f != names::FINALIZER).collect();
            let kept = if kept.is_empty() { json!(null) } else { json!(kept) };
            let version = &claim.metadata.resource_version;
            self.patch_claim(key, "", &json!({"metadata": {"resourceVersion": version, "finalizers": kept}})).await?;
        }
        let options = DeleteOptions::default().with_uid(claim.metadata.uid.clone());
        self.client.delete::<ResourceClaimView>(&key.namespace, &key.name, &options).await
    }
}
