//! Readiness of the server, whether it is shutting down, and the health of components in this process.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use tokio::sync::watch;

use crate::shared::start_steps::StartSteps;

/// Checks a component of this process. The error is the reason why it is unhealthy.
pub type ComponentCheck = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Readiness of the server and its components.
pub struct Readiness {
    /// The steps of the start.
    pub steps: StartSteps,
    ready: watch::Sender<bool>,
    stopping: AtomicBool,
    components: RwLock<BTreeMap<&'static str, ComponentCheck>>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self {
            steps: StartSteps::default(),
            ready: watch::Sender::new(false),
            stopping: AtomicBool::default(),
            components: RwLock::default(),
        }
    }
}

impl Readiness {
    /// Marks the server as ready, when everything needed at start exists.
    pub fn set_ready(&self) {
        self.ready.send_replace(true);
    }
    /// Marks the server as shutting down: it is alive, but no longer ready.
    pub fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }
    /// Whether [`Readiness::set_ready`] was called.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }
    /// A receiver of changes of readiness.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }
    /// Whether [`Readiness::set_stopping`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
    /// Registers the check of a component of this process.
    pub fn register(&self, name: &'static str, check: ComponentCheck) {
        self.components.write().insert(name, check);
    }
    /// Runs the check of a component.
    ///
    /// # Errors
    /// The component is unhealthy, or does not run in this process.
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
