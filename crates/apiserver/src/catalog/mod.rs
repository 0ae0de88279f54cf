//! Catalog: which resources are served under which paths, and how each behaves. Built-in ones come from the schema's
//! table; further ones (custom resources) are put in and taken out at run time through the same door.
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use kelson_meta::{GroupResource, Gvk, Gvr};
use kelson_resources::{Options, Strategy};
use kelson_schema::{Schema, TypeId};
use kelson_store::FieldNames;
use parking_lot::RwLock;

/// A kind's behaviour: a built-in one, or one made at run time.
#[derive(Clone)]
pub enum Behaviour {
    /// Compiled in.
    Builtin(&'static dyn Strategy),
    /// Made at run time.
    Dynamic(Arc<dyn Strategy>),
}

impl Deref for Behaviour {
    type Target = dyn Strategy;
    fn deref(&self) -> &Self::Target {
        match self {
            Self::Builtin(s) => *s,
            Self::Dynamic(s) => s.as_ref(),
        }
    }
}

/// A served subresource.
#[derive(Debug, Clone)]
pub struct Sub {
    /// Name, such as `status`.
    pub name: String,
    /// Kind it takes and gives.
    pub gvk: Gvk,
    /// Whether discovery names the kind's group and version.
    pub foreign: bool,
    /// Verbs.
    pub verbs: Vec<String>,
}

/// One resource in one version, as it is served.
pub struct Served {
    /// Group, version, plural.
    pub gvr: Gvr,
    /// Group, version, kind.
    pub gvk: Gvk,
    /// Group and plural of the request path, for messages.
    pub gr: GroupResource,
    /// `v1`, `apps/v1`.
    pub api_version: String,
    /// `PodList`.
    pub list_kind: String,
    /// Singular name.
    pub singular: String,
    /// Short names.
    pub short_names: Vec<String>,
    /// Categories.
    pub categories: Vec<String>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Verbs, sorted.
    pub verbs: Vec<String>,
    /// Hash that discovery publishes; empty for what is not stored.
    pub storage_version_hash: String,
    /// Subresources by name.
    pub subresources: Vec<Sub>,
    /// Behaviour.
    pub strategy: Behaviour,
    /// Where the store keeps it.
    pub store: kelson_store::Resource,
    /// The served form's type; `None` for custom resources.
    pub ty: Option<TypeId>,
    /// The list's type.
    pub list_ty: Option<TypeId>,
    /// The stored form.
    pub storage: Gvk,
    /// The stored form's type.
    pub storage_ty: Option<TypeId>,
    /// Whether the served form differs from the stored one.
    pub converts: bool,
    /// Selectable fields, as the store keeps them.
    pub field_names: FieldNames,
    /// Field managers made so far.
    pub managers: crate::write::fields::Managers,
}

impl Served {
    /// Facts of the kind.
    pub fn options(&self) -> &Options {
        self.strategy.options()
    }
    /// Whether the verb is served on the resource itself.
    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }
    /// A subresource by name.
    pub fn sub(&self, name: &str) -> Option<&Sub> {
        self.subresources.iter().find(|s| s.name == name)
    }
    /// Whether this is `group`'s `plural`.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.gr.resource == plural && self.gr.group == group
    }

    fn builtin(r: &'static kelson_schema::Resource) -> Option<Self> {
        let strategy = kelson_resources::strategy(r.group, r.plural)?;
        let o = strategy.options();
        let schema = Schema::builtin();
        let gvk = Gvk::new(r.group, r.version, r.kind);
        let storage = o.storage_gvk();
        let sub = |s: &'static kelson_schema::resource::Subresource| Sub {
            name: s.name.to_owned(),
            gvk: if s.version.is_empty() {
                Gvk::new(r.group, r.version, s.kind)
            } else {
                Gvk::new(s.group, s.version, s.kind)
            },
            foreign: !s.version.is_empty(),
            verbs: s.verbs.iter().map(|v| (*v).to_owned()).collect(),
        };
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let list_kind = format!("{}List", r.kind);
        Some(Self {
            gvr: Gvr::new(r.group, r.version, r.plural),
            gr: GroupResource::new(r.group, r.plural),
            api_version: r.api_version(),
            singular: r.singular.to_owned(),
            short_names: own(r.short_names),
            categories: own(r.categories),
            namespaced: r.namespaced,
            verbs: own(r.verbs),
            storage_version_hash: r.storage_version_hash.to_owned(),
            subresources: r.subresources.iter().map(sub).collect(),
            store: kelson_store::Resource::new(o.storage.0, r.plural),
            ty: schema.by_gvk(r.group, r.version, r.kind),
            list_ty: schema.by_gvk(r.group, r.version, &list_kind),
            storage_ty: schema.by_gvk(&storage.group, &storage.version, &storage.kind),
            converts: storage != gvk,
            field_names: FieldNames::new(o.fields.iter().copied()),
            managers: Default::default(),
            strategy: Behaviour::Builtin(strategy),
            list_kind,
            storage,
            gvk,
        })
    }
}

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
