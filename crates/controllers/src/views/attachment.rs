//! `storage.k8s.io/v1` VolumeAttachment and CSIDriver: the attachment of volumes to nodes, and whether a driver needs
//! it.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::Deserialize;

use super::index::{IndexKey, Indexed};

/// `storage.k8s.io/v1` VolumeAttachment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AttachmentView {
    /// Name, version and the rest of its metadata.
    pub metadata: ObjectMeta,
    /// The volume, the node and the attacher.
    pub spec: AttachmentSpec,
    /// The status that the attacher reports.
    #[serde(deserialize_with = "null_default")]
    pub status: AttachmentStatus,
}

/// The volume, the node and the attacher.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSpec {
    /// Name of the node to which the volume is attached.
    pub node_name: String,
    /// The volume to attach: a PersistentVolume by name, or an inline volume.
    pub source: AttachmentSource,
}

/// The volume to attach.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSource {
    /// The name of the PersistentVolume, or empty for an inline volume.
    #[serde(deserialize_with = "null_default")]
    pub persistent_volume_name: String,
}

/// The status that the attacher reports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentStatus {
    /// Whether the volume is attached.
    pub attached: bool,
    /// The error of the last attempt to attach the volume.
    pub attach_error: Option<AttachError>,
}

/// The error of an attempt to attach a volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AttachError {
    /// The driver's message.
    #[serde(deserialize_with = "null_default")]
    pub message: String,
}

impl Indexed for AttachmentView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Node(self.spec.node_name.clone()));
    }
}
slim_object!(AttachmentView, ResourceType::cluster("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment"));

/// `storage.k8s.io/v1` CSIDriver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiDriverView {
    /// Name, version and the rest of its metadata.
    pub metadata: ObjectMeta,
    /// The driver's requirements.
    pub spec: CsiDriverSpec,
}

/// The requirements of a CSI driver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiDriverSpec {
    /// Whether volumes must be attached. Absent means true.
    pub attach_required: Option<bool>,
}

impl Indexed for CsiDriverView {}
slim_object!(CsiDriverView, ResourceType::cluster("storage.k8s.io", "v1", "csidrivers", "CSIDriver"));
