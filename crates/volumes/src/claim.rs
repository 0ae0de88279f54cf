//! `core/v1` PersistentVolumeClaim, as far as binding and scheduling read it.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{LabelSelectorSpec, ObjectMeta, Quantity, null_default};
use serde::Deserialize;

use crate::names;
use crate::volume::Amounts;

/// `core/v1` PersistentVolumeClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimView {
    /// Name, version, annotations and the rest of its metadata.
    pub metadata: ObjectMeta,
    /// The requested volume.
    pub spec: ClaimSpec,
    /// The state of the claim.
    pub status: ClaimStatus,
}
slim_object!(ClaimView, ResourceType::namespaced("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"));

/// What a claim asks for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    /// Modes that the volume must have all of.
    #[serde(deserialize_with = "null_default")]
    pub access_modes: Vec<String>,
    /// Its `requests` say the least size.
    #[serde(deserialize_with = "null_default")]
    pub resources: Needs,
    /// The selector of volumes. A claim with a selector is not provisioned dynamically.
    pub selector: Option<LabelSelectorSpec>,
    /// Absent is another thing than empty: the default class may still be put in.
    pub storage_class_name: Option<String>,
    /// `Filesystem`, which absent means, or `Block`.
    pub volume_mode: Option<String>,
    /// The volume to which the claim is bound, or which the user selected.
    #[serde(deserialize_with = "null_default")]
    pub volume_name: String,
    /// Its class of attributes.
    #[serde(deserialize_with = "null_default")]
    pub volume_attributes_class_name: String,
}

/// `v1.VolumeResourceRequirements`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Needs {
    /// At least this much.
    #[serde(deserialize_with = "null_default")]
    pub requests: Amounts,
}

/// The status of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    /// `Pending`, `Bound`, `Lost`.
    #[serde(deserialize_with = "null_default")]
    pub phase: String,
    /// The modes of its volume; empty while it has none.
    #[serde(deserialize_with = "null_default")]
    pub access_modes: Vec<String>,
    /// The size of what it has; absent while it has no volume.
    pub capacity: Option<Amounts>,
    /// The class of attributes its volume has now.
    #[serde(deserialize_with = "null_default")]
    pub current_volume_attributes_class_name: String,
    /// A change of attributes on its way.
    #[serde(deserialize_with = "null_default")]
    pub modify_volume_status: ModifyVolume,
}

/// A claim's `modifyVolumeStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifyVolume {
    /// The class it is being changed to.
    #[serde(deserialize_with = "null_default")]
    pub target_volume_attributes_class_name: String,
}

impl ClaimView {
    /// Its class; empty: none. The annotation of old wins.
    pub fn class(&self) -> &str {
        match self.metadata.annotations.get(names::CLASS_BETA) {
            Some(class) => class,
            None => self.spec.storage_class_name.as_deref().unwrap_or_default(),
        }
    }

    /// Whether the claim names a class, or explicitly none.
    pub fn has_class(&self) -> bool {
        self.spec.storage_class_name.is_some() || self.metadata.annotations.contains_key(names::CLASS_BETA)
    }

    /// Whether both it and its volume say that they belong to each other.
    pub fn is_fully_bound(&self) -> bool {
        !self.spec.volume_name.is_empty() && self.metadata.annotations.contains_key(names::BIND_COMPLETED)
    }

    /// The node that the scheduler chose for it.
    pub fn selected_node(&self) -> Option<&str> {
        self.metadata.annotations.get(names::SELECTED_NODE).map(String::as_str)
    }

    /// Least size.
    pub fn requested(&self) -> Quantity {
        self.spec.resources.requests.storage.unwrap_or_default()
    }
}
