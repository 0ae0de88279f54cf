//! `core/v1` Secret.
use std::collections::BTreeMap;

use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::Deserialize;

use super::index::{IndexKey, Indexed};

/// A Secret of a type that controllers handle. Its debug output has no content.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct SecretView {
    pub metadata: ObjectMeta,
    pub r#type: String,
    /// The values in base64.
    #[serde(deserialize_with = "null_default")]
    pub data: BTreeMap<String, String>,
}

impl std::fmt::Debug for SecretView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretView")
            .field("metadata", &self.metadata)
            .field("type", &self.r#type)
            .finish_non_exhaustive()
    }
}

impl SecretView {
    /// Returns the decoded value if it is UTF-8.
    pub fn text(&self, key: &str) -> Option<String> {
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::STANDARD.decode(self.data.get(key)?).ok()?;
        String::from_utf8(bytes).ok()
    }
}

impl Indexed for SecretView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
    }
}
slim_object!(SecretView, ResourceType::namespaced("", "v1", "secrets", "Secret"));
