//! `storage.k8s.io/v1` VolumeAttributesClass.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::ObjectMeta;
use serde::Deserialize;

use super::index::Indexed;

/// `storage.k8s.io/v1` VolumeAttributesClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeAttributesClassView {
    pub metadata: ObjectMeta,
}

impl Indexed for VolumeAttributesClassView {}
slim_object!(
    VolumeAttributesClassView,
    ResourceType::cluster("storage.k8s.io", "v1", "volumeattributesclasses", "VolumeAttributesClass")
);
