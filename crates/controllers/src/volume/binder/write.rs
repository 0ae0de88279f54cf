//! The writes of a binding. Each requires the version on which the decision is based and fails if the object has
//! changed.
use std::sync::Arc;

use kelson_volumes::{is_bound_to, names};
use serde_json::{Value, json};

use super::Binder;
use crate::shared::context::{SyncError, update_value};
use crate::views::{ClaimView, VolumeView};
use kelson_meta::tree::map_at;

/// The value of annotations whose presence matters.
const YES: &str = "yes";

impl Binder {
    pub(super) async fn write_claim(
        &self,
        claim: &ClaimView,
        subresource: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<Arc<ClaimView>, SyncError> {
        let m = &claim.metadata;
        let (client, seen) = (&self.client, &m.resource_version);
        let new = update_value::<ClaimView>(client, &m.namespace, &m.name, subresource, seen, change).await?;
        Ok(self.claims.put(new))
    }

    pub(super) async fn write_volume(
        &self,
        volume: &VolumeView,
        subresource: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<Arc<VolumeView>, SyncError> {
        let m = &volume.metadata;
        let seen = &m.resource_version;
        let new = update_value::<VolumeView>(&self.client, "", &m.name, subresource, seen, change).await?;
        Ok(self.volumes.put(new))
    }

    /// Writes the references in both objects, in an order that allows completion after a restart between any two
    /// writes.
    pub(super) async fn bind(&self, volume: Arc<VolumeView>, claim: Arc<ClaimView>) -> Result<(), SyncError> {
        let volume = self.claim_into_volume(volume, &claim).await?;
        let volume = self.set_volume_phase(&volume, "Bound", "").await?;
        let claim = self.volume_into_claim(claim, &volume).await?;
        self.set_claim_phase(&claim, "Bound", Some(&volume)).await.map(drop)
    }

    async fn claim_into_volume(
        &self,
        volume: Arc<VolumeView>,
        claim: &ClaimView,
    ) -> Result<Arc<VolumeView>, SyncError> {
        let m = &claim.metadata;
        let reserved = is_bound_to(&volume, claim);
        if reserved && volume.spec.claim_ref.as_ref().is_some_and(|r| r.uid == m.uid) {
            return Ok(volume);
        }
        let reference = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": m.namespace,
            "name": m.name, "uid": m.uid, "resourceVersion": m.resource_version});
        self.write_volume(&volume, "", |v| {
            v["spec"]["claimRef"] = reference;
            if !reserved {
                annotate(v, names::BOUND_BY_CONTROLLER);
            }
        })
        .await
    }

    async fn volume_into_claim(&self, claim: Arc<ClaimView>, volume: &VolumeView) -> Result<Arc<ClaimView>, SyncError> {
        let name = &volume.metadata.name;
        let named = claim.spec.volume_name == *name;
        if named && claim.metadata.annotations.contains_key(names::BIND_COMPLETED) {
            return Ok(claim);
        }
        self.write_claim(&claim, "", |v| {
            if !named {
                v["spec"]["volumeName"] = json!(name);
                annotate(v, names::BOUND_BY_CONTROLLER);
            }
            annotate(v, names::BIND_COMPLETED);
        })
        .await
    }

    /// Updates a claim's phase and the capacity and modes of its volume, if they differ.
    pub(super) async fn set_claim_phase(
        &self,
        claim: &Arc<ClaimView>,
        phase: &str,
        volume: Option<&VolumeView>,
    ) -> Result<Arc<ClaimView>, SyncError> {
        let status = &claim.status;
        let becomes = status.phase != phase;
        let modes: &[String] = volume.map_or(&[], |v| &v.spec.access_modes);
        let attributes = volume.map_or("", |v| &v.spec.volume_attributes_class_name);
        let has_too_much =
            volume.is_none() && (status.capacity.is_some() || !status.current_volume_attributes_class_name.is_empty());
        if !becomes && status.access_modes == modes && !has_too_much {
            return Ok(Arc::clone(claim));
        }
        self.write_claim(claim, "status", |v| {
            let status = map_at(v, "status");
            status.insert("phase".into(), json!(phase));
            let mut put = |name: &str, value: Value, absent: bool| match absent {
                true => drop(status.remove(name)),
                false => drop(status.insert(name.into(), value)),
            };
            put("accessModes", json!(modes), modes.is_empty());
            // The capacity of a bound claim may differ from its volume during an expansion.
            if let Some(volume) = volume.filter(|_| becomes) {
                put("capacity", json!({"storage": volume.size()}), false);
                put("currentVolumeAttributesClassName", json!(attributes), attributes.is_empty());
            } else if volume.is_none() {
                put("capacity", Value::Null, true);
                put("currentVolumeAttributesClassName", Value::Null, true);
            }
        })
        .await
    }

    /// Updates a volume's phase, if it differs.
    pub(super) async fn set_volume_phase(
        &self,
        volume: &Arc<VolumeView>,
        phase: &str,
        message: &str,
    ) -> Result<Arc<VolumeView>, SyncError> {
        if volume.status.phase == phase {
            return Ok(Arc::clone(volume));
        }
        self.write_volume(volume, "status", |v| {
            let status = map_at(v, "status");
            status.insert("phase".into(), json!(phase));
            match message {
                "" => drop(status.remove("message")),
                text => drop(status.insert("message".into(), json!(text))),
            }
        })
        .await
    }

    /// Makes a volume available again. A volume that a user reserved stays reserved for a claim of that name.
    pub(super) async fn unbind(&self, volume: &VolumeView) -> Result<(), SyncError> {
        let ours = volume.metadata.annotations.contains_key(names::BOUND_BY_CONTROLLER);
        let freed = self
            .write_volume(volume, "", |v| {
                if let Some(reference) = v["spec"]["claimRef"].as_object_mut().filter(|_| !ours) {
                    reference.remove("uid");
                    reference.remove("resourceVersion");
                    return;
                }
                map_at(v, "spec").remove("claimRef");
                map_at(&mut v["metadata"], "annotations").remove(names::BOUND_BY_CONTROLLER);
            })
            .await?;
        self.set_volume_phase(&freed, "Available", "").await.map(drop)
    }
}

fn annotate(object: &mut Value, name: &str) {
    map_at(&mut object["metadata"], "annotations").insert(name.into(), json!(YES));
}
