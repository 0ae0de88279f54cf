//! A watch is a position in the shared log. A cursor holds no events; it reads the events after its position on demand.

use std::sync::Arc;

use tokio::sync::watch;

use crate::error::StoreError;
use crate::event::Event;
use crate::key::Resource;
use crate::limits::{CURSOR_BATCH_BYTES_MAX, CURSOR_BATCH_MAX};
use crate::shared::Shared;
use crate::state::State;

/// A position in the log of one resource. Commits of other resources neither wake it nor cost it anything. Dropping the cursor ends the
/// watch.
pub struct Cursor {
    shared: Arc<Shared>,
    resource: Resource,
    position: u64,
    /// How often the records had been replaced without events when this watch began.
    restarts: u32,
    changed: watch::Receiver<()>,
}

impl Cursor {
    pub(crate) fn open(shared: &Arc<Shared>, resource: Resource, from: u64) -> Result<Self, StoreError> {
        let known = shared.state.read().slot(resource).map(|slot| slot.changed.subscribe());
        let changed = known.unwrap_or_else(|| shared.state.write().slot_mut(resource).changed.subscribe());
        let restarts = shared.state.read().restarts(resource);
        let cursor = Self { shared: Arc::clone(shared), resource, position: from, restarts, changed };
        cursor.check_floor(&shared.state.read())?;
        Ok(cursor)
    }

    /// Returns the next events in revision order, at most [`CURSOR_BATCH_MAX`] events and about [`CURSOR_BATCH_BYTES_MAX`] bytes. Waits
    /// if there is none. Cancel safe.
    ///
    /// # Errors
    /// Returns [`StoreError::Compacted`] if the log no longer reaches back to this cursor, so that the watcher must list again, and
    /// [`StoreError::Closed`] once the store is closed and all events were read.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event>>, StoreError> {
        loop {
            self.changed.borrow_and_update();
            let batch = self.try_next()?;
            if !batch.is_empty() {
                return Ok(batch);
            }
            if self.shared.is_closed() {
                return Err(StoreError::Closed);
            }
            self.changed.changed().await.map_err(|_| StoreError::Closed)?;
        }
    }

    /// Returns the next events without waiting. The result is empty if there are none.
    ///
    /// # Errors
    /// Returns [`StoreError::Compacted`] as [`Cursor::next`] does.
    pub fn try_next(&mut self) -> Result<Vec<Arc<Event>>, StoreError> {
        let state = self.shared.state.read();
        self.check_floor(&state)?;
        let slot = state.slot(self.resource);
        let mut batch: Vec<Arc<Event>> = Vec::new();
        let mut bytes = 0;
        for event in slot.into_iter().flat_map(|s| s.log.after(self.position)) {
            let full = batch.len() >= CURSOR_BATCH_MAX || bytes >= CURSOR_BATCH_BYTES_MAX;
            // Changes with the same revision, which a mirrored store can have, stay together, since the position is a revision.
            if full && batch.last().is_some_and(|last| last.revision != event.revision) {
                break;
            }
            bytes += event.record.len();
            batch.push(Arc::clone(event));
        }
        // When no events are pending, the position advances, so that the cursor of a quiet resource never falls behind.
        self.position = batch.last().map_or(self.position.max(state.revision), |event| event.revision);
        Ok(batch)
    }

    /// The store's revision if all events up to it were returned, for a bookmark. `None` while events are pending.
    #[must_use]
    pub fn progress(&self) -> Option<u64> {
        let state = self.shared.state.read();
        let pending = state.slot(self.resource).is_some_and(|slot| slot.log.has_after(self.position));
        (!pending && self.check_floor(&state).is_ok()).then_some(state.revision.max(self.position))
    }

    /// The revision up to which events were returned.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    fn check_floor(&self, state: &State) -> Result<(), StoreError> {
        let oldest = state.floor(self.resource);
        if self.position < oldest || state.restarts(self.resource) != self.restarts {
            return Err(StoreError::Compacted { requested: self.position, oldest });
        }
        Ok(())
    }
}
