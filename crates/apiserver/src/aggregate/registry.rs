//! Which group versions other servers answer for. Commits of APIServices come here before their writers are answered.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kelson_store::{Record, Resource, Store};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::aggregate::remote::{Means, Remote};
use crate::aggregate::service::ApiService;
use crate::request::routes::Routes;

/// Where APIServices are kept.
pub const GROUP: &str = "apiregistration.k8s.io";
/// Their plural name.
pub const PLURAL: &str = "apiservices";

/// The servers of other group versions.
pub struct Aggregation {
    routes: Arc<Routes>,
    means: Means,
    remotes: RwLock<BTreeMap<String, Arc<Remote>>>,
    changed: watch::Sender<u64>,
    generation: AtomicU64,
}

impl Aggregation {
    /// Without any; see [`Aggregation::load`].
    pub fn new(routes: Arc<Routes>, means: Means) -> Self {
        let (remotes, changed, generation) = (RwLock::default(), watch::Sender::new(0), AtomicU64::default());
        Self { routes, means, remotes, changed, generation }
    }
    /// Registers what is stored: at start, before anybody is served.
    pub fn load(&self, store: &Store) {
        let view = store.list(Resource::new(GROUP, PLURAL), None, None, None);
        view.iter().for_each(|record| self.committed(record));
    }
    /// Takes over an APIService as it is stored now.
    pub fn committed(&self, record: &Record) {
        let service: ApiService = match serde_json::from_slice(&record.bytes()) {
            Ok(service) => service,
            Err(error) => {
                tracing::error!(key = %record.key(), %error, "a stored APIService does not read");
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
    /// Forgets an APIService that was deleted.
    pub fn deleted(&self, record: &Record) {
        self.forget(&record.key().name);
    }
    /// The names of all APIServices that another server answers for.
    pub fn names(&self) -> Vec<String> {
        self.remotes.read().keys().cloned().collect()
    }
    /// Forgets what is not there any more.
    pub fn forget(&self, name: &str) {
        if let Some(remote) = self.remotes.write().remove(name) {
            self.routes.remove(&remote.spec().group, &remote.spec().version);
        }
        self.touch();
    }
    /// Has documents made anew and availability looked at.
    pub fn touch(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.changed.send_modify(|n| *n += 1);
    }
    /// Changes whenever what other servers serve does.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
    /// Changes with every write of an APIService.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
    /// All servers, by the name of their APIService.
    pub fn remotes(&self) -> Vec<Arc<Remote>> {
        self.remotes.read().values().cloned().collect()
    }
    /// The server of a group version.
    pub fn find(&self, group: &str, version: &str) -> Option<Arc<Remote>> {
        let remotes = self.remotes.read();
        remotes.values().find(|r| r.spec().group == group && r.spec().version == version).cloned()
    }
}
