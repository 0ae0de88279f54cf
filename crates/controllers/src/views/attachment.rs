//! `storage.k8s.io/v1` VolumeAttachment and CSIDriver: who attaches which volume where, and whether a driver attaches at all.
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
    /// What is to be attached where.
    pub spec: AttachmentSpec,
    /// What the attacher says.
    #[serde(deserialize_with = "null_default")]
    pub status: AttachmentStatus,
}

/// What is to be attached where.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSpec {
    /// Name of the node to which the volume is attached.
    pub node_name: String,
    /// What is attached: a PersistentVolume by its name, or a volume written out.
    pub source: AttachmentSource,
}

/// What is attached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSource {
    /// Name of the volume; empty where a volume of a pod's own is given whole.
    #[serde(deserialize_with = "null_default")]
    pub persistent_volume_name: String,
}

/// What the attacher says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentStatus {
    /// Whether it is done.
    pub attached: bool,
    /// Why it could not be done, the last time.
    pub attach_error: Option<AttachError>,
}

/// Why a volume could not be attached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AttachError {
    /// The driver's words.
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
    /// What the driver needs.
    pub spec: CsiDriverSpec,
}

/// What a driver needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiDriverSpec {
    /// Absent is yes.
    pub attach_required: Option<bool>,
}

impl Indexed for CsiDriverView {}
slim_object!(CsiDriverView, ResourceType::cluster("storage.k8s.io", "v1", "csidrivers", "CSIDriver"));
