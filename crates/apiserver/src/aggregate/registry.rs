//! The registry of aggregated API servers. It is updated by commits of APIServices before their clients are answered.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kelson_store::{Record, Resource, Store};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::aggregate::remote::{ConnectionParts, Remote};
use crate::aggregate::service::ApiService;
use crate::request::routes::Routes;

/// Group of APIServices.
pub const GROUP: &str = "apiregistration.k8s.io";
/// Plural name of APIServices.
pub const PLURAL: &str = "apiservices";

/// The aggregated API servers by APIService. Each registers as the handler of its group version in [`Routes`]. A background task checks
/// their availability, and discovery merges the resources that they list.
pub struct Aggregation {
    routes: Arc<Routes>,
    means: ConnectionParts,
    remotes: RwLock<BTreeMap<String, Arc<Remote>>>,
    changed: watch::Sender<u64>,
    generation: AtomicU64,
}

impl Aggregation {
    /// Starts empty; see [`Aggregation::load`].
    pub fn new(routes: Arc<Routes>, means: ConnectionParts) -> Self {
        let (remotes, changed, generation) = (RwLock::default(), watch::Sender::new(0), AtomicU64::default());
        Self { routes, means, remotes, changed, generation }
    }
    /// Registers the stored APIServices at start.
    pub fn load(&self, store: &Store) {
        let view = store.list(Resource::new(GROUP, PLURAL), None, None, None);
        view.iter().for_each(|record| self.committed(record));
    }
    /// Registers a stored APIService.
    pub fn committed(&self, record: &Record) {
        let service: ApiService = match kelson_meta::from_json(&record.bytes()) {
            Ok(service) => service,
            Err(error) => {
                tracing::error!(key = %record.key(), %error, "cannot decode a stored APIService; ignoring it");
                return;
            }
        };
        let name = service.metadata.name.clone();
        let before = self.remotes.read().get(&name).cloned();
        let (group, version) = (service.spec.group.clone(), service.spec.version.clone());
        match before {
            Some(remote) if *remote.spec() == service.spec => {
                let changed = remote.set_available(service.is_available());
                if changed {
                    self.touch();
                }
            }
            _ if service.spec.service.is_some() => {
                let remote = Arc::new(Remote::new(&service, &self.means));
                self.routes.insert(&group, &version, Arc::clone(&remote) as _);
                self.remotes.write().insert(name, remote);
                self.touch();
            }
            Some(_) => self.forget(&name),
            None => {}
        }
    }
    /// Removes a deleted APIService.
    pub fn deleted(&self, record: &Record) {
        self.forget(&record.key().name);
    }
    /// The names of all APIServices with an aggregated API server.
    pub fn names(&self) -> Vec<String> {
        self.remotes.read().keys().cloned().collect()
    }
    /// Removes an APIService that does not exist any more.
    pub fn forget(&self, name: &str) {
        if let Some(remote) = self.remotes.write().remove(name) {
            self.routes.remove(&remote.spec().group, &remote.spec().version);
        }
        self.touch();
    }
    /// Invalidates cached documents and triggers a check of availability.
    pub fn touch(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.changed.send_modify(|n| *n += 1);
    }
    /// A number that changes with what aggregated API servers serve.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
    /// A receiver of a number that changes with every write of an APIService.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
    /// All aggregated API servers, sorted by the name of their APIService.
    pub fn remotes(&self) -> Vec<Arc<Remote>> {
        self.remotes.read().values().cloned().collect()
    }
    /// The aggregated API server of a group version.
    pub fn find(&self, group: &str, version: &str) -> Option<Arc<Remote>> {
        let remotes = self.remotes.read();
        remotes.values().find(|r| r.spec().group == group && r.spec().version == version).cloned()
    }
}
