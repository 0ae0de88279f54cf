//! `storagemigration.k8s.io/v1beta1` StorageVersionMigration.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{GroupResource, ObjectMeta};
use serde::Deserialize;
use serde_json::Value;

/// A StorageVersionMigration: a request to rewrite all objects of a resource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MigrationView {
    pub metadata: ObjectMeta,
    pub spec: MigrationSpec,
    /// The complete status, since it is written as a whole.
    pub status: Value,
}

/// The resource of a StorageVersionMigration.
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
    /// Returns the resource whose objects are rewritten.
    pub fn migrated(&self) -> GroupResource {
        GroupResource::new(&self.spec.resource.group, &self.spec.resource.resource)
    }

    /// Whether a condition is true.
    pub fn is(&self, condition: &str) -> bool {
        let all = self.status["conditions"].as_array();
        all.is_some_and(|all| all.iter().any(|c| c["type"] == condition && c["status"] == "True"))
    }

    /// Whether the migration finished, successfully or not.
    pub fn has_ended(&self) -> bool {
        self.is("Succeeded") || self.is("Failed")
    }

    /// Returns the resourceVersion up to which objects are rewritten, or an empty string if it is not set yet.
    pub fn position(&self) -> &str {
        self.status["resourceVersion"].as_str().unwrap_or("")
    }
}

slim_object!(
    MigrationView,
    ResourceType::cluster("storagemigration.k8s.io", "v1beta1", "storageversionmigrations", "StorageVersionMigration")
);
