//! `core/v1` ResourceQuota.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::index::{IndexKey, Indexed};

/// `core/v1` ResourceQuota; spec and status are read by `kelson-quota`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceQuotaView {
    pub metadata: ObjectMeta,
    pub spec: Value,
    pub status: Value,
}

impl Indexed for ResourceQuotaView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
    }
}
slim_object!(ResourceQuotaView, ResourceType::namespaced("", "v1", "resourcequotas", "ResourceQuota"));
