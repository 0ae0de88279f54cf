//! Rewrites each object with an empty apply: the stored data changes only if it differs from what is stored now.
use kelson_client::{ClientError, List, ListParams, METADATA_ONLY_LIST, PatchKind, WriteOptions};
use kelson_meta::{ObjectKey, ObjectMeta};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{MANAGER, Migrator};
use crate::shared::context::SyncError;
use crate::shared::discovery::ApiResource;
use crate::views::MigrationView;

/// The number of objects per list request.
const PIECE: u32 = 500;

/// An object of any kind.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Stored {
    metadata: ObjectMeta,
}

impl Migrator {
    pub(super) async fn rewrite(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let waits = self.migrations.get(key).filter(|m| !m.has_ended() && !m.position().is_empty());
        let Some(seen) = waits else { return Ok(()) };
        let Some(resource) = self.served(&seen).await? else { return Ok(()) };
        match self.all(&seen, &resource).await {
            Ok(()) => self.say(&seen, "Succeeded", "StorageVersionMigrationSucceeded", "").await,
            // A retryable error restarts the migration. Objects that are done are not stored twice.
            Err(e) if e.is_retryable() || e.is_expired() => Err(e.into()),
            Err(e) => self.fail(&seen, &format!("migration encountered unhandled error: {e}")).await,
        }
    }

    async fn all(&self, seen: &MigrationView, resource: &ApiResource) -> Result<(), ClientError> {
        let mut params = ListParams { limit: PIECE, ..ListParams::default() };
        loop {
            let piece: List<Stored> = self.client.list_at(&resource.path(""), METADATA_ONLY_LIST, &params).await?;
            for object in piece.items.iter().filter(|o| is_older(&o.metadata.resource_version, seen.position())) {
                self.one(resource, &object.metadata).await?;
            }
            params.continue_token = piece.metadata.continue_token;
            if params.continue_token.is_empty() {
                return Ok(());
            }
        }
    }

    async fn one(&self, resource: &ApiResource, object: &ObjectMeta) -> Result<(), ClientError> {
        let group = if resource.group.is_empty() { String::new() } else { format!("{}/", resource.group) };
        // With UID and resourceVersion, an object that was changed, deleted or created again is a conflict and needs no
        // rewrite.
        let body = json!({"apiVersion": format!("{group}{}", resource.version), "kind": resource.kind,
            "metadata": {"uid": object.uid, "resourceVersion": object.resource_version}});
        let (path, options) = (resource.object_path(&object.namespace, &object.name), WriteOptions::manager(MANAGER));
        match self.client.patch_at::<Value>(&path, PatchKind::Apply, &body, &options).await {
            Err(e) if !e.is_conflict() => Err(e),
            _ => Ok(()),
        }
    }
}

/// Whether a revision is not after another one.
fn is_older(revision: &str, limit: &str) -> bool {
    (revision.len(), revision) <= (limit.len(), limit)
}
