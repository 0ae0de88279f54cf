//! Removes auto-generated legacy service account tokens that have not been used for a year. A token is first marked as
//! invalid, which its users see in the error, and is deleted after another year (KEP-2799; upstream
//! `pkg/controller/serviceaccount/legacy_serviceaccount_token_cleaner.go`).
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use kelson_client::{Client, ClientError, DeleteOptions, ListParams, PatchKind, Preconditions, WriteOptions};
use kelson_meta::{Clock, ObjectKey};
use serde_json::{Value, json};

use crate::shared::context::Context;
use crate::shared::informers::SharedInformer;
use crate::tokens::{ACCOUNT_NAME, ACCOUNT_UID};
use crate::views::{ConfigMapView, SecretView, ServiceAccountView};

/// The interval of checks.
const INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// The number of pods per list request.
const PODS_PER_PART: u32 = 200;
const TRACKING: (&str, &str) = ("kube-system", "kube-apiserver-legacy-service-account-token-tracking");
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const KIND: &str = "kubernetes.io/service-account-token";

struct LegacyTokenCleaner {
    client: Client,
    /// The client for reading pods, which the controller's service account may not read.
    manager: Client,
    clock: Arc<dyn Clock>,
    secrets: SharedInformer<SecretView>,
    accounts: SharedInformer<ServiceAccountView>,
    period: Duration,
}

/// Starts the cleaner.
pub fn start(ctx: &Arc<Context>) {
    let me = Arc::new(LegacyTokenCleaner {
        client: ctx.client(),
        manager: ctx.manager_client(),
        clock: Arc::clone(&ctx.clock),
        secrets: ctx.informers.token_secrets.reader(),
        accounts: ctx.informers.service_accounts.reader(),
        period: ctx.config.legacy_token_clean_up_period,
    });
    let informers = Arc::clone(&ctx.informers);
    ctx.tasks.supervise("legacy-tokens", move || {
        let (me, informers) = (Arc::clone(&me), Arc::clone(&informers));
        async move {
            informers.synced().await;
            loop {
                if let Err(error) = me.sweep().await {
                    tracing::warn!(%error, "listing legacy service account tokens failed; retrying");
                }
                tokio::time::sleep(INTERVAL).await;
            }
        }
    });
}

/// The decision about one token.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Keep,
    Mark(String),
    Delete,
}

fn day(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d").to_string()
}

/// Decides from the dates of the Secret. `before` is the time since which the token must have been used or created to
/// be kept.
fn fate(secret: &SecretView, now: Timestamp, before: Timestamp) -> Fate {
    let m = &secret.metadata;
    let made = m.creation_timestamp.parse::<Timestamp>().ok();
    if m.is_deleting() || made.is_none_or(|made| made >= before) {
        return Fate::Keep;
    }
    let is_day = |text: &str| text.parse::<Date>().is_ok() && text.len() == "2026-01-01".len();
    // Dates compare as strings. A token with an invalid date is kept.
    match m.labels.get(LAST_USED) {
        Some(used) if !is_day(used) || *used >= day(before) => return Fate::Keep,
        _ => {}
    }
    match m.labels.get(INVALID_SINCE).filter(|since| is_day(since)) {
        None => Fate::Mark(day(now)),
        Some(since) if *since >= day(before) => Fate::Keep,
        Some(_) => Fate::Delete,
    }
}

