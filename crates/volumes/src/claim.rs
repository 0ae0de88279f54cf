//! The fields of `core/v1` PersistentVolumeClaim that binding and scheduling use.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{LabelSelectorSpec, ObjectMeta, Quantity, null_default};
use serde::Deserialize;

use crate::names;
use crate::volume::Amounts;

/// A PersistentVolumeClaim of `core/v1`: a user's request for storage, and the volume that it is bound to. It has only
/// the fields that the binder and the scheduler read, so it must not be written back as a whole object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimView {
    /// The metadata of the claim.
    pub metadata: ObjectMeta,
    /// The requested volume.
    pub spec: ClaimSpec,
    /// The state of the claim.
    pub status: ClaimStatus,
}
slim_object!(ClaimView, ResourceType::namespaced("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"));

/// The `spec` of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    /// The access modes, all of which the volume must have.
    #[serde(deserialize_with = "null_default")]
    pub access_modes: Vec<String>,
    /// The resources. `requests` has the minimum size.
    #[serde(deserialize_with = "null_default")]
    pub resources: Needs,
    /// The selector of volumes. A claim with a selector is not provisioned dynamically.
    pub selector: Option<LabelSelectorSpec>,
    /// The name of the class. `None` differs from an empty string: the default class may still be set.
    pub storage_class_name: Option<String>,
    /// The volume mode: `Filesystem`, which is the default, or `Block`.
    pub volume_mode: Option<String>,
    /// The volume to which the claim is bound, or which the user selected.
    #[serde(deserialize_with = "null_default")]
    pub volume_name: String,
    /// The name of the volume attributes class.
    #[serde(deserialize_with = "null_default")]
    pub volume_attributes_class_name: String,
}

/// The storage that a claim requests (`v1.VolumeResourceRequirements`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Needs {
    /// The minimum size.
    #[serde(deserialize_with = "null_default")]
    pub requests: Amounts,
}

/// The status of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    /// The phase: `Pending`, `Bound` or `Lost`.
    #[serde(deserialize_with = "null_default")]
    pub phase: String,
    /// The access modes of the volume; empty without a volume.
    #[serde(deserialize_with = "null_default")]
    pub access_modes: Vec<String>,
    /// The size of the volume, or `None` without a volume.
    pub capacity: Option<Amounts>,
    /// The current volume attributes class of the volume.
    #[serde(deserialize_with = "null_default")]
    pub current_volume_attributes_class_name: String,
    /// The change of the volume attributes class in progress.
    #[serde(deserialize_with = "null_default")]
    pub modify_volume_status: ModifyVolume,
}

/// The `modifyVolumeStatus` of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifyVolume {
    /// The target class of the change.
    #[serde(deserialize_with = "null_default")]
    pub target_volume_attributes_class_name: String,
}

impl ClaimView {
    /// Returns the storage class, or an empty string. The beta annotation takes precedence.
    pub fn class(&self) -> &str {
        match self.metadata.annotations.get(names::CLASS_BETA) {
            Some(class) => class,
            None => self.spec.storage_class_name.as_deref().unwrap_or_default(),
        }
    }

    /// Returns whether the claim names a class, or explicitly none.
    pub fn has_class(&self) -> bool {
        self.spec.storage_class_name.is_some() || self.metadata.annotations.contains_key(names::CLASS_BETA)
    }

    /// Returns whether the claim and its volume refer to each other.
    pub fn is_fully_bound(&self) -> bool {
        !self.spec.volume_name.is_empty() && self.metadata.annotations.contains_key(names::BIND_COMPLETED)
    }

    /// Returns the node that the scheduler chose.
    pub fn selected_node(&self) -> Option<&str> {
        self.metadata.annotations.get(names::SELECTED_NODE).map(String::as_str)
    }

    /// Returns the minimum size.
    pub fn requested(&self) -> Quantity {
        self.spec.resources.requests.storage.unwrap_or_default()
    }
}
