//! The kinds of a policy's rules and their types, from discovery and OpenAPI documents. Each document is read once per
//! sync of a policy.
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use kelson_cel::DeclType;
use kelson_client::{Client, ClientError};
use kelson_meta::Gvk;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::check::{self, KINDS_MAX, NamedResources};
use super::declared;

#[derive(Deserialize)]
struct GroupDirectory {
    #[serde(default)]
    groups: Vec<GroupEntry>,
}

#[derive(Deserialize)]
struct GroupEntry {
    name: String,
    #[serde(default)]
    versions: Vec<VersionEntry>,
}

#[derive(Deserialize)]
struct VersionEntry {
    version: String,
}

#[derive(Deserialize)]
struct KindList {
    #[serde(default)]
    resources: Vec<KindEntry>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KindEntry {
    name: String,
    #[serde(default)]
    singular_name: String,
    kind: String,
}

/// The documents that have been read.
pub struct Served<'c> {
    client: &'c Client,
    groups: Option<Vec<GroupEntry>>,
    /// The kinds by group and version.
    kinds: HashMap<(String, String), Vec<KindEntry>>,
    documents: HashMap<(String, String), Value>,
}

impl<'c> Served<'c> {
    /// Returns an empty cache.
    pub fn new(client: &'c Client) -> Self {
        Self { client, groups: None, kinds: HashMap::new(), documents: HashMap::new() }
    }

    /// Returns the served kinds that a policy's rules name.
    pub async fn kinds(&mut self, policy: &Value) -> Result<Vec<Gvk>, ClientError> {
        let mut of_rules = Vec::new();
        for names in check::named(policy) {
            of_rules.push(self.kinds_of(&names).await?);
        }
        Ok(check::bounded(of_rules))
    }

    /// Returns the kinds of one rule, at most [`KINDS_MAX`].
    async fn kinds_of(&mut self, names: &NamedResources<'_>) -> Result<Vec<Gvk>, ClientError> {
        let mut found = Vec::new();
        for group in &names.groups {
            for version in &names.versions {
                let places = self.places(group, version).await?;
                for resource in &names.resources {
                    for (group, entries) in &places {
                        let named = entries.iter().filter(|e| e.name == *resource || e.singular_name == *resource);
                        found.extend(named.map(|e| Gvk::new(group.as_str(), *version, e.kind.as_str())));
                        if found.len() >= KINDS_MAX {
                            return Ok(found);
                        }
                    }
                }
            }
        }
        Ok(found)
    }

    /// Returns the resources of a group and version, by group. The empty group means any group, as in upstream's
    /// mapping.
    async fn places(&mut self, group: &str, version: &str) -> Result<Vec<(String, Vec<KindEntry>)>, ClientError> {
        let mut groups = vec![group.to_owned()];
        if group.is_empty() {
            if self.groups.is_none() {
                self.groups = Some(self.read::<GroupDirectory>("/apis").await?.map(|g| g.groups).unwrap_or_default());
            }
            let has = |g: &&GroupEntry| g.versions.iter().any(|v| v.version == version);
            groups.extend(self.groups.iter().flatten().filter(has).map(|g| g.name.clone()));
        }
        let mut out = Vec::with_capacity(groups.len());
        for group in groups {
            let at = (group.clone(), version.to_owned());
            if !self.kinds.contains_key(&at) {
                let list = self.read::<KindList>(&format!("/{}", path(&group, version))).await?;
                self.kinds.insert(at.clone(), list.map(|l| l.resources).unwrap_or_default());
            }
            out.push((group, self.kinds.get(&at).cloned().unwrap_or_default()));
        }
        Ok(out)
    }

    /// Returns the type of a kind for expressions, or `None` if it has no schema.
    pub async fn type_of(&mut self, kind: &Gvk) -> Result<Option<Arc<DeclType>>, ClientError> {
        if let Some(decl) = declared::builtin(kind) {
            return Ok(Some(Arc::new(decl)));
        }
        let at = (kind.group.to_string(), kind.version.to_string());
        if !self.documents.contains_key(&at) {
            let document = self.read(&format!("/openapi/v3/{}", path(&kind.group, &kind.version))).await?;
            self.documents.insert(at.clone(), document.unwrap_or_default());
        }
        Ok(self.documents.get(&at).and_then(|d| declared::published(d, kind)).map(Arc::new))
    }

    /// Reads a document. Returns `None` if it is not served or its extension server is unavailable.
    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, ClientError> {
        let bytes = match self.client.call(Method::GET, path, "", Bytes::new()).await {
            Ok(bytes) => bytes,
            Err(ClientError::Status(status)) if matches!(status.code, 404 | 503) => return Ok(None),
            Err(e) => return Err(e),
        };
        kelson_meta::from_json(&bytes).map(Some).map_err(|e| ClientError::Decode(format!("{path}: {e}")))
    }
}

/// Returns the path of a group and version, such as `api/v1` or `apis/apps/v1`.
fn path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}
