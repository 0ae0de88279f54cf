//! The fields of `resource.k8s.io/v1` ResourceClaim that components use.
use std::collections::BTreeMap;

use kelson_client::{ResourceType, slim_object};
use kelson_meta::{NodeSelector, ObjectMeta, Quantity, null_default};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::device_id::DeviceId;
use crate::names;
use crate::taint::DeviceToleration;

/// A ResourceClaim of `resource.k8s.io/v1`: a user's request for devices, the devices that the scheduler allocated for
/// it, and the consumers for which it is reserved. It has only the fields that the scheduler, the controllers and the
/// kubelet read, so it must not be written back as a whole.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimView {
    /// The metadata of the claim.
    pub metadata: ObjectMeta,
    /// The requested devices.
    pub spec: ClaimSpec,
    /// The allocation and its consumers.
    pub status: ClaimStatus,
}
slim_object!(ResourceClaimView, ResourceType::namespaced("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim"));

/// The `spec` of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClaimSpec {
    /// The requests and constraints (`spec.devices`).
    #[serde(deserialize_with = "null_default")]
    pub devices: DeviceClaim,
}

/// A `DeviceClaim`: requests, and constraints on their devices.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceClaim {
    /// The requests (`spec.devices.requests`).
    #[serde(deserialize_with = "null_default")]
    pub requests: Vec<DeviceRequest>,
    /// The constraints on the devices of several requests.
    #[serde(deserialize_with = "null_default")]
    pub constraints: Vec<DeviceConstraint>,
    /// The configuration for drivers, unchanged.
    #[serde(deserialize_with = "null_default")]
    pub config: Vec<Value>,
}

/// One request: exactly these devices, or the first available of several alternatives.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceRequest {
    /// The name of the request (`spec.devices.requests[].name`).
    pub name: String,
    /// The exact request (`spec.devices.requests[].exactly`).
    pub exactly: Option<DeviceRequestSpec>,
    /// The alternatives in order of preference (`spec.devices.requests[].firstAvailable`).
    #[serde(deserialize_with = "null_default")]
    pub first_available: Vec<DeviceRequestSpec>,
}

/// An `ExactDeviceRequest` or `DeviceSubRequest`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceRequestSpec {
    /// The name of an alternative; empty for an exact request.
    pub name: String,
    /// The name of the device class (`requests[].exactly.deviceClassName`).
    pub device_class_name: String,
    /// The CEL expressions. A selector of an unknown kind is an empty string.
    #[serde(deserialize_with = "selectors")]
    pub selectors: Vec<String>,
    /// The allocation mode: `ExactCount` or `All`.
    pub allocation_mode: String,
    /// The number of devices for `ExactCount`.
    pub count: i64,
    /// Whether the request has admin access to devices that other claims may use.
    pub admin_access: Option<bool>,
    /// The tolerations (`requests[].exactly.tolerations`).
    #[serde(deserialize_with = "null_default")]
    pub tolerations: Vec<DeviceToleration>,
    /// The requested capacity (`requests[].exactly.capacity`).
    #[serde(deserialize_with = "null_default")]
    pub capacity: CapacityAsked,
}

/// A `CapacityRequirements`: the requested amounts of a shared device.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CapacityAsked {
    /// The amounts by capacity name (`exactly.capacity.requests`).
    #[serde(deserialize_with = "null_default")]
    pub requests: BTreeMap<String, Quantity>,
}

/// A `DeviceConstraint` on the devices of some requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceConstraint {
    /// The requests that the constraint applies to. Empty means all.
    #[serde(deserialize_with = "null_default")]
    pub requests: Vec<String>,
    /// The attribute that must have the same value for all devices.
    pub match_attribute: Option<String>,
    /// The attribute that must have a different value for each device.
    pub distinct_attribute: Option<String>,
}

/// The `status` of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    /// The allocated devices (`status.allocation`).
    pub allocation: Option<Allocation>,
    /// The consumers for which the claim is reserved.
    #[serde(deserialize_with = "null_default")]
    pub reserved_for: Vec<Consumer>,
    /// The status of the devices, which drivers report.
    #[serde(deserialize_with = "null_default")]
    pub devices: Vec<DeviceStatus>,
}

/// An `AllocationResult` without the configuration for drivers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Allocation {
    /// The allocated devices (`status.allocation.devices`).
    #[serde(deserialize_with = "null_default")]
    pub devices: AllocatedDevices,
    /// The nodes where the devices are usable. `None` means all nodes.
    pub node_selector: Option<NodeSelector>,
    /// The time of the allocation in RFC 3339.
    pub allocation_timestamp: Option<String>,
}

