//! `apps/v1` ControllerRevision.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::ObjectMeta;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::index::{IndexKey, Indexed, index_owned};

/// A revision of a DaemonSet or StatefulSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ControllerRevisionView {
    pub metadata: ObjectMeta,
    /// The JSON patch that restores the owner's template.
    pub data: Option<Box<RawValue>>,
    /// The number in the history; the newest has the highest.
    pub revision: i64,
}

impl Indexed for ControllerRevisionView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        index_owned(&self.metadata, into);
    }
}
slim_object!(
    ControllerRevisionView,
    ResourceType::namespaced("apps", "v1", "controllerrevisions", "ControllerRevision")
);
