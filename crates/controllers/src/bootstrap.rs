//! Bootstrap tokens: signs `cluster-info` with each token, so that a joining node can verify it, and deletes expired
//! tokens. Upstream `pkg/controller/bootstrap`. The server creates `cluster-info`.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_client::{DeleteOptions, WorkQueue};
use kelson_meta::ObjectKey;
use kelson_pki::{SIGNATURE_PREFIX, sign_detached};
use serde_json::json;

use crate::shared::context::{Context, SyncError, enqueue_self, update_value};
use crate::views::{ConfigMapView, SecretView};

const NAME_PREFIX: &str = "bootstrap-token-";

/// Returns the expiry of a token. An invalid expiry counts as expired.
fn expires(s: &SecretView) -> Option<Timestamp> {
    let text = s.text("expiration")?;
    Some(text.parse().unwrap_or(Timestamp::UNIX_EPOCH))
}

/// Returns a token's ID and secret, if it is complete, not expired and usable for signing.
fn signing_key(s: &SecretView, now: Timestamp) -> Option<(String, String)> {
    let id = s.text("token-id")?;
    let right_name = s.metadata.name.strip_prefix(NAME_PREFIX) == Some(&id);
    let for_signing = s.text("usage-bootstrap-signing").as_deref() == Some("true");
    let valid = expires(s).is_none_or(|t| t > now) && !s.metadata.is_deleting();
    let secret = s.text("token-secret").filter(|t| !t.is_empty())?;
    (right_name && for_signing && valid).then_some((id, secret))
}

/// Returns the data of `cluster-info` with the desired signatures.
fn signed(data: &BTreeMap<String, String>, tokens: &[(String, String)]) -> BTreeMap<String, String> {
    let mut out = data.clone();
    out.retain(|k, _| !k.starts_with(SIGNATURE_PREFIX));
    if let Some(content) = data.get("kubeconfig") {
        for (id, secret) in tokens {
            out.insert(format!("{SIGNATURE_PREFIX}{id}"), sign_detached(content, id, secret));
        }
    }
    out
}

/// Starts the signer of `cluster-info`.
pub fn start_signer(ctx: &Arc<Context>) {
    let client = ctx.client();
    let (maps, secrets) = (ctx.informers.cluster_info.reader(), ctx.informers.bootstrap_secrets.reader());
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    maps.on_change(enqueue_self(&queue));
    let q = queue.clone();
    secrets.on_change(move |_| q.add(ObjectKey::new("kube-public", "cluster-info")));
    let clock = Arc::clone(&ctx.clock);
    ctx.run_queue_of(maps.clone(), &queue, 1, move |key| {
        let (client, maps, secrets, clock) = (client.clone(), maps.clone(), secrets.clone(), Arc::clone(&clock));
        async move {
            let Some(map) = maps.get(&key) else { return Ok(()) };
            let now = clock.now();
            let tokens: Vec<_> = secrets.list().iter().filter_map(|s| signing_key(s, now)).collect();
            let data = signed(&map.data, &tokens);
            if data != map.data {
                let seen = &map.metadata.resource_version;
                let write = |v: &mut serde_json::Value| v["data"] = json!(data);
                update_value::<ConfigMapView>(&client, &key.namespace, &key.name, "", seen, write).await?;
            }
            Ok(())
        }
    });
}

/// Starts the token cleaner. Each token is checked once, when it expires.
pub fn start_cleaner(ctx: &Arc<Context>) {
    let client = ctx.client();
    let secrets = ctx.informers.bootstrap_secrets.reader();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    secrets.on_change(enqueue_self(&queue));
    let (clock, q) = (Arc::clone(&ctx.clock), queue.clone());
    ctx.run_queue_of(secrets.clone(), &queue, 1, move |key| {
        let (client, secrets, clock, queue) = (client.clone(), secrets.clone(), Arc::clone(&clock), q.clone());
        async move {
            let Some(secret) = secrets.get(&key) else { return Ok(()) };
            let Some(at) = expires(&secret) else { return Ok(()) };
            let left = clock.now().duration_until(at);
            if left.is_positive() {
                queue.add_after(key, left.unsigned_abs() + Duration::from_secs(1));
                return Ok(());
            }
            let options = DeleteOptions::default().with_uid(&secret.metadata.uid);
            match client.delete::<SecretView>(&key.namespace, &key.name, &options).await {
                Err(e) if !e.is_not_found() => Err(SyncError::from(e)),
                _ => Ok(()),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::testing::run;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use kelson_simulation::Api;

    #[tokio::test(start_paused = true)]
    async fn signs_while_valid() {
        let api = Api::start().await;
        let _running = run(&api, &["bootstrap-signer-controller", "token-cleaner-controller"], Config::default()).await;
        api.create(
            "v1/configmaps",
            json!({"metadata": {"name": "cluster-info", "namespace": "kube-public"},
            "data": {"kubeconfig": "x", "jws-kubeconfig-oldold": "y"}}),
        )
        .await;
        let e = |s: &str| STANDARD.encode(s);
        api.create("v1/secrets", json!({"metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
            "type": "bootstrap.kubernetes.io/token",
            "data": {"token-id": e("abcdef"), "token-secret": e("0123456789abcdef"), "usage-bootstrap-signing": e("true"),
                "expiration": e("2026-01-01T01:00:00Z")}})).await;
        api.settle().await;
        let keys = async |api: &Api| -> Vec<String> {
            let map = api.get("v1/configmaps", "kube-public", "cluster-info").await.unwrap();
            map["data"].as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(keys(&api).await, ["jws-kubeconfig-abcdef", "kubeconfig"]);
        tokio::time::sleep(Duration::from_secs(3610)).await;
        assert!(api.list("v1/secrets").await.is_empty());
        assert_eq!(keys(&api).await, ["kubeconfig"]);
    }
}
