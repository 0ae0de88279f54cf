//! What the informers feed, the decisions are made from, and the writes report to.
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::core::Core;

/// What the informers feed and the decisions are made from.
pub(super) struct Shared {
    pub core: Mutex<Core>,
    /// Rung when there may be something to decide.
    pub changed: Notify,
    /// Rung for all who wait until something is known.
    pub known: Notify,
}
