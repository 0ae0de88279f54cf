//! The fields of `resource.k8s.io/v1` ResourceSlice: devices that a driver offers, and the nodes where they are
//! usable.
use std::collections::BTreeMap;

use kelson_cel::device::Attribute;
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{NodeSelector, ObjectMeta, Quantity, null_default};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::taint::DeviceTaint;

/// A ResourceSlice of `resource.k8s.io/v1`: a part of a driver's pool of devices. The slices of one pool and
/// generation belong together. A slice lists devices or shared counters, and says on which nodes the devices are
/// usable.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceSliceView {
    /// The metadata of the slice.
    pub metadata: ObjectMeta,
    /// The pool, the devices and their nodes.
    pub spec: SliceSpec,
}
slim_object!(ResourceSliceView, ResourceType::cluster("resource.k8s.io", "v1", "resourceslices", "ResourceSlice"));

/// The `spec` of a slice.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceSpec {
    /// The name of the driver (`spec.driver`).
    pub driver: String,
    /// The pool that the slice belongs to (`spec.pool`).
    pub pool: PoolView,
    /// The only node where the devices are usable.
    pub node_name: Option<String>,
    /// A selector for the nodes where the devices are usable.
    pub node_selector: Option<Selected>,
    /// Whether the devices are usable on all nodes (`spec.allNodes`).
    pub all_nodes: Option<bool>,
    /// Whether each device has its own node selection.
    pub per_device_node_selection: Option<bool>,
    /// The devices (`spec.devices`).
    #[serde(deserialize_with = "null_default")]
    pub devices: Vec<DeviceView>,
    /// The counters that partitions of the pool's devices consume (KEP-4815). A slice has either counters or devices.
    #[serde(deserialize_with = "null_default")]
    pub shared_counters: Vec<CounterSet>,
}

/// A `ResourcePool`: the slices that belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolView {
    /// The name of the pool (`spec.pool.name`).
    pub name: String,
    /// The generation. Slices of an older generation are outdated.
    pub generation: i64,
    /// The number of slices of the pool in this generation.
    pub resource_slice_count: i64,
}

/// A `CounterSet`: counters that partitions of a device share.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CounterSet {
    /// The name of the set (`spec.sharedCounters[].name`).
    pub name: String,
    /// The counters by name (`spec.sharedCounters[].counters`).
    #[serde(deserialize_with = "null_default")]
    pub counters: BTreeMap<String, Counter>,
}

/// A `Counter`: an available or consumed amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Counter {
    /// The amount (`counters[].value`).
    pub value: Quantity,
}

/// A `DeviceCounterConsumption`: what a device consumes of a counter set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CounterUse {
    /// The name of the set (`devices[].consumesCounters[].counterSet`).
    pub counter_set: String,
    /// The consumed counters (`devices[].consumesCounters[].counters`).
    #[serde(deserialize_with = "null_default")]
    pub counters: BTreeMap<String, Counter>,
}

/// A `Device` that can be allocated to claims.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceView {
    /// The name of the device (`spec.devices[].name`).
    pub name: String,
    /// The attributes by name (`spec.devices[].attributes`).
    #[serde(deserialize_with = "attributes")]
    pub attributes: BTreeMap<String, Attribute>,
    /// The capacities by name (`spec.devices[].capacity`).
    #[serde(deserialize_with = "null_default")]
    pub capacity: BTreeMap<String, DeviceCapacity>,
    /// The counters that the device consumes (`spec.devices[].consumesCounters`).
    #[serde(deserialize_with = "null_default")]
    pub consumes_counters: Vec<CounterUse>,
    /// The only node where the device is usable (`spec.devices[].nodeName`).
    pub node_name: Option<String>,
    /// A selector for the nodes where the device is usable (`spec.devices[].nodeSelector`).
    pub node_selector: Option<Selected>,
    /// Whether the device is usable on all nodes (`spec.devices[].allNodes`).
    pub all_nodes: Option<bool>,
    /// The taints of the device (`spec.devices[].taints`).
    #[serde(deserialize_with = "null_default")]
    pub taints: Vec<DeviceTaint>,
    /// Whether an allocation restricts the claim to the node for which it was made.
    pub binds_to_node: Option<bool>,
    /// The conditions that a driver must set to true before a pod is bound (KEP-5007).
    #[serde(deserialize_with = "null_default")]
    pub binding_conditions: Vec<String>,
    /// The conditions that report a failed preparation (`spec.devices[].bindingFailureConditions`).
    #[serde(deserialize_with = "null_default")]
    pub binding_failure_conditions: Vec<String>,
    /// Whether several claims may share the device (KEP-5075).
    pub allow_multiple_allocations: Option<bool>,
}

/// A `DeviceCapacity`: an amount of a device, and how it may be shared.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceCapacity {
    /// The total amount (`capacity[].value`).
    pub value: Quantity,
    /// The policy for shares (`capacity[].requestPolicy`).
    pub request_policy: Option<RequestPolicy>,
}

/// A `CapacityRequestPolicy`: the allowed sizes of a share.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestPolicy {
    /// The amount for requests that specify none.
    pub default: Option<Quantity>,
    /// The allowed amounts in ascending order.
    #[serde(deserialize_with = "null_default")]
    pub valid_values: Vec<Quantity>,
    /// The allowed range of amounts.
    pub valid_range: Option<ValidRange>,
}

/// A `CapacityRequestPolicyRange` with inclusive limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ValidRange {
    /// The minimum amount (`requestPolicy.validRange.min`).
    pub min: Option<Quantity>,
    /// The maximum amount (`requestPolicy.validRange.max`).
    pub max: Option<Quantity>,
    /// The step between amounts (`requestPolicy.validRange.step`).
    pub step: Option<Quantity>,
}

/// A node selector in its API form and in the form for matching.
#[derive(Clone, Debug, PartialEq)]
pub struct Selected {
    /// The selector in its API form.
    pub wire: Value,
    /// The selector in the form for matching.
    pub selector: NodeSelector,
}

impl<'de> Deserialize<'de> for Selected {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let wire = Value::deserialize(d)?;
        let selector = NodeSelector::deserialize(&wire).map_err(serde::de::Error::custom)?;
        Ok(Self { wire, selector })
    }
}

fn attributes<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, Attribute>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct AttributeForm {
        int: Option<i64>,
        bool: Option<bool>,
        string: Option<String>,
        version: Option<String>,
    }
    let all = Option::<BTreeMap<String, AttributeForm>>::deserialize(d)?.unwrap_or_default();
    let value = |f: AttributeForm| match f {
        AttributeForm { int: Some(n), .. } => Attribute::Int(n),
        AttributeForm { bool: Some(b), .. } => Attribute::Bool(b),
        AttributeForm { string: Some(text), .. } => Attribute::Text(text),
        AttributeForm { version: Some(text), .. } => Attribute::Version(text),
        _ => Attribute::Unknown,
    };
    Ok(all.into_iter().map(|(name, form)| (name, value(form))).collect())
}

impl DeviceView {
    /// Returns the value of an attribute by its full name, `DOMAIN/ID`. Names without a domain are in the driver's
    /// domain.
    pub fn attribute(&self, driver: &str, name: &str) -> Option<&Attribute> {
        let own = || name.split_once('/').filter(|(domain, _)| *domain == driver).map(|(_, id)| id);
        self.attributes.get(name).or_else(|| self.attributes.get(own()?))
    }
    /// Returns whether several claims may share the device.
    pub fn is_shared(&self) -> bool {
        self.allow_multiple_allocations == Some(true)
    }
}
