//! The order of migrations: one per resource at a time, the oldest first. The status of a custom resource definition
//! shows the running migration, and after success a single stored version.
use bytes::Bytes;
use http::Method;
use kelson_client::{PatchKind, WriteOptions};
use kelson_meta::{GroupResource, format_seconds};
use serde_json::{Value, json};

use super::{Migrator, put};
use crate::shared::context::SyncError;
use crate::views::MigrationView;

/// The field manager of the definitions' condition.
const MANAGER: &str = "migration-runner-controller";

impl Migrator {
    pub(super) async fn turn(&self, resource: &GroupResource) -> Result<(), SyncError> {
        // A running migration may be missing from an incomplete list.
        self.migrations.synced().await;
        let mut all = self.migrations.filter(|m| m.migrated() == *resource);
        all.sort_by(|a, b| {
            let order = |m: &MigrationView| (m.metadata.creation_timestamp.clone(), m.metadata.name.clone());
            order(a).cmp(&order(b))
        });
        for ended in all.iter().filter(|m| m.is("Running") && m.has_ended()) {
            self.finish(ended).await?;
        }
        let runs = all.iter().any(|m| m.is("Running") && !m.has_ended());
        match all.iter().find(|m| !m.has_ended()).filter(|_| !runs) {
            Some(next) => self.begin(next).await,
            None => Ok(()),
        }
    }

    async fn begin(&self, next: &MigrationView) -> Result<(), SyncError> {
        if let Some(definition) = self.definition(next).await? {
            let message = format!("Migration {} is running", next.metadata.name);
            let status = self.migrating(&definition, "True", "MigrationRunning", &message);
            self.announce(&definition, status).await?;
        }
        self.say(next, "Running", "MigrationRunning", "The migration is running").await
    }

    async fn finish(&self, ended: &MigrationView) -> Result<(), SyncError> {
        if let Some(definition) = self.definition(ended).await? {
            let status = self.outcome(&definition, ended.is("Succeeded"));
            self.announce(&definition, status).await?;
        }
        let mut over = json!({"type": "Running", "status": "False", "reason": "MigrationCompleted",
            "message": "Migration completed", "lastTransitionTime": format_seconds(self.clock.now())});
        if ended.metadata.generation > 0 {
            over["observedGeneration"] = ended.metadata.generation.into();
        }
        self.write(ended, |status| put(status, over)).await
    }

    /// Returns the definition's status after a migration: a single stored version if it succeeded and the definition
    /// did not change while it ran.
    fn outcome(&self, definition: &Value, succeeded: bool) -> Value {
        if !succeeded {
            return self.migrating(definition, "False", "MigrationFailed", "The migration has failed");
        }
        let of = |c: &&Value| c["type"] == "StorageMigrating";
        let begun = definition["status"]["conditions"].as_array().and_then(|all| all.iter().find(of));
        let same = begun.is_some_and(|c| c["observedGeneration"] == definition["metadata"]["generation"]);
        let message = if same {
            "The migration has succeeded and the stored versions have been updated"
        } else {
            "The migration has succeeded but the stored versions have not been updated due to a generation mismatch"
        };
        let mut status = self.migrating(definition, "False", "MigrationSucceeded", message);
        let versions = definition["spec"]["versions"].as_array();
        if let Some(stored) = versions.and_then(|all| all.iter().find(|v| v["storage"] == true)).filter(|_| same) {
            status["storedVersions"] = json!([stored["name"]]);
        }
        status
    }

    fn migrating(&self, definition: &Value, status: &str, reason: &str, message: &str) -> Value {
        json!({"conditions": [{"type": "StorageMigrating", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": format_seconds(self.clock.now()),
            "observedGeneration": definition["metadata"]["generation"]}]})
    }

    /// The definition of a custom resource; `None` for any other.
    async fn definition(&self, migration: &MigrationView) -> Result<Option<Value>, SyncError> {
        let of = &migration.spec.resource;
        let path = definition_path(&format!("{}.{}", of.resource, of.group));
        match self.client.call(Method::GET, &path, "", Bytes::new()).await {
            Ok(bytes) => Ok(kelson_meta::from_json(&bytes).ok()),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Applies a status to a definition, unless that has changed since it was read.
    async fn announce(&self, definition: &Value, status: Value) -> Result<(), SyncError> {
        let meta = &definition["metadata"];
        let body = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": meta["name"], "resourceVersion": meta["resourceVersion"]}, "status": status});
        let path = format!("{}/status", definition_path(meta["name"].as_str().unwrap_or("")));
        let options = WriteOptions { force: true, ..WriteOptions::manager(MANAGER) };
        self.client.patch_at::<Value>(&path, PatchKind::Apply, &body, &options).await?;
        Ok(())
    }
}

fn definition_path(name: &str) -> String {
    format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
}
