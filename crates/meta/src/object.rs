//! The part of `metav1.ObjectMeta` that most code needs, in a form that is cheap to decode. Unknown fields
//! (`managedFields` and others) are skipped, so never write this type back as a whole object: send a patch instead.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::intern::LabelMap;
use crate::null::null_default;

/// The metadata of an object for readers. It leaves out `managedFields` and other fields that only the API server
/// needs, which keeps caches small. Equal label maps are shared. A value of this type must not be written back as a
/// whole object, because the missing fields would be lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// The name, unique per resource and namespace.
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    /// The namespace; empty for cluster-scoped objects.
    #[serde(deserialize_with = "null_default")]
    pub namespace: String,
    /// The UID, unique over time and space.
    #[serde(deserialize_with = "null_default")]
    pub uid: String,
    /// The opaque version for optimistic concurrency.
    #[serde(deserialize_with = "null_default")]
    pub resource_version: String,
    /// The generation, which counts changes of the desired state.
    #[serde(deserialize_with = "null_default")]
    pub generation: i64,
    /// The creation time in RFC 3339; empty before creation.
    #[serde(deserialize_with = "null_default")]
    pub creation_timestamp: String,
    /// The time when deletion was requested, in RFC 3339.
    pub deletion_timestamp: Option<String>,
    /// The grace period of the deletion in seconds.
    pub deletion_grace_period_seconds: Option<i64>,
    /// The labels. Equal label maps are shared.
    pub labels: LabelMap,
    /// The annotations, which selectors do not use.
    #[serde(deserialize_with = "null_default")]
    pub annotations: BTreeMap<String, String>,
    /// The owners, for garbage collection.
    #[serde(deserialize_with = "null_default")]
    pub owner_references: Vec<OwnerReference>,
    /// The finalizers that must be removed before the object is deleted.
    #[serde(deserialize_with = "null_default")]
    pub finalizers: Vec<String>,
}

impl ObjectMeta {
    /// Returns the namespace and the name.
    pub fn key(&self) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: self.name.clone() }
    }
    /// Returns the owner whose `controller` flag is set.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|o| o.controller == Some(true))
    }
    /// Returns whether deletion was requested.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// A reference to an owner of an object (`metav1.OwnerReference`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// The `apiVersion` of the owner.
    pub api_version: String,
    /// The kind of the owner.
    pub kind: String,
    /// The name of the owner.
    pub name: String,
    /// The UID of the owner.
    pub uid: String,
    /// Whether the owner is the managing controller.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub controller: Option<bool>,
    /// Whether foreground deletion of the owner waits for this object.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub block_owner_deletion: Option<bool>,
}

/// A namespace and a name, which is the key of informers and queues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The name, unique in the namespace for one resource.
    pub name: String,
}

impl ObjectKey {
    /// Creates a key. `namespace` is empty for cluster-scoped objects.
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
