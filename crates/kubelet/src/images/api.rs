//! What image credentials need from the API: pull secrets, service accounts and their tokens (KEP-4412), and events about pods and the
//! node.
use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kelson_client::{Client, EventRecorder, EventType, Object, ObjectRef};
use kelson_credentials::events::{CONFIG_REJECTED, CONFIG_RELOADED, Events, PLUGIN_FAILED, bounded, plugin_message};
use kelson_credentials::keyring::{CONFIG_JSON_KEY, DOCKERCFG_KEY};
use kelson_credentials::plugin::{self, Coordinates, PluginError, ServiceAccounts, Token, TokenRequest};
use kelson_credentials::{PodIdentity, PullSecret};
use serde::Deserialize;
use serde_json::json;
use zeroize::Zeroizing;

/// Extracts the docker configuration of a secret, without its other data.
pub(super) fn pull_secret(secret: &Secret) -> PullSecret {
    let m = &secret.metadata;
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let data = secret.data.iter().flatten();
    PullSecret {
        coordinates: Coordinates { namespace: text(&m.namespace), name: text(&m.name), uid: text(&m.uid) },
        kind: text(&secret.type_),
        data: data
            .filter(|(k, _)| matches!(k.as_str(), CONFIG_JSON_KEY | DOCKERCFG_KEY))
            .map(|(k, v)| (k.clone(), Zeroizing::new(v.0.clone())))
            .collect(),
    }
}

/// Reads service accounts from the API without a cache, because a removed annotation must take effect at once.
pub(super) struct Accounts {
    client: Client,
}

impl Accounts {
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

#[derive(Deserialize)]
struct CredentialAnswer {
    status: CredentialAnswerStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CredentialAnswerStatus {
    token: kelson_credentials::Secret,
    expiration_timestamp: Option<Timestamp>,
}

#[async_trait]
impl ServiceAccounts for Accounts {
    async fn service_account(&self, namespace: &str, name: &str) -> Result<plugin::ServiceAccount, String> {
        let found = self.client.get::<ServiceAccount>(namespace, name).await.map_err(|e| e.to_string())?;
        let uid = found.metadata.uid.filter(|u| !u.is_empty());
        let uid = uid.ok_or_else(|| format!("service account {namespace}/{name} has no UID"))?;
        Ok(plugin::ServiceAccount { uid, annotations: found.metadata.annotations.unwrap_or_default() })
    }

    async fn token(&self, request: &TokenRequest) -> Result<Token, String> {
        let (account, pod) = (&request.service_account, &request.pod);
        // The UID ensures that the account is still the one whose annotations were read. The token has the API's default lifetime.
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "metadata": {"uid": account.uid},
            "spec": {"audiences": [request.audience],
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}}});
        let kind = &<ServiceAccount as Object>::TYPE;
        let asked = self.client.create_sub(kind, &account.namespace, &account.name, "token", &body);
        let answer: CredentialAnswer = asked.await.map_err(|e| e.to_string())?;
        if answer.status.token.is_empty() {
            return Err("the API gave no token".to_owned());
        }
        Ok(Token { token: answer.status.token, expires: answer.status.expiration_timestamp })
    }
}

/// Records events about pods and the node.
pub(super) struct PullEvents {
    recorder: EventRecorder,
    node: ObjectRef,
}

impl PullEvents {
    pub fn new(recorder: EventRecorder, node_name: &str) -> Self {
        let about = |kind: &str, name: &str| ObjectRef {
            api_version: "v1".into(),
            kind: kind.into(),
            name: name.into(),
            // Like upstream, events of the kubelet have the node's name as the UID.
            uid: name.into(),
            ..Default::default()
        };
        Self { recorder, node: about("Node", node_name) }
    }

    fn node(&self, kind: EventType, reason: &str, message: &str) {
        let message = bounded(message.to_owned(), kelson_credentials::events::MESSAGE_BYTES_MAX);
        self.recorder.event(&self.node, kind, reason, message);
    }
}

impl Events for PullEvents {
    fn plugin_failed(&self, pod: &PodIdentity, error: &PluginError) {
        let about = ObjectRef {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            ..Default::default()
        };
        self.recorder.event(&about, EventType::Warning, PLUGIN_FAILED, plugin_message(error));
    }

    fn config_rejected(&self, message: &str) {
        let message = format!("Keeping the last valid configuration: {message}");
        self.node(EventType::Warning, CONFIG_REJECTED, &message);
    }

    fn config_reloaded(&self, hash: &str) {
        let message = format!("Loaded the credential provider configuration {hash}");
        self.node(EventType::Normal, CONFIG_RELOADED, &message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_docker_configuration_of_a_secret_is_used() {
        let secret: Secret = serde_json::from_value(json!({"apiVersion": "v1", "kind": "Secret",
            "type": "kubernetes.io/dockerconfigjson", "metadata": {"namespace": "ns", "name": "reg", "uid": "u"},
            "data": {".dockerconfigjson": "e30=", "other": "aHVudGVyMg=="}}))
        .expect("a secret");
        let taken = pull_secret(&secret);
        assert_eq!(taken.coordinates, Coordinates { namespace: "ns".into(), name: "reg".into(), uid: "u".into() });
        assert_eq!(taken.kind, "kubernetes.io/dockerconfigjson");
        assert_eq!(taken.data.keys().collect::<Vec<_>>(), [".dockerconfigjson"]);
        assert_eq!(taken.data[".dockerconfigjson"].as_slice(), b"{}");
    }
}
