//! ConfigMaps and Secrets that pods refer to. There is one watch per object in use, because the Node authorizer allows no wider watch.
//! Workers are notified of changes (upstream: `pkg/kubelet/util/manager/watch_based_manager.go`).
pub mod tokens;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kelson_client::{Client, Informer, InformerConfig, InformerHandle, Object};
use kelson_meta::ObjectKey;
use kelson_tasks::Tasks;
use parking_lot::Mutex;

use crate::pod;

/// Maximum time that a reader waits for the initial state of an object.
const SYNC_LIMIT: Duration = Duration::from_secs(10);

/// Kind of a referenced object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A `v1` ConfigMap with strings and binary data.
    ConfigMap,
    /// A `v1` Secret with binary data.
    Secret,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }
}

/// An object that a pod refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    /// Kind of the object.
    pub kind: Kind,
    /// Namespace and name of the object.
    pub key: ObjectKey,
}

/// Why the content of an object is not available. The message is used in events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The object does not exist in the API.
    #[error("{kind} {name:?} not found")]
    NotFound {
        /// Either `configmap` or `secret`.
        kind: &'static str,
        /// Name of the object.
        name: String,
    },
    /// The API did not respond in time.
    #[error("failed to sync {kind} cache: timed out waiting for the condition")]
    Late {
        /// Either `configmap` or `secret`.
        kind: &'static str,
    },
}

/// Keys and values of an object; never printed.
pub type Data = BTreeMap<String, Vec<u8>>;

/// Cache of the objects that pods refer to. Clones share it.
#[derive(Clone)]
pub struct Objects {
    shared: Arc<SharedObjects>,
}

type Notify = Arc<dyn Fn(&str) + Send + Sync>;

struct SharedObjects {
    tasks: Tasks,
    client: Client,
    watched: Mutex<HashMap<Reference, Watched>>,
    notify: Notify,
}

struct Watched {
    handle: Handle,
    pods: HashSet<String>,
}

#[derive(Clone)]
enum Handle {
    ConfigMap(InformerHandle<ConfigMap>),
    Secret(InformerHandle<Secret>),
}

