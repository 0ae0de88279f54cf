//! One resource in one version, as it is served: its names, its behaviour, and cached values.
use std::ops::Deref;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use kelson_meta::{GroupResource, Gvk, Gvr, Status};
use kelson_patch::{FieldManager, FieldSet};
use kelson_resources::{Options, Strategy};
use kelson_store::{FieldNames, Record};
use parking_lot::RwLock;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::catalog::convert::Conversion;
use crate::catalog::lifecycle;
use crate::catalog::record::parse;
use crate::catalog::schema::ObjectSchema;

/// The behaviour of a kind, built-in or custom.
#[derive(Clone)]
pub enum Behaviour {
    /// A built-in kind.
    Builtin(&'static dyn Strategy),
    /// A custom resource.
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
    /// The kind in its requests and responses.
    pub gvk: Gvk,
    /// Whether discovery shows the kind's group and version.
    pub foreign: bool,
    /// Its verbs in discovery.
    pub verbs: Vec<String>,
}

/// One resource in one version, as it is served: names and verbs for discovery, the strategy with the kind's rules, the schemas of the
/// served and the stored version, and the conversion between them. Built-in resources are made from the schema's table, custom
/// resources from their definitions. An object passes through up to three versions: served (the client's), stored (on disk) and working,
/// in which it is defaulted, admitted and validated; see [`Served::works_as_served`].
pub struct Served {
    /// Group, version, plural.
    pub gvr: Gvr,
    /// Group, version, kind.
    pub gvk: Gvk,
    /// Group and plural in the request path, for messages.
    pub gr: GroupResource,
    /// Group and version as in `apiVersion`: `v1`, `apps/v1`.
    pub api_version: String,
    /// Kind of lists, such as `PodList`.
    pub list_kind: String,
    /// The singular name of the resource.
    pub singular: String,
    /// Short names, such as `po`.
    pub short_names: Vec<String>,
    /// Categories, such as `all`.
    pub categories: Vec<String>,
    /// Whether objects are namespaced.
    pub namespaced: bool,
    /// Verbs, in the order of discovery.
    pub verbs: Vec<String>,
    /// Hash in discovery; empty for resources that are not stored.
    pub storage_version_hash: String,
    /// Subresources by name.
    pub subresources: Vec<Sub>,
    /// The kind's rules and options.
    pub strategy: Behaviour,
    /// The key of its objects in the store.
    pub store: kelson_store::Resource,
    /// Schema of the served version.
    pub schema: ObjectSchema,
    /// Schema of lists in the served version.
    pub list_schema: ObjectSchema,
    /// Group, version and kind of the stored version.
    pub storage: Gvk,
    /// Schema of the stored version.
    pub storage_schema: ObjectSchema,
    /// Conversion from the stored to the served version.
    pub conversion: Conversion,
    /// Selectable fields in the store's records.
    pub field_names: FieldNames,
    /// Cached field managers.
    pub managers: Managers,
    /// Warning for each request, such as for a deprecated version.
    pub warning: Option<String>,
    /// The definition is being deleted: objects cannot be created, and discovery does not list write verbs.
    pub terminating: bool,
}

impl Served {
    /// Options of the kind.
    pub fn options(&self) -> &Options {
        self.strategy.options()
    }
    /// Whether the verb is served on the resource itself.
    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }
    /// Whether single objects have paths. Reviews and bindings do not; they can only be created.
    pub fn has_objects(&self) -> bool {
        ["get", "update", "patch", "delete"].into_iter().any(|verb| self.has_verb(verb))
    }
    /// The verbs in discovery.
    pub fn listed_verbs(&self) -> Vec<&str> {
        let offered = |verb: &&str| !(self.terminating && matches!(*verb, "create" | "patch" | "update"));
        self.verbs.iter().map(String::as_str).filter(offered).collect()
    }
    /// A subresource by name.
    pub fn sub(&self, name: &str) -> Option<&Sub> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// A custom resource, served with all verbs, and with `status` and `scale` if its options have them. The caller sets further
    /// properties of discovery (short names, categories).
    pub fn dynamic(gvr: Gvr, gvk: Gvk, strategy: Arc<dyn Strategy>, schema: ObjectSchema) -> Self {
        // Upstream's order of the verbs of custom resources.
        const VERBS: [&str; 8] = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
        const VIEW_VERBS: [&str; 3] = ["get", "patch", "update"];
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let o = strategy.options();
        let mut subresources = Vec::new();
        if o.has_status() {
            subresources.push(Sub { name: "status".into(), gvk: gvk.clone(), foreign: false, verbs: own(&VIEW_VERBS) });
        }
        if o.scale.is_some() {
            let scale = Gvk::new("autoscaling", "v1", "Scale");
            subresources.push(Sub { name: "scale".into(), gvk: scale, foreign: true, verbs: own(&VIEW_VERBS) });
        }
        let storage = o.storage.clone();
        let named = format!("{}/{}/{}", storage.group, storage.version, storage.kind);
        let digest = Sha256::digest(named);
        Self {
            gr: GroupResource::new(&gvr.group, &gvr.resource),
            api_version: gvk.api_version(),
            list_kind: format!("{}List", gvk.kind),
            singular: gvk.kind.to_lowercase(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: o.namespaced,
            verbs: own(&VERBS),
            storage_version_hash: STANDARD.encode(&digest[..8]),
            subresources,
            store: kelson_store::Resource::new(&gvr.group, &gvr.resource),
            list_schema: ObjectSchema::Open,
            storage_schema: schema.clone(),
            schema,
            conversion: Conversion::Same,
            field_names: FieldNames::new(o.fields.iter().map(|f| &**f)),
            managers: Default::default(),
            warning: None,
            terminating: false,
            strategy: Behaviour::Dynamic(strategy),
            storage,
            gvk,
            gvr,
        }
    }

    pub(super) fn builtin(r: &'static kelson_schema::Resource) -> Option<Self> {
        let strategy = kelson_resources::strategy(r.group, r.plural)?;
        let o = strategy.options();
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
        // A resource in two groups is stored once, with the selectable fields of both, under the names of the stored version.
        let kept = kelson_resources::strategy(&storage.group, r.plural).map_or(o, |s| s.options());
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
            schema: ObjectSchema::builtin(r.group, r.version, r.kind),
            list_schema: ObjectSchema::builtin(r.group, r.version, &list_kind),
            storage_schema: ObjectSchema::builtin(&storage.group, &storage.version, &storage.kind),
            conversion: if storage == gvk { Conversion::Same } else { Conversion::Builtin },
            field_names: FieldNames::new(kept.fields.iter().map(|f| &**f)),
            managers: Default::default(),
            warning: lifecycle::warning(r.group, r.version, r.kind),
            terminating: false,
            strategy: Behaviour::Builtin(strategy),
            list_kind,
            storage,
            gvk,
        })
    }
}

