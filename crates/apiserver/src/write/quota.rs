//! Updates the usage of ResourceQuotas, the only write that admission makes. It is made only on the revision that was checked.
use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use kelson_admission::QuotaCharges;
use kelson_meta::Status;
use kelson_store::Resource;
use serde_json::Value;

use crate::shared::Server;
use crate::write::commit::{Committer, WriteError};

/// Connects the admission chain, which is built first, with its server.
#[derive(Default)]
pub struct Charges(OnceLock<Weak<Server>>);

impl Charges {
    /// Sets the server whose store is written.
    pub fn connect(&self, server: &Arc<Server>) {
        // The first server stays: a second one would have its own chain.
        let _ = self.0.set(Arc::downgrade(server));
    }
}

#[async_trait]
impl QuotaCharges for Charges {
    async fn charge(&self, namespace: &str, name: &str, seen: &str, used: &Value) -> Result<bool, Status> {
        let server = self.0.get().and_then(Weak::upgrade);
        let server = server.ok_or_else(|| Status::internal("cannot charge quotas: the server is not running"))?;
        let served = server.catalog.any("", "resourcequotas");
        let served = served.ok_or_else(|| Status::internal("resourcequotas are not served"))?;
        let Some(record) = server.store.get(Resource::new("", "resourcequotas"), namespace, name) else {
            return Ok(false);
        };
        if record.revision().to_string() != seen {
            return Ok(false);
        }
        let mut value = served.one_working(&record).await?;
        value["status"]["used"] = used.clone();
        match Committer::new(&server).update(&served, &record, value).await {
            Ok(_) => Ok(true),
            Err(WriteError::Conflict | WriteError::Gone) => Ok(false),
            Err(refused) => Err(refused.status(&served, name)),
        }
    }
}
