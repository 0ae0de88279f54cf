//! `core/v1` ConfigMap.
use std::collections::BTreeMap;

use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::Deserialize;

use super::index::Indexed;

/// A ConfigMap that a controller maintains.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMapView {
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "null_default")]
    pub data: BTreeMap<String, String>,
}

impl Indexed for ConfigMapView {}
slim_object!(ConfigMapView, ResourceType::namespaced("", "v1", "configmaps", "ConfigMap"));