/// The field managers of a kind by subresource, created when they are first needed.
#[derive(Default)]
pub struct Managers(RwLock<Vec<(String, Arc<FieldManager>)>>);

impl Served {
    /// The field manager for writes of the object itself (empty `subresource`) or of a subresource.
    pub fn field_manager(&self, subresource: &str) -> Arc<FieldManager> {
        let managers = &self.managers.0;
        if let Some((_, found)) = managers.read().iter().find(|(s, _)| s == subresource) {
            return Arc::clone(found);
        }
        let gvk = &self.gvk;
        let shape = self.schema.shape();
        let reset = self.strategy.reset_fields(subresource);
        let reset: Vec<Vec<&str>> = reset.iter().map(|path| path.iter().map(|k| &**k).collect()).collect();
        let ignored = FieldSet::of(&reset.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let made = Arc::new(FieldManager::new(shape, &self.api_version, &gvk.kind, subresource, ignored));
        managers.write().push((subresource.to_owned(), Arc::clone(&made)));
        made
    }
}

impl Served {
    /// Whether the served version may differ from the stored one.
    pub fn converts(&self) -> bool {
        !matches!(self.conversion, Conversion::Same)
    }
    /// Whether a record's bytes are the object in the served version.
    pub fn is_plain(&self, record: &Record) -> bool {
        self.conversion.is_plain(&self.gvk, record)
    }
    /// Whether a record's metadata is that of the served version.
    pub fn has_metadata_of(&self, record: &Record) -> bool {
        match &self.conversion {
            Conversion::By(converter) => converter.is_in(&self.gvk, record),
            Conversion::Same | Conversion::Builtin => true,
        }
    }
    /// The mark of the record of a stored object.
    pub fn mark(&self, stored: &Value) -> u32 {
        match &self.conversion {
            Conversion::By(converter) => converter.mark(stored),
            Conversion::Same | Conversion::Builtin => 0,
        }
    }
    /// The JSON of records in the served version, cached in the records; `None` for built-in kinds.
    ///
    /// # Errors
    /// The converter's error.
    pub async fn forms(&self, records: &[Arc<Record>]) -> Result<Option<Vec<Bytes>>, Status> {
        let Conversion::By(converter) = &self.conversion else { return Ok(None) };
        let others: Vec<Arc<Record>> = records.iter().filter(|record| !self.is_plain(record)).cloned().collect();
        let mut made =
            if others.is_empty() { Vec::new() } else { converter.forms(&self.gvk, &others).await? }.into_iter();
        let form = |record: &Arc<Record>| if self.is_plain(record) { Some(record.bytes()) } else { made.next() };
        let forms: Option<Vec<Bytes>> = records.iter().map(form).collect();
        forms.map(Some).ok_or_else(|| Status::internal(format!("the conversion for {} gave too few objects", self.gvk)))
    }
    /// Records in the working version: the stored version of built-in kinds, the served version of others.
    ///
    /// # Errors
    /// See [`Served::to_served`].
    pub async fn working(&self, records: &[Arc<Record>]) -> Result<Vec<Value>, Status> {
        match self.forms(records).await? {
            Some(forms) => {
                let read = |form: &Bytes| kelson_meta::from_json(form).map_err(Status::internal);
                forms.iter().map(read).collect()
            }
            None => Ok(records.iter().map(|record| parse(record)).collect()),
        }
    }
    /// One record in the working version.
    ///
    /// # Errors
    /// See [`Served::to_served`].
    pub async fn one_working(&self, record: &Arc<Record>) -> Result<Value, Status> {
        if self.is_plain(record) {
            return Ok(parse(record));
        }
        Ok(self.working(std::slice::from_ref(record)).await?.pop().unwrap_or_default())
    }
    /// Converts stored objects to the served version.
    ///
    /// # Errors
    /// 500 for built-in kinds, because it is the server's fault; the converter's error for others.
    pub async fn to_served(&self, objects: Vec<Value>) -> Result<Vec<Value>, Status> {
        self.conversion.forth(&self.storage, &self.gvk, objects).await
    }
    /// Converts one stored object to the served version.
    ///
    /// # Errors
    /// See [`Served::to_served`].
    pub async fn one_to_served(&self, object: Value) -> Result<Value, Status> {
        if !self.converts() {
            return Ok(object);
        }
        Ok(self.to_served(vec![object]).await?.pop().unwrap_or_default())
    }
}

/// The working version of an object is the one from its decoding to its commit, in which it is defaulted, admitted and validated.
/// Built-in kinds have one set of rules, for the stored version. Each version of a custom resource has its own schema, so the working
/// version is that of the request, and the object is converted last (as in upstream's handlers).
impl Served {
    /// Whether the working version is the served one.
    pub fn works_as_served(&self) -> bool {
        matches!(self.strategy, Behaviour::Dynamic(_)) || !self.converts()
    }
    /// The name of the working version.
    pub fn working_version(&self) -> &str {
        if self.works_as_served() { &self.gvk.version } else { &self.storage.version }
    }
    /// Converts an object from the served to the working version.
    ///
    /// # Errors
    /// 400 if it has no stored version.
    pub async fn served_to_working(&self, object: Value) -> Result<Value, Status> {
        if self.works_as_served() {
            return Ok(object);
        }
        self.conversion.back(&self.gvk, &self.storage, object).await
    }
    /// Converts an object from the working to the served version.
    ///
    /// # Errors
    /// See [`Served::to_served`].
    pub async fn working_to_served(&self, object: Value) -> Result<Value, Status> {
        if self.works_as_served() { Ok(object) } else { self.one_to_served(object).await }
    }
    /// Converts an object from the stored to the working version.
    ///
    /// # Errors
    /// See [`Served::to_served`].
    pub async fn stored_to_working(&self, object: Value) -> Result<Value, Status> {
        if self.works_as_served() { self.one_to_served(object).await } else { Ok(object) }
    }
    /// Converts an object from the working to the stored version.
    ///
    /// # Errors
    /// The converter's error.
    pub async fn working_to_stored(&self, object: Value) -> Result<Value, Status> {
        match &self.conversion {
            Conversion::By(converter) => converter.stored(object).await,
            Conversion::Same | Conversion::Builtin => Ok(object),
        }
    }
}
