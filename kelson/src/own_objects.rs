//! Objects that a server writes into its cluster at each start.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kelson_client::{Client, PatchKind, WriteOptions};
use kelson_encryption::Encryption;
use kelson_store::Store;
use kelson_tasks::{OnPanic, Tasks};
use serde_json::json;

use crate::cluster::{self, Bundles, ClusterSettings};
use crate::token::{Purpose, Token};
use crate::{rbac, token};

/// The pause between attempts while the store rejects writes.
const RETRY: Duration = Duration::from_secs(10);

/// The label of a node's role, whose value is empty (kubeadm).
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// Sets the role label on the node of this machine as soon as the node exists. Its kubelet may not set it. The
/// controllers set it on the node of the leader only.
pub fn label_own_node(masters: Client, node: String, tasks: &Tasks) {
    tasks.spawn("control-plane-label", OnPanic::Contain, async move {
        let (patch, options) = (json!({"metadata": {"labels": {CONTROL_PLANE: ""}}}), WriteOptions::default());
        loop {
            match masters.patch::<Node>("", &node, "", PatchKind::Merge, &patch, &options).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, node, "labeling the node of this server failed; retrying"),
            }
            tokio::time::sleep(RETRY).await;
        }
    });
}

/// The objects of a server: policy, settings for nodes, and its node's token.
pub struct OwnObjects {
    /// The client of the API, as the server itself.
    pub masters: Client,
    /// The URL of the API for other machines.
    pub url: String,
    /// The CA bundles.
    pub bundles: Bundles,
    /// The settings that all nodes share.
    pub cluster: ClusterSettings,
    /// The token of this machine's own node.
    pub token: Token,
}

impl OwnObjects {
    async fn write(&self) -> anyhow::Result<()> {
        let (policy, published, admitted) = tokio::join!(
            rbac::ensure(&self.masters),
            cluster::publish(&self.masters, &self.url, &self.bundles, &self.cluster),
            token::admit_own(&self.masters, &self.token, Purpose::Node),
        );
        policy.and(published).and(admitted)
    }

    /// Writes the objects. While the store rejects writes (the disk is full, or a key service is not available), the
    /// server starts anyway and serves reads.
    ///
    /// # Errors
    /// A write failed though the store accepts writes.
    pub async fn write_or_keep_trying(
        self,
        store: &Store,
        encryption: Option<&Encryption>,
        tasks: &Tasks,
    ) -> anyhow::Result<()> {
        let Err(error) = self.write().await else { return Ok(()) };
        let no_keys = || encryption.and_then(|encryption| encryption.check().err());
        let Some(why) = store.health().not_ready().or_else(no_keys) else { return Err(error) };
        let error = format!("{error:#}");
        tracing::error!(error, why, "writing the server's own objects failed; starting without them and retrying");
        tasks.spawn("own-objects", OnPanic::Contain, async move {
            loop {
                tokio::time::sleep(RETRY).await;
                match self.write().await {
                    Ok(()) => return tracing::info!("wrote the server's own objects"),
                    Err(error) => {
                        tracing::debug!(
                            error = format!("{error:#}"),
                            "writing the server's own objects failed; retrying"
                        )
                    }
                }
            }
        });
        Ok(())
    }
}
