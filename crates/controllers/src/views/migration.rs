//! `storagemigration.k8s.io/v1beta1` StorageVersionMigration.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{GroupResource, ObjectMeta};
use serde::Deserialize;
use serde_json::Value;

/// A StorageVersionMigration: that the objects of a resource are to be written anew.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MigrationView {
    pub metadata: ObjectMeta,
    pub spec: MigrationSpec,
    /// The whole of it, since it is written back whole.
    pub status: Value,
}

/// What a StorageVersionMigration is of.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MigrationSpec {
    pub resource: MigratedResource,
}

/// A resource whatever its version (`meta/v1` GroupResource).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MigratedResource {
    /// Empty for the core group.
    pub group: String,
    pub resource: String,
}

impl MigrationView {
    /// Whose objects are written anew.
    pub fn migrated(&self) -> GroupResource {
        GroupResource::new(&self.spec.resource.group, &self.spec.resource.resource)
    }

    /// Whether a condition is true.
    pub fn is(&self, condition: &str) -> bool {
        let all = self.status["conditions"].as_array();
        all.is_some_and(|all| all.iter().any(|c| c["type"] == condition && c["status"] == "True"))
    }

    /// Whether it has ended, well or not.
    pub fn has_ended(&self) -> bool {
        self.is("Succeeded") || self.is("Failed")
    }

    /// Up to which revision objects are written anew; empty until that is known.
    pub fn position(&self) -> &str {
        self.status["resourceVersion"].as_str().unwrap_or("")
    }
}

slim_object!(
    MigrationView,
    ResourceType::cluster("storagemigration.k8s.io", "v1beta1", "storageversionmigrations", "StorageVersionMigration")
);
