//! `core/v1` PersistentVolume, as far as binding and scheduling read it.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::NodeSelector;
use kelson_meta::{ObjectMeta, Quantity, null_default};
use serde::{Deserialize, Deserializer};

use crate::names;

/// `core/v1` PersistentVolume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeView {
    /// Name, version, annotations and the rest of its metadata.
    pub metadata: ObjectMeta,
    /// What it is.
    pub spec: VolumeSpec,
    /// How far it is in its life.
    pub status: VolumeStatus,
}
slim_object!(VolumeView, ResourceType::cluster("", "v1", "persistentvolumes", "PersistentVolume"));

/// The part of a resource list that concerns storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Amounts {
    /// Bytes.
    pub storage: Option<Quantity>,
}

/// What a volume is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    /// Its size.
    #[serde(deserialize_with = "null_default")]
    pub capacity: Amounts,
    /// Modes it can be used in.
    #[serde(deserialize_with = "null_default")]
    pub access_modes: Vec<String>,
    /// The claim of the volume. With an empty UID the volume is reserved for a claim of this name.
    pub claim_ref: Option<ClaimReference>,
    /// The reclaim policy: `Retain`, `Delete` or `Recycle`.
    #[serde(deserialize_with = "null_default")]
    pub persistent_volume_reclaim_policy: String,
    /// Its class.
    #[serde(deserialize_with = "null_default")]
    pub storage_class_name: String,
    /// `Filesystem`, which absent means, or `Block`.
    pub volume_mode: Option<String>,
    /// Its class of attributes.
    #[serde(deserialize_with = "null_default")]
    pub volume_attributes_class_name: String,
    /// From which nodes it can be reached; `None` is from all.
    #[serde(deserialize_with = "required_terms")]
    pub node_affinity: Option<NodeSelector>,
    /// The driver it is of, if it is of one.
    pub csi: Option<CsiSource>,
    /// A path of the node.
    pub host_path: Option<PathSource>,
}

/// `v1.HostPathVolumeSource`, its path alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PathSource {
    /// Where on the node.
    pub path: String,
}

/// `v1.CSIPersistentVolumeSource` with the fields that identify a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiSource {
    /// Name of the driver.
    pub driver: String,
    /// What the driver calls the volume.
    pub volume_handle: String,
}

/// The `v1.ObjectReference` to a volume's claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimReference {
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub name: String,
    /// Empty where a user reserved the volume for a claim of this name, whichever it will be.
    pub uid: String,
}

/// How far a volume is in its life.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    /// `Pending`, `Available`, `Bound`, `Released`, `Failed`.
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
    /// Its class; empty: none. The annotation of old wins.
    pub fn class(&self) -> &str {
        self.metadata.annotations.get(names::CLASS_BETA).unwrap_or(&self.spec.storage_class_name)
    }

    /// Its size.
    pub fn size(&self) -> Quantity {
        self.spec.capacity.storage.unwrap_or_default()
    }

    /// Whether the volume is accessible from the node with this name. `label` returns the node's labels.
    pub fn is_reachable<'a>(&self, node: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.spec.node_affinity.as_ref().is_none_or(|terms| terms.matches_with(node, label))
    }
}