impl Objects {
    /// Creates a cache that calls `notify` with the UID of each pod that refers to a changed object.
    pub fn new(tasks: &Tasks, client: Client, notify: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            shared: Arc::new(SharedObjects {
                tasks: tasks.child("objects"),
                client,
                watched: Mutex::default(),
                notify: Arc::new(notify),
            }),
        }
    }

    /// Starts watches of the objects that `pod` refers to.
    pub fn register(&self, pod: &Pod) {
        let uid = pod::uid(pod);
        for reference in references(pod) {
            self.watch(&reference, uid);
        }
    }

    /// Removes a pod, and ends the watches that no other pod needs.
    pub fn unregister(&self, uid: &str) {
        let mut watched = self.shared.watched.lock();
        watched.retain(|_, w| {
            w.pods.remove(uid);
            !w.pods.is_empty()
        });
    }

    fn watch(&self, reference: &Reference, uid: &str) -> Handle {
        let mut watched = self.shared.watched.lock();
        if let Some(w) = watched.get_mut(reference) {
            w.pods.insert(uid.to_owned());
            return w.handle.clone();
        }
        let handle = match reference.kind {
            Kind::ConfigMap => Handle::ConfigMap(self.informer(reference)),
            Kind::Secret => Handle::Secret(self.informer(reference)),
        };
        let pods = HashSet::from([uid.to_owned()]);
        watched.insert(reference.clone(), Watched { handle: handle.clone(), pods });
        handle
    }

    fn informer<T: Object>(&self, reference: &Reference) -> InformerHandle<T> {
        let config = InformerConfig {
            namespace: reference.key.namespace.clone(),
            fields: format!("metadata.name={}", reference.key.name),
            ..InformerConfig::default()
        };
        let weak: Weak<SharedObjects> = Arc::downgrade(&self.shared);
        let of = reference.clone();
        let changed = move |_: &kelson_client::Change<T>| {
            let Some(shared) = weak.upgrade() else { return };
            let pods: Vec<String> =
                shared.watched.lock().get(&of).map(|w| w.pods.iter().cloned().collect()).unwrap_or_default();
            for uid in pods {
                (shared.notify)(&uid);
            }
        };
        Informer::new(self.shared.client.clone(), config).on_change(changed).start_in(&self.shared.tasks)
    }

    /// Returns a pull secret of a pod.
    ///
    /// # Errors
    /// The secret does not exist, or the API did not respond in time.
    pub async fn secret(&self, pod: &Pod, name: &str) -> Result<Arc<Secret>, ObjectError> {
        let reference = Reference { kind: Kind::Secret, key: ObjectKey::new(pod::namespace(pod), name) };
        let kind = Kind::Secret.word();
        let missing = || ObjectError::NotFound { kind, name: name.to_owned() };
        let Handle::Secret(h) = self.watch(&reference, pod::uid(pod)) else { return Err(missing()) };
        tokio::time::timeout(SYNC_LIMIT, h.synced()).await.map_err(|_| ObjectError::Late { kind })?;
        h.get(&reference.key).ok_or_else(missing)
    }

    /// Returns the data of an object for a pod.
    ///
    /// # Errors
    /// The object does not exist, or the API did not respond in time.
    pub async fn data(&self, pod: &Pod, kind: Kind, name: &str) -> Result<Data, ObjectError> {
        let reference = Reference { kind, key: ObjectKey::new(pod::namespace(pod), name) };
        let handle = self.watch(&reference, pod::uid(pod));
        let missing = || ObjectError::NotFound { kind: kind.word(), name: name.to_owned() };
        let late = |_| ObjectError::Late { kind: kind.word() };
        match handle {
            Handle::ConfigMap(h) => {
                tokio::time::timeout(SYNC_LIMIT, h.synced()).await.map_err(late)?;
                let o = h.get(&reference.key).ok_or_else(missing)?;
                let text = o.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
                let binary = o.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()));
                Ok(text.chain(binary).collect())
            }
            Handle::Secret(h) => {
                tokio::time::timeout(SYNC_LIMIT, h.synced()).await.map_err(late)?;
                let o = h.get(&reference.key).ok_or_else(missing)?;
                Ok(o.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect())
            }
        }
    }
}

/// Returns all ConfigMaps and Secrets that a pod's spec refers to.
pub fn references(pod: &Pod) -> Vec<Reference> {
    let mut out = Vec::new();
    let Some(s) = pod.spec.as_ref() else { return out };
    let mut add = |kind, name: &str| {
        if !name.is_empty() {
            out.push(Reference { kind, key: ObjectKey::new(pod::namespace(pod), name) });
        }
    };
    for p in s.image_pull_secrets.iter().flatten() {
        add(Kind::Secret, &p.name);
    }
    for m in pod::members(pod) {
        for e in m.container.env_from.iter().flatten() {
            e.config_map_ref.iter().for_each(|r| add(Kind::ConfigMap, &r.name));
            e.secret_ref.iter().for_each(|r| add(Kind::Secret, &r.name));
        }
        for v in m.container.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            v.config_map_key_ref.iter().for_each(|r| add(Kind::ConfigMap, &r.name));
            v.secret_key_ref.iter().for_each(|r| add(Kind::Secret, &r.name));
        }
    }
    for v in s.volumes.iter().flatten() {
        v.config_map.iter().for_each(|r| add(Kind::ConfigMap, &r.name));
        v.secret.iter().for_each(|r| add(Kind::Secret, r.secret_name.as_deref().unwrap_or_default()));
        for p in v.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            p.config_map.iter().for_each(|r| add(Kind::ConfigMap, &r.name));
            p.secret.iter().for_each(|r| add(Kind::Secret, &r.name));
        }
    }
    out.sort();
    out.dedup();
    out
}
