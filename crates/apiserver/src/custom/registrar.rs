//! The registrar: every commit of a definition goes through here, before (its status is completed) and after (its kinds are
//! in the catalog, or out of it). Writers of definitions take turns, so that no two get one name.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use kelson_meta::Gvr;
use kelson_store::{Record, Resource, Store};
use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard, watch};

use crate::catalog::{Behaviour, Catalog, Served};
use crate::custom::convert::{CallWebhook, Conversions};
use crate::custom::definition::Definition;
use crate::custom::kind;
use crate::custom::names::Taken;
use crate::custom::schema::Schemas;
use crate::custom::status;

/// Where definitions are kept.
pub const GROUP: &str = "apiextensions.k8s.io";
/// Their plural name.
pub const PLURAL: &str = "customresourcedefinitions";

/// A definition that is known, and what was made of it.
pub struct Known {
    /// What it says.
    pub definition: Definition,
    /// Its record's revision.
    pub revision: u64,
    /// The version that is stored as a resource, whether it is served or not: it is deleted by it.
    pub storage: Option<Arc<Served>>,
    served: Vec<Arc<Served>>,
    schemas: Arc<Schemas>,
}

impl Known {
    /// Whether another server may serve the very same: what asks a webhook asks it by its own server's services.
    fn is_the_same_everywhere(&self) -> bool {
        self.definition.spec.conversion.as_ref().is_none_or(|conversion| conversion.webhook.is_none())
    }
}

/// All definitions, and the door by which they change.
pub struct Definitions {
    catalog: Arc<Catalog>,
    store: Store,
    webhooks: Option<Arc<dyn CallWebhook>>,
    turn: Mutex<()>,
    known: RwLock<BTreeMap<String, Arc<Known>>>,
    changed: watch::Sender<u64>,
}

impl Definitions {
    /// Without any; see [`Definitions::load`].
    pub fn new(catalog: Arc<Catalog>, store: Store, webhooks: Option<Arc<dyn CallWebhook>>) -> Self {
        let (turn, known, changed) = (Mutex::default(), RwLock::default(), watch::Sender::new(0));
        Self { catalog, store, webhooks, turn, known, changed }
    }

    /// Registers what is stored: at start, before anybody is served. `model` is another server's, whose store was copied.
    pub fn load(&self, model: Option<&Self>) {
        if let Some(model) = model {
            return self.load_like(model);
        }
        let view = self.store.list(Resource::new(GROUP, PLURAL), None, None, None);
        view.iter().for_each(|record| self.committed(record));
    }

    /// As [`Definitions::load`], where the store began as a copy of another server's: what both hold alike is shared with it,
    /// schemas that are ready for use among it.
    fn load_like(&self, other: &Self) {
        let view = self.store.list(Resource::new(GROUP, PLURAL), None, None, None);
        for record in view.iter() {
            let known = other.get(&record.key().name).filter(|known| known.revision == record.revision());
            match known.filter(|known| known.is_the_same_everywhere()) {
                Some(known) => {
                    known.served.iter().for_each(|served| self.catalog.insert(Arc::clone(served)));
                    self.known.write().insert(record.key().name.to_string(), known);
                }
                None => self.committed(record),
            }
        }
        self.changed.send_modify(|n| *n += 1);
    }

