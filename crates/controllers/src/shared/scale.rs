//! Access to the `scale` subresource of any kind, found by discovery: the current and desired replicas of workloads
//! whose kind is known only at run time.
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

/// The time for which the resource of a kind is cached.
const REMEMBERED: Duration = Duration::from_secs(30);
/// The maximum number of cached kinds.
const KINDS_MAX: usize = 256;

/// `autoscaling/v1` Scale.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Scale {
    /// Metadata of the workload.
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: ScaleSpec,
    /// The current state.
    pub status: ScaleStatus,
}

/// `autoscaling/v1` ScaleSpec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ScaleSpec {
    /// The desired number of replicas.
    pub replicas: i32,
}

/// `autoscaling/v1` ScaleStatus.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ScaleStatus {
    /// The current number of replicas.
    pub replicas: i32,
    /// The label selector of the pods in query form.
    pub selector: String,
}

/// The error of a request for a scale.
#[derive(Debug, thiserror::Error)]
pub enum ScaleError {
    /// The API server does not serve the kind.
    #[error("no matches for kind {kind:?} in group {group:?}")]
    NoKind { group: String, kind: String },
    /// The resource, as `PLURAL.GROUP`, has no scale subresource.
    #[error("{0} does not implement the scale subresource")]
    NotScalable(String),
    /// A request failed.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// The resource of a kind.
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

/// An object with a scale subresource.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Its `apiVersion`. The version is a preference: another served version is used if it is not served.
    pub api_version: &'a str,
    pub kind: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Target<'_> {
    /// Returns the API group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// Reads and updates scales, and caches the resource of each kind.
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
    resources: Vec<ScaleResource>,
}
#[derive(Deserialize)]
struct ScaleResource {
    name: String,
    kind: String,
}

impl Scales {
    /// Uses `client` for discovery and scales.
    pub fn new(client: Client) -> Self {
        Self { client, resources: Mutex::default() }
    }

    /// Returns the scale of an object, or `None` if the object does not exist.
    ///
    /// # Errors
    /// The kind is not served, has no scale subresource, or a request failed.
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

    /// Sets the number of replicas of the object of which `seen` is the scale.
    ///
    /// # Errors
    /// Those of [`get`](Self::get), and a conflict if the object changed since `seen`.
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

    /// Returns the resource of a target's kind, as `PLURAL.GROUP`.
    ///
    /// # Errors
    /// The kind is not served, or a request failed.
    pub async fn resource_name(&self, target: Target<'_>) -> Result<String, ScaleError> {
        Ok(self.resource(target).await?.shown())
    }

    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let bytes = self.client.call(Method::GET, path, "", Bytes::new()).await?;
        kelson_meta::from_json(&bytes).map_err(|e| ClientError::Decode(format!("{path}: {e}")))
    }

    /// Returns the resource of the target's kind, in the version that the target names if it is served, else in the
    /// first served version.
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
