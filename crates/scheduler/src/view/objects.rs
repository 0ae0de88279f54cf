//! The other objects that scheduling reads: namespaces, what selects pods, claims and volumes, disruption budgets.
use std::collections::BTreeMap;

use kelson_client::{ResourceType, slim_object};
use kelson_meta::{LabelSelectorSpec, ObjectMeta};
use serde::Deserialize;

use super::affinity::NodeSelector;
use super::raw::RawNodeSelector;

macro_rules! object {
    ($(#[$m:meta])* $name:ident, $spec:ty, $status:ty, $type:expr) => {
        $(#[$m])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(default)]
        pub struct $name {
            /// Metadata.
            pub metadata: ObjectMeta,
            /// Spec.
            pub spec: $spec,
            /// Status.
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
    /// `v1.PersistentVolumeClaim`.
    Claim, ClaimSpec, Phase,
    ResourceType::namespaced("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
);
object!(
    /// `v1.PersistentVolume`.
    Volume, VolumeSpec, Phase, ResourceType::cluster("", "v1", "persistentvolumes", "PersistentVolume")
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
    /// The selector.
    pub selector: Option<LabelSelectorSpec>,
}

/// A status with a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Phase {
    /// The phase.
    pub phase: String,
}

/// A claim's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    /// The volume it is bound to, or wants.
    pub volume_name: String,
    /// Its class.
    pub storage_class_name: Option<String>,
    /// Access modes.
    pub access_modes: Vec<String>,
}

/// A volume's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    #[serde(deserialize_with = "required")]
    node_affinity: Option<NodeSelector>,
}

impl VolumeSpec {
    /// From which nodes it can be reached; `None` is from all.
    pub fn node_affinity(&self) -> Option<&NodeSelector> {
        self.node_affinity.as_ref()
    }
}

fn required<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<NodeSelector>, D::Error> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Affinity {
        required: Option<RawNodeSelector>,
    }
    let raw = Option::<Affinity>::deserialize(d)?.and_then(|a| a.required);
    Ok(raw.map(|r| NodeSelector(r.node_selector_terms.iter().map(super::NodeSelectorTerm::decode).collect())))
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

/// `storage.k8s.io/v1.StorageClass`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Makes volumes.
    pub provisioner: String,
    /// `Immediate` or `WaitForFirstConsumer`.
    pub volume_binding_mode: String,
}
slim_object!(StorageClass, ResourceType::cluster("storage.k8s.io", "v1", "storageclasses", "StorageClass"));
