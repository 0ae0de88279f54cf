//! The registrar of definitions: before each commit it completes the status, after it it updates the catalog. Writes of definitions are
//! serialized, so that two never get the same name.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use jiff::Timestamp;
use kelson_meta::{Gvr, format_seconds};
use kelson_patch::{FieldManager, FieldSet};
use kelson_store::{Record, Resource, Store};
use parking_lot::RwLock;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, watch};

use crate::catalog::{Behaviour, Catalog, Served};
use crate::custom::convert::{CallWebhook, Conversions};
use crate::custom::definition::Definition;
use crate::custom::kind;
use crate::custom::names::TakenNames;
use crate::custom::schema::Schemas;
use crate::custom::status;

/// Group of definitions.
pub const GROUP: &str = "apiextensions.k8s.io";
/// Plural name of definitions.
pub const PLURAL: &str = "customresourcedefinitions";

/// Tracks the fields that the server writes in a definition's status.
static STATUS: LazyLock<FieldManager> = LazyLock::new(|| {
    let ignored = FieldSet::of(&[&["metadata"], &["spec"]]);
    FieldManager::builtin(GROUP, "v1", "CustomResourceDefinition", "status", ignored)
});

/// Records the server as manager of the status, as upstream's controllers do in their own requests.
fn record_status_manager(object: &mut Value, before: Value, now: Timestamp) {
    let view = |status: Value, metadata: &Value| {
        let metadata = json!({"uid": metadata["uid"], "managedFields": metadata["managedFields"]});
        json!({"metadata": metadata, "status": status})
    };
    let before = view(before, &object["metadata"]);
    let mut after = view(object["status"].clone(), &object["metadata"]);
    STATUS.update(Some(&before), &mut after, "kube-apiserver", &format_seconds(now));
    if let (Some(metadata), Some(entries)) =
        (object.get_mut("metadata").and_then(Value::as_object_mut), after["metadata"].get_mut("managedFields"))
    {
        metadata.insert("managedFields".to_owned(), entries.take());
    }
}

/// A registered definition and what was made from it.
pub struct RegisteredDefinition {
    /// The decoded definition.
    pub definition: Definition,
    /// Revision of its record.
    pub revision: u64,
    /// The storage version as a resource, whether it is served or not; objects are deleted through it.
    pub storage: Option<Arc<Served>>,
    served: Vec<Arc<Served>>,
    schemas: Arc<Schemas>,
}

impl RegisteredDefinition {
    /// Whether servers can share it. A conversion webhook is resolved by the server's own services, so it cannot be shared.
    fn is_shareable(&self) -> bool {
        self.definition.spec.conversion.as_ref().is_none_or(|conversion| conversion.webhook.is_none())
    }
}

/// All definitions. Writes go through [`Definitions::prepare`] and then [`Definitions::committed`] or [`Definitions::deleted`], which
/// keep the catalog in step; a background task calls the same functions for changes by other servers. Schemas are compiled when they are
/// first used and shared between revisions with the same spec.
pub struct Definitions {
    catalog: Arc<Catalog>,
    store: Store,
    webhooks: Option<Arc<dyn CallWebhook>>,
    turn: Mutex<()>,
    known: RwLock<BTreeMap<String, Arc<RegisteredDefinition>>>,
    changed: watch::Sender<u64>,
}

impl Definitions {
    /// Starts empty; see [`Definitions::load`].
    pub fn new(catalog: Arc<Catalog>, store: Store, webhooks: Option<Arc<dyn CallWebhook>>) -> Self {
        let (turn, known, changed) = (Mutex::default(), RwLock::default(), watch::Sender::new(0));
        Self { catalog, store, webhooks, turn, known, changed }
    }

    /// Registers the stored definitions at start. `model` belongs to another server whose store was forked for this one.
    pub fn load(&self, model: Option<&Self>) {
        if let Some(model) = model {
            return self.load_like(model);
        }
        let view = self.store.list(Resource::new(GROUP, PLURAL), None, None, None);
        view.iter().for_each(|record| self.committed(record));
    }

    /// As [`Definitions::load`] for a forked store: definitions that are the same in both are shared, with their compiled schemas.
    fn load_like(&self, other: &Self) {
        let view = self.store.list(Resource::new(GROUP, PLURAL), None, None, None);
        for record in view.iter() {
            let known = other.get(&record.key().name).filter(|known| known.revision == record.revision());
            match known.filter(|known| known.is_shareable()) {
                Some(known) => {
                    known.served.iter().for_each(|served| self.catalog.insert(Arc::clone(served)));
                    self.known.write().insert(record.key().name.to_string(), known);
                }
                None => self.committed(record),
            }
        }
        self.changed.send_modify(|n| *n += 1);
    }

