//! One object is applied, and those that no manifest has any more are deleted.
use std::collections::{BTreeSet, HashMap};

use http::Method;
use kelson_client::{
    Client, ClientError, DeleteOptions, ListParams, METADATA_ONLY_LIST, PatchKind, PropagationPolicy, WriteOptions,
};
use serde_json::{Value, json};

use super::desired::{DesiredObjects, MANAGER, ManifestKey, is_pruned};
use super::parent::{PART_OF, set_id};
use crate::shared::context::SyncError;
use crate::shared::discovery::{ApiResource, discover, resources_of};
use crate::shared::manifest_set::MissingField;

/// Objects that one request for members gives.
const PAGE: u32 = 500;

/// Why an object is not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The manifest lacks a field that every object has.
    #[error(transparent)]
    MissingField(#[from] MissingField),
    /// The server's list of kinds cannot be read.
    #[error("read the kinds of {version}: {source}")]
    Discovery {
        /// The group and version.
        version: String,
        /// The request's error.
        source: ClientError,
    },
    /// The server does not serve the kind.
    #[error("no matches for kind {kind:?} in version {version:?}")]
    NoMatch {
        /// The manifest's kind.
        kind: String,
        /// The manifest's group and version.
        version: String,
    },
    /// The server rejects the object, or the request fails.
    #[error(transparent)]
    Request(#[from] ClientError),
}

/// Applies objects, with what was learnt of the kinds on the way.
pub struct Applier<'a> {
    client: &'a Client,
    prunes: bool,
    served: HashMap<String, Vec<ApiResource>>,
}

impl<'a> Applier<'a> {
    /// One for a single pass: what is served may have changed by the next.
    pub fn new(client: &'a Client, prunes: bool) -> Self {
        Self { client, prunes, served: HashMap::new() }
    }

    /// Applies an object. Fields of other managers are taken over, because the file is authoritative.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn apply(&mut self, object: &Value) -> Result<(), ApplyError> {
        let key = ManifestKey::of(object)?;
        let version = object["apiVersion"].as_str().unwrap_or_default();
        let resource = self.resource(version, &key.kind).await?;
        let namespace = match (resource.namespaced, key.namespace.as_str()) {
            (true, "") => "default",
            (_, namespace) => namespace,
        };
        let mut body = object.clone();
        prepare(&mut body, is_pruned(object, self.prunes));
        if resource.namespaced {
            body["metadata"]["namespace"] = json!(namespace);
        }
        let options = WriteOptions { field_manager: MANAGER.to_owned(), force: true };
        let path = resource.object_path(namespace, &key.name);
        let _: Value = self.client.patch_at(&path, PatchKind::Apply, &body, &options).await?;
        Ok(())
    }

    async fn resource(&mut self, version: &str, kind: &str) -> Result<ApiResource, ApplyError> {
        if !self.served.contains_key(version) {
            let served = match resources_of(self.client, version).await {
                Ok(served) => served,
                Err(e) if e.is_unserved() || e.is_not_found() => Vec::new(),
                Err(source) => return Err(ApplyError::Discovery { version: version.to_owned(), source }),
            };
            self.served.insert(version.to_owned(), served);
        }
        let found =
            self.served.get(version).and_then(|all| all.iter().find(|r| r.kind == kind && r.serves(&["patch"])));
        found.cloned().ok_or_else(|| ApplyError::NoMatch { kind: kind.to_owned(), version: version.to_owned() })
    }
}

/// Leaves out what only the server writes, and marks a member of the set that is pruned.
fn prepare(object: &mut Value, pruned: bool) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in ["managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink"] {
            metadata.remove(field);
        }
        if pruned {
            let labels = metadata.entry("labels").or_insert(Value::Null);
            if !labels.is_object() {
                *labels = json!({});
            }
            labels[PART_OF] = json!(set_id());
        }
    }
    if let Some(object) = object.as_object_mut() {
        object.remove("status");
    }
}

/// Deletes the members of the set, among those of `group_kinds`, that no manifest has; gives what they were.
///
/// # Errors
/// When a kind cannot be listed or an object cannot be deleted. What was deleted until then stays so.
pub async fn prune(
    client: &Client,
    group_kinds: &BTreeSet<String>,
    kept: &DesiredObjects,
) -> Result<Vec<ManifestKey>, SyncError> {
    let served = discover(client).await?;
    if let Some((version, why)) = served.failed.first() {
        // A kind of members may be among those that cannot be read.
        return Err(SyncError::Other(format!("not pruning: reading the kinds of {version} failed: {why}")));
    }
    let mut deleted = Vec::new();
    let is_listed = |r: &&ApiResource| {
        let names =
            ManifestKey { group: r.group.clone(), kind: r.kind.clone(), namespace: String::new(), name: String::new() };
        group_kinds.contains(&names.group_kind()) && r.serves(&["list", "delete"])
    };
    for resource in served.resources.iter().filter(is_listed) {
        let mut params =
            ListParams { limit: PAGE, ..ListParams::default() }.with_labels(format!("{PART_OF}={}", set_id()));
        loop {
            let page = client.list_at::<Value>(&resource.path(""), METADATA_ONLY_LIST, &params).await?;
            for member in &page.items {
                let text = |name: &str| member["metadata"][name].as_str().unwrap_or_default().to_owned();
                let key = ManifestKey {
                    group: resource.group.clone(),
                    kind: resource.kind.clone(),
                    namespace: text("namespace"),
                    name: text("name"),
                };
                if kept.has(&key) || !text("deletionTimestamp").is_empty() {
                    continue;
                }
                delete(client, resource, &key, &text("uid")).await?;
                deleted.push(key);
            }
            if page.metadata.continue_token.is_empty() {
                break;
            }
            params.continue_token = page.metadata.continue_token;
        }
    }
    Ok(deleted)
}

async fn delete(client: &Client, resource: &ApiResource, key: &ManifestKey, uid: &str) -> Result<(), ClientError> {
    let options = DeleteOptions::default().with_uid(uid).with_propagation(PropagationPolicy::Background);
    let body = serde_json::to_vec(&options).map_err(|e| ClientError::Request(e.to_string()))?;
    let path = resource.object_path(&key.namespace, &key.name);
    match client.call(Method::DELETE, &path, "application/json", body.into()).await {
        // Gone, or another object of the same name.
        Err(e) if !e.is_not_found() && !e.is_conflict() => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_the_server_writes_is_left_out() {
        let mut object =
            json!({"metadata": {"name": "a", "uid": "u", "managedFields": [], "labels": {"x": "y"}}, "status": {}});
        prepare(&mut object, false);
        assert_eq!(object, json!({"metadata": {"name": "a", "labels": {"x": "y"}}}));
        prepare(&mut object, true);
        assert_eq!(object["metadata"]["labels"], json!({"x": "y", PART_OF: set_id()}));
        let mut bare = json!({"metadata": {"name": "a", "labels": null}});
        prepare(&mut bare, true);
        assert_eq!(bare["metadata"]["labels"], json!({PART_OF: set_id()}));
    }
}
