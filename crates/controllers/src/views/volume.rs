//! `core/v1` PersistentVolume.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::ObjectMeta;
use serde::Deserialize;

use super::index::Indexed;

/// `core/v1` PersistentVolume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: VolumeSpecView,
    /// Status.
    pub status: VolumeStatusView,
}

/// The part of a volume's status that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeStatusView {
    /// `Bound` while a claim has it.
    pub phase: String,
}

impl Indexed for VolumeView {}
slim_object!(VolumeView, ResourceType::cluster("", "v1", "persistentvolumes", "PersistentVolume"));

/// The part of a claim's or volume's spec that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpecView {
    /// Its class of attributes.
    pub volume_attributes_class_name: String,
}
