//! Catalog: the served resources, their paths and their behaviour. Built-in resources come from the schema's table. Custom resources
//! are added and removed at runtime by the same functions.
pub mod convert;
pub mod lifecycle;
pub mod order;
pub mod record;
pub mod runtime_config;
pub mod schema;
pub mod served;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use kelson_meta::Gvr;
use kelson_meta::gates::FeatureGates;
use parking_lot::RwLock;

pub use convert::{Conversion, Converter};
pub use runtime_config::RuntimeConfig;
pub use schema::{DynamicSchema, ObjectSchema};
pub use served::{Behaviour, Served, Sub};

/// The resources of one group version by plural name.
#[derive(Default)]
struct GroupVersion {
    resources: HashMap<String, Arc<Served>>,
    /// The catalog's generation at their last change.
    changed: u64,
}

/// The resources by group and version. Two nested maps, so that a lookup does not allocate a key.
type ByPath = HashMap<String, HashMap<String, GroupVersion>>;

/// The low bits of a generation, which count changes within a process.
const GENERATION_BITS: u32 = 24;

/// The built-in resources, shared by all servers of a process.
static BUILTIN: LazyLock<Vec<Arc<Served>>> = LazyLock::new(|| {
    let known = kelson_schema::resource::resources().filter_map(|r| {
        let served = Served::builtin(r).map(Arc::new);
        if served.is_none() {
            tracing::warn!(group = r.group, resource = r.plural, "resource has no strategy; not serving it");
        }
        served
    });
    known.collect()
});

/// All served resources. Routing, discovery, OpenAPI and admission look resources up here by group, version and plural name. Custom
/// resource definitions add and remove entries at runtime; each change increments the generation, by which cached documents are
/// invalidated.
pub struct Catalog {
    by_path: RwLock<ByPath>,
    generation: AtomicU64,
}

