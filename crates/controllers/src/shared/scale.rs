//! The `scale` subresource of any kind that has one, found by discovery: how many replicas a workload of a kind that is only
//! known at run time has and should have.
use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use kelson_client::{Client, ClientError};
use kelson_meta::ObjectMeta;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;

/// How long it is remembered where a kind is served.
const REMEMBERED: Duration = Duration::from_secs(30);
/// Kinds remembered at most.
const KINDS_MAX: usize = 256;

/// `autoscaling/v1` Scale.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Scale {
    /// Metadata of the workload.
    pub metadata: ObjectMeta,
    /// What is asked for.
    pub spec: ScaleSpec,
    /// What is there.
    pub status: ScaleStatus,
}

/// `autoscaling/v1` ScaleSpec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ScaleSpec {
    /// Replicas asked for.
    pub replicas: i32,
}

/// `autoscaling/v1` ScaleStatus.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ScaleStatus {
    /// Replicas that are there.
    pub replicas: i32,
    /// Their label selector, query form.
    pub selector: String,
}

/// Why there is no scale to be had.
#[derive(Debug, thiserror::Error)]
pub enum ScaleError {
    /// No such kind is served.
    #[error("no matches for kind {kind:?} in group {group:?}")]
    NoKind { group: String, kind: String },
    /// The kind has no such subresource; the resource as `PLURAL.GROUP`.
    #[error("{0} does not implement the scale subresource")]
    NotScalable(String),
    /// A request failed.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Where a kind is served.
#[derive(Clone, Debug)]
struct ServedResource {
    group: String,
    version: String,
    plural: String,
    scalable: bool,
}

impl ServedResource {
    fn path(&self, namespace: &str, name: &str) -> String {
        let root = if self.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", self.group) };
        format!("{root}/{}/namespaces/{namespace}/{}/{name}/scale", self.version, self.plural)
    }

    fn shown(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }
}

/// An object to be scaled.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Its `apiVersion`; the version is only a hint.
    pub api_version: &'a str,
    pub kind: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Target<'_> {
    /// The group of the API version.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// Reads and writes scales.
pub struct Scales {
    client: Client,
    resources: Mutex<HashMap<(String, String), (Instant, ServedResource)>>,
}

#[derive(Deserialize)]
struct Versions {
    #[serde(default)]
    versions: Vec<ServedVersion>,
}
#[derive(Deserialize)]
struct ServedVersion {
    version: String,
}
#[derive(Deserialize)]
struct ServedResources {
    #[serde(default)]
    resources: Vec<Listed>,
}
#[derive(Deserialize)]
struct Listed {
    name: String,
    kind: String,
}

impl Scales {
    /// With this client's permissions.
    pub fn new(client: Client) -> Self {
        Self { client, resources: Mutex::default() }
    }

    /// The scale of an object; `None`: there is no such object.
    ///
    /// # Errors
    /// When its kind is not served, cannot be scaled, or a request fails.
    pub async fn get(&self, target: Target<'_>) -> Result<Option<Scale>, ScaleError> {
        let resource = self.resource(target).await?;
        if !resource.scalable {
            return Err(ScaleError::NotScalable(resource.shown()));
        }
        let path = resource.path(target.namespace, target.name);
        match self.read(&path).await {
            Ok(scale) => Ok(Some(scale)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Asks for another number of replicas, of the very object that `seen` was read of.
    ///
    /// # Errors
    /// As [`get`](Self::get), and a conflict when the object changed since.
    pub async fn set(&self, target: Target<'_>, seen: &Scale, replicas: i32) -> Result<(), ScaleError> {
        let path = self.resource(target).await?.path(target.namespace, target.name);
        let m = &seen.metadata;
        let metadata =
            json!({"name": m.name, "namespace": m.namespace, "uid": m.uid, "resourceVersion": m.resource_version});
        let body = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata,
            "spec": {"replicas": replicas}});
        self.client.call(Method::PUT, &path, "application/json", Bytes::from(body.to_string())).await?;
        Ok(())
    }

    /// The resource of a target's kind, as `PLURAL.GROUP`.
    ///
    /// # Errors
    /// When it is not served, or a request fails.
    pub async fn resource_name(&self, target: Target<'_>) -> Result<String, ScaleError> {
        Ok(self.resource(target).await?.shown())
    }

    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let bytes = self.client.call(Method::GET, path, "", Bytes::new()).await?;
        serde_json::from_slice(&bytes).map_err(|e| ClientError::Decode(format!("{path}: {e}")))
    }

    /// Where the target's kind is served: in the version it names, else in the first that has it.
    async fn resource(&self, target: Target<'_>) -> Result<ServedResource, ScaleError> {
        let key = (target.api_version.to_owned(), target.kind.to_owned());
        if let Some((at, resource)) = self.resources.lock().get(&key)
            && at.elapsed() < REMEMBERED
        {
            return Ok(resource.clone());
        }
        let found = self.find(target).await?;
        let mut known = self.resources.lock();
        if known.len() >= KINDS_MAX {
            known.clear();
        }
        known.insert(key, (Instant::now(), found.clone()));
        Ok(found)
    }

    async fn find(&self, target: Target<'_>) -> Result<ServedResource, ScaleError> {
        let (group, kind) = (target.group(), target.kind);
        let none = || ScaleError::NoKind { group: group.to_owned(), kind: kind.to_owned() };
        let (root, mut versions) = if group.is_empty() {
            ("/api".to_owned(), vec!["v1".to_owned()])
        } else {
            let root = format!("/apis/{group}");
            let listed = match self.read::<Versions>(&root).await {
                Err(e) if e.is_not_found() => return Err(none()),
                listed => listed?,
            };
            (root, listed.versions.into_iter().map(|v| v.version).collect())
        };
        let asked = target.api_version.rsplit('/').next().unwrap_or_default();
        versions.sort_by_key(|v| v != asked);
        for version in versions {
            let listed: ServedResources = self.read(&format!("{root}/{version}")).await?;
            let named = listed.resources.iter().find(|r| r.kind == kind && !r.name.contains('/'));
            if let Some(plural) = named.map(|r| r.name.clone()) {
                let scale = format!("{plural}/scale");
                let scalable = listed.resources.iter().any(|r| r.name == scale && r.kind == "Scale");
                return Ok(ServedResource { group: group.to_owned(), version, plural, scalable });
            }
        }
        Err(none())
    }
}