    /// Waits for one's turn to write a definition, and completes its status. The turn ends when the guard is dropped,
    /// behind the commit.
    pub async fn prepare(&self, object: Option<&mut Value>, now: Timestamp) -> MutexGuard<'_, ()> {
        let turn = self.turn.lock().await;
        if let Some(object) = object {
            let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
            let (group, name) = (text(&object["spec"]["group"]), text(&object["metadata"]["name"]));
            status::complete(object, &self.taken(&group, &name), now);
        }
        turn
    }

    /// The names that the other definitions of a group have.
    fn taken(&self, group: &str, but: &str) -> Taken {
        let mut taken = Taken::default();
        let known = self.known.read();
        let others = known.values().filter(|k| k.definition.spec.group == group && k.definition.metadata.name != but);
        others.for_each(|k| taken.add(&k.definition.status.accepted_names));
        taken
    }

    /// Takes over a definition as it is stored now.
    pub fn committed(&self, record: &Arc<Record>) {
        if self.get(&record.key().name).is_some_and(|known| known.revision >= record.revision()) {
            // Another server wrote since, and that was heard of first.
            return;
        }
        match serde_json::from_slice::<Definition>(&record.bytes()) {
            Ok(definition) => self.register(definition, record),
            Err(error) => tracing::error!(key = %record.key(), %error, "a stored definition does not read; not served"),
        }
        self.changed.send_modify(|n| *n += 1);
    }

    fn register(&self, definition: Definition, record: &Arc<Record>) {
        let name = definition.metadata.name.clone();
        let before = self.known.read().get(&name).cloned();
        let same_spec = |k: &&Arc<Known>| {
            let (a, b) = (&k.definition, &definition);
            (&a.metadata.uid, a.metadata.generation, &a.status.accepted_names)
                == (&b.metadata.uid, b.metadata.generation, &b.status.accepted_names)
        };
        let schemas = match before.as_ref().filter(same_spec) {
            Some(known) => {
                known.schemas.moved_to(record);
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
        let known = Known { definition, revision: record.revision(), storage, served: places, schemas };
        self.known.write().insert(name, Arc::new(known));
    }

    /// A definition cannot take the place of a resource that is compiled in, nor add kinds to a group version that has such
    /// resources: upstream's server answers for all paths of that version before definitions are looked at.
    fn is_builtin(&self, gvr: &Gvr) -> bool {
        let of_version = || self.catalog.of(&gvr.group, &gvr.version).unwrap_or_default();
        kelson_schema::resource::resource(&gvr.group, &gvr.version, &gvr.resource).is_some()
            || of_version().iter().any(|served| matches!(served.strategy, Behaviour::Builtin(_)))
    }

    /// Forgets a definition that was deleted.
    pub fn deleted(&self, record: &Record) {
        let mut all = self.known.write();
        let gone = all.get(&*record.key().name).is_some_and(|known| known.revision < record.revision());
        if let Some(known) = gone.then(|| all.remove(&*record.key().name)).flatten() {
            drop(all);
            known.served.iter().for_each(|served| self.catalog.remove(&served.gvr));
        }
        self.changed.send_modify(|n| *n += 1);
    }

    /// Forgets a definition that is not there any more, whenever it went.
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
    pub fn get(&self, name: &str) -> Option<Arc<Known>> {
        self.known.read().get(name).cloned()
    }

    /// Deleted definitions that wait for their objects to go.
    pub fn leaving(&self) -> Vec<Arc<Known>> {
        self.known.read().values().filter(|k| k.definition.awaits_cleanup()).cloned().collect()
    }

    /// Definitions that were refused a name they want.
    pub fn refused(&self) -> Vec<Arc<Known>> {
        let wants = |k: &&Arc<Known>| k.definition.spec.names != k.definition.status.accepted_names;
        self.known.read().values().filter(wants).cloned().collect()
    }

    /// What the other definitions of its group leave to a definition would change its names.
    pub fn could_have_more(&self, known: &Known) -> bool {
        let definition = &known.definition;
        let taken = self.taken(&definition.spec.group, &definition.metadata.name);
        crate::custom::names::grant(definition, &taken).0 != definition.status.accepted_names
    }

    /// Changes with every write of a definition.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The group versions that definitions serve.
    pub fn group_versions(&self) -> BTreeSet<(String, String)> {
        let known = self.known.read();
        known.values().flat_map(|k| &k.served).map(|s| (s.gvr.group.clone(), s.gvr.version.clone())).collect()
    }
}
