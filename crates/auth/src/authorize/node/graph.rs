//! Which node reaches which object, kept up to date from the store's log. Unlike upstream's general graph this keeps a
//! counted set of nodes per object, so that every decision is one or two hash look-ups.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::RwLock;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::objects::{Change, decode};

/// Objects a node may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Secret,
    /// `configmaps`
    ConfigMap,
    /// `persistentvolumeclaims`
    Claim,
    /// `persistentvolumes`
    Volume,
    /// `serviceaccounts`
    ServiceAccount,
    /// `resourceclaims`
    ResourceClaim,
    Pod,
    /// `volumeattachments`
    VolumeAttachment,
    /// `resourceslices`
    ResourceSlice,
    /// `podcertificaterequests`
    PodCertificateRequest,
}

/// Resources the graph follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeResource {
    /// `pods`, which name most of the others
    Pods,
    /// `persistentvolumes`
    PersistentVolumes,
    /// `volumeattachments.storage.k8s.io`
    VolumeAttachments,
    /// `resourceslices.resource.k8s.io`
    ResourceSlices,
    /// `podcertificaterequests.certificates.k8s.io`
    PodCertificateRequests,
}

impl NodeResource {
    /// From group and plural.
    pub fn parse(group: &str, resource: &str) -> Option<Self> {
        match (group, resource) {
            ("", "pods") => Some(Self::Pods),
            ("", "persistentvolumes") => Some(Self::PersistentVolumes),
            ("storage.k8s.io", "volumeattachments") => Some(Self::VolumeAttachments),
            ("resource.k8s.io", "resourceslices") => Some(Self::ResourceSlices),
            ("certificates.k8s.io", "podcertificaterequests") => Some(Self::PodCertificateRequests),
            _ => None,
        }
    }
}

type Key = (Kind, Arc<str>);

#[derive(Default)]
struct State {
    /// How many pods (or direct links) connect an object to a node.
    nodes: HashMap<Key, HashMap<Arc<str>, u32>>,
    pods: HashMap<Arc<str>, PodLinks>,
    /// Persistent volume to its claim (`namespace/name`) and the secrets it needs.
    volumes: HashMap<Arc<str>, VolumeLinks>,
    /// Secret to the volumes that need it.
    secret_volumes: HashMap<Arc<str>, HashSet<Arc<str>>>,
}

struct PodLinks {
    node: Arc<str>,
    uid: String,
    /// Changes of these are the only ones that add references to a bound pod.
    ephemeral: usize,
    claims: Vec<(String, Option<String>)>,
    extended_claim: Option<String>,
    objects: Vec<Key>,
}

struct VolumeLinks {
    claim: Arc<str>,
    secrets: Vec<Arc<str>>,
}

/// The graph; share by `Arc`, feed by [`NodeGraph::apply`].
#[derive(Default)]
pub struct NodeGraph {
    state: RwLock<State>,
}

fn path(namespace: &str, name: &str) -> Arc<str> {
    if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}").into() }
}

impl NodeGraph {
    /// Without any object.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in one stored change.
    pub fn apply(&self, resource: NodeResource, namespace: &str, name: &str, change: Change<'_>) {
        let key = path(namespace, name);
        match resource {
            NodeResource::Pods => {
                let pod = match change {
                    Change::Put(bytes) => decode::<PodView>(bytes, "pod"),
                    Change::Delete => None,
                };
                self.state.write().put_pod(namespace, name, key, pod);
            }
            NodeResource::PersistentVolumes => {
                let volume = match change {
                    Change::Put(bytes) => decode::<VolumeView>(bytes, "persistent volume"),
                    Change::Delete => None,
                };
                self.state.write().put_volume(key, volume);
            }
            NodeResource::VolumeAttachments => self.link(Kind::VolumeAttachment, key, change),
            NodeResource::ResourceSlices => self.link(Kind::ResourceSlice, key, change),
            NodeResource::PodCertificateRequests => self.link(Kind::PodCertificateRequest, key, change),
        }
    }

