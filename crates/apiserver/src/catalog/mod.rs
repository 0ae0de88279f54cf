//! Catalog: which resources are served under which paths, and how each behaves. Built-in ones come from the schema's
//! table; further ones (custom resources) are put in and taken out at run time through the same door.
pub mod convert;
pub mod record;
pub mod schema;
pub mod served;

use std::collections::HashMap;
use std::sync::Arc;

use kelson_meta::Gvr;
use parking_lot::RwLock;

pub use convert::{Conversion, Converter};
pub use schema::{DynamicSchema, ObjectSchema};
pub use served::{Behaviour, Served, Sub};

/// Group, version, plural: asked by borrowed text, so that a look-up makes no text of its own.
type ByPath = HashMap<String, HashMap<String, HashMap<String, Arc<Served>>>>;

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
        self.by_path.read().get(group)?.get(version)?.get(plural).cloned()
    }
    /// Any served version of a resource.
    pub fn any(&self, group: &str, plural: &str) -> Option<Arc<Served>> {
        let map = self.by_path.read();
        let mut found = map.get(group)?.values().filter_map(|r| r.get(plural));
        let first = found.next()?;
        let storage = found.find(|s| !s.converts());
        Some(if first.converts() { storage.unwrap_or(first) } else { first }.clone())
    }
    /// Serves a resource, replacing one of the same path.
    pub fn insert(&self, served: Arc<Served>) {
        let gvr = &served.gvr;
        let mut map = self.by_path.write();
        let versions = map.entry(gvr.group.clone()).or_default();
        versions.entry(gvr.version.clone()).or_default().insert(gvr.resource.clone(), Arc::clone(&served));
        drop(map);
        self.generation.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
    }
    /// Serves a resource no more.
    pub fn remove(&self, gvr: &Gvr) {
        let mut map = self.by_path.write();
        if let Some(resources) = map.get_mut(&gvr.group).and_then(|versions| versions.get_mut(&gvr.version)) {
            resources.remove(&gvr.resource);
        }
        drop(map);
        self.generation.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
    }
    /// Changes whenever the set of resources does: discovery and OpenAPI are made anew then.
    pub fn generation(&self) -> u64 {
        self.generation.load(std::sync::atomic::Ordering::Acquire)
    }
    /// The resources of a group version, by plural name; `None` when there is no such group version.
    pub fn of(&self, group: &str, version: &str) -> Option<Vec<Arc<Served>>> {
        let map = self.by_path.read();
        let mut all: Vec<_> = map.get(group)?.get(version)?.values().cloned().collect();
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
        let map = self.by_path.read();
        let served = map.iter().flat_map(|(g, versions)| versions.iter().map(move |(v, r)| (g, v, r)));
        let mut dynamic: Vec<(String, String)> =
            served.filter(|(_, _, r)| !r.is_empty()).map(|(g, v, _)| (g.clone(), v.clone())).collect();
        drop(map);
        dynamic.sort();
        for (group, version) in &dynamic {
            add(group, version, false);
        }
        groups
    }
}
