//! How much room drivers have for volumes that they make, where they say so (KEP-1472; upstream `volumebinding/binder.go`).
use std::collections::{BTreeMap, HashMap, HashSet};

use kelson_meta::{LabelSelector, ObjectKey};
use kelson_volumes::{ClaimView, StorageClassView};

use crate::view::{CsiDriver, StorageCapacity};

/// What all drivers say.
#[derive(Debug, Default)]
pub struct Capacities {
    /// Drivers whose word counts: of others nobody asks how much room there is.
    drivers: HashSet<Box<str>>,
    rooms: HashMap<ObjectKey, ClassCapacity>,
}

/// Room for volumes of a class.
#[derive(Debug)]
struct ClassCapacity {
    class: String,
    nodes: LabelSelector,
    /// The largest volume that fits, in bytes.
    bytes: i64,
}

impl Capacities {
    /// Learns or forgets a driver.
    pub fn put_driver(&mut self, name: &str, driver: Option<&CsiDriver>) {
        if driver.is_some_and(|d| d.spec.storage_capacity == Some(true)) {
            self.drivers.insert(name.into());
        } else {
            self.drivers.remove(name);
        }
    }

    /// Learns or forgets what a driver says. Room without a size, or that no node reaches, is none.
    pub fn put_room(&mut self, key: ObjectKey, said: Option<&StorageCapacity>) {
        let room = said.and_then(|said| {
            let bytes = said.limit()?.value();
            let nodes = said.node_topology.as_ref()?.selector().ok()?;
            Some(ClassCapacity { class: said.storage_class_name.clone(), nodes, bytes })
        });
        match room {
            Some(room) => self.rooms.insert(key, room),
            None => self.rooms.remove(&key),
        };
    }

    /// Whether a volume can be made for a claim where a node with these labels reaches it, as far as anybody says.
    pub fn suffice(&self, class: &StorageClassView, claim: &ClaimView, labels: &BTreeMap<String, String>) -> bool {
        let Some(wanted) = claim.spec.resources.requests.storage else { return true };
        !self.drivers.contains(class.provisioner.as_str())
            || self.rooms.values().any(|room| {
                room.class == class.metadata.name && room.bytes >= wanted.value() && room.nodes.matches(labels)
            })
    }
}
