//! `core/v1` ServiceAccount.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::Deserialize;

use super::index::Indexed;

/// `core/v1` ServiceAccount.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceAccountView {
    pub metadata: ObjectMeta,
    /// Secrets that belong to the account.
    #[serde(deserialize_with = "null_default")]
    pub secrets: Vec<SecretReference>,
}

/// The name of a Secret in the account's namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SecretReference {
    pub name: String,
}

impl Indexed for ServiceAccountView {}
slim_object!(ServiceAccountView, ResourceType::namespaced("", "v1", "serviceaccounts", "ServiceAccount"));
