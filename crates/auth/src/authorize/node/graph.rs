//! Which objects each node may access, updated from the store's log. Unlike upstream's general graph this has a counted
//! set of nodes per object, so that every decision is one or two hash lookups.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::RwLock;

use super::views::{Key, Kind, NodeNameView, PodView, VolumeView, path};
use crate::objects::{Change, decode};

/// Resources that the graph follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeResource {
    /// The resource `pods`, which refer to most of the others.
    Pods,
    /// The resource `persistentvolumes`.
    PersistentVolumes,
    /// The resource `volumeattachments.storage.k8s.io`.
    VolumeAttachments,
    /// The resource `resourceslices.resource.k8s.io`.
    ResourceSlices,
    /// The resource `podcertificaterequests.certificates.k8s.io`.
    PodCertificateRequests,
}

impl NodeResource {
    /// Finds the resource by its group and plural name.
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

#[derive(Default)]
struct GraphState {
    /// The number of pods (or direct links) that connect an object to a node.
    nodes: HashMap<Key, HashMap<Arc<str>, u32>>,
    pods: HashMap<Arc<str>, PodLinks>,
    /// The claim (`namespace/name`) and the secrets of each persistent volume.
    volumes: HashMap<Arc<str>, VolumeLinks>,
    /// The volumes that need a secret.
    secret_volumes: HashMap<Arc<str>, HashSet<Arc<str>>>,
}

struct PodLinks {
    node: Arc<str>,
    uid: String,
    /// Ephemeral containers are the only change that adds references to a bound pod.
    ephemeral: usize,
    claims: Vec<(String, Option<String>)>,
    extended_claim: Option<String>,
    objects: Vec<Key>,
}

struct VolumeLinks {
    claim: Arc<str>,
    secrets: Vec<Arc<str>>,
}

/// Which objects each node may access, by the pods bound to it.
///
/// Share it by `Arc`, and call [`NodeGraph::apply`] for each change of the followed resources. Objects are counted per
/// node, so that a secret used by two pods stays accessible until the second is gone; a lookup takes a read lock and
/// one or two hash lookups.
#[derive(Default)]
pub struct NodeGraph {
    state: RwLock<GraphState>,
}

impl NodeGraph {
    /// Creates an empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies a change of a stored object.
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

    /// Returns namespace and name of every known object of a resource that connects something.
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

    /// Handles objects that name their node in `spec.nodeName`.
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

    /// Reports whether `node` may access the object.
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

impl GraphState {
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
    /// References of a bound pod are immutable, except for ephemeral containers and claims made for it.
    fn same_references(&self, pod: &PodView) -> bool {
        pod.spec.node_name.as_deref() == Some(&*self.node)
            && pod.metadata.uid == self.uid
            && pod.spec.ephemeral_containers.as_ref().map_or(0, Vec::len) <= self.ephemeral
            && pod.claim_statuses() == self.claims
            && pod.extended_claim() == self.extended_claim
    }
}
