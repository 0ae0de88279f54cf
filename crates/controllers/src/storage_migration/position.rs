//! The resourceVersion up to which objects may be stored in an old version: that of the start of their migration.
use kelson_client::{ListParams, METADATA_ONLY_LIST};
use kelson_meta::{Gvr, ObjectKey};
use serde_json::Value;

use super::Migrator;
use crate::shared::context::SyncError;

/// The verbs that a resource needs for a migration.
const VERBS: [&str; 3] = ["update", "patch", "list"];

impl Migrator {
    pub(super) async fn find_position(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let waits = self.migrations.get(key).filter(|m| m.is("Running") && !m.has_ended() && m.position().is_empty());
        let Some(seen) = waits else { return Ok(()) };
        let Some(resource) = self.served(&seen).await? else { return Ok(()) };
        if !resource.serves(&VERBS) {
            let verbs = VERBS.join(" ");
            let named = Gvr::new(&resource.group, &resource.version, &resource.plural);
            let why = format!(
                "resource \"{}/{}, Resource={}\" does not support discovery operations: [{verbs}]",
                named.group, named.version, named.resource
            );
            return self.fail(&seen, &why).await;
        }
        let one = ListParams { limit: 1, ..ListParams::default() };
        let list = self.client.list_at::<Value>(&resource.path(""), METADATA_ONLY_LIST, &one).await?;
        let found = list.metadata.resource_version;
        self.write(&seen, |status| status["resourceVersion"] = found.into()).await
    }
}
