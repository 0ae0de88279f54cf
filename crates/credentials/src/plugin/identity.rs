//! The identity of an answer: none, or the pod's service account (KEP-4412). The API is behind a trait; it is asked for
//! the account at each lookup (from its own cache) and for a token only when a plugin runs.
use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;

use super::fault::{FaultReason, PluginFault};
use crate::config::{CacheType, TokenAttributes};
use crate::secret::Secret;

/// The pod an image is pulled for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodIdentity {
    /// `metadata.namespace` of the pod.
    pub namespace: String,
    /// `metadata.name` of the pod.
    pub name: String,
    /// `metadata.uid` of the pod, to which tokens are bound.
    pub uid: String,
    /// Service account name; empty: none (static pods).
    pub service_account: String,
}

/// An object of the API as records name it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Coordinates {
    /// Namespace of the object; empty for those of the cluster.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// The UID of the object, which distinguishes it from a later one with the same name.
    pub uid: String,
}

/// The properties of a service account that a lookup needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAccount {
    /// UID of the service account, part of the cache's key.
    pub uid: String,
    /// All annotations of the service account; the plugin is given those that its configuration names.
    pub annotations: BTreeMap<String, String>,
}

/// A `TokenRequest` bound to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequest {
    /// The service account.
    pub service_account: Coordinates,
    /// The pod it is bound to.
    pub pod: Coordinates,
    /// The one audience.
    pub audience: String,
}

/// A token and its end.
#[derive(Clone, Debug)]
pub struct Token {
    /// A token for the plugin's audience, bound to the pod.
    pub token: Secret,
    /// When it expires, if known: answers made with it under cache type `Token` are not cached longer.
    pub expires: Option<Timestamp>,
}

/// The API, as far as it is needed. Errors are shown to pod owners and must hold no token.
#[async_trait]
pub trait ServiceAccounts: Send + Sync + 'static {
    /// Reads a service account.
    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, String>;
    /// Mints a token.
    async fn token(&self, request: &TokenRequest) -> Result<Token, String>;
}

/// The service accounts of a node without an API. Providers with `tokenAttributes` fail for pods with a service
/// account.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoServiceAccounts;

#[async_trait]
impl ServiceAccounts for NoServiceAccounts {
    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, String> {
        Err(format!("cannot read service account {namespace}/{name} without an API server"))
    }
    async fn token(&self, _: &TokenRequest) -> Result<Token, String> {
        Err("cannot request a token without an API server".to_owned())
    }
}

/// The identity for which a plugin is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    /// The key of the identity in cache and runs; empty for none.
    pub key: Vec<u8>,
    /// The token to mint when the plugin is run.
    pub request: Option<TokenRequest>,
    /// Annotations for the plugin.
    pub annotations: BTreeMap<String, String>,
}

/// The identity for a pod; `None`: the provider is not for it.
pub(super) async fn identify(
    attributes: Option<&TokenAttributes>,
    accounts: &dyn ServiceAccounts,
    pod: &PodIdentity,
) -> Result<Option<Identity>, PluginFault> {
    let Some(attributes) = attributes else { return Ok(Some(Identity::default())) };
    if pod.service_account.is_empty() {
        return Ok((!attributes.require_service_account).then(Identity::default));
    }
    let account = accounts.service_account(&pod.namespace, &pod.service_account).await.map_err(|e| {
        PluginFault::new(FaultReason::ServiceAccount, format!("failed to get service account: {e}"), "")
    })?;
    let mut annotations = BTreeMap::new();
    for key in &attributes.required_annotation_keys {
        // A missing one says that the workload does not take part.
        let Some(value) = account.annotations.get(key) else { return Ok(None) };
        annotations.insert(key.clone(), value.clone());
    }
    for key in &attributes.optional_annotation_keys {
        if let Some(value) = account.annotations.get(key) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let mut key = Vec::new();
    let mut add = |text: &str| {
        key.extend_from_slice(&(text.len() as u64).to_be_bytes());
        key.extend_from_slice(text.as_bytes());
    };
    [&pod.namespace, &pod.service_account, &account.uid].into_iter().for_each(|s| add(s));
    for (k, v) in &annotations {
        add(k);
        add(v);
    }
    if attributes.cache_type == CacheType::Token {
        // The token is bound to the pod: what was made with it belongs to the pod alone.
        ["token", &pod.name, &pod.uid].into_iter().for_each(add);
    }
    let request = TokenRequest {
        service_account: Coordinates {
            namespace: pod.namespace.clone(),
            name: pod.service_account.clone(),
            uid: account.uid,
        },
        pod: Coordinates { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() },
        audience: attributes.audience.clone(),
    };
    Ok(Some(Identity { key, request: Some(request), annotations }))
}