    /// Namespace and name of every object of a resource that was taken in, connects something, and was not deleted.
    pub fn names(&self, resource: NodeResource) -> Vec<(String, String)> {
        let state = self.state.read();
        let split = |key: &Arc<str>| match key.split_once('/') {
            Some((namespace, name)) => (namespace.to_owned(), name.to_owned()),
            None => (String::new(), key.to_string()),
        };
        let linked = |kind: Kind| state.nodes.keys().filter(|(k, _)| *k == kind).map(|(_, key)| split(key)).collect();
        match resource {
            NodeResource::Pods => state.pods.keys().map(split).collect(),
            NodeResource::PersistentVolumes => state.volumes.keys().map(split).collect(),
            NodeResource::VolumeAttachments => linked(Kind::VolumeAttachment),
            NodeResource::ResourceSlices => linked(Kind::ResourceSlice),
            NodeResource::PodCertificateRequests => linked(Kind::PodCertificateRequest),
        }
    }

    /// Objects that name their node in `spec.nodeName`.
    fn link(&self, kind: Kind, key: Arc<str>, change: Change<'_>) {
        let node = match change {
            Change::Put(bytes) => decode::<NodeNameView>(bytes, "node link").and_then(|v| v.spec.node_name),
            Change::Delete => None,
        };
        let mut state = self.state.write();
        state.nodes.remove(&(kind, key.clone()));
        if let Some(node) = node.filter(|n| !n.is_empty()) {
            state.nodes.insert((kind, key), HashMap::from([(node.into(), 1)]));
        }
    }

    /// Whether `node` is related to the object.
    pub fn reaches(&self, node: &str, kind: Kind, namespace: &str, name: &str) -> bool {
        let key = path(namespace, name);
        let state = self.state.read();
        match kind {
            Kind::Volume => state.volume_reaches(node, &key),
            Kind::Secret => {
                state.linked(node, kind, &key)
                    || state
                        .secret_volumes
                        .get(&key)
                        .is_some_and(|volumes| volumes.iter().any(|v| state.volume_reaches(node, v)))
            }
            _ => state.linked(node, kind, &key),
        }
    }
}

impl State {
    fn linked(&self, node: &str, kind: Kind, key: &Arc<str>) -> bool {
        self.nodes.get(&(kind, key.clone())).is_some_and(|nodes| nodes.contains_key(node))
    }

    fn volume_reaches(&self, node: &str, volume: &Arc<str>) -> bool {
        self.volumes.get(volume).is_some_and(|v| self.linked(node, Kind::Claim, &v.claim))
    }

    fn put_pod(&mut self, namespace: &str, name: &str, key: Arc<str>, pod: Option<PodView>) {
        let Some(pod) = pod.filter(|p| p.spec.node_name.as_ref().is_some_and(|n| !n.is_empty())) else {
            self.remove_pod(&key);
            return;
        };
        if self.pods.get(&key).is_some_and(|old| old.same_references(&pod)) {
            return;
        }
        self.remove_pod(&key);
        let node: Arc<str> = pod.spec.node_name.as_deref().unwrap_or_default().into();
        let mut objects = vec![(Kind::Pod, key.clone())];
        pod.references(namespace, name, |kind, namespace, name| {
            let object = (kind, path(namespace, name));
            if !name.is_empty() && !objects.contains(&object) {
                objects.push(object);
            }
        });
        for object in &objects {
            *self.nodes.entry(object.clone()).or_default().entry(node.clone()).or_default() += 1;
        }
        let links = PodLinks {
            node,
            objects,
            ephemeral: pod.spec.ephemeral_containers.as_ref().map_or(0, Vec::len),
            claims: pod.claim_statuses(),
            extended_claim: pod.extended_claim(),
            uid: pod.metadata.uid,
        };
        self.pods.insert(key, links);
    }

    fn remove_pod(&mut self, key: &Arc<str>) {
        let Some(links) = self.pods.remove(key) else { return };
        for object in links.objects {
            if let Some(nodes) = self.nodes.get_mut(&object) {
                if let Some(count) = nodes.get_mut(&links.node) {
                    *count -= 1;
                    if *count == 0 {
                        nodes.remove(&links.node);
                    }
                }
                if nodes.is_empty() {
                    self.nodes.remove(&object);
                }
            }
        }
    }

    fn put_volume(&mut self, key: Arc<str>, volume: Option<VolumeView>) {
        if let Some(old) = self.volumes.remove(&key) {
            for secret in old.secrets {
                if let Some(set) = self.secret_volumes.get_mut(&secret) {
                    set.remove(&key);
                    if set.is_empty() {
                        self.secret_volumes.remove(&secret);
                    }
                }
            }
        }
        let Some(spec) = volume.map(|v| v.spec) else { return };
        let Some(claim) = spec.claim_ref.as_ref() else { return };
        let secrets: Vec<Arc<str>> = spec.secrets(&claim.namespace);
        for secret in &secrets {
            self.secret_volumes.entry(secret.clone()).or_default().insert(key.clone());
        }
        let links = VolumeLinks { claim: path(&claim.namespace, &claim.name), secrets };
        self.volumes.insert(key, links);
    }
}

