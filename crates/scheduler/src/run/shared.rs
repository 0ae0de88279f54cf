//! The state shared by informers, decisions and writes.
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::core::Core;

/// The core behind its lock, with notifications.
pub(super) struct Shared {
    pub core: Mutex<Core>,
    /// Notified when there may be something to decide.
    pub changed: Notify,
    /// Notified, for all waiters, when an object changed.
    pub known: Notify,
}
