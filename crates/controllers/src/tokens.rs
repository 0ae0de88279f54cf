//! Secrets of type `kubernetes.io/service-account-token`: a token is added when a user creates one for a service
//! account, and the Secret is deleted with the account. Pods get bound tokens instead. Upstream
//! `pkg/controller/serviceaccount/tokens_controller.go`.
use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kelson_client::{Change, Client, DeleteOptions, WorkQueue};
use kelson_meta::ObjectKey;
use serde_json::{Value, json};

use crate::shared::config::{Config, LegacyTokenSigner};
use crate::shared::context::{Context, SyncError, WORKERS, get_value, update_value};
use crate::shared::informers::SharedInformer;
use crate::views::{SecretView, ServiceAccountView};

pub(crate) const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
pub(crate) const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

struct TokensController {
    client: Client,
    secrets: SharedInformer<SecretView>,
    accounts: SharedInformer<ServiceAccountView>,
    config: Arc<Config>,
    sign: Arc<LegacyTokenSigner>,
}

/// Starts the token controller, unless there is no signer.
pub fn start(ctx: &Arc<Context>) {
    let Some(sign) = ctx.config.legacy_tokens.clone() else { return };
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let me = Arc::new(TokensController {
        // As upstream, this acts as the manager, since it creates the tokens with which other controllers authenticate.
        client: ctx.client(),
        secrets: ctx.informers.token_secrets.reader(),
        accounts: ctx.informers.service_accounts.reader(),
        config: Arc::clone(&ctx.config),
        sign,
    });
    me.secrets.on_change(crate::shared::context::enqueue_self(&queue));
    let (q, secrets) = (queue.clone(), me.secrets.clone());
    me.accounts.on_change(move |change| {
        if matches!(change, Change::Updated { .. }) {
            return;
        }
        let account = &change.object().metadata;
        for s in secrets.in_namespace(&account.namespace) {
            if s.metadata.annotations.get(ACCOUNT_NAME) == Some(&account.name) {
                q.add(s.metadata.key());
            }
        }
    });
    let (q, all) = (queue.clone(), me.secrets.clone());
    ctx.on_new_authorities(move || all.list().iter().for_each(|s| q.add(s.metadata.key())));
    ctx.run_queue_of(me.secrets.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

impl TokensController {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(secret) = self.secrets.get(key).filter(|s| !s.metadata.is_deleting()) else { return Ok(()) };
        let notes = &secret.metadata.annotations;
        let Some(name) = notes.get(ACCOUNT_NAME) else { return Ok(()) };
        let Some(uid) = self.account_uid(&key.namespace, name).await? else { return self.delete(&secret).await };
        match notes.get(ACCOUNT_UID) {
            // The account was replaced by another one with the same name.
            Some(noted) if *noted != uid => return self.delete(&secret).await,
            _ => {}
        }
        let wanted = self.missing(&secret, name, &uid)?;
        if wanted.is_empty() && notes.contains_key(ACCOUNT_UID) {
            return Ok(());
        }
        let fill = |v: &mut Value| {
            let data = kelson_meta::tree::map_at(v, "data");
            data.extend(wanted.into_iter().map(|(k, v)| (k.to_owned(), json!(STANDARD.encode(v)))));
            kelson_meta::tree::map_at(&mut v["metadata"], "annotations").insert(ACCOUNT_UID.into(), json!(uid));
        };
        let seen = &secret.metadata.resource_version;
        update_value::<SecretView>(&self.client, &key.namespace, &key.name, "", seen, fill).await?;
        Ok(())
    }

    /// Returns the account's UID. If the cache has no such account, the API server is asked, since the Secret is
    /// deleted otherwise.
    async fn account_uid(&self, namespace: &str, name: &str) -> Result<Option<String>, SyncError> {
        if let Some(a) = self.accounts.get(&ObjectKey::new(namespace, name)) {
            return Ok(Some(a.metadata.uid.clone()));
        }
        match get_value::<ServiceAccountView>(&self.client, namespace, name).await {
            Ok(v) => Ok(v["metadata"]["uid"].as_str().map(str::to_owned)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Returns the missing data of the secret.
    fn missing(&self, s: &SecretView, account: &str, uid: &str) -> Result<BTreeMap<&'static str, String>, SyncError> {
        let mut out = BTreeMap::new();
        let ns = &s.metadata.namespace;
        let lacks = |k: &str, want: &str| s.text(k).is_none_or(|have| have != want);
        let root_ca = self.config.authorities.borrow().root_ca.clone();
        if !root_ca.is_empty() && lacks("ca.crt", &root_ca) {
            out.insert("ca.crt", root_ca);
        }
        if lacks("namespace", ns) {
            out.insert("namespace", ns.clone());
        }
        if s.data.get("token").is_none_or(String::is_empty) {
            let token = (self.sign)(ns, account, uid, &s.metadata.name)
                .map_err(|e| SyncError::Other(format!("cannot sign a token for {ns}/{account}: {e}")))?;
            out.insert("token", token);
        }
        Ok(out)
    }

    async fn delete(&self, s: &SecretView) -> Result<(), SyncError> {
        let options = DeleteOptions::default().with_uid(&s.metadata.uid);
        match self.client.delete::<SecretView>(&s.metadata.namespace, &s.metadata.name, &options).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authorities;
    use crate::testing::run;
    use kelson_simulation::Api;

    #[tokio::test(start_paused = true)]
    async fn filled_in_and_removed() {
        let api = Api::start().await;
        api.namespace("n").await;
        let sign = |ns: &str, account: &str, _: &str, secret: &str| Ok(format!("{ns}.{account}.{secret}"));
        let of = |root_ca: &str| Authorities { root_ca: root_ca.into(), ..Authorities::default() };
        let (replaced, authorities) = tokio::sync::watch::channel(of("PEM"));
        let config = Config { authorities, legacy_tokens: Some(Arc::new(sign)), ..Config::default() };
        let _running = run(&api, &["serviceaccount-token-controller"], config).await;
        let account = api.create("v1/serviceaccounts", json!({"metadata": {"name": "robot", "namespace": "n"}})).await;
        let secret = |name: &str, account: &str| {
            json!({"type": "kubernetes.io/service-account-token",
                "metadata": {"name": name, "namespace": "n", "annotations": {ACCOUNT_NAME: account}}})
        };
        api.create("v1/secrets", secret("t", "robot")).await;
        api.create("v1/secrets", secret("stray", "nobody")).await;
        api.settle().await;
        let t = api.get("v1/secrets", "n", "t").await.unwrap();
        assert_eq!(
            t["data"],
            json!({"ca.crt": STANDARD.encode("PEM"), "namespace": STANDARD.encode("n"),
            "token": STANDARD.encode("n.robot.t")})
        );
        assert_eq!(t["metadata"]["annotations"][ACCOUNT_UID], account["metadata"]["uid"]);
        assert!(api.get("v1/secrets", "n", "stray").await.is_none());
        replaced.send_replace(of("NEW"));
        api.settle().await;
        let renewed = api.get("v1/secrets", "n", "t").await.unwrap();
        assert_eq!(renewed["data"]["ca.crt"], STANDARD.encode("NEW"));
        assert_eq!(renewed["data"]["token"], t["data"]["token"]);
        api.remove("v1/serviceaccounts", "n", "robot").await;
        api.settle().await;
        assert!(api.get("v1/secrets", "n", "t").await.is_none());
    }
}
