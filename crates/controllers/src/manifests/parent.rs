//! The ConfigMap `kube-system/kelson-manifests`: what became of each file, and the parent of the set of objects that are pruned
//! (KEP-3659, ApplySet).
use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kelson_client::{Client, ClientError, ObjectRef, PatchKind, WriteOptions};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::desired::{DesiredObjects, MANAGER};

/// Namespace of the ConfigMap.
pub const NAMESPACE: &str = "kube-system";
/// Name of the ConfigMap.
pub const NAME: &str = "kelson-manifests";
/// Label of a member of the set.
pub const PART_OF: &str = "applyset.kubernetes.io/part-of";
const ID: &str = "applyset.kubernetes.io/id";
const TOOLING: &str = "applyset.kubernetes.io/tooling";
const GROUP_KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
const NAMESPACES: &str = "applyset.kubernetes.io/additional-namespaces";

/// The identifier of the set, which follows from the names of its parent.
pub fn set_id() -> String {
    let digest = Sha256::digest(format!("{NAME}.{NAMESPACE}.ConfigMap."));
    format!("applyset-{}-v1", URL_SAFE_NO_PAD.encode(digest))
}

/// The content of the parent object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parent {
    /// Kinds that members may have, as `KIND.GROUP`.
    pub group_kinds: BTreeSet<String>,
    /// Namespaces that members may be in.
    pub namespaces: BTreeSet<String>,
    /// A line for each file.
    pub status: String,
}

impl Parent {
    /// Reads the parent from the stored object.
    fn of(stored: &Value) -> Self {
        let list = |name: &str| {
            let text = stored["metadata"]["annotations"][name].as_str().unwrap_or_default();
            text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        Self {
            group_kinds: list(GROUP_KINDS),
            namespaces: list(NAMESPACES),
            status: stored["data"]["status"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// The same with the kinds and namespaces of `kept` as well, or instead.
    pub fn with(&self, kept: &DesiredObjects, instead: bool) -> Self {
        let mut parent = self.clone();
        if instead {
            parent.group_kinds.clear();
            parent.namespaces.clear();
        }
        parent.group_kinds.extend(kept.group_kinds.iter().cloned());
        parent.namespaces.extend(kept.namespaces.iter().filter(|n| *n != NAMESPACE).cloned());
        parent
    }

    fn object(&self) -> Value {
        let join = |all: &BTreeSet<String>| all.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": NAME, "namespace": NAMESPACE, "labels": {ID: set_id()},
                "annotations": {
                    TOOLING: "kelson/v1", GROUP_KINDS: join(&self.group_kinds), NAMESPACES: join(&self.namespaces),
                },
            },
            "data": {"status": self.status},
        })
    }

    fn path() -> String {
        format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}")
    }

    /// Reads it, if it is there.
    pub async fn read(client: &Client) -> Result<Option<Self>, ClientError> {
        match client.call(http::Method::GET, &Self::path(), "", bytes::Bytes::new()).await {
            Ok(bytes) => {
                let stored = kelson_meta::from_json(&bytes).map_err(|e| ClientError::Decode(e.to_string()))?;
                Ok(Some(Self::of(&stored)))
            }
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Writes it; gives what events refer to.
    pub async fn write(&self, client: &Client) -> Result<ObjectRef, ClientError> {
        let options = WriteOptions { field_manager: MANAGER.to_owned(), force: true };
        let stored: Value = client.patch_at(&Self::path(), PatchKind::Apply, &self.object(), &options).await?;
        Ok(ObjectRef {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            namespace: NAMESPACE.to_owned(),
            name: NAME.to_owned(),
            uid: stored["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            ..ObjectRef::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_what_it_writes() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let kept = DesiredObjects {
            group_kinds: set(&["ConfigMap", "Deployment.apps"]),
            namespaces: set(&["default", NAMESPACE]),
            ..DesiredObjects::default()
        };
        let before = Parent { group_kinds: set(&["Secret"]), status: "a".into(), ..Parent::default() };
        let more = before.with(&kept, false);
        assert_eq!(more.group_kinds, set(&["ConfigMap", "Deployment.apps", "Secret"]));
        assert_eq!(more.namespaces, set(&["default"]), "its own namespace is not an additional one");
        assert_eq!(more.with(&kept, true).group_kinds, kept.group_kinds);
        assert_eq!(Parent::of(&more.object()), more);
        assert_eq!(Parent::of(&json!({})), Parent::default());
    }

    #[test]
    fn the_identifier_is_a_label_of_the_published_form() {
        let id = set_id();
        assert!(id.starts_with("applyset-") && id.ends_with("-v1") && id.len() <= 63, "{id}");
        assert_eq!(id.len(), "applyset-".len() + 43 + "-v1".len());
    }
}
