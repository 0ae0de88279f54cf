//! `core/v1` PersistentVolumeClaim.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::ObjectMeta;
use serde::Deserialize;

use super::index::Indexed;
use super::volume::VolumeSpecView;

/// `core/v1` PersistentVolumeClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: VolumeSpecView,
    /// Status.
    pub status: ClaimStatusView,
}

impl Indexed for ClaimView {}
slim_object!(ClaimView, ResourceType::namespaced("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"));

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatusView {
    /// The class of attributes its volume has now.
    pub current_volume_attributes_class_name: String,
    /// The class it is being changed to.
    pub modify_volume_status: ModifyVolumeView,
}

/// A claim's `modifyVolumeStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifyVolumeView {
    /// The class it is being changed to.
    pub target_volume_attributes_class_name: String,
}
