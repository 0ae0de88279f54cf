//! One resource in one version, as it is served: its names, its behaviour, and what is made of them once.
use std::ops::Deref;
use std::sync::Arc;

use kelson_meta::{GroupResource, Gvk, Gvr};
use kelson_patch::{FieldManager, FieldSet};
use kelson_resources::{Options, Strategy};
use kelson_schema::shape::Shape;
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
    pub managers: Managers,
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

    pub(super) fn builtin(r: &'static kelson_schema::Resource) -> Option<Self> {
        let strategy = kelson_resources::strategy(r.group, r.plural)?;
        let o = strategy.options();
        let schema = Schema::builtin();
        let gvk = Gvk::new(r.group, r.version, r.kind);
        let storage = o.storage.clone();
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
            store: kelson_store::Resource::new(&o.storage.group, r.plural),
            ty: schema.by_gvk(r.group, r.version, r.kind),
            list_ty: schema.by_gvk(r.group, r.version, &list_kind),
            storage_ty: schema.by_gvk(&storage.group, &storage.version, &storage.kind),
            converts: storage != gvk,
            field_names: FieldNames::new(o.fields.iter().map(|f| &**f)),
            managers: Default::default(),
            strategy: Behaviour::Builtin(strategy),
            list_kind,
            storage,
            gvk,
        })
    }
}

/// A kind's field managers, by subresource; made when first needed.
#[derive(Default)]
pub struct Managers(RwLock<Vec<(String, Arc<FieldManager>)>>);

impl Served {
    /// Keeps `managedFields` for writes through the object itself (empty `subresource`) or one of its subresources.
    pub fn field_manager(&self, subresource: &str) -> Arc<FieldManager> {
        let managers = &self.managers.0;
        if let Some((_, found)) = managers.read().iter().find(|(s, _)| s == subresource) {
            return Arc::clone(found);
        }
        let gvk = &self.gvk;
        let shape = Shape::of_kind(&gvk.group, &gvk.version, &gvk.kind);
        let ignored = self.ignored_fields(subresource);
        let made = Arc::new(FieldManager::new(shape, &self.api_version, &gvk.kind, subresource, ignored));
        managers.write().push((subresource.to_owned(), Arc::clone(&made)));
        made
    }

    /// What a write through this subresource cannot set.
    fn ignored_fields(&self, subresource: &str) -> FieldSet {
        match subresource {
            "" if self.options().has_status() => FieldSet::of(&[&["status"]]),
            "status" if self.is("apps", "deployments") => FieldSet::of(&[&["spec"], &["metadata", "labels"]]),
            "status" => FieldSet::of(&[&["spec"]]),
            _ => FieldSet::default(),
        }
    }
}
