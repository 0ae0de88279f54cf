//! Storage version migration: rewrites the objects of a resource, so that each is stored in the current version and with the
//! current encryption key. Upstream `pkg/controller/storageversionmigrator`, with the feature gate `StorageVersionMigrator`, which
//! is off by default.
//!
//! `turns` orders the migrations of a resource and updates the status of custom resource definitions, `position` finds the
//! resourceVersion up to which objects may be stored in an old version, and `rewrite` rewrites them.
mod position;
mod rewrite;
#[cfg(test)]
mod tests;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_client::{Client, Informer, InformerConfig, InformerHandle, Object as _, WorkQueue};
use kelson_meta::{Clock, GroupResource, ObjectKey, format_seconds};
use serde_json::{Value, json};

use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::discovery::{ApiResource, discover};
use crate::views::MigrationView;

/// The field manager of the empty applies.
const MANAGER: &str = "storage-version-migrator-controller";
/// The gate of this controller.
const GATE: &str = "StorageVersionMigrator";
/// The time for which a migration waits for a resource that is not served, as its definition may be new.
const UNKNOWN_AT_MOST: Duration = Duration::from_secs(60);

struct Migrator {
    client: Client,
    clock: Arc<dyn Clock>,
    migrations: InformerHandle<MigrationView>,
}

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    if !ctx.config.feature_gates.enabled(GATE) {
        return;
    }
    let turns: WorkQueue<GroupResource> = WorkQueue::default();
    let (positions, rewrites): (WorkQueue<ObjectKey>, WorkQueue<ObjectKey>) = <_>::default();
    let queues = (turns.clone(), positions.clone(), rewrites.clone());
    // This is not a shared informer, since the kind is served only if it is enabled, and no other controller must wait
    // for it.
    let informer = Informer::<MigrationView>::new(ctx.manager_client(), InformerConfig::default());
    let informer = informer.on_change(move |change| {
        let migration = change.object();
        queues.0.add(migration.migrated());
        queues.1.add(migration.key());
        queues.2.add(migration.key());
    });
    let me = Arc::new(Migrator {
        client: ctx.client(),
        clock: Arc::clone(&ctx.clock),
        migrations: informer.start_in(&ctx.tasks),
    });
    let it = Arc::clone(&me);
    ctx.run_queue(&turns, 1, move |resource| {
        let me = Arc::clone(&it);
        async move { me.turn(&resource).await }
    });
    let it = Arc::clone(&me);
    ctx.run_queue(&positions, 1, move |key| {
        let me = Arc::clone(&it);
        async move { me.find_position(&key).await }
    });
    ctx.run_queue(&rewrites, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.rewrite(&key).await }
    });
}

impl Migrator {
    /// Updates the status as it was read with a change. The result is a conflict if the object has changed.
    async fn write(&self, seen: &MigrationView, change: impl FnOnce(&mut Value)) -> Result<(), SyncError> {
        let (kind, of) = (MigrationView::TYPE, &seen.spec.resource);
        let mut status = if seen.status.is_object() { seen.status.clone() } else { json!({}) };
        change(&mut status);
        let body = json!({"apiVersion": kind.api_version(), "kind": kind.kind,
            "metadata": {"name": seen.metadata.name, "resourceVersion": seen.metadata.resource_version},
            "spec": {"resource": {"group": of.group, "resource": of.resource}}, "status": status});
        match self.client.update::<MigrationView>("", &seen.metadata.name, "status", &body).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Adds a true condition.
    async fn say(&self, seen: &MigrationView, kind: &str, reason: &str, message: &str) -> Result<(), SyncError> {
        let new = json!({"type": kind, "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": format_seconds(self.clock.now())});
        self.write(seen, |status| put(status, new)).await
    }

    async fn fail(&self, seen: &MigrationView, message: &str) -> Result<(), SyncError> {
        self.say(seen, "Failed", "StorageVersionMigrationFailed", message).await
    }

    /// Returns the resource in its preferred version. The migration fails if the resource is not served within the time
    /// limit.
    async fn served(&self, seen: &MigrationView) -> Result<Option<ApiResource>, SyncError> {
        let of = &seen.spec.resource;
        let all = discover(&self.client).await?.resources;
        let found = all.into_iter().find(|r| r.group == of.group && r.plural == of.resource);
        if found.is_none() {
            let made = seen.metadata.creation_timestamp.parse().unwrap_or(Timestamp::UNIX_EPOCH);
            if Duration::try_from(self.clock.now().duration_since(made)).unwrap_or_default() < UNKNOWN_AT_MOST {
                return Err(SyncError::Other(format!("{} is not served yet", seen.migrated())));
            }
            self.fail(seen, "resource does not exist in discovery").await?;
        }
        Ok(found)
    }
}

/// Puts a condition into a status, in the place of one of its type.
fn put(status: &mut Value, new: Value) {
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    if let Some(all) = status["conditions"].as_array_mut() {
        all.retain(|c| c["type"] != new["type"]);
        all.push(new);
    }
}
