//! `core/v1` Service.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::Deserialize;
use std::collections::BTreeMap;

use super::condition::Condition;
use super::index::{IndexKey, Indexed};
use super::int_or_string::IntOrString;

/// `core/v1` Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceView {
    pub metadata: ObjectMeta,
    pub spec: ServiceSpecView,
    pub status: ServiceStatusView,
}

/// A service's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatusView {
    pub load_balancer: LoadBalancerView,
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<Condition>,
}

/// `v1.LoadBalancerStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancerView {
    #[serde(deserialize_with = "null_default")]
    pub ingress: Vec<LoadBalancerIngressView>,
}

/// The part of `v1.LoadBalancerIngress` that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerIngressView {
    pub ip: String,
    /// `VIP` or `Proxy`.
    pub ip_mode: String,
}

/// A service's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpecView {
    /// The selector of the pods. Absent means that the endpoints are managed manually.
    pub selector: Option<BTreeMap<String, String>>,
    pub r#type: String,
    /// `None` for headless services.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// IP families in order of preference.
    #[serde(deserialize_with = "null_default")]
    pub ip_families: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<ServicePortView>,
    /// Whether unready pods are endpoints, too.
    pub publish_not_ready_addresses: bool,
    /// The preferred endpoints: `PreferClose`, `PreferSameZone`, `PreferSameNode`.
    pub traffic_distribution: Option<String>,
    /// The load balancer that the service is for; `None` is the cluster's default one.
    pub load_balancer_class: Option<String>,
    /// The address that the load balancer should have; empty for any.
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: String,
    /// `Cluster` or `Local`.
    pub external_traffic_policy: String,
}

/// A service's port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePortView {
    /// Name; empty for the only one.
    pub name: String,
    /// `TCP`, `UDP`, `SCTP`; empty is TCP.
    pub protocol: String,
    pub app_protocol: Option<String>,
    /// The service's port.
    pub port: i32,
    /// The pods' port: a number or the name of a container's port.
    pub target_port: Option<IntOrString>,
}

impl Indexed for ServiceView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
    }
}
slim_object!(ServiceView, ResourceType::namespaced("", "v1", "services", "Service"));
