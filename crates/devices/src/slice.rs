//! `resource.k8s.io/v1` ResourceSlice: devices that a driver offers, and where they can be used.
use std::collections::BTreeMap;

use kelson_cel::device::Attribute;
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{NodeSelector, ObjectMeta, Quantity, null_default};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::taint::DeviceTaint;

/// `resource.k8s.io/v1` ResourceSlice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceSliceView {
    /// Name, version, owners and the rest of its metadata.
    pub metadata: ObjectMeta,
    /// What its author says.
    pub spec: SliceSpec,
}
slim_object!(ResourceSliceView, ResourceType::cluster("resource.k8s.io", "v1", "resourceslices", "ResourceSlice"));

/// What a slice says.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceSpec {
    /// `spec.driver`.
    pub driver: String,
    /// `spec.pool`.
    pub pool: PoolView,
    /// The one node where they can be used.
    pub node_name: Option<String>,
    /// The nodes where they can be used.
    pub node_selector: Option<Selected>,
    /// `spec.allNodes`.
    pub all_nodes: Option<bool>,
    /// Each device says itself where it can be used.
    pub per_device_node_selection: Option<bool>,
    /// `spec.devices`.
    #[serde(deserialize_with = "null_default")]
    pub devices: Vec<DeviceView>,
    /// What devices of the pool are parts of (KEP-4815); a slice has these or devices.
    #[serde(deserialize_with = "null_default")]
    pub shared_counters: Vec<CounterSet>,
}

/// `ResourcePool`: which slices belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolView {
    /// `spec.pool.name`.
    pub name: String,
    /// Slices of an older one are no longer true.
    pub generation: i64,
    /// How many slices the pool has in this generation.
    pub resource_slice_count: i64,
}

/// `CounterSet`: counters that partitions of one thing share.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CounterSet {
    /// `spec.sharedCounters[].name`.
    pub name: String,
    /// `spec.sharedCounters[].counters`.
    #[serde(deserialize_with = "null_default")]
    pub counters: BTreeMap<String, Counter>,
}

/// `Counter`: how much there is, or is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Counter {
    /// `counters[].value`.
    pub value: Quantity,
}

/// `DeviceCounterConsumption`: what a partition uses of a set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CounterUse {
    /// `devices[].consumesCounters[].counterSet`.
    pub counter_set: String,
    /// `devices[].consumesCounters[].counters`.
    #[serde(deserialize_with = "null_default")]
    pub counters: BTreeMap<String, Counter>,
}

/// `Device`: what can be given to claims.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceView {
    /// `spec.devices[].name`.
    pub name: String,
    /// `spec.devices[].attributes`.
    #[serde(deserialize_with = "attributes")]
    pub attributes: BTreeMap<String, Attribute>,
    /// `spec.devices[].capacity`.
    #[serde(deserialize_with = "null_default")]
    pub capacity: BTreeMap<String, DeviceCapacity>,
    /// `spec.devices[].consumesCounters`.
    #[serde(deserialize_with = "null_default")]
    pub consumes_counters: Vec<CounterUse>,
    /// `spec.devices[].nodeName`.
    pub node_name: Option<String>,
    /// `spec.devices[].nodeSelector`.
    pub node_selector: Option<Selected>,
    /// `spec.devices[].allNodes`.
    pub all_nodes: Option<bool>,
    /// `spec.devices[].taints`.
    #[serde(deserialize_with = "null_default")]
    pub taints: Vec<DeviceTaint>,
    /// Whoever gets it is bound to the node that it was given on.
    pub binds_to_node: Option<bool>,
    /// Conditions that a driver makes true before a pod may be bound (KEP-5007).
    #[serde(deserialize_with = "null_default")]
    pub binding_conditions: Vec<String>,
    /// `spec.devices[].bindingFailureConditions`.
    #[serde(deserialize_with = "null_default")]
    pub binding_failure_conditions: Vec<String>,
    /// Several claims may have shares of it (KEP-5075).
    pub allow_multiple_allocations: Option<bool>,
}

/// `DeviceCapacity`: how much a device has, and how it may be shared out.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceCapacity {
    /// `capacity[].value`.
    pub value: Quantity,
    /// `capacity[].requestPolicy`.
    pub request_policy: Option<RequestPolicy>,
}

/// `CapacityRequestPolicy`: how much of a capacity one share may be.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestPolicy {
    /// For requests that name none.
    pub default: Option<Quantity>,
    /// Only these, in rising order.
    #[serde(deserialize_with = "null_default")]
    pub valid_values: Vec<Quantity>,
    /// From the least to the most, in steps.
    pub valid_range: Option<ValidRange>,
}

/// `CapacityRequestPolicyRange`, both ends included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ValidRange {
    /// `requestPolicy.validRange.min`.
    pub min: Option<Quantity>,
    /// `requestPolicy.validRange.max`.
    pub max: Option<Quantity>,
    /// `requestPolicy.validRange.step`.
    pub step: Option<Quantity>,
}

/// A node selector, as it was written and ready to be compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Selected {
    /// As the API has it.
    pub wire: Value,
    /// What it matches.
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
    /// The value of an attribute by its full name, `DOMAIN/ID`; what has no domain is in the driver's.
    pub fn attribute(&self, driver: &str, name: &str) -> Option<&Attribute> {
        let own = || name.split_once('/').filter(|(domain, _)| *domain == driver).map(|(_, id)| id);
        self.attributes.get(name).or_else(|| self.attributes.get(own()?))
    }
    /// Whether several claims may have shares of it.
    pub fn is_shared(&self) -> bool {
        self.allow_multiple_allocations == Some(true)
    }
}