impl PodLinks {
    /// References of a bound pod are immutable but for ephemeral containers and claims made for it.
    fn same_references(&self, pod: &PodView) -> bool {
        pod.spec.node_name.as_deref() == Some(&*self.node)
            && pod.metadata.uid == self.uid
            && pod.spec.ephemeral_containers.as_ref().map_or(0, Vec::len) <= self.ephemeral
            && pod.claim_statuses() == self.claims
            && pod.extended_claim() == self.extended_claim
    }
}

#[derive(Deserialize)]
struct NodeNameView {
    #[serde(default)]
    spec: NodeNameSpec,
}

#[derive(Deserialize, Default)]
struct NodeNameSpec {
    #[serde(default, rename = "nodeName")]
    node_name: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodView {
    metadata: PodMeta,
    spec: PodSpec,
    status: Option<PodStatus>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodMeta {
    uid: String,
    annotations: Option<HashMap<String, IgnoredOrMirror>>,
}

/// Only the presence of annotations matters.
type IgnoredOrMirror = IgnoredAny;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: Option<String>,
    service_account_name: Option<String>,
    image_pull_secrets: Option<Vec<NameRef>>,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
    ephemeral_containers: Option<Vec<Container>>,
    volumes: Option<Vec<Volume>>,
    resource_claims: Option<Vec<PodClaim>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    resource_claim_statuses: Option<Vec<ClaimStatus>>,
    extended_resource_claim_status: Option<ExtendedClaim>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ExtendedClaim {
    resource_claim_name: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ClaimStatus {
    name: String,
    resource_claim_name: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodClaim {
    name: String,
    resource_claim_name: Option<String>,
    resource_claim_template_name: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NameRef {
    name: String,
    namespace: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    env: Option<Vec<Env>>,
    env_from: Option<Vec<EnvFrom>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Env {
    value_from: Option<ValueFrom>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ValueFrom {
    secret_key_ref: Option<NameRef>,
    config_map_key_ref: Option<NameRef>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct EnvFrom {
    secret_ref: Option<NameRef>,
    config_map_ref: Option<NameRef>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SecretSource {
    secret_name: Option<String>,
    secret_namespace: Option<String>,
    secret_ref: Option<NameRef>,
    node_publish_secret_ref: Option<NameRef>,
    node_stage_secret_ref: Option<NameRef>,
    node_expand_secret_ref: Option<NameRef>,
}

/// Every volume source that can refer to something; pods and persistent volumes share most of them.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    name: String,
    secret: Option<SecretSource>,
    config_map: Option<NameRef>,
    projected: Option<Projected>,
    persistent_volume_claim: Option<ClaimSource>,
    ephemeral: Option<IgnoredAny>,
    azure_file: Option<SecretSource>,
    cephfs: Option<SecretSource>,
    cinder: Option<SecretSource>,
    flex_volume: Option<SecretSource>,
    rbd: Option<SecretSource>,
    #[serde(rename = "scaleIO")]
    scale_io: Option<SecretSource>,
    iscsi: Option<SecretSource>,
    storageos: Option<SecretSource>,
    csi: Option<SecretSource>,
    claim_ref: Option<ClaimRef>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ClaimRef {
    namespace: String,
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ClaimSource {
    claim_name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Projected {
    sources: Option<Vec<ProjectedSource>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ProjectedSource {
    secret: Option<NameRef>,
    config_map: Option<NameRef>,
}

#[derive(Deserialize)]
struct VolumeView {
    #[serde(default)]
    spec: Volume,
}

impl Volume {
    fn secret_sources(&self) -> impl Iterator<Item = &SecretSource> {
        [
            &self.azure_file,
            &self.cephfs,
            &self.cinder,
            &self.flex_volume,
            &self.rbd,
            &self.scale_io,
            &self.iscsi,
            &self.storageos,
            &self.csi,
        ]
        .into_iter()
        .flatten()
    }

    /// Secrets a kubelet needs for this persistent volume; `namespace` is its claim's.
    fn secrets(&self, namespace: &str) -> Vec<Arc<str>> {
        let mut out = Vec::new();
        for source in self.secret_sources() {
            if let Some(name) = &source.secret_name {
                out.push(path(source.secret_namespace.as_deref().unwrap_or(namespace), name));
            }
            let references = [
                &source.secret_ref,
                &source.node_publish_secret_ref,
                &source.node_stage_secret_ref,
                &source.node_expand_secret_ref,
            ];
            for r in references.into_iter().flatten() {
                let own = r.namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or(namespace);
                out.push(path(own, &r.name));
            }
        }
        out
    }
}

impl PodView {
    fn claim_statuses(&self) -> Vec<(String, Option<String>)> {
        let statuses = self.status.as_ref().and_then(|s| s.resource_claim_statuses.as_ref());
        statuses.into_iter().flatten().map(|s| (s.name.clone(), s.resource_claim_name.clone())).collect()
    }

    fn extended_claim(&self) -> Option<String> {
        self.status.as_ref()?.extended_resource_claim_status.as_ref().map(|e| e.resource_claim_name.clone())
    }

    /// Calls `add` with kind, namespace and name of everything the pod refers to.
    fn references(&self, namespace: &str, pod_name: &str, mut add: impl FnMut(Kind, &str, &str)) {
        // A node must not be able to grant itself anything by a mirror pod it creates.
        let mirror = self.metadata.annotations.as_ref().is_some_and(|a| a.contains_key("kubernetes.io/config.mirror"));
        if mirror {
            return;
        }
        let spec = &self.spec;
        let mut object = |kind, name: &str| add(kind, namespace, name);
        if let Some(name) = &spec.service_account_name {
            object(Kind::ServiceAccount, name);
        }
        for s in spec.image_pull_secrets.iter().flatten() {
            object(Kind::Secret, &s.name);
        }
        let containers = [&spec.init_containers, &spec.containers, &spec.ephemeral_containers];
        for c in containers.into_iter().flatten().flatten() {
            c.references(&mut object);
        }
        for v in spec.volumes.iter().flatten() {
            v.references(pod_name, &mut object);
        }
        let statuses = self.claim_statuses();
        for claim in spec.resource_claims.iter().flatten() {
            if let Some(name) = &claim.resource_claim_name {
                object(Kind::ResourceClaim, name);
            } else if claim.resource_claim_template_name.is_some() {
                for (_, made) in statuses.iter().filter(|(n, _)| *n == claim.name) {
                    object(Kind::ResourceClaim, made.as_deref().unwrap_or_default());
                }
            }
        }
        if let Some(name) = self.extended_claim() {
            object(Kind::ResourceClaim, &name);
        }
    }
}

impl Container {
    fn references(&self, object: &mut impl FnMut(Kind, &str)) {
        for from in self.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            if let Some(s) = &from.secret_key_ref {
                object(Kind::Secret, &s.name);
            }
            if let Some(c) = &from.config_map_key_ref {
                object(Kind::ConfigMap, &c.name);
            }
        }
        for from in self.env_from.iter().flatten() {
            if let Some(s) = &from.secret_ref {
                object(Kind::Secret, &s.name);
            }
            if let Some(c) = &from.config_map_ref {
                object(Kind::ConfigMap, &c.name);
            }
        }
    }
}

impl Volume {
    fn references(&self, pod_name: &str, object: &mut impl FnMut(Kind, &str)) {
        if let Some(name) = self.secret.as_ref().and_then(|s| s.secret_name.as_ref()) {
            object(Kind::Secret, name);
        }
        if let Some(c) = &self.config_map {
            object(Kind::ConfigMap, &c.name);
        }
        for source in self.projected.iter().filter_map(|p| p.sources.as_ref()).flatten() {
            if let Some(s) = &source.secret {
                object(Kind::Secret, &s.name);
            }
            if let Some(c) = &source.config_map {
                object(Kind::ConfigMap, &c.name);
            }
        }
        if let Some(c) = &self.persistent_volume_claim {
            object(Kind::Claim, &c.claim_name);
        } else if self.ephemeral.is_some() {
            object(Kind::Claim, &format!("{pod_name}-{}", self.name));
        }
        for source in self.secret_sources() {
            if let Some(name) = &source.secret_name {
                object(Kind::Secret, name);
            }
            for r in [&source.secret_ref, &source.node_publish_secret_ref].into_iter().flatten() {
                object(Kind::Secret, &r.name);
            }
        }
    }
}
