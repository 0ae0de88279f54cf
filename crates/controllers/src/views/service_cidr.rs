//! `networking.k8s.io/v1` ServiceCIDR and IPAddress: service address ranges and allocated addresses.
use std::net::IpAddr;

use ipnet::IpNet;
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::Deserialize;

use super::condition::Condition;
use super::index::Indexed;

const GROUP: &str = "networking.k8s.io";
/// The label of an address with its allocator.
const IP_MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// The allocator of service addresses.
const IP_ALLOCATOR: &str = "ipallocator.k8s.io";

/// `networking.k8s.io/v1` ServiceCIDR.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidrView {
    pub metadata: ObjectMeta,
    /// CIDRs from which service addresses are allocated, at most one per IP family.
    pub spec: ServiceCidrSpec,
    /// Whether addresses are allocated from it.
    pub status: ServiceCidrStatus,
}

/// The ranges of a ServiceCIDR.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// One or two ranges of different IP families.
    #[serde(deserialize_with = "null_default")]
    pub cidrs: Vec<String>,
}

/// The status of a ServiceCIDR.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidrStatus {
    /// Conditions; currently only `Ready`.
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<Condition>,
}

impl ServiceCidrView {
    /// Returns the valid ranges.
    pub fn ranges(&self) -> impl Iterator<Item = IpNet> {
        self.spec.cidrs.iter().filter_map(|c| c.parse().ok())
    }
}

/// `networking.k8s.io/v1` IPAddress; its name is the address.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IpAddressView {
    pub metadata: ObjectMeta,
}

impl IpAddressView {
    /// Returns the address if it belongs to a service.
    pub fn of_a_service(&self) -> Option<IpAddr> {
        let managed = self.metadata.labels.get(IP_MANAGED_BY).is_some_and(|by| by == IP_ALLOCATOR);
        self.metadata.name.parse().ok().filter(|_| managed)
    }
}

impl Indexed for ServiceCidrView {}
impl Indexed for IpAddressView {}
slim_object!(ServiceCidrView, ResourceType::cluster(GROUP, "v1", "servicecidrs", "ServiceCIDR"));
slim_object!(IpAddressView, ResourceType::cluster(GROUP, "v1", "ipaddresses", "IPAddress"));
