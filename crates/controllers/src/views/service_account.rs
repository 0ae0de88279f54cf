//! `core/v1` ServiceAccount.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::ObjectMeta;
use serde::Deserialize;

use super::index::Indexed;

/// `core/v1` ServiceAccount.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceAccountView {
    pub metadata: ObjectMeta,
}

impl Indexed for ServiceAccountView {}
slim_object!(ServiceAccountView, ResourceType::namespaced("", "v1", "serviceaccounts", "ServiceAccount"));
