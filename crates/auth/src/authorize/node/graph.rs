//! Which node reaches which object, kept up to date from the store's log. Unlike upstream's general graph this keeps a
//! counted set of nodes per object, so that every decision is one or two hash look-ups.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::RwLock;

use super::views::{Key, Kind, NodeNameView, PodView, VolumeView, path};
use crate::objects::{Change, decode};

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
    state: RwLock<GraphState>,
}

impl NodeGraph {
    /// Creates an empty graph.
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
    /// References of a bound pod are immutable but for ephemeral containers and claims made for it.
    fn same_references(&self, pod: &PodView) -> bool {
        pod.spec.node_name.as_deref() == Some(&*self.node)
            && pod.metadata.uid == self.uid
            && pod.spec.ephemeral_containers.as_ref().map_or(0, Vec::len) <= self.ephemeral
            && pod.claim_statuses() == self.claims
            && pod.extended_claim() == self.extended_claim
    }
}
