//! `resource.k8s.io/v1` ResourceClaim, as far as it is decided by.
use std::collections::BTreeMap;

use kelson_client::{ResourceType, slim_object};
use kelson_meta::{NodeSelector, ObjectMeta, Quantity, null_default};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::device_id::DeviceId;
use crate::names;
use crate::taint::DeviceToleration;

/// `resource.k8s.io/v1` ResourceClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimView {
    /// Name, version, owners and the rest of its metadata.
    pub metadata: ObjectMeta,
    /// What its author says.
    pub spec: ClaimSpec,
    /// What came of it so far.
    pub status: ClaimStatus,
}
slim_object!(ResourceClaimView, ResourceType::namespaced("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim"));

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClaimSpec {
    /// `spec.devices`.
    #[serde(deserialize_with = "null_default")]
    pub devices: DeviceClaim,
}

/// `DeviceClaim`: requests, and what must hold of all their devices together.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceClaim {
    /// `spec.devices.requests`.
    #[serde(deserialize_with = "null_default")]
    pub requests: Vec<DeviceRequest>,
    /// What the devices must have in common, or must not.
    #[serde(deserialize_with = "null_default")]
    pub constraints: Vec<DeviceConstraint>,
    /// Configuration for drivers, as it is.
    #[serde(deserialize_with = "null_default")]
    pub config: Vec<Value>,
}

/// One request: exactly this, or the first of some that can be had.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceRequest {
    /// `spec.devices.requests[].name`.
    pub name: String,
    /// `spec.devices.requests[].exactly`.
    pub exactly: Option<Asked>,
    /// `spec.devices.requests[].firstAvailable`.
    #[serde(deserialize_with = "null_default")]
    pub first_available: Vec<Asked>,
}

/// `ExactDeviceRequest` or `DeviceSubRequest`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Asked {
    /// Of an alternative; the request's own name is elsewhere.
    pub name: String,
    /// `requests[].exactly.deviceClassName`.
    pub device_class_name: String,
    /// Expressions; a selector of another kind is empty here.
    #[serde(deserialize_with = "selectors")]
    pub selectors: Vec<String>,
    /// `ExactCount` or `All`.
    pub allocation_mode: String,
    /// How many, for `ExactCount`.
    pub count: i64,
    /// For looking after devices that others use.
    pub admin_access: Option<bool>,
    /// `requests[].exactly.tolerations`.
    #[serde(deserialize_with = "null_default")]
    pub tolerations: Vec<DeviceToleration>,
    /// `requests[].exactly.capacity`.
    #[serde(deserialize_with = "null_default")]
    pub capacity: CapacityAsked,
}

/// `CapacityRequirements`: how much of a device that several may have.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CapacityAsked {
    /// `exactly.capacity.requests`.
    #[serde(deserialize_with = "null_default")]
    pub requests: BTreeMap<String, Quantity>,
}

/// `DeviceConstraint`: what must hold of the devices of some requests together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceConstraint {
    /// The requests it is about; none: all.
    #[serde(deserialize_with = "null_default")]
    pub requests: Vec<String>,
    /// All devices have the same value of it.
    pub match_attribute: Option<String>,
    /// No two devices have the same value of it.
    pub distinct_attribute: Option<String>,
}

/// What was given, and to whom.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    /// `status.allocation`.
    pub allocation: Option<Allocation>,
    /// Who uses it.
    #[serde(deserialize_with = "null_default")]
    pub reserved_for: Vec<Consumer>,
    /// What drivers say of the devices.
    #[serde(deserialize_with = "null_default")]
    pub devices: Vec<DeviceStatus>,
}

/// `AllocationResult`, without what it says to drivers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Allocation {
    /// `status.allocation.devices`.
    #[serde(deserialize_with = "null_default")]
    pub devices: AllocatedDevices,
    /// Where the devices can be used; absent: everywhere.
    pub node_selector: Option<NodeSelector>,
    /// When the devices were given, in RFC 3339.
    pub allocation_timestamp: Option<String>,
}

