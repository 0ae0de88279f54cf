//! Whether the server has started whole, whether it is going down, and what its parts say of themselves.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use tokio::sync::watch;

/// Asks a component of this process whether it works; the error is for the operator.
pub type ComponentCheck = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Readiness of the server.
pub struct Readiness {
    ready: watch::Sender<bool>,
    stopping: AtomicBool,
    components: RwLock<BTreeMap<&'static str, ComponentCheck>>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { ready: watch::Sender::new(false), stopping: AtomicBool::default(), components: RwLock::default() }
    }
}

impl Readiness {
    /// Everything that must be there at start is there.
    pub fn set_ready(&self) {
        self.ready.send_replace(true);
    }
    /// The server is going down: it is alive, but not ready any more.
    pub fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }
    /// Whether everything that must be there at start is there.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }
    /// Tells every change of readiness as a whole.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }
    /// Whether [`Readiness::set_stopping`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
    /// Has `check` speak for a component of this process from now on.
    pub fn register(&self, name: &'static str, check: ComponentCheck) {
        self.components.write().insert(name, check);
    }
    /// What a component says of itself.
    ///
    /// # Errors
    /// Its fault, or that no such component runs in this process.
    pub fn component(&self, name: &str) -> Result<(), String> {
        match self.components.read().get(name) {
            Some(check) => check(),
            None => Err("does not run in this process".to_owned()),
        }
    }
    /// The names of the registered components.
    pub fn components(&self) -> Vec<&'static str> {
        self.components.read().keys().copied().collect()
    }
}
