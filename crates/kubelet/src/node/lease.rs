//! The node's Lease in `kube-node-lease`, renewed after every quarter of its duration (upstream: component-helpers `lease`).
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kelson_client::{Client, ClientError, Object as _, PatchKind, WriteOptions};
use kelson_meta::{Backoff, Clock, format_micro};
use serde_json::json;

/// Namespace of node leases.
pub const NAMESPACE: &str = "kube-node-lease";
/// Delays after failures.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(7));

/// Renews the lease until the task is aborted. `uid` is the Node's UID, for the owner reference.
pub async fn run(client: Client, clock: Arc<dyn Clock>, node: String, uid: String, duration: Duration) {
    let mut retry = RETRY.base;
    let mut known = false;
    loop {
        let outcome = if known {
            renew(&client, &*clock, &node).await
        } else {
            ensure(&client, &*clock, &node, &uid, duration).await
        };
        match outcome {
            Ok(()) => {
                known = true;
                retry = RETRY.base;
                tokio::time::sleep(duration / 4).await;
            }
            Err(e) => {
                tracing::debug!(error = %e, "renewing the node's lease failed; retrying");
                known &= !e.is_not_found();
                tokio::time::sleep(retry).await;
                retry = RETRY.after(Some(retry));
            }
        }
    }
}

async fn renew(client: &Client, clock: &dyn Clock, node: &str) -> Result<(), ClientError> {
    let patch = json!({"spec": {"holderIdentity": node, "renewTime": format_micro(clock.now())}});
    let options = WriteOptions::default();
    client.patch::<Lease>(NAMESPACE, node, "", PatchKind::Merge, &patch, &options).await
}

async fn ensure(
    client: &Client,
    clock: &dyn Clock,
    node: &str,
    uid: &str,
    duration: Duration,
) -> Result<(), ClientError> {
    let seconds = duration.as_secs();
    if let Some(lease) = client.get_opt::<Lease>(NAMESPACE, node).await? {
        let owned = lease.metadata.owner_references.iter().flatten().any(|o| o.uid == uid);
        let patch = json!({
            "metadata": {"ownerReferences": [owner(node, uid)]},
            "spec": {"holderIdentity": node, "leaseDurationSeconds": seconds, "renewTime": format_micro(clock.now())}});
        let patch = if owned { json!({"spec": patch["spec"]}) } else { patch };
        let options = WriteOptions::default();
        return client.patch::<Lease>(NAMESPACE, node, "", PatchKind::Merge, &patch, &options).await;
    }
    let lease = json!({
        "apiVersion": Lease::TYPE.api_version(), "kind": "Lease",
        "metadata": {"name": node, "namespace": NAMESPACE, "ownerReferences": [owner(node, uid)]},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": seconds, "renewTime": format_micro(clock.now())}});
    client.create::<Lease>(NAMESPACE, &lease).await.map(|_| ())
}

fn owner(node: &str, uid: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid})
}
