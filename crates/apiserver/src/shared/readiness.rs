//! Whether the server has started whole, and whether it is going down.
use tokio::sync::watch;

/// Readiness of the server.
pub struct Readiness {
    ready: watch::Sender<bool>,
    stopping: std::sync::atomic::AtomicBool,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { ready: watch::Sender::new(false), stopping: Default::default() }
    }
}

impl Readiness {
    /// Everything that must be there at start is there.
    pub fn set_ready(&self) {
        self.ready.send_replace(true);
    }
    /// The server is going down: it is alive, but not ready any more.
    pub fn set_stopping(&self) {
        self.stopping.store(true, std::sync::atomic::Ordering::Release);
    }
    /// Whether everything that must be there at start is there.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }
    /// Follows readiness.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }
    /// Whether [`Readiness::set_stopping`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(std::sync::atomic::Ordering::Acquire)
    }
}
