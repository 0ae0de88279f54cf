//! The fields of `core/v1` PersistentVolume that binding and scheduling use.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::NodeSelector;
use kelson_meta::{ObjectMeta, Quantity, null_default};
use serde::{Deserialize, Deserializer};

use crate::names;

/// A PersistentVolume of `core/v1`: a piece of storage of the cluster and the claim that it is bound to. It has only
/// the fields that the binder and the scheduler read to match volumes with claims and nodes, so it must not be written
/// back as a whole object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeView {
    /// The metadata of the volume.
    pub metadata: ObjectMeta,
    /// The properties of the volume.
    pub spec: VolumeSpec,
    /// The phase of the volume.
    pub status: VolumeStatus,
}
slim_object!(VolumeView, ResourceType::cluster("", "v1", "persistentvolumes", "PersistentVolume"));

/// The storage in a resource list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Amounts {
    /// The size in bytes.
    pub storage: Option<Quantity>,
}

/// The `spec` of a volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    /// The size of the volume.
    #[serde(deserialize_with = "null_default")]
    pub capacity: Amounts,
    /// The access modes of the volume.
    #[serde(deserialize_with = "null_default")]
    pub access_modes: Vec<String>,
    /// The claim of the volume. With an empty UID the volume is reserved for a claim of this name.
    pub claim_ref: Option<ClaimReference>,
    /// The reclaim policy: `Retain`, `Delete` or `Recycle`.
    #[serde(deserialize_with = "null_default")]
    pub persistent_volume_reclaim_policy: String,
    /// The name of the storage class.
    #[serde(deserialize_with = "null_default")]
    pub storage_class_name: String,
    /// The volume mode: `Filesystem`, which is the default, or `Block`.
    pub volume_mode: Option<String>,
    /// The name of the volume attributes class.
    #[serde(deserialize_with = "null_default")]
    pub volume_attributes_class_name: String,
    /// The nodes from which the volume is accessible. `None` means all nodes.
    #[serde(deserialize_with = "required_terms")]
    pub node_affinity: Option<NodeSelector>,
    /// The CSI driver and the volume, for a CSI volume.
    pub csi: Option<CsiSource>,
    /// The path on the node, for a host path volume.
    pub host_path: Option<PathSource>,
}

/// A `v1.HostPathVolumeSource` with the path only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PathSource {
    /// The path on the node.
    pub path: String,
}

/// `v1.CSIPersistentVolumeSource` with the fields that identify a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiSource {
    /// The name of the driver.
    pub driver: String,
    /// The driver's ID of the volume.
    pub volume_handle: String,
}

/// The `v1.ObjectReference` to a volume's claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimReference {
    /// The namespace of the claim.
    pub namespace: String,
    /// The name of the claim.
    pub name: String,
    /// The UID of the claim. It is empty if a user reserved the volume for a claim with this name.
    pub uid: String,
}

/// The `status` of a volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    /// The phase: `Pending`, `Available`, `Bound`, `Released` or `Failed`.
    #[serde(deserialize_with = "null_default")]
    pub phase: String,
}

fn required_terms<'de, D: Deserializer<'de>>(d: D) -> Result<Option<NodeSelector>, D::Error> {
    #[derive(Deserialize)]
    struct Affinity {
        required: Option<NodeSelector>,
    }
    Ok(Option::<Affinity>::deserialize(d)?.and_then(|a| a.required))
}

impl VolumeView {
    /// Returns the storage class, or an empty string. The beta annotation takes precedence.
    pub fn class(&self) -> &str {
        self.metadata.annotations.get(names::CLASS_BETA).unwrap_or(&self.spec.storage_class_name)
    }

    /// Returns the size of the volume.
    pub fn size(&self) -> Quantity {
        self.spec.capacity.storage.unwrap_or_default()
    }

    /// Returns whether the volume is accessible from the node with this name. `label` returns the node's labels.
    pub fn is_reachable<'a>(&self, node: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.spec.node_affinity.as_ref().is_none_or(|terms| terms.matches_with(node, label))
    }
}
