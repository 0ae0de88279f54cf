//! Long-lived service account tokens in Secrets: the ConfigMap with the date since which their use is tracked (read by the cleaner of
//! unused ones), and the day of their last use. Upstream `pkg/controlplane/controller/legacytokentracking`.
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use kelson_auth::token::uses::{UsedSecret, day};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::bootstrap::client::SelfClient;
use crate::shared::{Server, token_uses};

const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
const NAME: &str = "kube-apiserver-legacy-service-account-token-tracking";
const SINCE: &str = "since";
/// Interval of checks that the ConfigMap exists (as upstream).
const CHECK_EVERY: Duration = Duration::from_secs(30 * 60);

/// Maintains the ConfigMap with the date since which uses are tracked. If it has no date, today is set.
pub async fn track(server: Arc<Server>) {
    let own = SelfClient::new(&server);
    loop {
        let today = day(server.clock.now());
        let path = format!("{MAPS}/{NAME}");
        let done = match own.call(Method::GET, &path, &Value::Null).await {
            Ok(mut map) => {
                let since = map["data"][SINCE].as_str().and_then(|since| since.parse::<jiff::civil::Date>().ok());
                match since {
                    Some(_) => Ok(()),
                    None => {
                        map["data"] = json!({SINCE: today});
                        own.call(Method::PUT, &path, &map).await.map(drop)
                    }
                }
            }
            Err(status) if status.code == 404 => {
                let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {SINCE: today},
                    "metadata": {"name": NAME, "namespace": "kube-system"}});
                own.call(Method::POST, MAPS, &map).await.map(drop)
            }
            Err(status) => Err(status),
        };
        if let Err(error) = done {
            tracing::warn!(%error, "failed to update the legacy token tracking ConfigMap; retrying");
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

/// Writes the day of the last use to Secrets, one after the other.
pub async fn mark(server: Arc<Server>, mut marks: mpsc::Receiver<UsedSecret>) {
    let own = SelfClient::new(&server);
    while let Some(secret) = marks.recv().await {
        let path = token_uses::secret_path(&secret);
        let Ok(mut stored) = own.call(Method::GET, &path, &Value::Null).await else { continue };
        if token_uses::mark_used(&secret, &mut stored)
            && let Err(error) = own.call(Method::PUT, &path, &stored).await
        {
            // The next use retries.
            tracing::debug!(secret = secret.name, %error, "failed to record the use of a legacy token");
        }
    }
}
