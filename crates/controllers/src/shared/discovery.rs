//! Discovery of the resources that the API server serves, for the controllers that act on every kind.
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use http::Method;
use kelson_client::{Client, ClientError};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The timeout of one discovery request.
const DOCUMENT_MAX: Duration = Duration::from_secs(10);
/// The number of concurrent discovery requests.
const DOCUMENTS_AT_ONCE: usize = 8;

/// A resource in its preferred version.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiResource {
    /// The API group, empty for the core group.
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    /// Whether the resource is namespaced.
    pub namespaced: bool,
    /// The supported verbs.
    pub verbs: Vec<String>,
}

impl ApiResource {
    /// Returns the path of the collection. An empty namespace selects all namespaces.
    pub fn path(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() { "/api/" } else { "/apis/" };
        let slash = if self.group.is_empty() { "" } else { "/" };
        let base = format!("{root}{}{slash}{}", self.group, self.version);
        if self.namespaced && !namespace.is_empty() {
            format!("{base}/namespaces/{namespace}/{}", self.plural)
        } else {
            format!("{base}/{}", self.plural)
        }
    }
    /// Returns the path of one object.
    pub fn object_path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{name}", self.path(namespace))
    }
    /// Returns `GROUP/VERSION`, or only the version for the core group.
    pub fn group_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
    /// Whether both resources have the same objects, possibly in different versions.
    pub fn is_same_collection(&self, other: &Self) -> bool {
        self.group == other.group && self.plural == other.plural
    }
    /// Whether the resource supports all `verbs`.
    pub fn serves(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|v| self.verbs.iter().any(|have| have == v))
    }
}

/// The result of discovery.
#[derive(Debug, Default)]
pub struct Discovered {
    /// The resources, each in one version.
    pub resources: Vec<ApiResource>,
    /// Group versions whose discovery failed, each with its error.
    pub failed: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct GroupList {
    #[serde(default)]
    groups: Vec<DiscoveredGroup>,
}
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DiscoveredGroup {
    name: String,
    #[serde(default)]
    versions: Vec<Version>,
    preferred_version: Option<Version>,
}
#[derive(Clone, Deserialize)]
struct Version {
    version: String,
}
#[derive(Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<Resource>,
}
#[derive(Deserialize)]
struct Resource {
    name: String,
    kind: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

impl Resource {
    fn of(self, group: &str, version: &str) -> ApiResource {
        ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: self.name,
            kind: self.kind,
            namespaced: self.namespaced,
            verbs: self.verbs,
        }
    }
}

async fn read<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, ClientError> {
    let bytes = client.call(Method::GET, path, "", Bytes::new()).await?;
    decode(path, &bytes)
}

fn decode<T: DeserializeOwned>(path: &str, document: &[u8]) -> Result<T, ClientError> {
    kelson_meta::from_json(document).map_err(|e| ClientError::Decode(format!("{path}: {e}")))
}

/// The resources of one version, `GROUP/VERSION` or that of the legacy group, without subresources.
///
/// # Errors
/// When the server does not serve the version, or cannot be reached.
pub async fn resources_of(client: &Client, group_version: &str) -> Result<Vec<ApiResource>, ClientError> {
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    let root = if group.is_empty() { "/api" } else { "/apis" };
    let list: ResourceList = read(client, &format!("{root}/{group_version}")).await?;
    let resources = list.resources.into_iter().filter(|r| !r.name.contains('/'));
    Ok(resources.map(|r| r.of(group, version)).collect())
}

/// The documents of all groups together, which also list what only other API servers on the same storage serve.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

#[derive(Deserialize)]
struct AggregatedList {
    kind: String,
    #[serde(default)]
    items: Vec<AggregatedGroup>,
}
#[derive(Deserialize)]
struct AggregatedGroup {
    #[serde(default)]
    metadata: AggregatedMetadata,
    #[serde(default)]
    versions: Vec<AggregatedVersion>,
}
#[derive(Default, Deserialize)]
#[serde(default)]
struct AggregatedMetadata {
    name: String,
}
#[derive(Deserialize)]
struct AggregatedVersion {
    version: String,
    #[serde(default)]
    freshness: String,
    #[serde(default)]
    resources: Vec<AggregatedResource>,
}
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AggregatedResource {
    resource: String,
    #[serde(default)]
    response_kind: ResponseKind,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
}
#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseKind {
    kind: String,
}

impl From<AggregatedResource> for Resource {
    fn from(from: AggregatedResource) -> Self {
        Self {
            name: from.resource,
            kind: from.response_kind.kind,
            namespaced: from.scope == "Namespaced",
            verbs: from.verbs,
        }
    }
}