    /// Waits until no other definition is being written, and completes the status. The guard must be held until after the commit.
    pub async fn prepare(&self, object: Option<&mut Value>, now: Timestamp) -> MutexGuard<'_, ()> {
        let turn = self.turn.lock().await;
        if let Some(object) = object {
            let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
            let (group, name) = (text(&object["spec"]["group"]), text(&object["metadata"]["name"]));
            let before = object.get("status").cloned().unwrap_or_default();
            status::complete(object, &self.taken(&group, &name), now);
            if before != object["status"] {
                record_status_manager(object, before, now);
            }
        }
        turn
    }

    /// The names of the other definitions in a group.
    fn taken(&self, group: &str, but: &str) -> TakenNames {
        let mut taken = TakenNames::default();
        let known = self.known.read();
        let others = known.values().filter(|k| k.definition.spec.group == group && k.definition.metadata.name != but);
        others.for_each(|k| taken.add(&k.definition.status.accepted_names));
        taken
    }

    /// Registers a stored definition.
    pub fn committed(&self, record: &Arc<Record>) {
        if self.get(&record.key().name).is_some_and(|known| known.revision >= record.revision()) {
            // A newer revision, from another server, is registered already.
            return;
        }
        match kelson_meta::from_json::<Definition>(&record.bytes()) {
            Ok(definition) => self.register(definition, record),
            Err(error) => {
                tracing::error!(key = %record.key(), %error, "cannot decode a stored definition; not serving it")
            }
        }
        self.changed.send_modify(|n| *n += 1);
    }

    fn register(&self, definition: Definition, record: &Arc<Record>) {
        let name = definition.metadata.name.clone();
        let before = self.known.read().get(&name).cloned();
        let same_spec = |k: &&Arc<RegisteredDefinition>| {
            let (a, b) = (&k.definition, &definition);
            (&a.metadata.uid, a.metadata.generation, &a.status.accepted_names)
                == (&b.metadata.uid, b.metadata.generation, &b.status.accepted_names)
        };
        let schemas = match before.as_ref().filter(same_spec) {
            Some(known) => {
                known.schemas.set_record(record);
                Arc::clone(&known.schemas)
            }
            None => Arc::new(Schemas::new(&definition, record)),
        };
        let conversions = Arc::new(Conversions::new(&definition, &schemas, self.webhooks.clone()));
        let make = |version| kind::served(&definition, version, &schemas, &conversions);
        let served = if definition.is_served() { definition.spec.versions.iter().collect() } else { Vec::new() };
        let mut places = Vec::new();
        for version in served.into_iter().filter(|v| v.served) {
            let made = make(version);
            if self.is_builtin(&made.gvr) {
                continue;
            }
            let made = Arc::new(made);
            self.catalog.insert(Arc::clone(&made));
            places.push(made);
        }
        let stays = |gone: &Served| places.iter().any(|served| served.gvr == gone.gvr);
        let gone = before.iter().flat_map(|k| &k.served).filter(|served| !stays(served));
        gone.for_each(|served| self.catalog.remove(&served.gvr));
        let storage = definition.storage().filter(|_| definition.is_served()).map(|v| Arc::new(make(v)));
        let known = RegisteredDefinition { definition, revision: record.revision(), storage, served: places, schemas };
        self.known.write().insert(name, Arc::new(known));
    }

    /// Whether a definition conflicts with built-in resources. It can neither replace one nor add kinds to a group version that has
    /// some, because upstream's built-in routes come before definitions.
    fn is_builtin(&self, gvr: &Gvr) -> bool {
        let of_version = || self.catalog.of(&gvr.group, &gvr.version).unwrap_or_default();
        kelson_schema::resource::resource(&gvr.group, &gvr.version, &gvr.resource).is_some()
            || of_version().iter().any(|served| matches!(served.strategy, Behaviour::Builtin(_)))
    }

    /// Removes a deleted definition.
    pub fn deleted(&self, record: &Record) {
        let mut all = self.known.write();
        let gone = all.get(&*record.key().name).is_some_and(|known| known.revision < record.revision());
        if let Some(known) = gone.then(|| all.remove(&*record.key().name)).flatten() {
            drop(all);
            known.served.iter().for_each(|served| self.catalog.remove(&served.gvr));
        }
        self.changed.send_modify(|n| *n += 1);
    }

    /// Removes a definition that does not exist any more, at any revision.
    pub fn forget(&self, name: &str) {
        let Some(known) = self.known.write().remove(name) else { return };
        known.served.iter().for_each(|served| self.catalog.remove(&served.gvr));
        self.changed.send_modify(|n| *n += 1);
    }

    /// The names of all definitions.
    pub fn names(&self) -> Vec<String> {
        self.known.read().keys().cloned().collect()
    }

    /// A definition by name.
    pub fn get(&self, name: &str) -> Option<Arc<RegisteredDefinition>> {
        self.known.read().get(name).cloned()
    }

    /// Deleted definitions whose objects must still be deleted.
    pub fn deleting(&self) -> Vec<Arc<RegisteredDefinition>> {
        self.known.read().values().filter(|k| k.definition.awaits_cleanup()).cloned().collect()
    }

    /// Definitions with a name that was not accepted.
    pub fn with_rejected_names(&self) -> Vec<Arc<RegisteredDefinition>> {
        let wants = |k: &&Arc<RegisteredDefinition>| k.definition.spec.names != k.definition.status.accepted_names;
        self.known.read().values().filter(wants).cloned().collect()
    }

    /// Whether the definition would get other names now.
    pub fn would_get_other_names(&self, known: &RegisteredDefinition) -> bool {
        let definition = &known.definition;
        let taken = self.taken(&definition.spec.group, &definition.metadata.name);
        crate::custom::names::grant(definition, &taken).0 != definition.status.accepted_names
    }

    /// A receiver of a number that changes with every write of a definition.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The group versions of all definitions.
    pub fn group_versions(&self) -> BTreeSet<(String, String)> {
        let known = self.known.read();
        known.values().flat_map(|k| &k.served).map(|s| (s.gvr.group.clone(), s.gvr.version.clone())).collect()
    }
}
