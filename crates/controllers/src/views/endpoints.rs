//! `core/v1` Endpoints.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::{Deserialize, Serialize};

use super::endpoint_slice::TargetRef;
use super::index::Indexed;

/// `core/v1` Endpoints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointsView {
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "null_default")]
    pub subsets: Vec<Subset>,
}

impl Indexed for EndpointsView {}
slim_object!(EndpointsView, ResourceType::namespaced("", "v1", "endpoints", "Endpoints"));

/// `v1.EndpointSubset`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subset {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Address>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_ready_addresses: Vec<Address>,
    /// Ports, the same for all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SubsetPort>,
}

/// `v1.EndpointAddress`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Address {
    pub ip: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
}

/// `v1.EndpointPort`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubsetPort {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub port: i32,
    pub protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}