impl LegacyTokenCleaner {
    async fn sweep(&self) -> Result<(), ClientError> {
        let now = self.clock.now();
        let Ok(before) = now.checked_sub(self.period) else { return Ok(()) };
        if self.tracked_since().await?.is_none_or(|since| since > before) {
            return Ok(());
        }
        let mut mounted: HashMap<String, BTreeSet<String>> = HashMap::new();
        for secret in self.secrets.list() {
            let decided = fate(&secret, now, before);
            if decided == Fate::Keep || secret.r#type != KIND || !self.is_generated(&secret) {
                continue;
            }
            let namespace = &secret.metadata.namespace;
            if !mounted.contains_key(namespace) {
                mounted.insert(namespace.clone(), self.used_by_pods(namespace).await?);
            }
            if mounted.get(namespace).is_some_and(|names| names.contains(&secret.metadata.name)) {
                continue;
            }
            let done = match decided {
                Fate::Mark(today) => self.mark(&secret, &today).await,
                _ => self.delete(&secret).await,
            };
            if let Err(error) = done
                && !error.is_conflict()
                && !error.is_not_found()
            {
                tracing::warn!(secret = %secret.metadata.key(), %error, "cleaning up a legacy service account token failed; retrying");
            }
        }
        Ok(())
    }

    /// Returns the first midnight after the API server started to record uses, or `None` if it does not.
    async fn tracked_since(&self) -> Result<Option<Timestamp>, ClientError> {
        let map = self.client.get_opt::<ConfigMapView>(TRACKING.0, TRACKING.1).await?;
        let since = map.and_then(|map| map.data.get("since")?.parse::<Date>().ok());
        let next = since.and_then(|day| day.checked_add(1.day()).ok());
        Ok(next.and_then(|day| day.to_zoned(TimeZone::UTC).ok()).map(|at| at.timestamp()))
    }

    /// Whether the service account references the Secret, which is the case only for auto-generated ones.
    fn is_generated(&self, secret: &SecretView) -> bool {
        let notes = &secret.metadata.annotations;
        let Some(name) = notes.get(ACCOUNT_NAME) else { return false };
        let Some(account) = self.accounts.get(&ObjectKey::new(&secret.metadata.namespace, name)) else { return false };
        let uid = notes.get(ACCOUNT_UID).filter(|uid| !uid.is_empty());
        uid.is_none_or(|uid| *uid == account.metadata.uid)
            && account.secrets.iter().any(|reference| reference.name == secret.metadata.name)
    }

    /// Returns the Secrets that pods of a namespace reference.
    async fn used_by_pods(&self, namespace: &str) -> Result<BTreeSet<String>, ClientError> {
        let (mut names, mut params) = (BTreeSet::new(), ListParams { limit: PODS_PER_PART, ..ListParams::default() });
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        loop {
            let part = self.manager.list_at::<Value>(&path, "application/json", &params).await?;
            part.items.iter().for_each(|pod| secret_names(&pod["spec"], &mut names));
            if part.metadata.continue_token.is_empty() {
                return Ok(names);
            }
            params.continue_token = part.metadata.continue_token;
        }
    }

    async fn mark(&self, secret: &SecretView, today: &str) -> Result<(), ClientError> {
        let m = &secret.metadata;
        tracing::info!(secret = %m.key(), since = today, "invalidating an unused legacy service account token");
        let patch = json!({"metadata": {"uid": m.uid, "labels": {INVALID_SINCE: today}}});
        let options = WriteOptions::default();
        self.client.patch::<SecretView>(&m.namespace, &m.name, "", PatchKind::Merge, &patch, &options).await
    }

    async fn delete(&self, secret: &SecretView) -> Result<(), ClientError> {
        let m = &secret.metadata;
        tracing::info!(secret = %m.key(), "deleting a legacy service account token that was invalidated long ago");
        let preconditions =
            Preconditions { resource_version: Some(m.resource_version.clone()), ..Preconditions::default() };
        let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
        self.client.delete::<SecretView>(&m.namespace, &m.name, &options).await.map(drop)
    }
}

