//! `core/v1` Namespace.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::Deserialize;

use super::condition::Condition;
use super::index::Indexed;

/// `core/v1` Namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceView {
    pub metadata: ObjectMeta,
    pub spec: NamespaceSpecView,
    pub status: NamespaceStatusView,
}

/// A namespace's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceSpecView {
    /// Finalizers of the namespace's content.
    #[serde(deserialize_with = "null_default")]
    pub finalizers: Vec<String>,
}

/// A namespace's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceStatusView {
    /// `Active` or `Terminating`.
    pub phase: String,
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<Condition>,
}

impl Indexed for NamespaceView {}
slim_object!(NamespaceView, ResourceType::cluster("", "v1", "namespaces", "Namespace"));
