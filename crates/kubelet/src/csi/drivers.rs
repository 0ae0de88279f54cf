//! The CSI drivers that are registered on this node, by name.
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::client::PluginClient;

/// A registered driver.
#[derive(Clone)]
pub struct Driver {
    /// Client of the driver's endpoint.
    pub client: PluginClient,
    /// Path of the registration socket. The driver is unregistered when it is removed.
    pub socket: PathBuf,
    /// Identity of the registration socket. A driver that restarts creates a new socket of the same path.
    pub made: SocketIdentity,
}

/// Identity of a socket, which differs from that of a later socket of the same path: inode, and seconds and nanoseconds of the inode's last
/// status change.
pub type SocketIdentity = (u64, i64, i64);

/// Registered drivers. Clones share the map, whose size is bounded by the number of sockets.
#[derive(Clone, Default)]
pub struct Drivers {
    all: Arc<Mutex<HashMap<String, Driver>>>,
}

impl Drivers {
    /// Returns a registered driver.
    ///
    /// # Errors
    /// The message for the pod's event if no driver of this name is registered.
    pub fn get(&self, name: &str) -> Result<Driver, String> {
        let found = self.all.lock().get(name).cloned();
        found.ok_or_else(|| format!("driver name {name} not found in the list of registered CSI drivers"))
    }

    /// Adds or replaces a registered driver.
    pub fn put(&self, name: &str, driver: Driver) {
        self.all.lock().insert(name.to_owned(), driver);
    }

    /// Removes the drivers whose registration sockets are gone (`stays` returns false). Returns their names.
    pub fn forget(&self, stays: impl Fn(&std::path::Path) -> bool) -> Vec<String> {
        let mut all = self.all.lock();
        let gone: Vec<String> = all.iter().filter(|(_, d)| !stays(&d.socket)).map(|(n, _)| n.clone()).collect();
        gone.iter().for_each(|n| drop(all.remove(n)));
        gone
    }

    /// Returns whether a driver is registered through exactly this socket.
    pub fn has_socket(&self, socket: &std::path::Path, made: SocketIdentity) -> bool {
        self.all.lock().values().any(|d| d.socket == socket && d.made == made)
    }
}
