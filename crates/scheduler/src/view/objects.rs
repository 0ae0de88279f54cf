//! The other objects that scheduling reads: namespaces, objects that select pods, storage objects, and
//! PodDisruptionBudgets.
use std::collections::BTreeMap;

use kelson_client::{ResourceType, slim_object};
use kelson_meta::{LabelSelectorSpec, ObjectMeta, Quantity};
use serde::Deserialize;

macro_rules! object {
    ($(#[$m:meta])* $name:ident, $spec:ty, $status:ty, $type:expr) => {
        $(#[$m])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(default)]
        pub struct $name {
            pub metadata: ObjectMeta,
            pub spec: $spec,
            pub status: $status,
        }
        slim_object!($name, $type);
    };
}

/// A part of an object that is not read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Unread {}

object!(
    /// `v1.Namespace`.
    Namespace, Unread, Unread, ResourceType::cluster("", "v1", "namespaces", "Namespace")
);
object!(
    /// `v1.Service`.
    Service, MapSelector, Unread, ResourceType::namespaced("", "v1", "services", "Service")
);
object!(
    /// `v1.ReplicationController`.
    ReplicationController, MapSelector, Unread,
    ResourceType::namespaced("", "v1", "replicationcontrollers", "ReplicationController")
);
object!(
    /// `apps/v1.ReplicaSet`.
    ReplicaSet, SetSelector, Unread, ResourceType::namespaced("apps", "v1", "replicasets", "ReplicaSet")
);
object!(
    /// `apps/v1.StatefulSet`.
    StatefulSet, SetSelector, Unread, ResourceType::namespaced("apps", "v1", "statefulsets", "StatefulSet")
);
object!(
    /// `storage.k8s.io/v1.CSINode`.
    CsiNode, CsiNodeSpec, Unread, ResourceType::cluster("storage.k8s.io", "v1", "csinodes", "CSINode")
);
object!(
    /// `storage.k8s.io/v1.CSIDriver`.
    CsiDriver, CsiDriverSpec, Unread, ResourceType::cluster("storage.k8s.io", "v1", "csidrivers", "CSIDriver")
);
object!(
    /// `policy/v1.PodDisruptionBudget`.
    DisruptionBudget, SetSelector, BudgetStatus,
    ResourceType::namespaced("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
);

/// A spec with an equality-based selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MapSelector {
    /// The labels that must be equal; no labels select nothing.
    pub selector: Option<BTreeMap<String, String>>,
}

/// A spec with a `metav1.LabelSelector`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SetSelector {
    pub selector: Option<LabelSelectorSpec>,
}

/// Capabilities of a CSI driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiDriverSpec {
    /// Whether it publishes its capacity for provisioned volumes.
    pub storage_capacity: Option<bool>,
}

/// `storage.k8s.io/v1.CSIStorageCapacity`: the capacity of a driver for volumes of a class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageCapacity {
    pub metadata: ObjectMeta,
    /// The storage class.
    pub storage_class_name: String,
    /// The nodes that reach this capacity; absent means none.
    pub node_topology: Option<LabelSelectorSpec>,
    /// The total capacity; absent means unknown.
    pub capacity: Option<Quantity>,
    /// The largest single volume, if the driver publishes it.
    pub maximum_volume_size: Option<Quantity>,
}
slim_object!(
    StorageCapacity,
    ResourceType::namespaced("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity")
);

impl StorageCapacity {
    /// Returns the size of the largest volume that fits.
    pub fn limit(&self) -> Option<Quantity> {
        self.maximum_volume_size.or(self.capacity)
    }

    /// Reports whether a volume may fit that did not fit the old version.
    pub fn has_more_than(&self, old: &Self) -> bool {
        self.limit().is_some_and(|now| old.limit().is_none_or(|was| now > was))
    }
}

/// The CSI drivers of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpec {
    /// One entry for each driver; null when there is none.
    #[serde(deserialize_with = "kelson_meta::null_default")]
    pub drivers: Vec<CsiNodeDriver>,
}

impl CsiNodeSpec {
    /// Reports whether the node allows more volumes of some driver than the old version.
    pub fn allows_more_than(&self, old: &Self) -> bool {
        let most = |d: &CsiNodeDriver| d.allocatable.count.unwrap_or(i64::MAX);
        let was = |name: &str| old.drivers.iter().find(|d| *d.name == *name).map_or(0, most);
        self.drivers.iter().any(|d| most(d) > was(&d.name))
    }
}

/// A CSI driver of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNodeDriver {
    /// The name of its CSIDriver.
    pub name: Box<str>,
    /// The limits of the node for this driver.
    #[serde(deserialize_with = "kelson_meta::null_default")]
    pub allocatable: CsiNodeAllocatable,
}

/// The limits of a node for a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNodeAllocatable {
    /// The maximum number of volumes; absent means no limit.
    pub count: Option<i64>,
}

/// The status of a PodDisruptionBudget.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatus {
    /// The number of pods that may be evicted now.
    pub disruptions_allowed: i64,
    /// Pods whose eviction is already counted.
    pub disrupted_pods: BTreeMap<String, serde::de::IgnoredAny>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_drivers_says_null() {
        let read: CsiNodeSpec = serde_json::from_str(r#"{"drivers":null}"#).expect("as API servers write it");
        assert!(read.drivers.is_empty());
    }
}