/// `DeviceAllocationResult`, without what it says to drivers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllocatedDevices {
    /// `allocation.devices.results`.
    #[serde(deserialize_with = "null_default")]
    pub results: Vec<Granted>,
}

/// `DeviceRequestAllocationResult`: one device for one request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Granted {
    /// The request, or `REQUEST/ALTERNATIVE`.
    pub request: String,
    /// `devices.results[].driver`.
    pub driver: String,
    /// `devices.results[].pool`.
    pub pool: String,
    /// `devices.results[].device`.
    pub device: String,
    /// Set and true: the device is not taken by this.
    pub admin_access: Option<bool>,
    /// `devices.results[].tolerations`.
    #[serde(deserialize_with = "null_default")]
    pub tolerations: Vec<DeviceToleration>,
    /// A device that several have is given out in shares.
    #[serde(rename = "shareID")]
    pub share_id: Option<String>,
    /// What the share takes of it.
    #[serde(deserialize_with = "null_default")]
    pub consumed_capacity: BTreeMap<String, Quantity>,
    /// Conditions that must be true before a pod may be bound (KEP-5007).
    #[serde(deserialize_with = "null_default")]
    pub binding_conditions: Vec<String>,
    /// Conditions of which a true one says that it will never be.
    #[serde(deserialize_with = "null_default")]
    pub binding_failure_conditions: Vec<String>,
}

impl Granted {
    /// Which device it is.
    pub fn id(&self) -> DeviceId {
        DeviceId { driver: self.driver.clone(), pool: self.pool.clone(), device: self.device.clone() }
    }
}

/// `ResourceClaimConsumerReference`: who may use the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Consumer {
    /// Empty for pods.
    #[serde(deserialize_with = "null_default")]
    pub api_group: String,
    /// In the plural.
    pub resource: String,
    /// `status.reservedFor[].name`.
    pub name: String,
    /// `status.reservedFor[].uid`.
    pub uid: String,
}

impl Consumer {
    /// Whether it names a pod rather than an object of another kind.
    pub fn is_pod(&self) -> bool {
        self.api_group.is_empty() && self.resource == "pods"
    }
}

/// `AllocatedDeviceStatus`, its conditions by type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DeviceStatus {
    /// `status.devices[].driver`.
    pub driver: String,
    /// `status.devices[].pool`.
    pub pool: String,
    /// `status.devices[].device`.
    pub device: String,
    /// `status.devices[].conditions`.
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<DeviceCondition>,
}

/// A condition of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DeviceCondition {
    /// `devices[].conditions[].type`.
    pub r#type: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
    /// `devices[].conditions[].reason`.
    pub reason: String,
    /// `devices[].conditions[].message`.
    pub message: String,
}

impl ResourceClaimView {
    /// The name and UID of the pod that it was made for.
    pub fn owning_pod(&self) -> Option<(&str, &str)> {
        let owner = self.metadata.controller()?;
        (owner.api_version == "v1" && owner.kind == "Pod").then_some((owner.name.as_str(), owner.uid.as_str()))
    }
    /// Whether a pod is one of those that it is reserved for.
    pub fn is_reserved_for(&self, uid: &str) -> bool {
        self.status.reserved_for.iter().any(|c| c.uid == uid)
    }
    /// Whether it carries the finalizer of allocated claims.
    pub fn is_protected(&self) -> bool {
        self.metadata.finalizers.iter().any(|f| f == names::FINALIZER)
    }
    /// Whether a request of it wants to look after devices of others.
    pub fn wants_admin_access(&self) -> bool {
        let exact = self.spec.devices.requests.iter().filter_map(|r| r.exactly.as_ref());
        exact.into_iter().any(|e| e.admin_access == Some(true))
    }
}

/// The expressions of a list of selectors.
pub(crate) fn selectors<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    struct SelectorForm {
        cel: Option<Expression>,
    }
    #[derive(Deserialize)]
    struct Expression {
        expression: String,
    }
    let all = Option::<Vec<SelectorForm>>::deserialize(d)?.unwrap_or_default();
    Ok(all.into_iter().map(|f| f.cel.map(|c| c.expression).unwrap_or_default()).collect())
}