impl Catalog {
    /// Every built-in resource.
    #[cfg(test)]
    pub fn builtin() -> Self {
        let gates = FeatureGates::parse(["AllAlpha=true,AllBeta=true"]);
        Self::serving(&RuntimeConfig::all(), &gates.unwrap_or_default())
    }
    /// The built-in resources that the configuration enables and whose feature gates are on.
    pub fn serving(wanted: &RuntimeConfig, gates: &FeatureGates) -> Self {
        let catalog = Self { by_path: RwLock::default(), generation: AtomicU64::default() };
        let is_wanted = |gvr: &Gvr| {
            let (group, version, plural) = (&gvr.group, &gvr.version, &gvr.resource);
            wanted.serves(group, version, plural) && runtime_config::is_enabled(gates, group, version, plural)
        };
        BUILTIN.iter().filter(|s| is_wanted(&s.gvr)).for_each(|served| catalog.insert(Arc::clone(served)));
        // Generations of built-in resources are the same in all processes, later ones differ: clients cache documents by them.
        catalog.generation.fetch_add(u64::from(rand::random::<u32>()) << GENERATION_BITS, Ordering::AcqRel);
        catalog
    }
    /// The resource at a path.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Served>> {
        self.by_path.read().get(group)?.get(version)?.resources.get(plural).cloned()
    }
    /// Any served version of a resource.
    pub fn any(&self, group: &str, plural: &str) -> Option<Arc<Served>> {
        let map = self.by_path.read();
        let mut found = map.get(group)?.values().filter_map(|r| r.resources.get(plural));
        let first = found.next()?;
        let storage = found.find(|s| !s.converts());
        Some(if first.converts() { storage.unwrap_or(first) } else { first }.clone())
    }
    /// All resources with the same storage, in the order of group and version: other versions of a kind, and `events` of both groups.
    pub fn resources_in_store(&self, store: kelson_store::Resource) -> Vec<Arc<Served>> {
        let map = self.by_path.read();
        let resources = map.values().flat_map(HashMap::values).flat_map(|version| version.resources.values());
        let mut found: Vec<_> = resources.filter(|served| served.store == store).cloned().collect();
        found.sort_by(|a, b| (&a.gvr.group, &a.gvr.version).cmp(&(&b.gvr.group, &b.gvr.version)));
        found
    }
    /// Serves a resource. It replaces a resource with the same path.
    pub fn insert(&self, served: Arc<Served>) {
        let gvr = &served.gvr;
        let mut map = self.by_path.write();
        let generation = self.next_generation();
        let versions = map.entry(gvr.group.clone()).or_default();
        let place = versions.entry(gvr.version.clone()).or_default();
        place.changed = generation;
        place.resources.insert(gvr.resource.clone(), Arc::clone(&served));
    }
    /// Stops serving a resource. A version without resources is removed, and a group without versions.
    pub fn remove(&self, gvr: &Gvr) {
        let mut map = self.by_path.write();
        let generation = self.next_generation();
        let Some(versions) = map.get_mut(&gvr.group) else { return };
        if let Some(place) = versions.get_mut(&gvr.version) {
            place.resources.remove(&gvr.resource);
            place.changed = generation;
            if place.resources.is_empty() {
                versions.remove(&gvr.version);
            }
        }
        if versions.is_empty() {
            map.remove(&gvr.group);
        }
    }
    fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::AcqRel) + 1
    }
    /// A number that changes with the set of resources. Cached discovery and OpenAPI documents belong to a generation.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
    /// A number that changes with the resources of this group version; 0 if it is not served.
    pub fn generation_of(&self, group: &str, version: &str) -> u64 {
        let map = self.by_path.read();
        map.get(group).and_then(|versions| versions.get(version)).map_or(0, |place| place.changed)
    }
    /// The resources of a group version, sorted by plural name; `None` if it is not served.
    pub fn of(&self, group: &str, version: &str) -> Option<Vec<Arc<Served>>> {
        let map = self.by_path.read();
        let mut all: Vec<_> = map.get(group)?.get(version)?.resources.values().cloned().collect();
        all.sort_by(|a, b| a.gvr.resource.cmp(&b.gvr.resource));
        Some(all)
    }
    /// Groups in published order, each with its versions, the preferred one first. Groups of custom resources follow in alphabetical
    /// order.
    pub fn groups(&self) -> Vec<(String, Vec<String>)> {
        let map = self.by_path.read();
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        let is_served =
            |group: &str, version: &str| map.get(group).is_some_and(|versions| versions.contains_key(version));
        for gv in kelson_schema::resource::group_versions().iter().filter(|gv| is_served(gv.group, gv.version)) {
            let at = groups.iter().position(|(g, _)| g == gv.group).unwrap_or_else(|| {
                groups.push((gv.group.to_owned(), Vec::new()));
                groups.len() - 1
            });
            let versions = &mut groups[at].1;
            versions.insert(if gv.preferred { 0 } else { versions.len() }, gv.version.to_owned());
        }
        let builtin = groups.len();
        for (group, versions) in map.iter() {
            let known = groups[..builtin].iter_mut().find(|(g, _)| g == group);
            let mut names: Vec<String> = versions.keys().cloned().collect();
            names.sort_by(|a, b| order::compare_versions(a, b));
            match known {
                Some((_, have)) => {
                    names.retain(|v| !have.contains(v));
                    have.extend(names);
                }
                None => groups.push((group.clone(), names)),
            }
        }
        drop(map);
        groups[builtin..].sort();
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_meta::Gvk;
    use kelson_resources::{Options, Strategy};

    struct Plain(Options);
    impl Strategy for Plain {
        fn options(&self) -> &Options {
            &self.0
        }
    }

    fn served(group: &str, version: &str, plural: &str) -> Arc<Served> {
        let gvk = Gvk::new(group, version, "Kind");
        let options = Options::of_kind(group.to_owned(), plural.to_owned(), gvk.clone(), true);
        let strategy = Arc::new(Plain(options));
        Arc::new(Served::dynamic(Gvr::new(group, version, plural), gvk, strategy, ObjectSchema::Open))
    }

    #[test]
    fn groups_appear_and_disappear_with_their_kinds() {
        let catalog = Catalog::builtin();
        let before = catalog.groups();
        for (group, version, plural) in [
            ("z.example.com", "v1beta1", "as"),
            ("z.example.com", "v2", "as"),
            ("b.example.com", "v1", "cs"),
            ("b.example.com", "v1", "bs"),
        ] {
            catalog.insert(served(group, version, plural));
        }
        let groups = catalog.groups();
        assert_eq!(groups[..before.len()], before);
        let own = |name: &str, versions: &[&str]| {
            (name.to_owned(), versions.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(groups[before.len()..], [own("b.example.com", &["v1"]), own("z.example.com", &["v2", "v1beta1"])]);
        let (other, mine) =
            (catalog.generation_of("z.example.com", "v2"), catalog.generation_of("b.example.com", "v1"));
        catalog.remove(&Gvr::new("b.example.com", "v1", "bs"));
        assert_eq!(catalog.generation_of("z.example.com", "v2"), other);
        assert!(catalog.generation_of("b.example.com", "v1") > mine);
        catalog.remove(&Gvr::new("b.example.com", "v1", "cs"));
        assert!(catalog.of("b.example.com", "v1").is_none());
        assert_eq!(catalog.groups().len(), before.len() + 1);
    }
}