impl Discovered {
    /// Adds the resources of a group version. Versions come in order of preference, so the first one with a resource is used.
    fn add(&mut self, group: &str, version: &str, resources: impl Iterator<Item = Resource>) {
        for r in resources.filter(|r| !r.name.contains('/')) {
            if !self.resources.iter().any(|have| have.group == group && have.plural == r.name) {
                self.resources.push(r.of(group, version));
            }
        }
    }
}

/// Reads what is served, by any API server on the same storage. A group version that fails, such as that of an unavailable
/// extension server, is in [`Discovered::failed`].
pub async fn discover(client: &Client) -> Result<Discovered, ClientError> {
    match aggregated(client).await? {
        Some(found) => Ok(found),
        None => plain(client).await,
    }
}

/// Reads the aggregated documents; `None` if the server has none.
async fn aggregated(client: &Client) -> Result<Option<Discovered>, ClientError> {
    let mut out = Discovered::default();
    for path in ["/api", "/apis"] {
        let response = client.raw_accepting(Method::GET, path, "", AGGREGATED, Bytes::new()).await?;
        let list: AggregatedList = decode(path, &Client::read(response).await?)?;
        if list.kind != "APIGroupDiscoveryList" {
            return Ok(None);
        }
        for group in list.items {
            let group_name = &group.metadata.name;
            for version in group.versions {
                let gv = if group_name.is_empty() {
                    version.version.clone()
                } else {
                    format!("{group_name}/{}", version.version)
                };
                match version.freshness.as_str() {
                    // Upstream's words, which end up in conditions.
                    "Stale" => out.failed.push((gv.clone(), format!("stale GroupVersion discovery: {gv}"))),
                    _ => out.add(group_name, &version.version, version.resources.into_iter().map(Resource::from)),
                }
            }
        }
    }
    Ok(Some(out))
}

/// Reads one document for each group version. One that fails delays the result by at most [`DOCUMENT_MAX`].
async fn plain(client: &Client) -> Result<Discovered, ClientError> {
    let groups: GroupList = read(client, "/apis").await?;
    let mut wanted = vec![(String::new(), "v1".to_owned())];
    for g in groups.groups {
        let mut versions: Vec<String> = g.preferred_version.iter().map(|v| v.version.clone()).collect();
        versions
            .extend(g.versions.into_iter().map(|v| v.version).filter(|v| !versions.contains(v)).collect::<Vec<_>>());
        wanted.extend(versions.into_iter().map(|v| (g.name.clone(), v)));
    }
    let documents = wanted.into_iter().map(|(group, version)| async move {
        let gv = if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
        let root = if group.is_empty() { "/api" } else { "/apis" };
        let path = format!("{root}/{gv}");
        let list = match tokio::time::timeout(DOCUMENT_MAX, read::<ResourceList>(client, &path)).await {
            Ok(Ok(list)) => Ok(list),
            Ok(Err(e)) => Err(e.to_string()),
            Err(_) => Err(format!("timed out after {DOCUMENT_MAX:?}")),
        };
        (group, version, gv, list)
    });
    let mut documents = stream::iter(documents).buffered(DOCUMENTS_AT_ONCE);
    let mut out = Discovered::default();
    while let Some((group, version, gv, list)) = documents.next().await {
        match list {
            Ok(list) => out.add(&group, &version, list.resources.into_iter()),
            Err(why) => out.failed.push((gv, why)),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_simulation::Api;

    #[tokio::test(start_paused = true)]
    async fn reads_all_groups() {
        let all = discover(&Api::start().await.client()).await.unwrap();
        assert!(all.failed.is_empty());
        let find = |p: &str| all.resources.iter().find(|r| r.plural == p).unwrap();
        assert_eq!(find("pods").path("a"), "/api/v1/namespaces/a/pods");
        assert_eq!(find("replicasets").object_path("a", "b"), "/apis/apps/v1/namespaces/a/replicasets/b");
        assert_eq!(find("nodes").path("a"), "/api/v1/nodes");
        assert!(find("pods").serves(&["list", "watch"]) && !find("pods").serves(&["fly"]));
    }

    #[tokio::test(start_paused = true)]
    async fn both_forms_of_discovery_agree() {
        let client = Api::start().await.client();
        let (aggregated, plain) = (aggregated(&client).await.unwrap().unwrap(), plain(&client).await.unwrap());
        assert_eq!(aggregated.resources, plain.resources);
        assert!(aggregated.failed.is_empty() && plain.failed.is_empty());
    }
}
