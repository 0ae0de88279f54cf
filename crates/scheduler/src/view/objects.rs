//! The other objects that scheduling reads: namespaces, what selects pods, disruption budgets.
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

/// A part nobody here reads.
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

/// A spec with a selector by equality.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MapSelector {
    /// Labels that must be equal; none selects nothing.
    pub selector: Option<BTreeMap<String, String>>,
}

/// A spec with a `metav1.LabelSelector`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SetSelector {
    pub selector: Option<LabelSelectorSpec>,
}

/// What a driver can and wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiDriverSpec {
    /// Whether it says how much room there is for volumes that it makes.
    pub storage_capacity: Option<bool>,
}

/// `storage.k8s.io/v1.CSIStorageCapacity`: room that a driver has for volumes of a class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageCapacity {
    pub metadata: ObjectMeta,
    /// The class whose volumes find room here.
    pub storage_class_name: String,
    /// The nodes that reach them; absent: none.
    pub node_topology: Option<LabelSelectorSpec>,
    /// Room in all; absent: nobody knows.
    pub capacity: Option<Quantity>,
    /// The largest single volume, where the driver says.
    pub maximum_volume_size: Option<Quantity>,
}
slim_object!(
    StorageCapacity,
    ResourceType::namespaced("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity")
);

impl StorageCapacity {
    /// The largest volume that finds room.
    pub fn limit(&self) -> Option<Quantity> {
        self.maximum_volume_size.or(self.capacity)
    }

    /// Whether a volume may find room that found none before.
    pub fn has_more_than(&self, old: &Self) -> bool {
        self.limit().is_some_and(|now| old.limit().is_none_or(|was| now > was))
    }
}

/// What drivers say of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpec {
    /// One entry each; null where there is none.
    #[serde(deserialize_with = "kelson_meta::null_default")]
    pub drivers: Vec<CsiNodeDriver>,
}

impl CsiNodeSpec {
    /// Whether the node can have more volumes of some driver.
    pub fn allows_more_than(&self, old: &Self) -> bool {
        let most = |d: &CsiNodeDriver| d.allocatable.count.unwrap_or(i64::MAX);
        let was = |name: &str| old.drivers.iter().find(|d| *d.name == *name).map_or(0, most);
        self.drivers.iter().any(|d| most(d) > was(&d.name))
    }
}

/// What a driver says of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNodeDriver {
    /// As its CSIDriver is named.
    pub name: Box<str>,
    /// What the node can have of it.
    #[serde(deserialize_with = "kelson_meta::null_default")]
    pub allocatable: CsiNodeAllocatable,
}

/// What a node can have of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNodeAllocatable {
    /// Volumes; absent: as many as one likes.
    pub count: Option<i64>,
}

/// A budget's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatus {
    /// How many of its pods may go now.
    pub disruptions_allowed: i64,
    /// Pods that count as gone already.
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
