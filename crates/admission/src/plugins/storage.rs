//! StorageObjectInUseProtection: adds the finalizers that protect volumes and claims in use.
//! PersistentVolumeClaimResize: a claim may only grow if its class allows expansion.
use std::sync::Arc;

use kelson_auth::Objects;
use kelson_meta::{Quantity, Status};
use serde_json::Value;

use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{at, list_mut, text};

/// Adds the protection finalizers; see the module.
pub struct StorageObjectInUseProtection;

impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::CREATE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        let finalizer = match (a.resource.group.as_str(), a.resource.resource.as_str(), a.subresource) {
            ("", "persistentvolumes", "") => "kubernetes.io/pv-protection",
            ("", "persistentvolumeclaims", "") => "kubernetes.io/pvc-protection",
            ("storage.k8s.io", "volumeattributesclasses", "") => "kubernetes.io/vac-protection",
            _ => return Ok(()),
        };
        let finalizers = a.object.as_mut().and_then(|o| list_mut(o, &["metadata", "finalizers"]));
        if let Some(list) = finalizers.filter(|l| !l.iter().any(|f| f == finalizer)) {
            list.push(finalizer.into());
        }
        Ok(())
    }
}

/// Checks that a claim's class allows expansion; see the module.
pub struct PersistentVolumeClaimResize {
    objects: Arc<dyn Objects>,
}

impl PersistentVolumeClaimResize {
    /// Creates the plugin, which reads storage classes through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone() }
    }
}

fn size(claim: &Value) -> Option<Quantity> {
    text(claim, &["spec", "resources", "requests", "storage"]).parse().ok()
}

/// Returns the class of a claim, from the field or the old annotation.
fn class_of(claim: &Value) -> &str {
    match text(claim, &["metadata", "annotations", "volume.beta.kubernetes.io/storage-class"]) {
        "" => text(claim, &["spec", "storageClassName"]),
        class => class,
    }
}

impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::UPDATE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main("", "persistentvolumeclaims") {
            return Ok(());
        }
        let (old, new) = (a.stored(), a.new_object());
        let (Some(before), Some(after)) = (size(old), size(new)) else { return Ok(()) };
        if after.nanos() <= before.nanos() {
            return Ok(());
        }
        if text(old, &["status", "phase"]) != "Bound" {
            return Err(a.forbidden("Only bound persistent volume claims can be expanded"));
        }
        let class = self.objects.tree("storage.k8s.io", "storageclasses", "", class_of(old));
        if class.is_some_and(|c| at(&c, &["allowVolumeExpansion"]) == true) {
            return Ok(());
        }
        Err(a.forbidden(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support \
             resize",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, object};
    use serde_json::json;

    #[tokio::test]
    async fn finalizers_and_sizes() {
        let out = object(StorageObjectInUseProtection, Ask::create("/persistentvolumes", json!({}))).await.unwrap();
        assert_eq!(out["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
        assert_eq!(
            object(StorageObjectInUseProtection, Ask::create("/persistentvolumes", out.clone())).await.unwrap(),
            out
        );
        let d = dependencies(&[
            ("storageclasses//grow", json!({"allowVolumeExpansion": true})),
            ("storageclasses//fix", json!({})),
        ]);
        let claim = |class: &str, phase: &str, size: &str| json!({"spec": {"storageClassName": class, "resources": {"requests": {"storage": size}}}, "status": {"phase": phase}});
        let ask = |class: &str, phase: &str, to: &str| {
            let (old, new) = (claim(class, phase, "1Gi"), claim(class, phase, to));
            object(PersistentVolumeClaimResize::new(&d), Ask::update("/persistentvolumeclaims", old, new))
        };
        assert!(ask("grow", "Bound", "2Gi").await.is_ok() && ask("fix", "Pending", "1024Mi").await.is_ok());
        assert!(ask("grow", "Pending", "2Gi").await.unwrap_err().contains("Only bound"));
        assert!(ask("fix", "Bound", "2Gi").await.unwrap_err().contains("must support resize"));
    }
}
