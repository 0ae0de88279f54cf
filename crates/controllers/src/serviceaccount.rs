//! Creates the service account `default` in every namespace. Upstream
//! `pkg/controller/serviceaccount/serviceaccounts_controller.go`.
use std::sync::Arc;

use kelson_client::{Change, WorkQueue};
use kelson_meta::ObjectKey;
use serde_json::json;

use crate::shared::context::{Context, SyncError, WORKERS};
use crate::views::ServiceAccountView;

/// The name of the account.
const DEFAULT: &str = "default";

/// Starts the service account controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let (namespaces, accounts) = (ctx.informers.namespaces.reader(), ctx.informers.service_accounts.reader());
    let q = queue.clone();
    namespaces.on_change(move |change| q.add(ObjectKey::new("", &change.object().metadata.name)));
    let q = queue.clone();
    accounts.on_change(move |change| {
        if let Change::Deleted(a) = change
            && a.metadata.name == DEFAULT
        {
            q.add(ObjectKey::new("", &a.metadata.namespace));
        }
    });
    ctx.run_queue_of(namespaces.clone(), &queue, WORKERS, move |key| {
        let (client, namespaces, accounts) = (client.clone(), namespaces.clone(), accounts.clone());
        async move {
            let active =
                namespaces.get(&key).is_some_and(|n| n.status.phase != "Terminating" && !n.metadata.is_deleting());
            if !active || accounts.get(&ObjectKey::new(&key.name, DEFAULT)).is_some() {
                return Ok(());
            }
            let body = json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": DEFAULT, "namespace": key.name}});
            match client.create::<ServiceAccountView>(&key.name, &body).await {
                Err(e) if e.is_already_exists() || e.is_namespace_terminating() => Ok(()),
                Err(e) => Err(SyncError::from(e)),
                Ok(_) => Ok(()),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::run;
    use crate::{Authorities, Config};
    use kelson_simulation::Api;

    #[tokio::test(start_paused = true)]
    async fn made_and_made_again() {
        let api = Api::start().await;
        let of = |root_ca: &str| Authorities { root_ca: root_ca.into(), ..Authorities::default() };
        let (replaced, authorities) = tokio::sync::watch::channel(of("PEM"));
        let config = Config { authorities, ..Config::default() };
        let names = ["serviceaccount-controller", "root-ca-certificate-publisher-controller"];
        api.create("v1/namespaces", json!({"metadata": {"name": "a"}})).await;
        api.create("v1/namespaces", json!({"metadata": {"name": "b"}})).await;
        // No controller finalizes it here, so it stays in deletion.
        api.delete("v1/namespaces", "", "b", json!({})).await;
        let _running = run(&api, &names, config).await;
        api.settle().await;
        assert!(api.get("v1/serviceaccounts", "a", "default").await.is_some());
        assert!(api.get("v1/serviceaccounts", "b", "default").await.is_none());
        assert!(api.get("v1/configmaps", "b", "kube-root-ca.crt").await.is_none());
        let data = async |api: &Api| api.get("v1/configmaps", "a", "kube-root-ca.crt").await.unwrap()["data"].clone();
        assert_eq!(data(&api).await, json!({"ca.crt": "PEM"}));
        api.remove("v1/serviceaccounts", "a", "default").await;
        api.change("v1/configmaps", "a", "kube-root-ca.crt", |v| v["data"] = json!({"ca.crt": "evil", "x": "y"})).await;
        api.settle().await;
        assert!(api.get("v1/serviceaccounts", "a", "default").await.is_some());
        assert_eq!(data(&api).await, json!({"ca.crt": "PEM"}));
        api.remove("v1/configmaps", "a", "kube-root-ca.crt").await;
        api.settle().await;
        assert_eq!(data(&api).await, json!({"ca.crt": "PEM"}));
        replaced.send_replace(of("NEW"));
        api.settle().await;
        assert_eq!(data(&api).await, json!({"ca.crt": "NEW"}));
    }
}
