//! Which drivers are on this node, by name.
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::client::PluginClient;

/// A driver that has registered.
#[derive(Clone)]
pub struct Driver {
    /// The way to it.
    pub client: PluginClient,
    /// The socket by which it registered: when that goes, the driver does.
    pub socket: PathBuf,
    /// Which socket of this path it was: a driver that starts again makes a new one.
    pub made: Made,
}

/// Tells a socket from another of the same path: inode, and seconds and nanoseconds of its making.
pub type Made = (u64, i64, i64);

/// The drivers; cheap to clone. As many as there are sockets.
#[derive(Clone, Default)]
pub struct Drivers {
    all: Arc<Mutex<HashMap<String, Driver>>>,
}

impl Drivers {
    /// The way to a driver, as long as its socket is there.
    ///
    /// # Errors
    /// The text for pods' events when there is none of this name.
    pub fn get(&self, name: &str) -> Result<Driver, String> {
        let found = self.all.lock().get(name).cloned();
        found.ok_or_else(|| format!("driver name {name} not found in the list of registered CSI drivers"))
    }

    /// A driver has registered, perhaps again.
    pub fn put(&self, name: &str, driver: Driver) {
        self.all.lock().insert(name.to_owned(), driver);
    }

    /// The drivers that registered by sockets which `stays` says are no more; they are forgotten.
    pub fn forget(&self, stays: impl Fn(&std::path::Path) -> bool) -> Vec<String> {
        let mut all = self.all.lock();
        let gone: Vec<String> = all.iter().filter(|(_, d)| !stays(&d.socket)).map(|(n, _)| n.clone()).collect();
        gone.iter().for_each(|n| drop(all.remove(n)));
        gone
    }

    /// Whether the driver that registered by this very socket is known.
    pub fn has_socket(&self, socket: &std::path::Path, made: Made) -> bool {
        self.all.lock().values().any(|d| d.socket == socket && d.made == made)
    }
}