/// A `DeviceAllocationResult` without the configuration for drivers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllocatedDevices {
    /// The devices by request (`allocation.devices.results`).
    #[serde(deserialize_with = "null_default")]
    pub results: Vec<Granted>,
}

/// A `DeviceRequestAllocationResult`: one device for one request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Granted {
    /// The request as `REQUEST` or `REQUEST/ALTERNATIVE`.
    pub request: String,
    /// The name of the driver (`devices.results[].driver`).
    pub driver: String,
    /// The name of the pool (`devices.results[].pool`).
    pub pool: String,
    /// The name of the device (`devices.results[].device`).
    pub device: String,
    /// Whether the request has admin access, which does not take the device.
    pub admin_access: Option<bool>,
    /// The tolerations of the request (`devices.results[].tolerations`).
    #[serde(deserialize_with = "null_default")]
    pub tolerations: Vec<DeviceToleration>,
    /// The UID of the share, if the device is shared.
    #[serde(rename = "shareID")]
    pub share_id: Option<String>,
    /// The capacity that the share consumes.
    #[serde(deserialize_with = "null_default")]
    pub consumed_capacity: BTreeMap<String, Quantity>,
    /// The conditions that must be true before a pod is bound (KEP-5007).
    #[serde(deserialize_with = "null_default")]
    pub binding_conditions: Vec<String>,
    /// The conditions that mean, if one is true, that the device cannot be prepared.
    #[serde(deserialize_with = "null_default")]
    pub binding_failure_conditions: Vec<String>,
}

impl Granted {
    /// Returns the identity of the device.
    pub fn id(&self) -> DeviceId {
        DeviceId { driver: self.driver.clone(), pool: self.pool.clone(), device: self.device.clone() }
    }
}

/// A `ResourceClaimConsumerReference`: an object that may use the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Consumer {
    /// The API group of the consumer; empty for pods.
    #[serde(deserialize_with = "null_default")]
    pub api_group: String,
    /// The plural name of the consumer's resource.
    pub resource: String,
    /// The name of the consumer (`status.reservedFor[].name`).
    pub name: String,
    /// The UID of the consumer (`status.reservedFor[].uid`).
    pub uid: String,
}

impl Consumer {
    /// Returns whether the consumer is a pod.
    pub fn is_pod(&self) -> bool {
        self.api_group.is_empty() && self.resource == "pods"
    }
}

/// The status of an allocated device (`AllocatedDeviceStatus`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DeviceStatus {
    /// The name of the driver (`status.devices[].driver`).
    pub driver: String,
    /// The name of the pool (`status.devices[].pool`).
    pub pool: String,
    /// The name of the device (`status.devices[].device`).
    pub device: String,
    /// The conditions of the device (`status.devices[].conditions`).
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<DeviceCondition>,
}

/// A condition of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DeviceCondition {
    /// The type of the condition (`devices[].conditions[].type`).
    pub r#type: String,
    /// The status: `True`, `False` or `Unknown`.
    pub status: String,
    /// The machine-readable reason (`devices[].conditions[].reason`).
    pub reason: String,
    /// The message for people (`devices[].conditions[].message`).
    pub message: String,
}

impl ResourceClaimView {
    /// Returns the name and the UID of the pod that the claim was created for.
    pub fn owning_pod(&self) -> Option<(&str, &str)> {
        let owner = self.metadata.controller()?;
        (owner.api_version == "v1" && owner.kind == "Pod").then_some((owner.name.as_str(), owner.uid.as_str()))
    }
    /// Returns whether the claim is reserved for a pod.
    pub fn is_reserved_for(&self, uid: &str) -> bool {
        self.status.reserved_for.iter().any(|c| c.uid == uid)
    }
    /// Returns whether the claim has the finalizer of allocated claims.
    pub fn is_protected(&self) -> bool {
        self.metadata.finalizers.iter().any(|f| f == names::FINALIZER)
    }
    /// Returns whether a request of the claim has admin access.
    pub fn wants_admin_access(&self) -> bool {
        let exact = self.spec.devices.requests.iter().filter_map(|r| r.exactly.as_ref());
        exact.into_iter().any(|e| e.admin_access == Some(true))
    }
}

/// Decodes a list of selectors to their expressions.
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
