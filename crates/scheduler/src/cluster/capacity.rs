//! Free capacity of storage drivers for volumes they provision, where drivers publish it (KEP-1472; upstream
//! `volumebinding/binder.go`).
use std::collections::{BTreeMap, HashMap, HashSet};

use kelson_meta::{LabelSelector, ObjectKey};
use kelson_volumes::{ClaimView, StorageClassView};

use crate::view::{CsiDriver, StorageCapacity};

/// The published capacity of all drivers, by storage class.
#[derive(Debug, Default)]
pub struct Capacities {
    /// Drivers with `storageCapacity: true`. The capacity of any other driver is not checked.
    drivers: HashSet<Box<str>>,
    rooms: HashMap<ObjectKey, ClassCapacity>,
}

/// The capacity published for one storage class.
#[derive(Debug)]
struct ClassCapacity {
    class: String,
    nodes: LabelSelector,
    /// The largest volume that fits, in bytes.
    bytes: i64,
}

impl Capacities {
    /// Stores a driver, or removes it when `driver` is `None`.
    pub fn put_driver(&mut self, name: &str, driver: Option<&CsiDriver>) {
        if driver.is_some_and(|d| d.spec.storage_capacity == Some(true)) {
            self.drivers.insert(name.into());
        } else {
            self.drivers.remove(name);
        }
    }

    /// Stores a CSIStorageCapacity, or removes it when `said` is `None`. One without a size, or that no node reaches,
    /// counts as none.
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

    /// Reports whether a volume can be provisioned for a claim on a node with these labels. Unknown capacity counts as
    /// enough.
    pub fn suffice(&self, class: &StorageClassView, claim: &ClaimView, labels: &BTreeMap<String, String>) -> bool {
        let Some(wanted) = claim.spec.resources.requests.storage else { return true };
        !self.drivers.contains(class.provisioner.as_str())
            || self.rooms.values().any(|room| {
                room.class == class.metadata.name && room.bytes >= wanted.value() && room.nodes.matches(labels)
            })
    }
}