/// Adds the names of all Secrets in a pod's spec (`podutil.VisitPodSecretNames`).
fn secret_names(spec: &Value, names: &mut BTreeSet<String>) {
    let mut put = |name: &Value| {
        names.extend(name.as_str().filter(|name| !name.is_empty()).map(str::to_owned));
    };
    let items = |list: &Value| list.as_array().cloned().unwrap_or_default();
    items(&spec["imagePullSecrets"]).iter().for_each(|reference| put(&reference["name"]));
    for kind in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(&spec[kind]) {
            items(&container["envFrom"]).iter().for_each(|from| put(&from["secretRef"]["name"]));
            items(&container["env"]).iter().for_each(|env| put(&env["valueFrom"]["secretKeyRef"]["name"]));
        }
    }
    for volume in items(&spec["volumes"]) {
        put(&volume["secret"]["secretName"]);
        put(&volume["azureFile"]["secretName"]);
        put(&volume["csi"]["nodePublishSecretRef"]["name"]);
        for driver in ["cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"] {
            put(&volume[driver]["secretRef"]["name"]);
        }
        items(&volume["projected"]["sources"]).iter().for_each(|source| put(&source["secret"]["name"]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::testing::run;
    use kelson_simulation::Api;

    const NOW: &str = "2026-05-06T07:08:09Z";

    #[test]
    fn a_tokens_dates_decide() {
        let now: Timestamp = NOW.parse().unwrap();
        let before = now - Duration::from_secs(365 * 24 * 3600);
        let mark = || Fate::Mark("2026-05-06".to_owned());
        // Created, last used, invalid since.
        let rows: [(&str, &str, &str, Fate); 12] = [
            ("2026-01-01T00:00:00Z", "", "", Fate::Keep),
            ("2025-05-06T07:08:09Z", "", "", Fate::Keep),
            ("2025-05-06T07:08:08Z", "", "", mark()),
            ("", "", "", Fate::Keep),
            ("2020-01-01T00:00:00Z", "2026-05-01", "", Fate::Keep),
            ("2020-01-01T00:00:00Z", "2025-05-06", "", Fate::Keep),
            ("2020-01-01T00:00:00Z", "2025-05-05", "", mark()),
            ("2020-01-01T00:00:00Z", "lately", "", Fate::Keep),
            ("2020-01-01T00:00:00Z", "", "2026-05-06", Fate::Keep),
            ("2020-01-01T00:00:00Z", "", "2025-05-05", Fate::Delete),
            ("2020-01-01T00:00:00Z", "2025-05-07", "2025-05-05", Fate::Keep),
            ("2020-01-01T00:00:00Z", "", "never", mark()),
        ];
        for (made, used, since, wanted) in rows {
            let mut labels = serde_json::Map::new();
            for (label, value) in [(LAST_USED, used), (INVALID_SINCE, since)] {
                if !value.is_empty() {
                    labels.insert(label.to_owned(), value.into());
                }
            }
            let object = json!({"metadata": {"name": "s", "creationTimestamp": made, "labels": labels}});
            let secret: SecretView = serde_json::from_value(object).unwrap();
            assert_eq!(fate(&secret, now, before), wanted, "{made} {used} {since}");
        }
    }

    #[test]
    fn every_place_of_a_pod_that_names_a_secret_counts() {
        let spec = json!({
            "imagePullSecrets": [{"name": "a"}],
            "initContainers": [{"envFrom": [{"secretRef": {"name": "b"}}, {"configMapRef": {"name": "x"}}]}],
            "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "c", "key": "k"}}}, {"name": "x"}]}],
            "ephemeralContainers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "d"}}}]}],
            "volumes": [{"secret": {"secretName": "e"}}, {"projected": {"sources": [{"secret": {"name": "f"}}]}},
                {"csi": {"nodePublishSecretRef": {"name": "g"}}}, {"iscsi": {"secretRef": {"name": "h"}}},
                {"azureFile": {"secretName": "i"}}, {"configMap": {"name": "x"}}, {"rbd": {"secretRef": {"name": ""}}}],
        });
        let mut names = BTreeSet::new();
        secret_names(&spec, &mut names);
        assert_eq!(names.into_iter().collect::<String>(), "abcdefghi");
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_token_is_marked_and_then_deleted() {
        let api = Api::start().await;
        api.namespace("n").await;
        let account = json!({"metadata": {"name": "robot", "namespace": "n"},
            "secrets": [{"name": "auto"}, {"name": "mounted"}, {"name": "used"}]});
        api.create("v1/serviceaccounts", account).await;
        for name in ["auto", "mounted", "used", "manual"] {
            let secret = json!({"type": KIND, "metadata": {"name": name, "namespace": "n",
                "annotations": {ACCOUNT_NAME: "robot"}}, "data": {"token": "eA=="}});
            api.create("v1/secrets", secret).await;
        }
        let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "secret": {"secretName": "mounted"}}]}});
        api.create("v1/pods", pod).await;
        let day = Duration::from_secs(24 * 3600);
        let today = || kelson_meta::Clock::now(&api.clock).strftime("%Y-%m-%d").to_string();
        let noted = json!({"metadata": {"name": TRACKING.1, "namespace": TRACKING.0}, "data": {"since": today()}});
        api.create("v1/configmaps", noted).await;
        let config = Config { legacy_token_clean_up_period: 2 * day, ..Config::default() };
        let _running = run(&api, &["legacy-serviceaccount-token-cleaner-controller"], config).await;
        let since = async |name: &str| {
            let secret = api.get("v1/secrets", "n", name).await;
            secret.map(|s| s["metadata"]["labels"][INVALID_SINCE].as_str().unwrap_or_default().to_owned())
        };
        tokio::time::sleep(day * 3 / 2).await;
        api.settle().await;
        assert_eq!(since("auto").await.as_deref(), Some(""), "its use has not been noted for long enough");
        let used = json!({LAST_USED: today()});
        api.change("v1/secrets", "n", "used", |v| v["metadata"]["labels"] = used.clone()).await;
        tokio::time::sleep(2 * day).await;
        api.settle().await;
        assert!(since("auto").await.is_some_and(|since| !since.is_empty()), "marked");
        for kept in ["mounted", "used", "manual"] {
            assert_eq!(since(kept).await.as_deref(), Some(""), "{kept}");
        }
        tokio::time::sleep(3 * day).await;
        api.settle().await;
        assert_eq!(since("auto").await, None, "deleted");
        assert!(since("used").await.is_some_and(|since| !since.is_empty()), "its last use is too long ago by now");
        assert_eq!(since("mounted").await.as_deref(), Some(""));
        assert_eq!(since("manual").await.as_deref(), Some(""));
    }
}
