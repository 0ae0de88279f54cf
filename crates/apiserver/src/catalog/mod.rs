//! Catalog: which resources are served under which paths, and how each behaves. Built-in ones come from the schema's
//! table; further ones (custom resources) are put in and taken out at run time through the same door.
pub mod record;
pub mod served;

use std::collections::HashMap;
use std::sync::Arc;

use kelson_meta::Gvr;
use parking_lot::RwLock;

pub use served::{Behaviour, Served, Sub};

type ByPath = HashMap<(String, String), HashMap<String, Arc<Served>>>;

/// All served resources.
pub struct Catalog {
    by_path: RwLock<ByPath>,
    generation: std::sync::atomic::AtomicU64,
}

impl Catalog {
    /// The built-in resources.
    pub fn builtin() -> Self {
        let catalog = Self { by_path: RwLock::default(), generation: Default::default() };
        for r in kelson_schema::resource::resources() {
            match Served::builtin(r) {
                Some(served) => catalog.insert(Arc::new(served)),
                None => tracing::warn!(group = r.group, resource = r.plural, "no behaviour is known; not served"),
            }
        }
        catalog
    }
    /// The resource at a path.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Served>> {
        // The pair key would need owned text; groups are few, versions fewer.
        let map = self.by_path.read();
        map.iter().find(|((g, v), _)| g == group && v == version)?.1.get(plural).cloned()
    }
    /// Any served version of a resource.
    pub fn any(&self, group: &str, plural: &str) -> Option<Arc<Served>> {
        let map = self.by_path.read();
        let mut found = map.iter().filter(|((g, _), _)| g == group).filter_map(|(_, r)| r.get(plural));
        let first = found.next()?;
        let storage = found.find(|s| !s.converts);
        Some(if first.converts { storage.unwrap_or(first) } else { first }.clone())
    }
    /// Serves a resource, replacing one of the same path.
    pub fn insert(&self, served: Arc<Served>) {
        let key = (served.gvr.group.clone(), served.gvr.version.clone());
        self.by_path.write().entry(key).or_default().insert(served.gvr.resource.clone(), served);
        self.generation.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
    }
    /// Serves a resource no more.
    pub fn remove(&self, gvr: &Gvr) {
        if let Some(v) = self.by_path.write().get_mut(&(gvr.group.clone(), gvr.version.clone())) {
            v.remove(&gvr.resource);
        }
        self.generation.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
    }
    /// Changes whenever the set of resources does: discovery and OpenAPI are made anew then.
    pub fn generation(&self) -> u64 {
        self.generation.load(std::sync::atomic::Ordering::Acquire)
    }
    /// The resources of a group version, by plural name; `None` when there is no such group version.
    pub fn of(&self, group: &str, version: &str) -> Option<Vec<Arc<Served>>> {
        let map = self.by_path.read();
        let mut all: Vec<_> = map.get(&(group.to_owned(), version.to_owned()))?.values().cloned().collect();
        all.sort_by(|a, b| a.gvr.resource.cmp(&b.gvr.resource));
        Some(all)
    }
    /// Groups in published order, each with its versions, the preferred one first.
    pub fn groups(&self) -> Vec<(String, Vec<String>)> {
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        let mut add = |group: &str, version: &str, preferred: bool| {
            let at = match groups.iter().position(|(g, _)| g == group) {
                Some(at) => at,
                None => {
                    groups.push((group.to_owned(), Vec::new()));
                    groups.len() - 1
                }
            };
            let versions = &mut groups[at].1;
            if !versions.iter().any(|v| v == version) {
                versions.insert(if preferred { 0 } else { versions.len() }, version.to_owned());
            }
        };
        for gv in kelson_schema::resource::group_versions() {
            add(gv.group, gv.version, gv.preferred);
        }
        let mut dynamic: Vec<_> =
            self.by_path.read().iter().filter(|(_, r)| !r.is_empty()).map(|(k, _)| k.clone()).collect();
        dynamic.sort();
        for (group, version) in &dynamic {
            add(group, version, false);
        }
        groups
    }
}
