//! The slice of `metav1.ObjectMeta` most code needs, cheap to decode. Unknown fields (managedFields …) are skipped, so
//! never write one of these back as a whole object: patch instead.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::intern::LabelMap;
use crate::null::null_default;

/// Object metadata as readers need it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name, unique per resource and namespace.
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    /// Namespace; empty for cluster-scoped objects.
    #[serde(deserialize_with = "null_default")]
    pub namespace: String,
    /// Unique over time and space.
    #[serde(deserialize_with = "null_default")]
    pub uid: String,
    /// Opaque version for optimistic concurrency.
    #[serde(deserialize_with = "null_default")]
    pub resource_version: String,
    /// Counts changes of the desired state.
    #[serde(deserialize_with = "null_default")]
    pub generation: i64,
    /// RFC 3339 creation time; empty before creation.
    #[serde(deserialize_with = "null_default")]
    pub creation_timestamp: String,
    /// Set once deletion has begun.
    pub deletion_timestamp: Option<String>,
    /// Seconds of grace left to the deletion.
    pub deletion_grace_period_seconds: Option<i64>,
    /// Labels; equal ones are held once.
    pub labels: LabelMap,
    /// Text that tools keep with the object; no selector sees it.
    #[serde(deserialize_with = "null_default")]
    pub annotations: BTreeMap<String, String>,
    /// Owners, for garbage collection.
    #[serde(deserialize_with = "null_default")]
    pub owner_references: Vec<OwnerReference>,
    /// What must happen before the object may go.
    #[serde(deserialize_with = "null_default")]
    pub finalizers: Vec<String>,
}

impl ObjectMeta {
    /// Namespace and name.
    pub fn key(&self) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: self.name.clone() }
    }
    /// The owner whose `controller` flag is set.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|o| o.controller == Some(true))
    }
    /// Whether deletion has begun.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// `metav1.OwnerReference`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// `apiVersion` of the owner.
    pub api_version: String,
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// UID of the owner.
    pub uid: String,
    /// Whether the owner is the managing controller.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub controller: Option<bool>,
    /// Whether foreground deletion of the owner waits for this object.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub block_owner_deletion: Option<bool>,
}

/// Namespace and name; the key of informers and queues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Unique in the namespace for one resource.
    pub name: String,
}

impl ObjectKey {
    /// From its parts; `namespace` is empty for cluster-scoped objects.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nulls_are_absent_values() {
        let text = r#"{"name":"a","creationTimestamp":null,"labels":null,"finalizers":null,"ownerReferences":null}"#;
        let meta: ObjectMeta = serde_json::from_str(text).unwrap();
        assert_eq!(meta, ObjectMeta { name: "a".into(), ..ObjectMeta::default() });
    }
}
