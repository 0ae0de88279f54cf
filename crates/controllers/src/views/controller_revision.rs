//! `apps/v1` ControllerRevision.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::ObjectMeta;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::index::{IndexKey, Indexed, index_owned};

/// What a DaemonSet or StatefulSet was at one time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ControllerRevisionView {
    pub metadata: ObjectMeta,
    /// The patch that brings the owner's template back, JSON.
    pub data: Option<Box<RawValue>>,
    /// Its place in the history; the newest has the highest.
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
